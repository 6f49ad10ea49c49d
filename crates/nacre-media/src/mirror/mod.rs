//! Several devices that hold the same: the legs of a mirror (D57).
//!
//! A mapped window whose device is a mirror has bounds of 0, as one behind an image: each access
//! takes the slow path, which is here. Loads are of one leg, the same one for all processes; reads
//! of what is sealed may be of any (`reads`, D72). Stores are made on all legs under the lock of
//! their unit, the one that is read last, so legs agree whenever nobody holds the lock.
//!
//! # Rules
//! - **M1 A bit before its region.** Before the first store of a session to a region its bit is
//!   durable on all legs that are stored to. So after a crash legs differ in such regions only. Who
//!   stores looks at the bit under the lock of its unit, so it can be taken back meanwhile.
//! - **M2 What is seen is on all legs.** The leg that is read is stored to last; of a large store,
//!   line by line (D90).
//! - **M3 A dead holder's store is over.** Who gets its lock makes the legs agree first where it
//!   stored.
//! - **M4 A lost leg is known before anything is acknowledged.** A fence looks for legs that failed
//!   and returns only when the labels of the others say so.
//! - **M5 Who looks decides.** Each access looks at the states first. A load of a leg that was
//!   dropped meanwhile yields what was there when it looked, as if it had been quicker; who must
//!   know more holds a lock above, or validates.
//! - **M6 A seal goes before its bits.** Who clears bits of regions has durably removed the seals
//!   of their spans, so a seal whose bits are clear is of the bytes that are there.
//! - **M7 What a leg lacks is told before it is one.** A device has the bits of all regions and no
//!   seal before any label says that it is being rebuilt.
//! - **M8 The seal epoch moves before bits are taken back.** So whoever has summed a span up while
//!   it was quiet, and finds the bits clear and then the epoch unmoved, knows that nobody has begun
//!   to store there since.
//! - **M9 Whole regions come from what is still a leg.** Whoever makes legs agree in whole regions
//!   looks first whether something else was written over the one that is read. What a rebuild
//!   copied counts if no leg was lost meanwhile.
//! - **M10 A seal goes with what it is of.** A leg gets the seal of a span behind all of its bytes.
//!   So what is not as it was sealed is known on that leg, too, whatever becomes of the others.
//! - **M11 What was written over says nothing.** A leg that does not begin with a label may have
//!   lost its bitmap, too. Before it gets a label again it has the bits of all regions and no seal.
//! - **M12 A crash spreads no damage that tells itself.** Where legs differ after it, any of them
//!   is a state that the crash may leave: what was fenced is on all. So one that is right by its
//!   own checksums goes before the one that is read, if that is wrong by them.
//! - **M13 Under the lock of a unit only damage differs.** So whoever knows what lies there, and
//!   finds one leg right and the one that is read wrong by checksums, repairs it at once. Nothing
//!   that somebody stores is taken back: it is on all legs, or behind the repair.

mod layout;
mod legs;
mod reads;
mod rebuild;
mod repair;
mod scrub;
mod seals;
mod shared;
mod spans;
mod states;
mod stores;
mod sum;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nacre_types::DeviceOffset;

use crate::device::Device;
use crate::error::{MediaError, MediaFailed};
use crate::media::Media;
use crate::spare::Spare;
use reads::Reads;
use shared::Shared;
use states::SLOTS;

pub use layout::{MOST_BYTES as MIRROR_MOST_BYTES, SEALS_AT};
pub use rebuild::RebuildProgress;
pub use shared::MirrorCounts;
pub use spans::Spans;
pub use states::{LegState, MOST_LEGS, States};

/// A registry of devices and labels.
pub trait LegRegistry: Send + Sync {
    /// Opens a leg that another process has added, by its identity.
    fn open(&self, leg: [u8; 16]) -> Option<Arc<Device>>;
    /// Hears of a device that this process has made a leg.
    fn came(&self, _leg: [u8; 16], _device: &Arc<Device>) {}
    /// Hears of a leg that was mapped before anything is stored to it: its data, and what lies in
    /// front of that.
    fn mapped(&self, _device: &Device, _windows: [&Media; 2]) {}
    /// Whether a device is still this leg: nothing else was written over its label.
    fn is_still(&self, _leg: [u8; 16], _device: &Arc<Device>) -> bool {
        true
    }
    /// Makes the labels of all legs that are stored to say what the legs are; durable on return.
    fn record(&self, legs: &[LegFacts]) -> Result<(), MediaFailed>;
}

/// What is known of one leg.
#[derive(Clone, Debug)]
pub struct LegFacts {
    /// Its place in the states.
    pub slot: usize,
    /// Its identity.
    pub id: [u8; 16],
    /// What it is to the others.
    pub state: LegState,
    /// Its device, if this process has it.
    pub device: Option<Arc<Device>>,
}

/// One device, mapped.
struct Leg {
    data: Media,
    /// What lies in front of the data: the bitmap.
    front: Media,
    id: [u8; 16],
}

/// The legs of a mirror, as one process sees them.
pub struct Mirror {
    pool: [u8; 16],
    /// The data, on each device.
    window: Range<u64>,
    spans: Spans,
    /// Legs by their slots in the shared file.
    legs: [OnceLock<Arc<Leg>>; SLOTS],
    /// The states before there is a shared file, with slots in the order of `opened`.
    first: States,
    /// The identities of the legs that it was made of, and those that were there.
    opened: Vec<([u8; 16], Option<Arc<Leg>>)>,
    /// Legs in whose place something else was found.
    damaged: Vec<[u8; 16]>,
    /// What the labels said when it was opened.
    labelled: States,
    shared: OnceLock<Shared>,
    /// The states by which spares were set.
    seen: AtomicU64,
    registry: OnceLock<Arc<dyn LegRegistry>>,
    reads: Reads,
    /// Memory that spans were compared in.
    spare: Spare<Vec<u8>>,
    writable: bool,
}

/// A leg that a mirror is made of.
pub struct NewLeg {
    /// Its identity.
    pub id: [u8; 16],
    /// What it is, as the labels say.
    pub state: LegState,
    /// Its device, if it is there.
    pub device: Option<Arc<Device>>,
    /// Something is there, but not what was.
    pub is_damaged: bool,
}

impl Leg {
    fn new(device: &Arc<Device>, window: &Range<u64>, id: [u8; 16]) -> Result<Self, MediaError> {
        let len = window.end - window.start;
        Ok(Self {
            data: Media::map(device, DeviceOffset(window.start), len, None)?,
            front: Media::map(device, DeviceOffset(0), window.start, None)?,
            id,
        })
    }

    fn tell(&self, registry: &dyn LegRegistry) {
        if let Some(device) = self.data.device() {
            registry.mapped(device, [&self.data, &self.front]);
        }
    }
}

impl Mirror {
    /// Of legs, at most [`MOST_LEGS`], whose data lies in `window`. `None`: none is current and
    /// there.
    pub fn new(
        pool: [u8; 16],
        window: Range<u64>,
        writable: bool,
        legs: &[NewLeg],
    ) -> Result<Option<Self>, MediaError> {
        let there = |leg: &NewLeg| match (leg.state, &leg.device) {
            (LegState::Current | LegState::Rebuilding, None) if leg.is_damaged => LegState::Failed,
            (LegState::Current, None) => LegState::Missing,
            // What it lacks, it says itself.
            (LegState::Rebuilding, None) => LegState::Failed,
            (state, _) => state,
        };
        let spans = Spans::new(pool, window.clone());
        let labelled = States::new(legs.iter().map(|leg| leg.state));
        let Some(first) = States::new(legs.iter().map(there)) else {
            return Ok(None);
        };
        let mut mirror = Self {
            pool,
            window,
            opened: Vec::new(),
            legs: [const { OnceLock::new() }; SLOTS],
            first,
            damaged: legs
                .iter()
                .filter(|leg| leg.is_damaged)
                .map(|leg| leg.id)
                .collect(),
            labelled: labelled.unwrap_or(first),
            shared: OnceLock::new(),
            seen: AtomicU64::new(0),
            registry: OnceLock::new(),
            reads: Reads::new(spans.all().end, spans.regions_of_one())?,
            spare: Spare::new(MOST_LEGS),
            spans,
            writable,
        };
        for new in legs {
            let device = new.device.as_ref().filter(|_| there(new).is_stored_to());
            let leg = device.map(|device| Leg::new(device, &mirror.window, new.id));
            mirror.opened.push((new.id, leg.transpose()?.map(Arc::new)));
        }
        Ok(Some(mirror))
    }

    /// The leg of a slot, if this process has it.
    #[inline]
    fn leg(&self, slot: usize) -> Option<&Leg> {
        match self.legs[slot].get() {
            Some(leg) => Some(leg),
            None => self.leg_at_first(slot),
        }
    }

    /// As [`Mirror::leg`], while there is no shared file.
    #[cold]
    #[inline(never)]
    fn leg_at_first(&self, slot: usize) -> Option<&Leg> {
        let (_, leg) = self.opened.get(slot).filter(|_| !self.is_up())?;
        leg.as_deref()
    }

    /// Sets what knows devices and labels. Only the first counts.
    pub fn set_registry(&self, registry: Arc<dyn LegRegistry>) {
        for leg in self.opened.iter().filter_map(|(_, leg)| leg.as_ref()) {
            leg.tell(registry.as_ref());
        }
        // A second one is refused, as documented.
        let _ = self.registry.set(registry);
    }

    /// Begins what processes share about it in an empty file. The caller is alone with the pool.
    /// What a crash left is repaired.
    pub fn create_shared(&self, file: OwnedFd) -> io::Result<()> {
        let shared = Shared::create(file, self.pool, self.window.end)?;
        for (slot, (id, _)) in self.opened.iter().enumerate() {
            shared.set_leg(slot, *id);
        }
        shared.set_states(self.first);
        shared.set_labelled(self.labelled);
        self.use_shared(shared)
    }

    /// Joins those who use it. `false`: nobody does, and the file is of no use.
    pub fn join_shared(&self, file: OwnedFd) -> io::Result<bool> {
        let Some(shared) = Shared::open(file, self.pool, self.window.end)? else {
            return Ok(false);
        };
        if shared.enter(true)? {
            return Ok(false);
        }
        self.use_shared(shared)?;
        Ok(true)
    }

    fn use_shared(&self, shared: Shared) -> io::Result<()> {
        shared.enter(false)?;
        self.take_slots(&shared);
        // A second one is refused: the first goes on.
        let _ = self.shared.set(shared);
        self.adapt(self.states());
        Ok(())
    }

    /// Gives the legs that were there the slots in which others know them: the order of the table
    /// is another one if copies came and went since the shared file was made.
    fn take_slots(&self, shared: &Shared) {
        let states = shared.states();
        for slot in (0..SLOTS).filter(|&slot| states.of(slot).is_some()) {
            let mut legs = self.opened.iter().filter_map(|(_, leg)| leg.as_ref());
            if let Some(leg) = legs.find(|leg| leg.id == shared.leg(slot)) {
                // Of two files the first one counts, as below.
                let _ = self.legs[slot].set(Arc::clone(leg));
            }
        }
    }

    /// Whether its shared file is there.
    pub fn is_up(&self) -> bool {
        self.shared.get().is_some()
    }

    /// Whether nobody else uses it, from now on.
    pub fn is_last(&self) -> bool {
        let shared = self.shared.get();
        shared.is_some_and(|shared| shared.enter(true).unwrap_or(false))
    }

    /// What its legs are now.
    #[inline]
    pub fn states(&self) -> States {
        self.shared.get().map_or(self.first, Shared::states)
    }

    /// What has happened to it.
    pub fn counts(&self) -> MirrorCounts {
        let shared = self.shared.get();
        shared.map(Shared::counts).unwrap_or_default()
    }

    /// Whether the caller is the one who scrubs now, of those who do so by themselves. It is
    /// nobody's turn again before `next`. Moments are of any clock that all of them share.
    pub fn take_scrub(&self, now: u64, next: u64) -> bool {
        let shared = self.shared.get().filter(|_| self.writable);
        shared.is_some_and(|shared| shared.scrub_turn().take(now, next))
    }

    /// A span of which somebody who read it found a copy that does not hold what was sealed. It is
    /// told once, to be scrubbed.
    pub fn take_suspect(&self) -> Option<u64> {
        let shared = self.shared.get().filter(|_| self.writable);
        shared.and_then(Shared::take_suspect)
    }

    /// Whoever has taken the turn still scrubs: it is nobody's before `next`.
    pub fn keep_scrub(&self, next: u64) {
        if let Some(shared) = self.shared.get() {
            shared.scrub_turn().keep(next);
        }
    }

    /// All legs that the pool has.
    pub fn facts(&self) -> Vec<LegFacts> {
        let states = self.states();
        let fact = |slot: usize| {
            let leg = self.leg(slot);
            let known = self.shared.get().map(|shared| shared.leg(slot));
            Some(LegFacts {
                slot,
                id: known.or(leg.map(|leg| leg.id))?,
                state: states.of(slot)?,
                device: leg.and_then(|leg| leg.data.device().cloned()),
            })
        };
        (0..SLOTS).filter_map(fact).collect()
    }

    /// The mapped legs of this process that are stored to, with their slots.
    pub fn mapped(&self) -> impl Iterator<Item = (usize, &Media)> {
        let slots = self.states().stored_to();
        slots.filter_map(|slot| Some((slot, &self.leg(slot)?.data)))
    }

    /// The leg in front of the data of a leg, which holds its bitmap: for who watches stores.
    pub fn fronts(&self) -> impl Iterator<Item = (usize, &Media)> {
        let slots = self.states().stored_to();
        slots.filter_map(|slot| Some((slot, &self.leg(slot)?.front)))
    }

    fn shared(&self) -> &Shared {
        match self.shared.get() {
            Some(shared) => shared,
            None => panic!("a mirror is used before its shared file is there"),
        }
    }

    /// The leg to read.
    #[inline]
    pub(crate) fn reader(&self) -> &Media {
        let states = self.states();
        if states.0 != self.seen.load(Ordering::Acquire) {
            self.adapt(states);
            return self.any_reader();
        }
        match self.leg(states.read_slot()) {
            Some(leg) if !leg.data.watched.is_lost() => &leg.data,
            _ => self.any_reader(),
        }
    }
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror")
            .field("states", &self.states())
            .finish_non_exhaustive()
    }
}
