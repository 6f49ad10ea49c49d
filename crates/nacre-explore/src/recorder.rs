//! Notes stores, flushes and fences while it is switched on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nacre_types::{DeviceOffset, StoreKind};
use nacre_volume::Observer;

/// What happened to the medium.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes were stored.
    Store {
        /// Volume offset.
        at: u64,
        /// What was stored.
        bytes: Box<[u8]>,
        /// What for.
        kind: StoreKind,
    },
    /// Lines were flushed.
    Flush {
        /// Volume offset.
        at: u64,
        /// Bytes.
        len: u64,
        /// Kind of the store just before.
        kind: Option<StoreKind>,
    },
    /// Flushed lines became durable.
    Fence,
    /// An operation returned.
    Done,
}

/// The observer of one volume.
#[derive(Default)]
pub struct Recorder {
    on: AtomicBool,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    /// Starts with an empty list.
    pub fn start(&self) {
        self.list().clear();
        self.on.store(true, Ordering::Relaxed);
    }

    /// Stops and hands the list over.
    pub fn stop(&self) -> Vec<Event> {
        self.on.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.list())
    }

    /// Notes that an operation returned.
    pub fn mark_done(&self) {
        self.note(|_| Event::Done);
    }

    fn list(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, event: impl FnOnce(&[Event]) -> Event) {
        if self.on.load(Ordering::Relaxed) {
            let mut events = self.list();
            let event = event(&events);
            events.push(event);
        }
    }
}

impl Observer for Recorder {
    fn store(&self, _: u16, at: DeviceOffset, bytes: &[u8], kind: StoreKind, _: bool) {
        self.note(|_| Event::Store {
            at: at.0,
            bytes: bytes.into(),
            kind,
        });
    }

    fn flush(&self, _: u16, at: DeviceOffset, len: u64) {
        self.note(|before| {
            let kind = match before.last() {
                Some(Event::Store { kind, .. }) => Some(*kind),
                _ => None,
            };
            Event::Flush {
                at: at.0,
                len,
                kind,
            }
        });
    }

    fn fence(&self, _: u16) {
        self.note(|_| Event::Fence);
    }
}
