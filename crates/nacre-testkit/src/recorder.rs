//! Notes stores, flushes and fences while it is switched on.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nacre_types::{DeviceOffset, StoreKind};
use nacre_volume::{Observer, Volume};

use crate::turns::Turns;

/// Where in the source something is done; not known in builds without the feature `explore`.
pub type SourcePlace = Option<&'static Location<'static>>;

/// What happened to the medium.
#[derive(Clone, Debug)]
pub struct Event {
    /// What.
    pub what: What,
    /// Which of the programs that run side by side did it.
    pub lane: usize,
    /// Where in the source.
    pub place: SourcePlace,
    /// A flush or fence that is left out, to see whether that is noticed.
    pub off: bool,
}

/// What happened to the medium.
#[derive(Clone, Debug)]
pub enum What {
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
    /// What this program flushed became durable.
    Fence,
    /// An operation of this program returned.
    Done,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lane = self.lane;
        match &self.what {
            What::Store { at, bytes, kind } => {
                let len = bytes.len();
                write!(f, "program {lane}: store {at:#x} {len} bytes, {kind:?}")?;
            }
            What::Flush { at, len, .. } => write!(f, "program {lane}: flush {at:#x} {len} bytes")?,
            What::Fence => write!(f, "program {lane}: fence")?,
            What::Done => write!(f, "program {lane}: operation returned")?,
        }
        match self.place {
            Some(place) => write!(f, "   {place}"),
            None => Ok(()),
        }
    }
}

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(0) };
}

/// Says which of the programs that run side by side this thread is.
pub fn set_lane(lane: usize) {
    LANE.set(lane);
}

/// The observer of one volume.
#[derive(Default)]
pub struct Recorder {
    on: AtomicBool,
    events: Mutex<Vec<Event>>,
    turns: Mutex<Option<Arc<Turns>>>,
    /// First address of each device, if they lie side by side.
    starts: OnceLock<Vec<u64>>,
}

impl Recorder {
    /// Notes from now on what happens to a volume.
    pub fn of(volume: &Volume) -> Arc<Recorder> {
        let recorder = Arc::new(Recorder::default());
        let observer: Arc<dyn Observer> = Arc::clone(&recorder) as Arc<dyn Observer>;
        volume.set_observer(&observer);
        recorder.start();
        recorder
    }

    /// Notes volume offsets of a volume of several devices from now on, not a range of addresses
    /// for each.
    pub fn note_offsets(&self, volume: &Volume) {
        let devices = volume.devices();
        let starts = devices.iter().map(|device| device.range.start.0).collect();
        // They are the same for each volume that it watches.
        let _ = self.starts.set(starts);
    }

    /// One number for device and offset; a volume offset where there is one device without a label.
    fn address(&self, device: u16, at: DeviceOffset) -> u64 {
        let starts = self.starts.get();
        let start = starts.and_then(|starts| starts.get(usize::from(device)).copied());
        start.unwrap_or(u64::from(device) * DEVICE) + at.0
    }

    /// Starts with an empty list.
    pub fn start(&self) {
        lock(&self.events).clear();
        self.on.store(true, Ordering::Relaxed);
    }

    /// Stops and hands the list over.
    pub fn stop(&self) -> Vec<Event> {
        self.on.store(false, Ordering::Relaxed);
        std::mem::take(&mut lock(&self.events))
    }

    /// Makes threads take turns at fences.
    pub fn set_turns(&self, turns: Option<Arc<Turns>>) {
        *lock(&self.turns) = turns;
    }

    /// Notes that an operation returned.
    pub fn mark_done(&self) {
        self.note(None, |_| What::Done);
        self.step();
    }

    fn step(&self) {
        let turns = lock(&self.turns).clone();
        if let Some(turns) = turns {
            turns.step(LANE.get());
        }
    }

    fn note(&self, place: SourcePlace, what: impl FnOnce(&[Event]) -> What) {
        if self.on.load(Ordering::Relaxed) {
            let mut events = lock(&self.events);
            let what = what(&events);
            let lane = LANE.get();
            events.push(Event {
                what,
                lane,
                place,
                off: false,
            });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// First address of the second device.
pub const DEVICE: u64 = 1 << 32;

#[cfg(feature = "explore")]
fn place() -> SourcePlace {
    nacre_types::site::last()
}

#[cfg(not(feature = "explore"))]
fn place() -> SourcePlace {
    None
}

impl Observer for Recorder {
    fn store(&self, device: u16, at: DeviceOffset, bytes: &[u8], kind: StoreKind, _: bool) {
        self.note(place(), |_| What::Store {
            at: self.address(device, at),
            bytes: bytes.into(),
            kind,
        });
    }

    fn flush(&self, device: u16, at: DeviceOffset, len: u64) {
        self.note(place(), |before| {
            let kind = match before.last().map(|event| &event.what) {
                Some(What::Store { kind, .. }) => Some(*kind),
                _ => None,
            };
            let at = self.address(device, at);
            What::Flush { at, len, kind }
        });
    }

    /// Others may come before it and behind it.
    fn fence(&self, _: u16) {
        let place = place();
        if self.on.load(Ordering::Relaxed) {
            self.step();
        }
        self.note(place, |_| What::Fence);
        if self.on.load(Ordering::Relaxed) {
            self.step();
        }
    }
}
