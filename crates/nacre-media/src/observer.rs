//! Watching what is stored: for crash exploration, emulation and wear counting.

use std::sync::Arc;

use nacre_types::{DeviceOffset, StoreKind};

/// Is told of every store, flush and fence, in the order in which the calling thread makes them.
///
/// Called synchronously by the storing thread, after the bytes are in the mapping and before the
/// call returns.
pub trait Observer: Send + Sync {
    /// `bytes` were stored at `at` of device number `device`. `atomic` tells an aligned 8-byte
    /// store that cannot tear.
    fn store(&self, device: u16, at: DeviceOffset, bytes: &[u8], kind: StoreKind, atomic: bool);

    /// The lines that hold these bytes were flushed (also reported where the device needs no
    /// flush).
    fn flush(&self, device: u16, at: DeviceOffset, len: u64);

    /// The calling thread's earlier flushes on device number `device` are complete.
    fn fence(&self, device: u16);

    /// The calling thread waited until what it had stored was in the device's buffer, between two
    /// pieces of one store. Earlier stores may be reordered with later ones all the same after a
    /// crash, as far as the observer is to assume.
    fn ordered(&self, _device: u16) {}

    /// Whether [`Observer::store`] and [`Observer::flush`] shall be called; asked once. Whoever
    /// only counts or delays does without, and saves the copy of the bytes.
    fn wants_stores(&self) -> bool {
        true
    }

    /// `len` bytes at `at` were stored and flushed, or were stored before and are flushed now: what
    /// wears the device. Each flush is reported once, with the kind of what it makes durable.
    fn persisted(&self, _device: u16, _at: DeviceOffset, _len: u64, _kind: StoreKind) {}

    /// `len` bytes at `at` were copied from the device. Loads of single words are not reported.
    fn read(&self, _device: u16, _at: DeviceOffset, _len: u64) {}
}

/// An observer and the number by which it knows the device.
pub(crate) struct Watcher {
    pub device: u16,
    /// What [`Observer::wants_stores`] answered.
    stores: bool,
    pub observer: Arc<dyn Observer>,
}

impl Watcher {
    pub fn new(device: u16, observer: Arc<dyn Observer>) -> Self {
        Self {
            device,
            stores: observer.wants_stores(),
            observer,
        }
    }

    /// Tells of an atomic store of 8 bytes.
    #[cold]
    pub fn word(&self, at: DeviceOffset, value: u64, kind: StoreKind) {
        if self.stores {
            self.observer
                .store(self.device, at, &value.to_le_bytes(), kind, true);
        }
    }

    /// Tells of a flush.
    #[cold]
    pub fn flushed(&self, at: DeviceOffset, len: u64, kind: StoreKind) {
        if self.stores {
            self.observer.flush(self.device, at, len);
        }
        self.observer.persisted(self.device, at, len, kind);
    }

    /// Tells of a store of bytes and the flush that belongs to it; `bytes` gives what is now on the
    /// medium.
    #[cold]
    pub fn bytes(
        &self,
        at: DeviceOffset,
        len: u64,
        kind: StoreKind,
        bytes: impl FnOnce() -> Vec<u8>,
    ) {
        if self.stores {
            self.observer.store(self.device, at, &bytes(), kind, false);
        }
        self.flushed(at, len, kind);
    }

    /// Tells of a read.
    #[cold]
    pub fn read(&self, at: DeviceOffset, len: u64) {
        self.observer.read(self.device, at, len);
    }
}
