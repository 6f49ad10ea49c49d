//! Watching what is stored: for crash exploration, emulation and wear counting.

use std::sync::Arc;

use nacre_types::{DeviceOffset, StoreKind};

/// Is told of every store, flush and fence, in the order in which the calling thread makes them.
///
/// Called synchronously by the storing thread, after the bytes are in the mapping and before the call returns.
pub trait Observer: Send + Sync {
    /// `bytes` were stored at `at` of device number `device`. `atomic` tells an aligned 8-byte store that cannot tear.
    fn store(&self, device: u16, at: DeviceOffset, bytes: &[u8], kind: StoreKind, atomic: bool);

    /// The lines that hold these bytes were flushed (also reported where the device needs no flush).
    fn flush(&self, device: u16, at: DeviceOffset, len: u64);

    /// The calling thread's earlier flushes on device number `device` are complete.
    fn fence(&self, device: u16);
}

/// An observer and the number by which it knows the device.
pub(crate) struct Watcher {
    pub device: u16,
    pub observer: Arc<dyn Observer>,
}
