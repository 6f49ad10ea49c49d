//! What is new goes home ahead of the version that has it (D75).

use std::ops::Range;
use std::slice;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use nacre_cache::{Buffer, Disk, JournalError};
use nacre_media::{GRANULE, Image, ImageWord, News, NewsRoom, Pace};

use crate::disk::cache::Cache;
use crate::error::VolumeError;
use crate::image::position::{begin, now_home};
use crate::image::version::MORE;
use crate::volume::Volume;

/// So much of what is new goes home at once, as others wait for the commit lock meanwhile.
pub(crate) const AHEAD: u64 = if cfg!(feature = "explore") {
    8 << 10
} else {
    16 << 20
};

/// It is copied in pieces of at most this size.
const AHEAD_PIECE: u64 = 1 << 20;

/// And so much at a time, to memory that is kept.
pub(crate) const AHEAD_ROOM: u64 = 2 << 20;

/// Pieces from this size on are waited for, where several are written at the same time.
pub(crate) const LARGE: u64 = 64 << 10;

/// Up to so many writes are waited for one by one, more are together. The explorer has small files.
pub(crate) const FEW_WRITES: usize = if cfg!(feature = "explore") { 1 } else { 4 };

/// Writes ranges home from memory as it is by now, durably.
pub(crate) fn write_ahead(
    cache: &Cache,
    image: &Image,
    homes: &[Range<u64>],
) -> Result<u64, JournalError> {
    let (disk, mut buffer) = (&cache.disk, cache.buffer());
    homes
        .iter()
        .for_each(|home| disk.prepare_write(home.clone()));
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
pub(crate) fn kinds_of(homes: &[Range<u64>], at_once: usize) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    let large = match at_once {
        1 => AHEAD_PIECE,
        _ => LARGE,
    };
    let few = homes.len() <= FEW_WRITES;
    let homes = homes.iter().cloned();
    homes.partition(|home| few || len(home) >= large)
}

/// Pieces of ranges, for a disk that takes so many copies at the same time.
pub(crate) fn pieces_of(homes: &[Range<u64>], at_once: usize) -> Vec<Range<u64>> {
    let most = (AHEAD_ROOM / at_once as u64).min(AHEAD_PIECE);
    let in_pieces = |home: &Range<u64>| {
        let home = home.clone();
        let starts = home.clone().step_by(most as usize);
        starts.map(move |at| at..home.end.min(at + most))
    };
    homes.iter().flat_map(in_pieces).collect()
}

/// Pieces of memory as they are by now, in a buffer.
pub(crate) fn copies_of<'b>(
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

pub(crate) fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

impl Volume {
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
}
