//! Attach and detach: joining or making the session, recovery, the clean flag.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use nacre_runtime::{Folder, RuntimeError};
use nacre_session::{Geometry, Liveness, Session, SessionError, SessionPlace, SlotRef, pause};
use nacre_types::{Clock, ObjectId, UNIT_SIZE, UNITS_PER_BLOCK, UnitNo, site};
use nacre_volume::{Access, Policy, PoolLock, Presence, Volume};

use crate::error::{Result, StoreError};
use crate::lane::lane_list_at;
use crate::layout::{HEADER_UNITS, MAX_BLOCKS, MAX_LANES, ONODES_PER_BLOCK};
use crate::object::blocks::block_list_at;
use crate::recovery::format::random_u64;
use crate::recovery::image;
use crate::recovery::scan;
use crate::runtime::{make_session, place, readers_place};
use crate::store::Store;
use crate::superblock::{PoolState, Superblock};
use crate::worth::{compare_onodes, repair_header};
use crate::write_mode::WriteMode;

/// How often somebody who is kept off by others tries again: for a second.
const PATIENCE: usize = 100;

/// Which session to work in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SessionChoice {
    /// The session file that all processes share.
    #[default]
    Shared,
    /// Memory of this process and the children that it forks. Nobody else may use the pool.
    Memory,
}

/// How to attach. The attachment is read-only if the volume is.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachOptions {
    /// Which session.
    pub session: SessionChoice,
    /// Write mode instead of the pool's own.
    pub mode: Option<WriteMode>,
    /// Take over the slot that this process already owns, after exec.
    pub resume: bool,
    /// In which sizes to write and read, instead of what the devices' labels say.
    pub granularity: Option<Policy>,
    /// A scan may start threads: not inside of a program that knows nothing of Nacre.
    pub parallel: bool,
    /// Where changes get their times from.
    pub clock: Clock,
    /// This process changes nothing that others see.
    pub looks: bool,
}

impl Store {
    /// Attaches the pool on a volume: joins the session of the processes that use it, or makes one
    /// and recovers the pool.
    pub fn attach(volume: Volume, options: &AttachOptions) -> Result<Store> {
        Store::attach_in(volume, options, None)
    }

    /// As [`Store::attach`], for who has found the pool's folder already.
    pub fn attach_in(
        volume: Volume,
        options: &AttachOptions,
        folder: Option<&Arc<Folder>>,
    ) -> Result<Store> {
        let (volume, superblock, entry) = come_in(volume, options.session, folder)?;
        if let Some(session) = entry.live {
            return Store::join(volume, session, superblock, options);
        }
        let geometry = geometry(&volume);
        let stamp = match volume.access() {
            Access::ReadWrite => {
                volume.begin_use()?;
                random_u64()
            }
            Access::ReadOnly => {
                volume.refuse_older_devices()?;
                entry.stamp
            }
        };
        let (place, session) = match (options.session, volume.access()) {
            (SessionChoice::Memory, _) => {
                let session = Session::memory(geometry)?;
                return Store::open_pool(volume, session, superblock, options, random_u64());
            }
            (SessionChoice::Shared, Access::ReadWrite) => make_session(&volume, geometry, stamp)?,
            (SessionChoice::Shared, Access::ReadOnly) => {
                let place = readers_place(&volume, true)?.ok_or(StoreError::InUse)?;
                let session = Session::create(&place, geometry, stamp)?;
                (place, session)
            }
        };
        let store = Store::open_pool(volume, session, superblock, options, stamp);
        match &store {
            Ok(store) if store.writable => store.volume.enter(Presence::Member).map(|_| ())?,
            // A damaged pool is nobody's.
            Ok(store) if store.volume.access() == Access::ReadWrite => store.volume.leave()?,
            Ok(_) => {}
            // Half made: of no use to anybody, and the next attach would replace it anyway.
            Err(_) => {
                let _ = place.folder().remove(place.name());
                place.folder().leave_if_unused();
            }
        }
        store
    }

    /// Leaves the pool. The last process saves the allocation state and marks the pool clean.
    pub fn detach(self) -> Result<()> {
        self.close().map(drop)
    }

    /// As [`Store::detach`]; gives the volume back.
    pub fn close(self) -> Result<Volume> {
        let shared = self.session.path().is_some();
        let lock = match shared {
            true => Some(self.volume.lock_exclusive()?),
            false => None,
        };
        let me = self.slot();
        if !self.session.begin_closing(me) {
            self.session.release_slot(me);
            drop(lock);
            return Ok(self.into_volume());
        }
        let saved = self.save().and_then(|()| self.commit_now());
        self.session.release_slot(me);
        let saved = saved.and_then(|()| image::retire(&self.volume));
        if shared && self.report.problems == 0 {
            self.session.unlink()?;
        }
        self.volume.leave()?;
        drop(lock);
        saved?;
        Ok(self.into_volume())
    }

    /// Leaves the pool as a process does that dies: nothing is saved or marked. Gives the volume
    /// back, for tests of recovery.
    pub fn abandon(self) -> Volume {
        self.into_volume()
    }

    /// Finishes dead processes. For each: its log record is replayed, then `release` gives back
    /// what the layers above hold for it, then its slot is free. The caller holds no lock.
    pub fn reap(&self, release: &mut dyn FnMut(SlotRef) -> Result<()>) -> Result<()> {
        let dead: Vec<SlotRef> = self.session.dead_slots().collect();
        for slot in dead {
            self.session.reap(self.slot(), slot, &mut |dead| {
                self.recover_slot(dead)?;
                release(dead)
            })?;
        }
        Ok(())
    }

    /// The slot of the program that this process ran before, if that had threads. They died in the
    /// middle of operations, so the slot is to be reaped before [`Store::take_former_slot`].
    pub fn former_slot(&self) -> Option<SlotRef> {
        self.former
    }

    /// Once the former slot has been reaped: it is this store's again.
    pub fn take_former_slot(&self) -> Result<()> {
        let me = self.slot();
        let own = self.session.find_own_slot_but(Some(me));
        self.set_slot(own.ok_or(nacre_session::SlotError::Lost)?);
        self.session.release_slot(me);
        Ok(())
    }

    /// Slots of processes that died and are not finished yet.
    pub fn dead_slots(&self) -> impl Iterator<Item = SlotRef> + '_ {
        self.session.dead_slots()
    }

    fn join(
        volume: Volume,
        session: Session,
        superblock: Superblock,
        options: &AttachOptions,
    ) -> Result<Store> {
        let own = options.resume.then(|| session.find_own_slot()).flatten();
        let former = own.filter(|&own| session.end_exec(own));
        let changes = volume.access() == Access::ReadWrite && !options.looks;
        let slot = match own {
            Some(slot) if former.is_none() => slot,
            _ if changes => session.claim_slot()?,
            _ => session.claim_slot_to_look()?,
        };
        if changes {
            session.will_change(slot);
        }
        let mode = options.mode.unwrap_or(superblock.mode);
        let mut store = Store::new(volume, session, superblock, slot, mode);
        store.cut(options);
        store.clock = options.clock;
        store.report.joined = true;
        store.former = former;
        store.leave_lost();
        Ok(store)
    }

    /// Media writes and reads from now on in the sizes that suit the devices, by the traffic of all
    /// processes.
    fn cut(&self, options: &AttachOptions) {
        let traffic = self.session.traffic();
        self.volume.set_granularity(options.granularity, &traffic);
        let me = u64::from(self.slot().slot);
        self.volume.set_share(me);
        // Of the program that this process ran before.
        self.volume.end_windows_of(me);
    }

    /// Opens the pool in a new session that nobody else uses yet.
    fn open_pool(
        volume: Volume,
        session: Session,
        superblock: Superblock,
        options: &AttachOptions,
        stamp: u64,
    ) -> Result<Store> {
        let mut state = unless_failed(&volume, PoolState::read(&volume))?;
        let slot = session.claim_slot()?;
        let mode = options.mode.unwrap_or(superblock.mode);
        let mut store = Store::new(volume, session, superblock, slot, mode);
        store.cut(options);
        store.clock = options.clock;
        store.check_length(&state)?;
        store.count_lists()?;
        store.report.replayed = store.replay_all()?;
        let orphans = store.fill_session(&state, options.parallel)?;
        store.volume.unsettle();
        if store.report.problems > 0 {
            store.quarantine()?;
        }
        if store.writable {
            // From here on the allocator snapshot may be overwritten: nobody may trust it any more
            // (I9).
            state.clean = false;
            state.stamp = stamp;
            state.units = store.units;
            state.forget_snapshot();
            if site::step() {
                state.write_next(&store.volume)?;
            }
        }
        store.session.set_ready();
        if store.writable {
            store.report.orphans = store.remove_orphans(&orphans)?;
        }
        Ok(store)
    }

    /// Attaches by a session in memory, for a caller that holds the pool's lock and knows that
    /// nobody uses it.
    pub(crate) fn attach_locked(
        volume: Volume,
        superblock: Superblock,
        options: &AttachOptions,
    ) -> Result<Store> {
        let session = Session::memory(geometry(&volume))?;
        Store::open_pool(volume, session, superblock, options, random_u64())
    }

    /// As [`Store::attach_locked`], writable whatever the scan meets: for a repair, which allocates
    /// nothing before all structures are sound.
    pub(crate) fn open_for_repair(volume: Volume, superblock: Superblock) -> Result<Store> {
        let mut state = PoolState::read(&volume)?;
        let session = Session::memory(geometry(&volume))?;
        let slot = session.claim_slot()?;
        let mode = superblock.mode;
        let mut store = Store::new(volume, session, superblock, slot, mode);
        store.check_length(&state)?;
        store.count_lists()?;
        store.report.replayed = store.replay_all()?;
        state.clean = false;
        state.forget_snapshot();
        state.write_next(&store.volume)?;
        store.fill_session(&state, true)?;
        store.session.set_ready();
        Ok(store)
    }

    /// Refuses a volume that lost a part.
    fn check_length(&self, state: &PoolState) -> Result<()> {
        let expected = state.units.max(self.superblock.units);
        match self.volume.units() < expected {
            true => Err(StoreError::Shrunk {
                expected,
                found: self.volume.units(),
            }),
            false => Ok(()),
        }
    }

    /// Counts what the lists name and checks every word of them.
    fn count_lists(&self) -> Result<()> {
        let (lanes, blocks) = (self.count_lanes(), self.count_blocks());
        for index in 0..lanes {
            self.lane_block(index)?;
        }
        for index in 0..blocks {
            self.metadata_block(index)?;
        }
        if lanes == 0 {
            return Err(StoreError::corrupt(None, "log block list", lane_list_at(0)));
        }
        if blocks == 0 || blocks * ONODES_PER_BLOCK > self.max_objects {
            return Err(StoreError::corrupt(
                None,
                "metadata block list",
                block_list_at(0),
            ));
        }
        let shared = self.session.shared();
        shared.log_blocks.store(u64::from(lanes), Release);
        shared.metadata_blocks.store(blocks, Release);
        Ok(())
    }

    fn replay_all(&self) -> Result<usize> {
        if self.writable {
            return self.replay_lanes();
        }
        for index in 0..self.lane_count() {
            if self.lane_is_pending(index)? {
                return Err(StoreError::NeedsRecovery);
            }
        }
        Ok(0)
    }

    /// Fills bitmaps and counters, from the allocator snapshot or by a scan; returns objects
    /// without a name.
    fn fill_session(&mut self, state: &PoolState, parallel: bool) -> Result<Vec<ObjectId>> {
        let mut orphans = Vec::new();
        if !(state.clean && self.load_snapshot(state)) {
            if self.writable {
                compare_onodes(&self.volume)?;
            }
            let outcome = scan::rebuild(self, parallel)?;
            self.report.rebuilt = true;
            self.report.problems = outcome.problems.len();
            orphans = outcome.orphans;
        }
        self.allocator().mark_used(UnitNo(0), HEADER_UNITS);
        let bits = self.session.unit_bits().len() as u64 * 64;
        self.allocator()
            .mark_used(UnitNo(self.units), bits - self.units);
        for units in self.volume.closed_units() {
            self.close_units(units);
        }
        let holes = self.volume.holes().iter();
        holes.for_each(|units| self.close_units(units));
        for units in self.volume.closing_units() {
            self.close_device(units);
        }
        self.allocator().recount();
        self.allocator().start_rounds_at(self.lane_block(0)?);
        self.session.object_bits()[0].fetch_or(1, Relaxed);
        self.take_numbers_of_gone_blocks();
        Ok(orphans)
    }

    /// A damaged pool is served read-only, by a session of this process alone.
    fn quarantine(&mut self) -> Result<()> {
        self.writable = false;
        if self.session.path().is_some() {
            self.session.unlink()?;
        }
        Ok(())
    }

    fn remove_orphans(&self, orphans: &[ObjectId]) -> Result<usize> {
        for &id in orphans {
            let _guard = self.lock(id)?;
            let mut tx = self.begin()?;
            tx.remove(id)?;
            tx.commit()?;
        }
        Ok(orphans.len())
    }

    /// For who found damage: `MediaFault` if a device has failed, whose bytes then only seem so.
    pub fn unless_failed(&self) -> Result<()> {
        Ok(self.volume.health()?)
    }

    /// Saves the allocation state and marks the pool clean, unless it cannot be trusted: after a
    /// process died, or with objects still open that have no name perhaps. Fails if a device has.
    pub(crate) fn save(&self) -> Result<()> {
        self.volume.health()?;
        let trusted = self.writable && !self.session.is_tainted() && !self.is_leaving();
        if !trusted || self.session.ofds().next().is_some() {
            return Ok(());
        }
        let Ok(mut state) = PoolState::read(&self.volume) else {
            return Ok(());
        };
        self.settle_tails()?;
        if !self.write_snapshot(&mut state)? {
            return Ok(());
        }
        state.clean = true;
        state.write_next(&self.volume)
    }
}

/// Held while somebody attaches.
struct ListEntry {
    _lock: PoolLock,
    /// The session to join.
    live: Option<Session>,
    /// The pool's stamp.
    stamp: u64,
}

/// Comes in with the volume as it is. It may have got or lost a device since it was opened, as long
/// as this process was not present.
fn come_in(
    mut volume: Volume,
    choice: SessionChoice,
    mut folder: Option<&Arc<Folder>>,
) -> Result<(Volume, Superblock, ListEntry)> {
    loop {
        let came = unless_failed(&volume, come_in_as_opened(&volume, choice, folder));
        let Some(now) = volume.renewed()? else {
            let (superblock, entry) = came?;
            return Ok((volume, superblock, entry));
        };
        drop(came);
        volume.leave()?;
        (volume, folder) = (now, None);
    }
}

/// What a device that failed shows in place of its bytes is no damage of the pool.
fn unless_failed<T>(volume: &Volume, read: Result<T>) -> Result<T> {
    if let Err(StoreError::Corrupt(_) | StoreError::NotAPool) = read {
        volume.health()?;
    }
    read
}

fn come_in_as_opened(
    volume: &Volume,
    choice: SessionChoice,
    folder: Option<&Arc<Folder>>,
) -> Result<(Superblock, ListEntry)> {
    bring_up(volume)?;
    let superblock = Superblock::read(volume).or_else(|error| {
        if !volume.has_copies() {
            return Err(error);
        }
        // Damaged while others use the pool.
        repair_header(volume)?;
        Superblock::read(volume)
    })?;
    Ok((superblock, admit(volume, choice, folder)?))
}

/// As [`image::bring_up`]. Whoever comes to change the pool waits for those who are on the way out.
fn bring_up(volume: &Volume) -> Result<()> {
    let waits = volume.access() == Access::ReadWrite;
    for _ in 0..PATIENCE {
        match image::bring_up(volume) {
            Err(StoreError::InUse) if waits && volume.is_as_opened()? => pause(),
            done => return done,
        }
    }
    Err(StoreError::InUse)
}

/// Comes in: into a live session if there is one, else alone, or as a reader. Whoever is on the way
/// out is waited for.
fn admit(
    volume: &Volume,
    choice: SessionChoice,
    folder: Option<&Arc<Folder>>,
) -> Result<ListEntry> {
    for _ in 0..PATIENCE {
        let lock = volume.lock_exclusive()?;
        let stamp = PoolState::read(volume)?.stamp;
        let mut live = None;
        let mut presence = Presence::Member;
        if choice == SessionChoice::Shared {
            live = live_session(place(volume, folder)?, stamp, volume.access())?;
        }
        if live.is_none() {
            presence = match volume.access() {
                Access::ReadWrite => Presence::Alone,
                Access::ReadOnly => Presence::Reader,
            };
            if (choice, presence) == (SessionChoice::Shared, Presence::Reader) {
                live = live_session(readers_place(volume, false)?, stamp, Access::ReadOnly)?;
            }
        }
        if volume.enter(presence)? {
            return Ok(ListEntry {
                _lock: lock,
                live,
                stamp,
            });
        }
        drop(lock);
        pause();
    }
    Err(StoreError::InUse)
}

/// The session at a place if it belongs to this pool as it is now and a live process uses it.
pub(crate) fn live_session(
    place: Option<SessionPlace>,
    stamp: u64,
    access: Access,
) -> Result<Option<Session>> {
    let Some(place) = place else {
        return Ok(None);
    };
    let session = match Session::open(&place) {
        Ok(session) => session,
        Err(
            SessionError::Missing(_)
            | SessionError::Stale(_)
            | SessionError::OtherDevices(_)
            | SessionError::Foreign { .. }
            | SessionError::Runtime(RuntimeError::Foreign(_))
            | SessionError::Truncated { .. },
        ) => return Ok(None),
        // Somebody else's; whether they are here still shows when a reader comes in.
        Err(SessionError::Io { .. } | SessionError::Runtime(_)) if access == Access::ReadOnly => {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let ready = session.stamp() == stamp && session.state() == nacre_session::State::Ready;
    let alive = |slot| session.liveness(slot) != Liveness::Dead;
    let used = ready && session.current_slots().any(alive);
    Ok(used.then_some(session))
}

/// Bytes of addresses that each process maps which uses a pool of `len` bytes.
pub fn address_space(len: u64) -> u64 {
    len + geometry_of(len / UNIT_SIZE).session_bytes()
}

impl Store {
    /// Bytes of addresses that this process has mapped to use the pool.
    pub fn addresses(&self) -> u64 {
        let (volume, mirror) = (self.volume(), self.volume().mirror());
        let copies = mirror.map_or(1, |mirror| mirror.mapped().count() as u64);
        address_space(volume.len()) + copies.saturating_sub(1) * volume.len()
    }
}

fn geometry(volume: &Volume) -> Geometry {
    geometry_of(volume.units())
}

fn geometry_of(units: u64) -> Geometry {
    let blocks = (units / UNITS_PER_BLOCK).clamp(1, MAX_BLOCKS);
    Geometry {
        units,
        max_objects: blocks * ONODES_PER_BLOCK,
        lanes: MAX_LANES as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::address_space;

    #[test]
    fn what_a_process_maps_beside_a_pool_is_bounded() {
        for shift in 26..=44 {
            let len = 1u64 << shift;
            let beside = address_space(len) - len;
            let bound = (180 << 20) + len.min(32 << 30) * 3 / 10 + len / 1000;
            assert!(beside < bound, "{beside} beside {len}");
        }
    }
}
