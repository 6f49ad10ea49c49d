//! What passes outside of a wait: the way from the end of a store to the first look at the counter,
//! and from the last one to whoever stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nacre_media::Observer;
use nacre_types::{DeviceOffset, LINE_SIZE, StoreKind};

use crate::bed::{Bed, Exchange, in_turn, middle};
use crate::clock::{NO_BREAKS, set_outside, ticks, wait_evenly};
use crate::error::EmulationError;

/// It is the mean of so many waits of so many ticks.
const ROUNDS: usize = 100;
const SAMPLE: u64 = 1000;

/// Measures it for all later waits of this process, in 0.1 ms. Nobody waits for that: who is not
/// told, as a fork came between, is delayed a few nanoseconds too long.
pub(crate) fn learn() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if !BEGUN.swap(true, Relaxed) {
        set_outside(measure().unwrap_or(0));
    }
}

/// A store of a line that waits is compared with one that does not: all that comes on the way
/// counts, calls of the observer too.
fn measure() -> Result<u64, EmulationError> {
    let waits: Arc<dyn Observer> = Arc::new(Waits);
    let bed = |observer| Bed::new(Exchange::Persist, observer, LINE_SIZE);
    let mut beds = [bed(None)?, bed(Some(&waits))?];
    let [plain, slow] = in_turn(&mut beds, ROUNDS).map(middle);
    let outside = slow - plain - SAMPLE as f64;
    Ok(outside.clamp(0.0, NO_BREAKS as f64).round() as u64)
}

/// Has each store take so many ticks more.
struct Waits;

impl Observer for Waits {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {}

    fn wants_stores(&self) -> bool {
        false
    }

    fn persisted(&self, _: u16, _: DeviceOffset, _: u64, _: StoreKind) {
        wait_evenly(ticks() + SAMPLE);
    }
}
