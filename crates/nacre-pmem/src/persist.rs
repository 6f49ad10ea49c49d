//! Telling the emulation, once, what was made durable.

use std::cell::Cell;
use std::path::Path;
use std::sync::OnceLock;

use nacre_emulator::Emulation;
use nacre_media::Observer;
use nacre_types::{DeviceOffset, StoreKind};

use crate::regions;

/// Names the file with settings and counters.
const VARIABLE: &str = "NACRE_EMULATION";

thread_local! {
    /// Calls of libpmem under way in this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Runs a function of libpmem. If it is not one that another one called, `len` bytes at `address`
/// are told of.
pub fn persist<R>(address: usize, len: usize, run: impl FnOnce() -> R) -> R {
    let before = DEPTH.try_with(|depth| depth.replace(depth.get() + 1));
    let result = run();
    if let Ok(before) = before {
        let _ending_thread = DEPTH.try_with(|depth| depth.set(before));
        if before == 0 && len > 0 {
            tell(address, len);
        }
    }
    result
}

/// Where nothing is mapped, the program is about to be told so by a signal; nothing is counted
/// then.
fn tell(address: usize, len: usize) {
    let Some(emulation) = emulation() else {
        return;
    };
    let end = address.saturating_add(len);
    let mut at = address;
    while at < end {
        let Some(region) = regions::around(emulation, at) else {
            return;
        };
        let part = region.end.min(end) - at;
        if let Some(device) = region.device {
            let offset = DeviceOffset(region.offset + (at - region.start) as u64);
            emulation.persisted(device, offset, part as u64, StoreKind::Data);
        }
        at += part;
    }
}

fn emulation() -> Option<&'static Emulation> {
    static JOINED: OnceLock<Option<Emulation>> = OnceLock::new();
    JOINED.get_or_init(join).as_ref()
}

fn join() -> Option<Emulation> {
    let path = nacre_runtime::setting(VARIABLE)?;
    let joined = Emulation::join_for_files(Path::new(&path));
    joined.unwrap_or_else(|error| {
        eprintln!("nacre: {error}");
        None
    })
}
