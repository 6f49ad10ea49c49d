//! Taking versions of memory, and writing them.

use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Instant, SystemTime};

use nacre_cache::{At, BESIDE_MAX, Disk, Draft, Journal, JournalError, Position};
use nacre_media::{Committer, Image, ImageWord};
use nacre_types::UNIT_SIZE;

use crate::disk::DeviceDisk;
use crate::disk::cache::Cache;
use crate::error::VolumeError;
use crate::image::ahead::{FEW_WRITES, len};
use crate::image::position::{begin, begin_step, now_home, position, set_position};
use crate::image::version::{Copies, Version, VersionRoom};
use crate::volume::Volume;

/// Up to so many writes are waited for, those together that a disk takes at the same time.
pub(crate) fn few_writes(disk: impl Disk) -> usize {
    match cfg!(feature = "explore") {
        true => FEW_WRITES,
        false => FEW_WRITES.max(disk.at_once()),
    }
}

/// Whether new contents are written at the same time as the record that needs them (D123).
pub(crate) fn goes_beside(cache: &Cache, homes: &[Range<u64>]) -> bool {
    let bytes: u64 = homes.iter().map(len).sum();
    let fits = homes.len() < (&cache.disk).at_once() && bytes <= BESIDE_MAX;
    cache.beside && fits
}

/// So many bytes of this go home.
pub(crate) fn note_home(image: &Image, homes: &[Range<u64>]) {
    let bytes = homes.iter().map(len).sum();
    image.word(ImageWord::Home, 0).fetch_add(bytes, SeqCst);
}

/// Writes what is new to its place, durably (C11).
pub(crate) fn write_home(cache: &Cache, image: &Image, new: &Copies) -> Result<(), JournalError> {
    let disk = &cache.disk;
    new.homes
        .0
        .iter()
        .for_each(|home| disk.prepare_write(home.clone()));
    if new.homes.0.len() <= few_writes(disk) {
        let pieces: Vec<_> = new
            .pieces()
            .map(|piece| (piece.home, piece.bytes))
            .collect();
        if pieces.len() > 1 {
            cache.prepare_calls(image)?;
        }
        disk.write_all_through(&pieces)?;
    } else {
        new.pieces()
            .try_for_each(|piece| disk.write(piece.home, piece.bytes))?;
        disk.settle(&new.homes.0)?;
    }
    note_home(image, &new.homes.0);
    Ok(())
}

pub(crate) fn bring_home(
    journal: &mut Journal<&DeviceDisk>,
    image: &Image,
) -> Result<(), JournalError> {
    begin_step(image);
    let bytes = journal.checkpoint()?;
    set_position(image, journal.position());
    // What gathers is written in whole units.
    let bytes = bytes.max(image.came_home());
    image.word(ImageWord::Home, 0).fetch_add(bytes, SeqCst);
    Ok(())
}

pub(crate) fn whole_units(range: Range<u64>) -> Range<u64> {
    range.start / UNIT_SIZE * UNIT_SIZE..range.end.next_multiple_of(UNIT_SIZE)
}

impl Volume {
    /// Sets what keeps stores and versions apart from now on.
    pub fn set_committer(&self, committer: Arc<dyn Committer>) {
        if let Some(image) = self.head.media.image() {
            image.set_committer(committer);
        }
    }

    /// Whether each fence is to wait until the disk has what was stored before.
    pub fn commit_fences(&self, commits: bool) {
        if let Some(image) = self.head.media.image() {
            image.commit_fences(commits);
        }
    }

    /// Number of the next version that will be taken: it will have all that was stored by now.
    pub fn next_version(&self) -> u64 {
        let begun = |(_, image): (&Cache, &Image)| image.word(ImageWord::Begun, 0).load(SeqCst);
        self.cached().map_or(0, begun) + 1
    }

    /// Number of the newest version that the disk has.
    pub fn durable_version(&self) -> u64 {
        let durable = |(_, image): (&Cache, &Image)| image.word(ImageWord::Durable, 0).load(SeqCst);
        self.cached().map_or(u64::MAX, durable)
    }

    /// When the newest version became durable, in seconds since 1970; 0 for never.
    pub fn committed_at(&self) -> u64 {
        let time = |(_, image): (&Cache, &Image)| image.word(ImageWord::Time, 0).load(SeqCst);
        self.cached().map_or(0, time)
    }

    /// Memory for the version that is taken next, as far as one can tell now.
    pub fn room_for_version(&self) -> VersionRoom {
        self.cached().map(VersionRoom::of).unwrap_or_default()
    }

    /// As [`Volume::take_version_in`], with memory of its own.
    pub fn take_version(&self) -> Option<Version> {
        self.take_version_in(&mut self.room_for_version())
    }

    /// Copies what the disk does not have. Nobody stores meanwhile, and nobody else takes a version
    /// before this one is written.
    pub fn take_version_in(&self, room: &mut VersionRoom) -> Option<Version> {
        let (cache, image) = self.cached()?;
        let number = image.word(ImageWord::Begun, 0).fetch_add(1, SeqCst) + 1;
        let VersionRoom {
            found,
            homes,
            buffers,
        } = room;
        image.take(|range, new| found.push((range, new)));
        let new = found.iter().filter(|(_, new)| *new);
        let new: u64 = new.map(|(range, _)| len(range)).sum();
        let [mut first, mut journaled] = mem::take(homes);
        // What is around it may differ on disks that hold the same, or was trimmed.
        let has_all = cache.disk.legs().is_some() || image.has_sums();
        for (range, is_new) in found.drain(..) {
            let whole = whole_units(range.clone());
            if is_new && has_all {
                image.take_whole(whole.clone());
            }
            match is_new && cache.disk.goes_first(len(&range), len(&whole), new) {
                true => first.add(whole),
                false if is_new && has_all => journaled.add(whole),
                false => journaled.add(range),
            }
        }
        let [for_first, for_journaled] = mem::take(buffers);
        let beside = match goes_beside(cache, &first.0) {
            true => first.0.len(),
            false => 0,
        };
        let homes = first.0.iter().take(beside).cloned();
        homes.for_each(|home| image.note_beside(home));
        let mut journaled = Draft::with_beside(for_journaled, journaled.0, beside);
        journaled.fill(|home, bytes| image.copy(home.start, bytes));
        let first = Copies::of(image, first, for_first);
        if image.unsum_mapped() {
            journaled.fill(|home, bytes| image.copy_sums(home.start, bytes));
        }
        Some(Version {
            number,
            first,
            journaled,
        })
    }

    /// Whether new contents are written at the same time as the record that needs them (D123).
    pub fn writes_beside(&self) -> bool {
        self.cached().is_some_and(|(cache, _)| cache.beside)
    }

    /// Whether whoever stays beside the programs should commit, as a process was killed in the
    /// middle of its writes: some cannot wait for these.
    pub fn has_calls_left(&self) -> bool {
        let shared = |(cache, image)| Some((Cache::shared_calls(cache)?, image));
        let shared = self.cached().and_then(shared);
        shared.is_some_and(|(shared, image)| shared.are_calls_left(image))
    }

    /// Before the caller takes the right to commit: who cannot wait for writes of a process that is
    /// gone leaves that to others.
    pub fn leave_calls_to_others(&self) {
        let cache = self.cached().map(|(cache, _)| cache);
        if let Some(shared) = cache.and_then(Cache::shared_calls) {
            shared.leave_calls_to_others();
        }
    }

    /// No version presses any more those who store.
    pub fn end_press(&self) {
        if let Some((_, image)) = self.cached() {
            image.end_press();
        }
    }

    /// Somebody waits for a version from now on.
    pub fn note_asked(&self) {
        if let Some((_, image)) = self.cached() {
            image.note_asked();
        }
    }

    /// Writes a version; the disk has it on return. After a failure it has the version before, and
    /// the next one will hold this one too.
    pub fn write_version(&self, mut version: Version) -> Result<(), VolumeError> {
        let Some((cache, image)) = self.cached() else {
            return Ok(());
        };
        let begun = Instant::now();
        let journaled = &mut version.journaled;
        let written = begin(cache, image, self.uuid()).and_then(|home| {
            let first = &version.first;
            if journaled.beside() == 0 || journaled.homes().is_empty() {
                write_home(cache, image, first)?;
            }
            match journaled.homes().is_empty() {
                true => Ok(home),
                false => self.append((cache, image), (journaled, first), home),
            }
        });
        if let Ok(home) = written {
            now_home(image, home);
            image.written(journaled.homes().iter());
            image
                .word(ImageWord::Durable, 0)
                .store(version.number, SeqCst);
            let spent = begun.elapsed().as_nanos() as u64;
            image.word(ImageWord::Spent, 0).fetch_add(spent, SeqCst);
        }
        cache.keep_buffer(version.first.bytes);
        cache.keep_buffer(version.journaled.into_buffer());
        written.map(drop).map_err(|why| {
            image.not_written();
            begin_step(image);
            image.word(ImageWord::Failures, 0).fetch_add(1, SeqCst);
            cache.failed(why)
        })
    }

    /// Answers which record is the first that may have to go home.
    fn append(
        &self,
        (cache, image): (&Cache, &Image),
        (draft, first): (&mut Draft, &Copies),
        home: At,
    ) -> Result<At, JournalError> {
        let beside: Vec<_> = first.pieces().take(draft.beside()).collect();
        if !beside.is_empty() {
            cache.prepare_calls(image)?;
            note_home(image, &first.homes.0);
        }
        let mut journal = self.resume(cache, image, home)?;
        let before = journal.room();
        begin_step(image);
        match journal.append_beside(draft, &beside) {
            Err(JournalError::Full) => {
                self.empty(&mut journal, (cache, image))?;
                begin_step(image);
                journal.append_beside(draft, &beside)?;
            }
            other => other?,
        }
        set_position(image, journal.position());
        let place = journal.position().end - draft.needed();
        cache.keep(image, place, draft.record());
        let bytes = before.saturating_sub(journal.room());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        image.word(ImageWord::Commits, 0).fetch_add(1, SeqCst);
        image.word(ImageWord::Bytes, 0).fetch_add(bytes, SeqCst);
        let now = now.map_or(0, |now| now.as_secs());
        image.word(ImageWord::Time, 0).store(now, SeqCst);
        // The record is durable, whatever becomes of this: else a checkpoint does it.
        let recall = |place: u64, to: &mut [u8]| image.recall_records(place, to);
        let mut room = cache.buffer();
        let _ = journal.bring_home(draft, &mut room, &recall);
        cache.keep_buffer(room);
        Ok(journal.position().home)
    }

    fn resume<'c>(
        &self,
        cache: &'c Cache,
        image: &Image,
        home: At,
    ) -> Result<Journal<&'c DeviceDisk>, JournalError> {
        // Who died meanwhile may not have said how far it got.
        let unknown = image.word(ImageWord::JournalUnknown, 0).load(SeqCst) != 0;
        if unknown {
            return self.found_empty(cache, image);
        }
        let place = (cache.at, cache.len);
        let position = Position {
            home,
            ..position(image)
        };
        Journal::resume(&cache.disk, self.uuid().0, place, position)
    }

    /// The journal as the disk has it, once all of it is home.
    fn found_empty<'c>(
        &self,
        cache: &'c Cache,
        image: &Image,
    ) -> Result<Journal<&'c DeviceDisk>, JournalError> {
        let mut journal = cache.open_journal(self.uuid())?;
        journal.affirm()?;
        set_position(image, journal.position());
        bring_home(&mut journal, image)?;
        Ok(journal)
    }

    /// All of the journal is home. Of disks that hold the same one may show other records than were
    /// written: it is lost, as the others tell.
    fn empty<'c>(
        &self,
        journal: &mut Journal<&'c DeviceDisk>,
        (cache, image): (&'c Cache, &Image),
    ) -> Result<(), JournalError> {
        match bring_home(journal, image) {
            Err(JournalError::Damaged) if cache.disk.legs().is_some() => {
                *journal = self.found_empty(cache, image)?;
                Ok(())
            }
            done => done,
        }
    }

    /// Brings all versions home, so that the journal is empty. Nobody commits meanwhile.
    pub fn checkpoint(&self) -> Result<(), VolumeError> {
        let Some((cache, image)) = self.cached() else {
            return Ok(());
        };
        let done = begin(cache, image, self.uuid()).and_then(|home| {
            let mut journal = self.resume(cache, image, home)?;
            self.empty(&mut journal, (cache, image))?;
            now_home(image, journal.position().home);
            Ok(())
        });
        done.map_err(|why| cache.failed(why))
    }
}
