//! Several disks that hold the same, as one (D76).
//!
//! What is written is written to all; what is read comes from one that is current. Which disks
//! there are, the labels say. One word that all processes share says which labels are in force, by
//! their sequence number, and which disks have failed since.
//!
//! - **T1 Lost before acknowledged.** A call that a disk failed returns only when the labels of the
//!   others say durably that it is lost, unless none is left: then nothing is lost and the call
//!   fails.
//! - **T2 Labels before the word.** So a word never names labels that are not there.
//! - **T3 Places stay.** While anybody uses the pool no disk changes its place in the table.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};

use nacre_cache::{Agreed, Buffer, Disk, DiskFailed, JournalError, agree};
use nacre_media::{
    Device, DiskFds, DiskLegs, FileCall, LegState, MOST_LEGS, Results, SharedLegs, SharedMemory,
    Spans, Spare,
};
use nacre_types::{Uuid, site};
use rustix::io::Errno;

use super::calls::{at_once, each_of};
use super::file::{FileDisk, with_aligned};
use super::one::{One, Shifted};
use super::own::{Own, Piece};
use crate::label::{self, LabelInfo};
use crate::layout::{DATA_START, MAX_DEVICES, SEQUENCE_END};
use crate::members::labels::{Labels, write_as};

/// Bits of the word that tell which disks have failed since the labels were written.
const LOST_BITS: u32 = SEQUENCE_END.leading_zeros() + 1;
const _: () = assert!(LOST_BITS as usize >= MAX_DEVICES);

/// One of the disks.
#[derive(Debug)]
pub(crate) struct Leg {
    pub uuid: Uuid,
    pub device: Arc<Device>,
    pub file: FileDisk,
    /// Presence lasts as long as the memory of who has it (D21).
    _kept: Option<SharedMemory>,
}

/// A disk as labels tell it.
#[derive(Debug)]
pub(super) struct Seat {
    /// Its place in the table.
    pub(super) index: usize,
    pub(super) uuid: Uuid,
    pub(super) state: LegState,
    /// Something is there, but not what was.
    is_damaged: bool,
    /// `None`: it is not there.
    pub(super) leg: Option<Arc<Leg>>,
}

/// What the labels of one sequence number say. The next one comes behind.
#[derive(Debug)]
pub(super) struct View {
    pub(super) sequence: u64,
    pub(super) seats: Vec<Seat>,
    next: OnceLock<Box<View>>,
}

/// Disks that hold the same.
pub(crate) struct LegsDisk {
    first: View,
    /// The word, while there is no image.
    own: AtomicU64,
    shared: OnceLock<SharedLegs>,
    /// As what processes share, while there is no image.
    own_settled: AtomicU64,
    pub(super) own_doubted: AtomicU64,
    spans: Spans,
    /// Where the data is on the logical disk.
    homes: Range<u64>,
    labels: Labels,
    writable: bool,
    /// What each holds alone; `None`: they hold the same.
    alone: Option<Own>,
    /// Memory that spans were compared in.
    pub(super) spare: Spare<Vec<u8>>,
    /// Memory that they were read to.
    pub(super) room: Spare<Buffer>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    fn of(sequence: u64, lost: u64) -> Self {
        Self(sequence << LOST_BITS | lost)
    }

    fn sequence(self) -> u64 {
        self.0 >> LOST_BITS
    }

    fn lost(self) -> u64 {
        self.0 & !(u64::MAX << LOST_BITS)
    }

    fn has_lost(self, index: usize) -> bool {
        self.0 >> index & 1 != 0
    }
}

impl Seat {
    pub(super) fn one(&self) -> Option<One<'_>> {
        Some(One(self.index, &self.leg.as_ref()?.file))
    }
}

impl View {
    fn of(table: &LabelInfo, damaged: &[Uuid], leg: impl Fn(Uuid) -> Option<Arc<Leg>>) -> Self {
        let entries = table.devices.iter().enumerate();
        let seats = entries.map(|(index, entry)| {
            let state = entry.state.unwrap_or_default();
            Seat {
                index,
                uuid: entry.uuid,
                state,
                // With what it alone holds one may come back that is what it was again (T5).
                is_damaged: table.common == 0 && damaged.contains(&entry.uuid),
                leg: state.is_stored_to().then(|| leg(entry.uuid)).flatten(),
            }
        });
        Self {
            sequence: table.sequence,
            seats: seats.collect(),
            next: OnceLock::new(),
        }
    }

    /// The newest.
    pub(super) fn last(&self) -> &Self {
        let mut view = self;
        while let Some(next) = view.next.get() {
            view = next;
        }
        view
    }

    pub(super) fn seat(&self, uuid: Uuid) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.uuid == uuid)
    }

    /// Those that get what is written.
    pub(super) fn stored_to(&self, word: Word) -> impl Iterator<Item = &Seat> {
        let there = move |seat: &&Seat| seat.state.is_stored_to() && !word.has_lost(seat.index);
        self.seats.iter().filter(there)
    }

    pub(super) fn current(&self, word: Word) -> impl Iterator<Item = &Seat> {
        let current = |seat: &&Seat| seat.state == LegState::Current && seat.leg.is_some();
        self.stored_to(word).filter(current)
    }
}

pub(super) fn failed(why: &str) -> DiskFailed {
    DiskFailed(why.to_owned())
}

/// Whether it was not the disk that failed: memory for what comes was not to be had.
fn is_of_memory(error: &io::Error) -> bool {
    let known = [Errno::FAULT, Errno::NOMEM, Errno::NOSPC, Errno::INTR];
    Errno::from_io_error(error).is_some_and(|it| known.contains(&it))
}

impl LegsDisk {
    /// Of a pool with this table, whose devices that are there are these.
    pub fn new(table: &LabelInfo, labels: Labels, damaged: &[Uuid], writable: bool) -> Self {
        let known = labels.known();
        let leg = |uuid: Uuid| {
            let (_, device) = known.iter().find(|(known, _)| *known == uuid)?;
            Some(Arc::new(Leg::new(uuid, device, writable)))
        };
        Self {
            first: View::of(table, damaged, leg),
            own: AtomicU64::new(Word::of(table.sequence, 0).0),
            shared: OnceLock::new(),
            own_settled: AtomicU64::new(0),
            own_doubted: AtomicU64::new(0),
            spans: Spans::new(table.pool.0, DATA_START..DATA_START + table.common_len()),
            homes: DATA_START..DATA_START + table.volume_len(),
            labels,
            writable,
            alone: Own::of(table),
            spare: Spare::new(MOST_LEGS),
            room: Spare::new(1),
        }
    }

    /// What processes share about the disks, once there is an image.
    pub fn shared(&self) -> Option<&SharedLegs> {
        self.shared.get()
    }

    pub fn spans(&self) -> &Spans {
        &self.spans
    }

    /// What is known of seals that were removed (`sealed`).
    pub(super) fn seals_settled(&self) -> &AtomicU64 {
        let shared = self.shared.get();
        shared.map_or(&self.own_settled, SharedLegs::seals_settled)
    }

    fn word_place(&self) -> &AtomicU64 {
        self.shared.get().map_or(&self.own, SharedLegs::states)
    }

    fn word(&self) -> Word {
        Word(self.word_place().load(SeqCst))
    }

    /// Uses what processes share from now on. The caller is `alone` or joins those who use it.
    pub fn share(&self, shared: SharedLegs, alone: bool) -> Result<(), DiskFailed> {
        let own = self.word();
        let known = Word(shared.states().load(SeqCst));
        match alone {
            // Those who died may have known labels that are not there any more.
            true => shared.states().store(own.0, SeqCst),
            false if known.sequence() >= own.sequence() => {}
            false => {
                let joined = Word::of(own.sequence(), known.lost());
                shared.states().fetch_max(joined.0, SeqCst);
            }
        }
        // A second one is refused: the first goes on.
        let _ = self.shared.set(shared);
        self.share_doubts();
        if !self.writable {
            return Ok(());
        }
        let missing = self.missing()?;
        self.lose_missing()?;
        // Others may have written to it what is not durable there (T5).
        let mut lacking = missing
            .into_iter()
            .filter(|_| !alone && self.alone.is_some());
        lacking.try_for_each(|index| self.pass_over(index))
    }

    /// Places in the table of disks that are to be stored to, and are not there.
    fn missing(&self) -> Result<Vec<usize>, DiskFailed> {
        let (view, word) = self.view()?;
        let missing = view.stored_to(word).filter(|seat| seat.leg.is_none());
        Ok(missing.map(|seat| seat.index).collect())
    }

    /// The labels know those that are not there, on return.
    pub fn lose_missing(&self) -> Result<(), DiskFailed> {
        let (view, word) = self.view()?;
        let missing = view.stored_to(word).filter(|seat| seat.leg.is_none());
        let missing: Vec<Uuid> = missing.map(|seat| seat.uuid).collect();
        missing.into_iter().for_each(|uuid| self.lose(uuid));
        self.settle_labels()
    }

    /// What the labels in force say, and who was lost since.
    pub(super) fn view(&self) -> Result<(&View, Word), DiskFailed> {
        loop {
            let word = self.word();
            let view = self.first.last();
            if view.sequence >= word.sequence() {
                return Ok((view, word));
            }
            self.look_again(view, word.sequence())?;
        }
    }

    /// Adds a view of the labels as they are now.
    #[cold]
    fn look_again(&self, last: &View, wanted: u64) -> Result<(), DiskFailed> {
        let table = self.newest(wanted)?;
        let leg = |uuid: Uuid| {
            let known = last.seat(uuid).and_then(|seat| seat.leg.clone());
            known.or_else(|| {
                let device = self.labels.device(uuid)?;
                Some(Arc::new(Leg::new(uuid, &device, self.writable)))
            })
        };
        let next = View::of(&table, &[], leg);
        // Another thread may have been quicker.
        let _ = last.next.set(Box::new(next));
        Ok(())
    }

    /// The newest table, whose sequence number is not lower than wanted. Devices that are new are
    /// found by the labels of those that are known.
    pub(super) fn newest(&self, wanted: u64) -> Result<LabelInfo, DiskFailed> {
        let gone = || failed("its devices have changed, and those that it has now are not found");
        let mut table = self.labels.newest().ok_or_else(gone)?;
        while table.sequence < wanted {
            for entry in &table.devices {
                self.labels.device(entry.uuid);
            }
            let newer = self.labels.newest().ok_or_else(gone)?;
            if newer.sequence == table.sequence {
                return Err(gone());
            }
            table = newer;
        }
        Ok(table)
    }

    /// A disk is not used any more, unless it is the last that is current.
    pub fn lose(&self, uuid: Uuid) {
        while let Ok((view, word)) = self.view() {
            let Some(seat) = view.stored_to(word).find(|seat| seat.uuid == uuid) else {
                return;
            };
            if view.current(word).all(|other| other.uuid == uuid) {
                return;
            }
            let lost = Word::of(view.sequence, word.lost() | 1 << seat.index);
            let place = self.word_place();
            if place
                .compare_exchange(word.0, lost.0, SeqCst, SeqCst)
                .is_ok()
            {
                return;
            }
        }
    }

    /// The labels name all that were lost, on return (T1).
    pub fn settle_labels(&self) -> Result<(), DiskFailed> {
        while self.word().lost() != 0 && site::step() {
            self.changing_labels(|| self.record_lost())?;
        }
        Ok(())
    }

    /// Does something while no other process changes labels.
    pub fn changing_labels<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.shared.get() {
            Some(shared) => shared.alone(|| self.finish_labels(), work),
            None => work(),
        }
    }

    /// Writes the newest labels again: who died while it wrote them may have left half of one.
    fn finish_labels(&self) {
        let Some(table) = self.labels.newest() else {
            return;
        };
        // One that does not take it is found out by who looks at labels.
        self.write_labels(&table);
    }

    /// Writes the labels of a table; answers how many disks that are current took theirs, and which
    /// disks did not.
    fn write_labels(&self, table: &LabelInfo) -> (usize, Vec<Uuid>) {
        let (mut current, mut bad) = (0, Vec::new());
        for entry in &table.devices {
            let state = entry.state.unwrap_or_default();
            let Some(device) = self.device_to_write(entry.uuid, state) else {
                continue;
            };
            // A label behind a cut would give it its length again.
            let written = !device.is_cut() && write_as(table, entry.uuid, &device).is_ok();
            match written {
                true => current += usize::from(state == LegState::Current),
                false => bad.push(entry.uuid),
            }
        }
        (current, bad)
    }

    fn record_lost(&self) -> Result<(), DiskFailed> {
        let (view, word) = self.view()?;
        if word.lost() == 0 {
            return Ok(());
        }
        let mut table = self.newest(word.sequence())?;
        for seat in view.seats.iter().filter(|seat| word.has_lost(seat.index)) {
            let known = table.devices.iter_mut().find(|it| it.uuid == seat.uuid);
            if let Some(entry) = known.filter(|it| it.state.is_some_and(LegState::is_stored_to)) {
                entry.state = Some(match seat.leg.is_some() || seat.is_damaged {
                    true => LegState::Failed,
                    false => LegState::Missing,
                });
            }
        }
        self.write_table(table, word.lost())
    }

    /// Writes the labels of the next table, and puts it in force: losses that it names are `known`.
    /// The caller keeps others from changing labels.
    pub fn write_table(&self, mut table: LabelInfo, known: u64) -> Result<(), DiskFailed> {
        table.sequence += 1;
        let (current, bad) = self.write_labels(&table);
        if current == 0 {
            return Err(failed("no label can be written"));
        }
        let next = |word: u64| Some(Word::of(table.sequence, Word(word).lost() & !known).0);
        let place = self.word_place();
        // It never refuses.
        let _ = place.fetch_update(SeqCst, SeqCst, next);
        bad.into_iter().for_each(|uuid| self.lose(uuid));
        Ok(())
    }

    fn device_to_write(&self, uuid: Uuid, state: LegState) -> Option<Arc<Device>> {
        match state.is_stored_to() {
            true => self.labels.device(uuid),
            false => None,
        }
    }

    /// Does something to all disks that are stored to; those that fail are lost (T1).
    pub(super) fn on_all(
        &self,
        work: impl Fn(One<'_>) -> Result<(), DiskFailed>,
    ) -> Result<(), DiskFailed> {
        self.settle_labels()?;
        let (view, word) = self.view()?;
        let (mut current, mut bad, mut why) = (0, Vec::new(), None);
        let mut lives = false;
        for seat in view.stored_to(word) {
            let done = seat
                .one()
                .map(|one| work(one).and_then(|()| one.1.check_len()));
            match done.unwrap_or_else(|| Err(failed("it is not there"))) {
                Ok(()) => current += usize::from(seat.state == LegState::Current),
                Err(error) => {
                    lives |= self.still_lives(seat);
                    bad.push(seat.uuid);
                    why = why.or(Some(error));
                }
            }
        }
        if current == 0 || lives {
            self.doubt_seals();
            return Err(why.unwrap_or_else(|| failed("no disk is left")));
        }
        bad.into_iter().for_each(|uuid| self.lose(uuid));
        self.settle_labels()
    }

    /// As `on_all`, to all at the same time; what cannot be done so is done `alone`.
    fn on_all_at_once<'c>(
        &'c self,
        call: impl Fn(&'c FileDisk) -> Option<FileCall<'c>>,
        alone: impl Fn(One<'_>) -> Result<(), DiskFailed>,
    ) -> Result<(), DiskFailed> {
        self.settle_labels()?;
        let (view, word) = self.view()?;
        let legs = view.stored_to(word).filter_map(|seat| seat.one());
        let calls = legs.filter_map(|one| Some((one.0, call(one.1)?)));
        let (numbers, calls): (Vec<usize>, Vec<FileCall>) = calls.unzip();
        let done = calls
            .iter()
            .zip(self.begin_on_all(&calls))
            .map(|(call, result)| match (call, result) {
                (FileCall::Write(_, _, bytes), Some(Ok(len))) if len < bytes.len() => None,
                (_, result) => result.map(|done| done.map(drop)),
            });
        let done: Vec<_> = numbers.into_iter().zip(done).collect();
        self.on_all(
            |one| match done.iter().find(|(number, _)| *number == one.0) {
                Some((_, Some(result))) => result.map_err(super::file::failed),
                _ => alone(one),
            },
        )
    }

    /// Does calls at the same time. Writes are only if the next one who commits can wait for them,
    /// should this process die (D99).
    fn begin_on_all(&self, calls: &[FileCall<'_>]) -> Results {
        let is_write = |call: &FileCall<'_>| matches!(call, FileCall::Write(..));
        if !calls.iter().any(is_write) {
            return each_of(at_once(calls), calls);
        }
        let shared = self.shared.get();
        match shared.and_then(|shared| shared.make_calls(|| at_once(calls))) {
            Some(done) => each_of(done, calls),
            None => vec![None; calls.len()],
        }
    }

    /// Does something with all disks that are there, for hints.
    pub(super) fn each(&self, mut work: impl FnMut(&FileDisk)) {
        if let Ok((view, word)) = self.view() {
            let legs = view.stored_to(word).filter_map(|seat| seat.leg.as_ref());
            legs.for_each(|leg| work(&leg.file));
        }
    }

    /// Reads from a current disk, and from another one if that fails. What failed is not used any
    /// more. Nor does it count what was read of one that was cut, or of one of several over which
    /// something else is written (D108): so it is looked at behind the read.
    fn read_one<E>(
        &self,
        at: u64,
        none: impl Fn(DiskFailed) -> E,
        mut read: impl FnMut(&Leg) -> Result<(), E>,
        is_its: impl Fn(&E) -> bool,
    ) -> Result<(), E> {
        let (view, word) = match self.view() {
            Ok(seen) => seen,
            Err(error) => return Err(none(error)),
        };
        let legs = self.in_turn(view.current(word), at);
        let (mut bad, mut why) = (Vec::new(), None);
        let is_alone = legs.len() < 2;
        let is_still =
            |leg: &Leg| !leg.device.is_cut() && (is_alone || label::begins_as_one(&leg.device));
        for leg in &legs {
            match read(leg) {
                Ok(()) if !is_still(leg) => {
                    bad.push(leg.uuid);
                    why = why.or(Some(none(failed("it was cut or written over"))));
                }
                Ok(()) => {
                    let given_up = self.writable && self.alone.is_none();
                    let lost = bad.into_iter().filter(|_| given_up);
                    lost.for_each(|uuid| self.lose(uuid));
                    return Ok(());
                }
                Err(error) if !is_its(&error) => return Err(error),
                Err(error) => {
                    bad.push(leg.uuid);
                    why = why.or(Some(error));
                }
            }
        }
        Err(why.unwrap_or_else(|| none(failed("no disk is left"))))
    }

    /// The journals of all current disks agree on return; a disk that nobody can go on from is
    /// lost.
    pub fn agree(&self, journal: ([u8; 16], u64, u64)) -> Result<(), JournalError> {
        if self.writable {
            self.lose_missing()?;
        }
        let (view, word) = self.view()?;
        let seats: Vec<&Seat> = view.current(word).collect();
        let ones = seats.iter().filter_map(|seat| seat.one());
        // Home places that records name are of the logical disk, so journals are, too.
        let back = self.own().and_then(|own| Some(own.find(journal.1)?.1));
        let back = back.unwrap_or(0);
        let disks: Vec<Shifted> = ones.map(|one| Shifted { one, back }).collect();
        let agreed = agree(&disks, journal, self.writable)?;
        for (seat, agreed) in seats.iter().zip(agreed) {
            match agreed {
                Agreed::Yes => {}
                // Not for one call (T6).
                Agreed::Fails(why) if self.writable && self.still_lives(seat) => return Err(why),
                Agreed::No | Agreed::Fails(_) => self.lose(seat.uuid),
            }
        }
        match self.writable {
            true => Ok(self.settle_labels()?),
            false => Ok(()),
        }
    }

    /// What each disk holds alone, if they do not hold the same.
    pub fn own(&self) -> Option<&Own> {
        self.alone.as_ref()
    }

    /// Devices that are written now, each with what it is; none where nobody can tell.
    pub fn devices(&self) -> Vec<(LegState, Arc<Leg>)> {
        self.in_use().unwrap_or_default()
    }

    /// As `devices`, for who would do harm with none.
    pub fn in_use(&self) -> Result<Vec<(LegState, Arc<Leg>)>, DiskFailed> {
        let (view, word) = self.view()?;
        let seats = view.stored_to(word);
        let legs = seats.filter_map(|seat| Some((seat.state, Arc::clone(seat.leg.as_ref()?))));
        Ok(legs.collect())
    }

    /// What the labels say, and the losses that they do not name yet.
    pub fn table(&self) -> Result<LabelInfo, DiskFailed> {
        let (view, word) = self.view()?;
        let mut table = self.newest(view.sequence)?;
        for entry in &mut table.devices {
            let seat = view.seat(entry.uuid);
            let Some(seat) = seat.filter(|seat| seat.state.is_stored_to()) else {
                continue;
            };
            match (&seat.leg, word.has_lost(seat.index)) {
                (Some(_), false) => {}
                (None, _) if !seat.is_damaged => entry.state = Some(LegState::Missing),
                _ => entry.state = Some(LegState::Failed),
            }
        }
        Ok(table)
    }

    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Whether the labels of all disks seem to be theirs. While one is written it may not seem so.
    pub fn have_labels(&self, pool: Uuid) -> bool {
        let devices = self.devices();
        devices.iter().all(|(_, leg)| leg.has_label(pool))
    }

    /// One of the disks, if all of them are lost.
    pub fn all_lost(&self, is_lost: impl Fn(&Device) -> bool) -> Option<Arc<Device>> {
        let devices = self.devices();
        let all = devices.iter().all(|(_, leg)| is_lost(&leg.device));
        devices
            .first()
            .filter(|_| all)
            .map(|(_, leg)| Arc::clone(&leg.device))
    }

    /// Loses disks that were cut, before anything is written to them: behind the cut they would
    /// hold zeros.
    pub fn lose_cut(&self) -> Result<(), DiskFailed> {
        let devices = self.devices().into_iter();
        let cut: Vec<Uuid> = devices
            .filter(|(_, leg)| leg.device.is_cut())
            .map(|(_, leg)| leg.uuid)
            .collect();
        if cut.is_empty() {
            return Ok(());
        }
        cut.into_iter().for_each(|uuid| self.lose(uuid));
        self.settle_labels()
    }

    /// Loses disks whose labels are not theirs any more: something else was written over one of the
    /// two copies at least. Nobody else changes labels who does not ask this for it.
    pub fn check_labels(&self, pool: Uuid) -> Result<(), DiskFailed> {
        self.changing_labels(|| {
            let devices = self.devices().into_iter();
            let strange = devices.filter(|(_, leg)| !leg.has_label(pool));
            strange.for_each(|(_, leg)| self.lose(leg.uuid));
        });
        self.settle_labels()
    }

    /// Kernel fds of the disks that are known from the start.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let views = std::iter::successors(Some(&self.first), |it| it.next.get().map(|it| &**it));
        let legs = views.flat_map(|view| view.seats.iter().filter_map(|it| it.leg.as_ref()));
        legs.flat_map(|leg| std::iter::once(leg.device.fd()).chain(leg.file.through()))
    }
}

impl Leg {
    pub fn new(uuid: Uuid, device: &Arc<Device>, writable: bool) -> Self {
        Self {
            uuid,
            device: Arc::clone(device),
            file: FileDisk::new(device, writable),
            _kept: SharedMemory::keeping(device.fd()).ok(),
        }
    }

    /// Whether both copies of its label are its own. They may differ: who died may have written one
    /// of them.
    fn has_label(&self, pool: Uuid) -> bool {
        label::are_of(&self.device, pool, self.uuid)
    }
}

impl DiskLegs for LegsDisk {
    fn read(&self, at: u64, read: &mut dyn FnMut(DiskFds<'_>) -> io::Result<()>) -> io::Result<()> {
        let found = self.alone.as_ref().and_then(|own| own.find(at));
        if let Some((Some(owner), back, _)) = found {
            let leg = self.owner(owner).and_then(|seat| seat.leg.as_ref());
            let leg = leg.ok_or(Errno::IO)?;
            read(DiskFds {
                plain: leg.device.fd(),
                direct: leg.file.through(),
                back,
            })?;
            return leg.device.check_len();
        }
        let fds = |leg: &Leg| {
            read(DiskFds {
                plain: leg.device.fd(),
                direct: leg.file.through(),
                back: 0,
            })
        };
        let is_its = |error: &io::Error| !is_of_memory(error);
        self.read_one(at, |why| io::Error::other(why.0), fds, is_its)
    }

    fn find_right(&self, at: u64, is_right: &mut dyn FnMut(DiskFds<'_>) -> bool) -> bool {
        let mut wrong = Vec::new();
        for leg in self.current_in_turn(at).unwrap_or_default() {
            let is_right = is_right(DiskFds {
                plain: leg.device.fd(),
                direct: leg.file.through(),
                back: 0,
            });
            if is_right {
                self.doubt_at(at, &wrong);
                return true;
            }
            wrong.push(leg.uuid.0);
        }
        false
    }

    fn has_place(&self, at: u64) -> bool {
        self.holds(at)
    }

    fn are_whole(&self) -> bool {
        let is_own = |(_, leg): &(LegState, Arc<Leg>)| {
            !leg.device.is_cut() && label::begins_as_one(&leg.device)
        };
        self.devices().iter().all(is_own)
    }
}

impl Disk for LegsDisk {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed> {
        let Some(own) = &self.alone else {
            return self.read_one(0, |why| why, |leg| leg.file.read(at, to), |_| true);
        };
        for Piece { owner, at, piece } in own.pieces(at, to.len())? {
            let to = &mut to[piece];
            match owner {
                None => self.read_one(0, |why| why, |leg| leg.file.read(at, to), |_| true)?,
                Some(owner) => {
                    let seat = self.owner(owner).and_then(Seat::one);
                    seat.ok_or_else(|| failed("the disk is lost"))?
                        .read(at, to)?;
                }
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        self.break_seals(at..at + bytes.len() as u64)?;
        self.by_piece(
            (at, bytes.len()),
            |at, piece| self.on_all(|disk| disk.write(at, &bytes[piece.clone()])),
            |disk, at, piece| disk.write(at, &bytes[piece]),
        )
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        self.break_seals(at..at + bytes.len() as u64)?;
        let through = |at: u64, bytes: &[u8]| {
            with_aligned(bytes, |bytes| {
                self.on_all_at_once(
                    |file| file.call_through(at, bytes),
                    |disk| disk.write_through(at, bytes),
                )
            })
        };
        self.by_piece(
            (at, bytes.len()),
            |at, piece| through(at, &bytes[piece]),
            |disk, at, piece| disk.write_through(at, &bytes[piece]),
        )
    }

    fn sync(&self) -> Result<(), DiskFailed> {
        self.on_all_at_once(|file| Some(file.call_sync()), |disk| disk.sync())
    }

    fn settle(&self, ranges: &[Range<u64>]) -> Result<(), DiskFailed> {
        let begin = |range: &Range<u64>| self.begin_writing(range.clone());
        ranges.iter().for_each(begin);
        let Some(own) = &self.alone else {
            return self.on_all(|disk| disk.settle(ranges));
        };
        let (mut common, mut alone) = (Vec::new(), vec![Vec::new(); own.parts().len()]);
        for range in ranges {
            for Piece { owner, at, piece } in
                own.pieces(range.start, (range.end - range.start) as usize)?
            {
                let places = owner.map_or(&mut common, |owner| &mut alone[owner]);
                places.push(at..at + piece.len() as u64);
            }
        }
        for (owner, ranges) in alone.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
            if site::step() {
                self.on_owner(owner, |disk| disk.settle(ranges))?;
            }
        }
        match common.is_empty() {
            true => Ok(()),
            false => self.on_all(|disk| disk.settle(&common)),
        }
    }

    fn gathers(&self) -> Option<u64> {
        self.first
            .seats
            .iter()
            .find_map(|seat| seat.leg.as_ref()?.file.gathers())
    }

    fn homes(&self) -> Range<u64> {
        self.homes.clone()
    }

    fn prepare_write(&self, range: Range<u64>) {
        // All at once; what fails is found out again by the write.
        let _ = self.remove_seals(range.clone());
        self.each_of(range, |file, there| file.prepare_write(there));
    }

    fn begin_writing(&self, range: Range<u64>) {
        self.each_of(range, |file, there| file.begin_writing(there));
    }

    fn forget(&self, at: u64, len: u64) {
        self.each_of(at..at + len, |file, there| {
            file.forget(there.start, there.end - there.start);
        });
    }
}

impl std::fmt::Debug for LegsDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LegsDisk").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::{SeqCst, Word};
    use crate::{Access, Caching, CreateOptions, DeviceSpec, Presence, Volume};

    /// Two disks, a and b, in a folder.
    fn two_disks(folder: &Path) -> Volume {
        let spec = |name: &str| DeviceSpec {
            path: folder.join(name),
            size: Some(32 << 20),
        };
        let options = CreateOptions {
            copies: 2,
            caching: Caching::Always,
            ..CreateOptions::default()
        };
        Volume::create(&[spec("a"), spec("b")], options).unwrap()
    }

    #[test]
    fn who_cannot_tell_which_disks_there_are_does_not_come_in() {
        let folder = tempfile::tempdir().unwrap();
        let volume = two_disks(folder.path());
        let word = &volume.legs().unwrap().own;
        let known = word.swap(Word::of(1000, 0).0, SeqCst);
        assert!(volume.lock_exclusive().is_err());
        assert!(volume.enter(Presence::Member).is_err());
        word.store(known, SeqCst);
        assert!(volume.lock_exclusive().is_ok());
        assert!(volume.enter(Presence::Member).unwrap());
    }

    #[test]
    fn who_is_alone_goes_by_the_labels_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let volume = two_disks(folder.path());
        let image = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let file = || image.reopen().unwrap().into();
        volume.make_image(file()).unwrap();
        let legs = volume.legs().unwrap();
        legs.lose(legs.devices()[1].1.uuid);
        legs.settle_labels().unwrap();
        let table = legs.table().unwrap();
        legs.changing_labels(|| legs.write_table(table, 0)).unwrap();
        drop(volume);
        // What memory knows is newer than what the other disk says.
        fs::rename(folder.path().join("a"), folder.path().join("away")).unwrap();
        let volume = Volume::open(&folder.path().join("b"), Access::ReadWrite).unwrap();
        assert!(volume.join_image(file()).unwrap());
        assert_eq!(volume.legs().unwrap().in_use().unwrap().len(), 1);
    }

    #[test]
    fn half_of_a_label_that_a_dead_process_left_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let volume = two_disks(folder.path());
        let legs = volume.legs().unwrap();
        assert!(legs.have_labels(volume.uuid()));
        let file = fs::File::options()
            .write(true)
            .open(folder.path().join("b"));
        file.unwrap().write_all_at(&[1; 100], 2000).unwrap();
        assert!(!legs.have_labels(volume.uuid()));
        legs.finish_labels();
        assert!(legs.have_labels(volume.uuid()));
    }
}
