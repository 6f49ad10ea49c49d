//! A version before it is written: copies of what memory held at one moment.

use std::ops::Range;

use nacre_cache::{Buffer, Draft, Piece};
use nacre_media::{GRANULE, Image};
use nacre_types::UNIT_SIZE;

use crate::disk::HOME_FIRST;
use crate::disk::cache::Cache;

/// So much more may be stored between the look at what is dirty and the taking of a version.
pub(crate) const MORE: u64 = 64 << 10;
/// So much of what is new may lie in units of which the rest is not.
const PARTS: u64 = 512 << 10;
/// What has checksums of so many bytes of contents takes one byte, if they are scattered.
const SUMS_SHARE: u64 = UNIT_SIZE / GRANULE;
/// Ranges of a version for which there is memory in any case.
const RANGES: u64 = 4096;

/// What memory held at one moment and the disk is to have.
#[derive(Debug)]
pub struct Version {
    pub(crate) number: u64,
    /// New contents, which go home before the record is written, or at the same time.
    pub(crate) first: Copies,
    /// What the record has.
    pub(crate) journaled: Draft,
}

/// Memory for a version. To get memory while nobody may store takes calls of the kernel, in which a
/// debugger stops this process; it would wait for ever if it stores in the pool itself.
#[derive(Debug, Default)]
pub struct VersionRoom {
    pub(crate) found: Vec<(Range<u64>, bool)>,
    /// Of what goes home first, and of what the record has.
    pub(crate) homes: [Homes; 2],
    pub(crate) buffers: [Buffer; 2],
}

/// Copies of ranges of the device, in order.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    pub(crate) homes: Homes,
    pub(crate) bytes: Buffer,
}

/// Ranges of the device, in order, which do not touch.
#[derive(Debug, Default)]
pub(crate) struct Homes(pub(crate) Vec<Range<u64>>);

impl VersionRoom {
    pub(crate) fn of((cache, image): (&Cache, &Image)) -> Self {
        let (new, old) = (image.dirty_new(), image.dirty_old());
        // What of the new goes home first is copied in whole units; of much of it most are whole.
        let first = new + new.min(PARTS) + MORE;
        let sums = match image.has_sums() {
            true => (new + old) / SUMS_SHARE,
            false => 0,
        };
        let journaled = old + new.min(HOME_FIRST) + MORE + sums;
        let ranges = RANGES.min((new + old + MORE) / GRANULE) as usize;
        let buffer = |len: u64| {
            let mut buffer = cache.buffer();
            buffer.set_len(len as usize);
            buffer
        };
        let homes = || Homes(Vec::with_capacity(ranges));
        Self {
            found: Vec::with_capacity(ranges),
            homes: [homes(), homes()],
            buffers: [buffer(first), buffer(journaled)],
        }
    }
}

impl Homes {
    /// Adds what of a range is not among them. Ranges come in order.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        let known = self.0.last().map_or(0, |last| last.end);
        let range = range.start.max(known)..range.end;
        match self.0.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }
}

impl Copies {
    pub(crate) fn of(image: &Image, homes: Homes, mut bytes: Buffer) -> Self {
        bytes.set_len(
            homes
                .0
                .iter()
                .map(|home| home.end - home.start)
                .sum::<u64>() as usize,
        );
        let mut rest = bytes.bytes_mut();
        for home in &homes.0 {
            let (now, behind) = rest.split_at_mut((home.end - home.start) as usize);
            image.copy(home.start, now);
            rest = behind;
        }
        Self { homes, bytes }
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut rest = self.bytes.bytes();
        self.homes.0.iter().map(move |home| {
            let (bytes, behind) = rest.split_at((home.end - home.start) as usize);
            rest = behind;
            Piece {
                home: home.start,
                bytes,
            }
        })
    }
}
