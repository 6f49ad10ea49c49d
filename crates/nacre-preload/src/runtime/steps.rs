//! For tests: ends or stops this process at its n-th step in shared memory or on the medium.

use std::sync::Arc;

use nacre_media::Observer;
use nacre_session::step;
use nacre_store::Store;
use nacre_types::{DeviceOffset, StoreKind};

use crate::runtime::environment::Environment;

struct Counting;

impl Observer for Counting {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {
        step::point();
    }
    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}
    fn fence(&self, _: u16) {
        step::point();
    }
}

/// A program that is to die on its way in or out has the number of the step in its environment.
pub fn start(environment: &Environment) {
    let number = environment.setting("NACRE_KILL_STEP");
    let number = number.and_then(|text| core::str::from_utf8(text).ok()?.parse().ok());
    if let Some(number) = number {
        step::arm(number);
    }
}

/// Stores and fences on the medium count as steps from now on.
pub fn watch(store: &Store) {
    let counting: Arc<dyn Observer> = Arc::new(Counting);
    store.volume().set_observer(&counting);
}

/// For test programs: the calling process dies at its `n`-th step from now on.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_step_arm(n: u64) {
    step::arm(n);
}

/// For test programs: the calling process stops at its `n`-th step from now on.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_step_arm_stop(n: u64) {
    step::arm_stop(n);
}

/// For test programs: the thread that makes the `n`-th step from now on stays there.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_step_arm_hold(n: u64) {
    step::arm_hold(n);
}

/// For test programs: whether a thread stays at its step.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_step_held() -> bool {
    step::is_held()
}

/// For test programs: steps that the calling process has made since it was armed.
#[unsafe(no_mangle)]
pub extern "C" fn nacre_step_passed() -> u64 {
    step::passed()
}
