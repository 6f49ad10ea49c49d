//! Bringing up the image of a disk, taking versions, writing them.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant, SystemTime};
use std::{mem, slice};

use nacre_cache::{At, BESIDE_MAX, Buffer, Disk, Draft, Journal, JournalError, Piece, Position};
use nacre_media::{
    Access, Committer, GRANULE, Image, ImageWord, MediaFailed, News, NewsRoom, Pace,
};
use nacre_types::{UNIT_SIZE, UnitNo, Uuid, VolumeOffset, site};

use crate::cache::{Cache, CacheInfo};
use crate::disk::DeviceDisk;
use crate::error::VolumeError;
use crate::layout::{DATA_START, LEAST_ROOM};
use crate::scrub::in_volume;
use crate::version::{Copies, MORE, Version, VersionRoom};
use crate::volume::Volume;

/// Stores wait for a commit when so much of the journal's room is dirty.
const DIRTY_SHARE: u64 = 4;
/// And when so much is, as all of it is copied while nobody stores.
const DIRTY_MAX: u64 = 64 << 20;
/// So much of what is new goes home at once, as others wait for the commit lock meanwhile.
const AHEAD: u64 = if cfg!(feature = "explore") {
    8 << 10
} else {
    16 << 20
};
/// It is copied in pieces of at most this size.
const AHEAD_PIECE: u64 = 1 << 20;
/// And so much at a time, to memory that is kept.
const AHEAD_ROOM: u64 = 2 << 20;
/// Pieces from this size on are waited for, where several are written at the same time.
const LARGE: u64 = 64 << 10;

/// Up to so many writes are waited for one by one, more are together. The explorer has small files.
const FEW_WRITES: usize = if cfg!(feature = "explore") { 1 } else { 4 };

/// Up to so many writes are waited for, those together that a disk takes at the same time.
fn few_writes(disk: impl Disk) -> usize {
    match cfg!(feature = "explore") {
        true => FEW_WRITES,
        false => FEW_WRITES.max(disk.at_once()),
    }
}

fn position(image: &Image) -> Position {
    let word = |skip| image.word(ImageWord::Journal, skip).load(SeqCst);
    Position {
        turn: word(0),
        first: word(1),
        next: word(2),
        end: word(3),
        past: image.word(ImageWord::JournalPast, 0).load(SeqCst) as u32,
        home: At::default(),
    }
}

/// Nobody knows any more which records went home, until somebody says so again (C13).
fn forget_home(image: &Image) -> At {
    let place = image.word(ImageWord::HomePlace, 0).load(SeqCst);
    let home = image.word(ImageWord::HomeNext, 0);
    let number = match site::step() {
        true => home.swap(0, SeqCst),
        false => home.load(SeqCst),
    };
    At { number, place }
}

/// Before anything is written. Answers which record is the first that may have to go home.
fn begin(cache: &Cache, image: &Image, pool: Uuid) -> Result<At, JournalError> {
    cache.begin_calls(image)?;
    let home = forget_home(image);
    cache.check_label(pool)?;
    Ok(home)
}

/// Records before this one went home, and no write failed since.
fn now_home(image: &Image, next: At) {
    image
        .word(ImageWord::HomePlace, 0)
        .store(next.place, SeqCst);
    image
        .word(ImageWord::HomeNext, 0)
        .store(next.number, SeqCst);
}

/// A record or a header is under way, until [`set_position`]: whoever writes it may fail or die. Or
/// the image has just come to the disk.
fn begin_step(image: &Image) {
    image.word(ImageWord::JournalUnknown, 0).store(1, SeqCst);
}

/// Notes where the journal is now.
fn set_position(image: &Image, position: Position) {
    let Position {
        turn,
        first,
        next,
        end,
        past,
        home: _,
    } = position;
    begin_step(image);
    for (skip, value) in [turn, first, next, end].into_iter().enumerate() {
        image.word(ImageWord::Journal, skip).store(value, SeqCst);
    }
    // With its number, so that the two always belong together.
    let past = next << 32 | u64::from(past);
    image.word(ImageWord::JournalPast, 0).store(past, SeqCst);
    image.word(ImageWord::JournalUnknown, 0).store(0, SeqCst);
}

/// The newest record that is known for sure: its number and checksum belong together.
fn surely_written(image: &Image) -> Position {
    let known = position(image);
    let number = (image.word(ImageWord::JournalPast, 0).load(SeqCst) >> 32) as u32;
    let ahead = (known.next as u32).wrapping_sub(number);
    Position {
        next: known.next.wrapping_sub(ahead.into()),
        ..known
    }
}

fn bring_home(journal: &mut Journal<&DeviceDisk>, image: &Image) -> Result<(), JournalError> {
    begin_step(image);
    let bytes = journal.checkpoint()?;
    set_position(image, journal.position());
    // What gathers is written in whole units.
    let bytes = bytes.max(image.came_home());
    image.word(ImageWord::Home, 0).fetch_add(bytes, SeqCst);
    Ok(())
}

/// Whether new contents are written at the same time as the record that needs them (D123).
fn goes_beside(cache: &Cache, homes: &[Range<u64>]) -> bool {
    let bytes: u64 = homes.iter().map(len).sum();
    let fits = homes.len() < (&cache.disk).at_once() && bytes <= BESIDE_MAX;
    cache.beside && fits
}

/// So many bytes of this go home.
fn note_home(image: &Image, homes: &[Range<u64>]) {
    let bytes = homes.iter().map(len).sum();
    image.word(ImageWord::Home, 0).fetch_add(bytes, SeqCst);
}

/// Writes what is new to its place, durably (C11).
fn write_home(cache: &Cache, image: &Image, new: &Copies) -> Result<(), JournalError> {
    let disk = &cache.disk;
    new.homes
        .0
        .iter()
        .for_each(|home| disk.expect(home.clone()));
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

/// Writes ranges home from memory as it is by now, durably.
fn write_ahead(cache: &Cache, image: &Image, homes: &[Range<u64>]) -> Result<u64, JournalError> {
    let (disk, mut buffer) = (&cache.disk, cache.buffer());
    homes.iter().for_each(|home| disk.expect(home.clone()));
    let (waited_for, gathered) = kinds_of(homes, disk.at_once());
    if waited_for.len() > 1 {
        cache.prepare_calls(image)?;
    }
    let to_copy = pieces_of(&disk.write_from(image, &waited_for)?, disk.at_once());
    if to_copy.len() > 1 {
        cache.prepare_calls(image)?;
    }
    for pieces in to_copy.chunks(disk.at_once()) {
        let copies = copies_of(image, pieces, &mut buffer);
        disk.write_all_through(&copies)?;
    }
    for piece in &pieces_of(&gathered, disk.at_once()) {
        let copies = copies_of(image, slice::from_ref(piece), &mut buffer);
        copies
            .iter()
            .try_for_each(|(at, bytes)| disk.write(*at, bytes))?;
    }
    if !gathered.is_empty() {
        disk.settle(&gathered)?;
    }
    cache.keep_buffer(buffer);
    let bytes = homes.iter().map(len).sum();
    image.word(ImageWord::Home, 0).fetch_add(bytes, SeqCst);
    Ok(bytes)
}

/// Ranges that are waited for one by one, or as many as a disk takes at the same time, and those
/// that gather in the kernel before they are.
fn kinds_of(homes: &[Range<u64>], at_once: usize) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    let large = match at_once {
        1 => AHEAD_PIECE,
        _ => LARGE,
    };
    let few = homes.len() <= FEW_WRITES;
    let homes = homes.iter().cloned();
    homes.partition(|home| few || len(home) >= large)
}

/// Pieces of ranges, for a disk that takes so many copies at the same time.
fn pieces_of(homes: &[Range<u64>], at_once: usize) -> Vec<Range<u64>> {
    let most = (AHEAD_ROOM / at_once as u64).min(AHEAD_PIECE);
    let in_pieces = |home: &Range<u64>| {
        let home = home.clone();
        let starts = home.clone().step_by(most as usize);
        starts.map(move |at| at..home.end.min(at + most))
    };
    homes.iter().flat_map(in_pieces).collect()
}

/// Pieces of memory as they are by now, in a buffer.
fn copies_of<'b>(
    image: &Image,
    pieces: &[Range<u64>],
    buffer: &'b mut Buffer,
) -> Vec<(u64, &'b [u8])> {
    buffer.set_len(pieces.iter().map(len).sum::<u64>() as usize);
    let mut rest = buffer.bytes_mut();
    let copy = |piece: &Range<u64>| {
        let bytes = rest.split_off_mut(..len(piece) as usize)?;
        image.copy(piece.start, bytes);
        Some((piece.start, &*bytes))
    };
    pieces.iter().filter_map(copy).collect()
}

fn whole_units(range: Range<u64>) -> Range<u64> {
    range.start / UNIT_SIZE * UNIT_SIZE..range.end.next_multiple_of(UNIT_SIZE)
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

impl Volume {
    /// Whether processes use an image of the disk. It must be brought up before anything of the
    /// volume is used.
    pub fn is_cached(&self) -> bool {
        self.cache.is_some()
    }

    /// After how long the disk gets what was stored, where nobody waits for that: the pool is one
    /// in memory that is saved.
    pub fn saved_every(&self) -> Option<Duration> {
        self.cache.as_ref()?.saved_every
    }

    /// Whether the image is there.
    pub fn has_image(&self) -> bool {
        self.head.media.image().is_some()
    }

    /// Bytes that are in memory alone.
    pub fn dirty_bytes(&self) -> u64 {
        self.cached().map_or(0, |(_, image)| image.dirty_bytes())
    }

    /// Whether so much is in memory alone that whoever stays beside the programs should commit,
    /// before they have to.
    pub fn fills(&self) -> bool {
        self.cached().is_some_and(|(_, image)| image.fills())
    }

    fn cached(&self) -> Option<(&Cache, &Image)> {
        Some((self.cache.as_ref()?, self.head.media.image()?))
    }

    /// Makes the image in an empty file in shared memory, of what the disk holds. The caller holds
    /// the pool's exclusive lock, or the file is its own.
    ///
    /// What a power cut left in the journal is brought home first, or, where the disk may not be
    /// written, into the image.
    pub fn make_image(&self, file: OwnedFd) -> Result<(), VolumeError> {
        let Some(cache) = &self.cache else {
            return Ok(());
        };
        let mut journal = cache
            .open_journal(self.uuid())
            .map_err(|why| cache.failed(why))?;
        let writable = self.access() == Access::ReadWrite;
        let has_records = journal.room() < cache.len - nacre_cache::RECORDS_AT;
        if writable && has_records {
            journal.affirm().map_err(|why| cache.failed(why))?;
            journal.checkpoint().map_err(|why| cache.failed(why))?;
        }
        let image = Image::create(file, &cache.device, cache.key(self.uuid()));
        let image = image.map_err(|why| cache.unusable(why))?;
        cache.look_for_room(&image)?;
        set_position(&image, journal.position());
        if writable && !has_records {
            // Nobody knows how whoever wrote the header has ended: who commits first affirms it,
            // and writes one of this image's own (J8).
            begin_step(&image);
        }
        image.set_room(cache.room(&image));
        cache.share_legs(&image, true)?;
        self.use_image(image)?;
        if writable {
            return Ok(());
        }
        let put = |piece: Piece<'_>, _| {
            self.head.media.restore(piece.home, piece.bytes);
            Ok(())
        };
        journal.each_piece(put).map_err(|why| cache.failed(why))
    }

    /// Uses an image that was made before. `false`: it is not of this pool as the disk has it now,
    /// and is of no use. The caller holds the pool's exclusive lock.
    pub fn join_image(&self, file: OwnedFd) -> Result<bool, VolumeError> {
        let Some(cache) = &self.cache else {
            return Ok(true);
        };
        let opened = Image::open(file, &cache.device, cache.key(self.uuid()));
        let Some(image) = opened.map_err(|why| cache.unusable(why))? else {
            return Ok(false);
        };
        let alone = image.enter(true).map_err(|why| cache.unusable(why))?;
        // Somebody may be removing it, as the pool seemed to be gone.
        while image.has_name() && !image.enter(alone).map_err(|why| cache.unusable(why))? {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !image.has_name() {
            return Ok(false);
        }
        if alone && !self.is_of_disk(cache, &image)? {
            return Ok(false);
        }
        if alone {
            image.recount();
            image.end_all_windows();
            // Its maker may have been allowed more, or killed for taking too much.
            image.set_room(cache.room(&image));
        }
        cache.share_legs(&image, alone)?;
        self.use_image(image)?;
        Ok(true)
    }

    /// Whether the disk is as the image knows it: nobody has written to it without the image.
    fn is_of_disk(&self, cache: &Cache, image: &Image) -> Result<bool, VolumeError> {
        let journal = cache
            .open_journal(self.uuid())
            .map_err(|why| cache.failed(why))?;
        let is_of_disk = journal.goes_on_from(surely_written(image));
        if is_of_disk {
            set_position(image, journal.position());
            // The next who commits looks again, affirms what was found, and writes a header:
            // another image may be there that goes on from the same (J8).
            begin_step(image);
            // Of pages that could not be written while nobody had it open nobody is told.
            now_home(image, At::default());
        }
        Ok(is_of_disk)
    }

    fn use_image(&self, mut image: Image) -> Result<(), VolumeError> {
        let Some(cache) = &self.cache else {
            return Ok(());
        };
        image.enter(false).map_err(|why| cache.unusable(why))?;
        let limit = (cache.len / DIRTY_SHARE).min(DIRTY_MAX);
        image.set_limit(limit, cache.disk.mapped().is_none());
        if self.access() == Access::ReadWrite {
            image.allow_drops(cache.disk.shared());
        }
        if let Some(mapped) = cache.disk.mapped() {
            image.load_from(mapped.clone());
        }
        if let Some(disks) = cache.disk.several() {
            image.load_from_legs(disks);
        }
        self.head.media.set_image(image)?;
        self.now_has_image();
        Ok(())
    }

    /// Whether nobody else uses the image, from now on.
    pub fn is_last_of_image(&self) -> bool {
        let image = self.head.media.image();
        image.is_some_and(|image| image.enter(true).unwrap_or(false))
    }

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
        for (range, is_new) in found.drain(..) {
            let whole = whole_units(range.clone());
            match is_new && cache.disk.goes_first(len(&range), len(&whole), new) {
                true => first.add(whole),
                // What is around it may differ on disks that hold the same.
                false if is_new && cache.disk.legs().is_some() => {
                    image.take_whole(whole.clone());
                    journaled.add(whole);
                }
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
        Some(Version {
            number,
            first: Copies::of(image, first, for_first),
            journaled,
        })
    }

    /// Whether new contents are written at the same time as the record that needs them (D123).
    pub fn writes_beside(&self) -> bool {
        self.cached().is_some_and(|(cache, _)| cache.beside)
    }

    /// Bytes of what is new and not at home, where it goes there ahead of versions.
    pub fn new_bytes(&self) -> u64 {
        self.cached().map_or(0, |(_, image)| image.new_bytes())
    }

    /// Whether so much is new that whoever stays beside the programs should bring it home.
    pub fn news_fill(&self) -> bool {
        self.cached().is_some_and(|(_, image)| image.news_fill())
    }

    /// Whether somebody rests from now on who brings what is new home: whoever stores wakes it in
    /// time.
    pub fn set_rests(&self, rests: bool) {
        if let Some((_, image)) = self.cached() {
            image.set_rests(rests);
        }
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

    /// As [`Volume::take_version`], of some of what is new; nothing is copied.
    pub fn take_news(&self, pace: Pace, room: NewsRoom) -> Option<News> {
        let (_, image) = self.cached()?;
        Some(image.take_new(AHEAD, pace, room))
    }

    /// Memory for what is taken next, as [`Volume::room_for_version`].
    pub fn room_for_news(&self) -> NewsRoom {
        let most = |(_, image): (&Cache, &Image)| AHEAD.min(image.dirty_new() + MORE) / GRANULE;
        NewsRoom::with_capacity(self.cached().map_or(0, most) as usize)
    }

    /// Writes what is new home, ahead of a version (D75). Answers how many bytes that were.
    pub fn write_news(&self, news: News) -> Result<u64, VolumeError> {
        let Some((cache, image)) = self.cached() else {
            return Ok(0);
        };
        let begun = Instant::now();
        let written = begin(cache, image, self.uuid())
            .and_then(|home| Ok((home, write_ahead(cache, image, &news.homes())?)));
        match written {
            Ok((home, bytes)) => {
                image.note_rate(bytes, begun.elapsed());
                now_home(image, home);
                image.went_ahead(&news);
                Ok(bytes)
            }
            Err(why) => {
                image.did_not_go(&news);
                image.word(ImageWord::Failures, 0).fetch_add(1, SeqCst);
                Err(cache.failed(why))
            }
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
                bring_home(&mut journal, image)?;
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
            let mut journal = cache.open_journal(self.uuid())?;
            journal.affirm()?;
            set_position(image, journal.position());
            bring_home(&mut journal, image)?;
            return Ok(journal);
        }
        let place = (cache.at, cache.len);
        let position = Position {
            home,
            ..position(image)
        };
        Journal::resume(&cache.disk, self.uuid().0, place, position)
    }

    /// Brings all versions home, so that the journal is empty. Nobody commits meanwhile.
    pub fn checkpoint(&self) -> Result<(), VolumeError> {
        let Some((cache, image)) = self.cached() else {
            return Ok(());
        };
        let done = begin(cache, image, self.uuid()).and_then(|home| {
            let mut journal = self.resume(cache, image, home)?;
            bring_home(&mut journal, image)?;
            now_home(image, journal.position().home);
            Ok(())
        });
        done.map_err(|why| cache.failed(why))
    }

    /// Units that were free are used for something new from now on.
    #[cold]
    pub fn note_taken(&self, at: VolumeOffset, len: u64) {
        if let Some((image, at)) = self.imaged(at) {
            image.note_taken(at, len);
        }
    }

    /// Units that nothing refers to any more are about to be free.
    #[cold]
    pub fn note_freed(&self, at: VolumeOffset, len: u64) {
        if let Some((image, at)) = self.imaged(at) {
            image.note_freed(at, len);
        }
    }

    /// Which units are free has been found out again.
    pub fn unsettle(&self) {
        if let Some(image) = self.head.media.image() {
            image.unsettle();
        }
    }

    /// Whether what is stored to free units has to go through the journal: the version that the
    /// disk has may need what they hold.
    pub fn is_spent(&self, at: VolumeOffset, len: u64) -> bool {
        let imaged = self.imaged(at);
        imaged.is_some_and(|(image, at)| image.is_spent(at, len))
    }

    /// As [`Volume::is_spent`], of the 64 units from a multiple of 64 on, each a bit.
    pub fn spent_of(&self, first: UnitNo) -> u64 {
        const { assert!(DATA_START.is_multiple_of(UNIT_SIZE * u64::BITS as u64)) };
        let imaged = self.imaged(first.offset());
        imaged.map_or(0, |(image, at)| image.spent_of(at))
    }

    /// Calls `found` with units, that many, that were freed and are spent no more since the version
    /// that was written last. Nobody takes a version meanwhile.
    pub fn each_regained(&self, mut found: impl FnMut(UnitNo, u64)) {
        if let Some(image) = self.head.media.image() {
            image.each_regained(|range| {
                let start = in_volume(range.start).0 / UNIT_SIZE;
                found(UnitNo(start), len(&range) / UNIT_SIZE);
            });
        }
    }

    /// Whether contents that a call overwrites, of so many bytes, had better be stored elsewhere:
    /// all of it would go through the journal.
    pub fn had_better_move(&self, len: usize) -> bool {
        let image = self.head.media.image();
        image.is_some_and(|image| image.had_better_move(len))
    }

    /// How many of the first of `count` units are alike, and whether overwriting them would cost
    /// the journal all of their bytes.
    pub fn first_alike(&self, at: VolumeOffset, count: u64) -> (u64, bool) {
        match self.imaged(at) {
            Some((image, at)) => image.first_alike(at, count),
            None => (count, false),
        }
    }

    /// The image, and where a place lies in it.
    fn imaged(&self, at: VolumeOffset) -> Option<(&Image, u64)> {
        let image = self.head.media.image()?;
        Some((image, self.find(at).1.get()))
    }

    /// From now on so many bytes of the disk should be in memory at most.
    pub fn set_room(&self, bytes: u64) {
        if let Some(image) = self.head.media.image() {
            image.set_room(bytes.max(LEAST_ROOM));
        }
    }

    /// Keeps the image as small as the caller's control group has to have it, whoever else uses it.
    pub fn lower_room(&self) {
        if let Some((cache, image)) = self.cached()
            && let Some(bytes) = cache.room_of_group()
        {
            image.lower_room(bytes);
        }
    }

    /// Gives memory back that others lack where the image lies.
    pub fn leave_spare(&self) {
        if let Some(image) = self.head.media.image() {
            image.leave_spare();
        }
    }

    /// Whether a mapping of so many bytes is to come by windows, so that what is not used of it may
    /// leave memory.
    pub fn maps_by_windows(&self, len: u64) -> bool {
        let image = self.head.media.image();
        image.is_some_and(|image| image.wants_windows(len))
    }

    /// Whether so many bytes more may stay in memory for as long as somebody maps them.
    pub fn may_stay(&self, len: u64) -> bool {
        let image = self.head.media.image();
        image.is_none_or(|image| image.may_stay(len))
    }

    /// How many bytes of windows this process should have at most.
    pub fn window_share(&self) -> u64 {
        let image = self.head.media.image();
        image.map_or(u64::MAX, Image::window_share)
    }

    /// A range of the disk is about to be mapped by this process, which may then `store` there.
    /// `false`: it is pinned for good, as no window is to be had there.
    pub fn begin_window(&self, range: Range<u64>, store: bool) -> Result<bool, MediaFailed> {
        let image = self.head.media.image().ok_or(MediaFailed)?;
        let begun = image.begin_window(range.clone(), store)?;
        if !begun {
            image.pin_range(range)?;
        }
        Ok(begun)
    }

    /// The program may store to a window from now on.
    pub fn store_through_window(&self, range: Range<u64>) {
        if let Some(image) = self.head.media.image() {
            image.store_through_window(range);
        }
    }

    /// A window ends. `stays`: it is mapped for good from now on.
    pub fn end_window(&self, range: Range<u64>, stays: bool) -> Result<(), MediaFailed> {
        let image = self.head.media.image().ok_or(MediaFailed)?;
        if stays {
            image.pin_range(range.clone())?;
        }
        image.end_window(range)
    }

    /// The windows end of a process that is gone, or that has none any more.
    pub fn end_windows_of(&self, number: u64) {
        if let Some(image) = self.head.media.image() {
            image.end_windows_of(number);
        }
    }

    /// Drops all that memory need not hold; answers how many bytes.
    pub fn drop_memory(&self) -> u64 {
        let image = self.head.media.image();
        image.map_or(0, Image::drop_all) * UNIT_SIZE
    }

    /// Drops what memory need not hold of a range.
    pub fn drop_range(&self, at: VolumeOffset, len: u64) {
        if let Some((image, at)) = self.imaged(at) {
            image.drop_range(at..at + len);
        }
    }

    /// Whether a range of one device is in memory now.
    pub fn has_range(&self, at: VolumeOffset, len: u64) -> bool {
        let imaged = self.imaged(at);
        imaged.is_none_or(|(image, at)| image.has_range(at..at + len))
    }

    /// As [`nacre_media::Image::begin_load`], of a range of one device.
    pub fn begin_load(&self, at: VolumeOffset, len: u64, tag: u64) -> bool {
        let imaged = self.imaged(at);
        imaged.is_some_and(|(image, at)| image.begin_load(at..at + len, tag))
    }

    /// As [`nacre_media::Image::take_loaded`].
    pub fn take_loaded(&self, most: Duration, tell: impl FnMut(u64)) {
        if let Some(image) = self.head.media.image() {
            image.take_loaded(most, tell);
        }
    }

    /// Whether the disk has all that was stored.
    pub fn is_clean(&self) -> bool {
        self.cached().is_none_or(|(_, image)| image.is_clean())
    }

    /// Whether memory shows what the disk has: nothing was stored to the image since it was made.
    pub fn is_untouched(&self) -> bool {
        let untouched = |(_, image): (&Cache, &Image)| {
            image.is_clean() && image.word(ImageWord::Begun, 0).load(SeqCst) == 0
        };
        self.cached().is_some_and(untouched)
    }

    /// What is known of the cache; `None` without one.
    pub fn cache_info(&self) -> Option<CacheInfo> {
        let (cache, image) = self.cached()?;
        let word = |word| image.word(word, 0).load(SeqCst);
        let traffic = image.traffic();
        Some(CacheInfo {
            commits: word(ImageWord::Commits),
            committed_bytes: word(ImageWord::Bytes),
            commit_time: Duration::from_nanos(word(ImageWord::Spent)),
            failures: word(ImageWord::Failures),
            dirty_bytes: image.dirty_bytes(),
            present_bytes: image.present_bytes(),
            room_bytes: image.room_bytes(),
            read_bytes: traffic.read * UNIT_SIZE,
            missed_bytes: traffic.missed * UNIT_SIZE,
            loaded_bytes: traffic.loaded * UNIT_SIZE,
            dropped_bytes: traffic.dropped * UNIT_SIZE,
            home_bytes: word(ImageWord::Home),
            journal_bytes: cache.len,
        })
    }
}
