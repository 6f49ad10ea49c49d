//! Several disks that each hold a part, as one (D77).
//!
//! It is their data side by side, as in the volume, and behind that the journal, which lies on the
//! first disk behind its data. Once that one is gone (D85), the pool's header and the journal lie
//! within the data of others, where nobody else gets anything. What is written goes to the disk
//! that has the place. Only a sync is of all: what is not home on one of them keeps the journal for
//! all.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nacre_cache::{Disk, DiskFailed};
use nacre_media::{Device, DiskFds, DiskLegs, FileCall, Granularity};
use nacre_types::{Uuid, site};

use super::calls::{at_once, each_of};
use super::file::FileDisk;
use super::one::One;
use crate::label::Gone;
use crate::label::stay::{OnDevice, Role, Span, Stay};
use crate::layout::DATA_START;

/// One of the disks.
#[derive(Debug)]
pub(crate) struct PartDisk {
    pub uuid: Uuid,
    pub device: Arc<Device>,
    pub granularity: Granularity,
    /// Its part of the volume.
    pub range: Range<u64>,
    pub leaves: bool,
    /// Its place in the table.
    place: usize,
    file: FileDisk,
}

/// Neighbours of the logical disk that are on one of the disks.
#[derive(Debug)]
struct Stretch {
    places: Range<u64>,
    /// The number of the disk.
    disk: usize,
    /// A place is so many bytes nearer to the start there, modulo 2^64.
    back: u64,
}

impl Stretch {
    /// This range of the data and the journal lies `at` a place of a disk's data.
    fn of(range: Range<u64>, (disk, at): (usize, u64)) -> Self {
        Self {
            places: DATA_START + range.start..DATA_START + range.end,
            disk,
            back: range.start.wrapping_sub(at),
        }
    }
}

/// Disks that hold each a part.
#[derive(Debug)]
pub(crate) struct PartsDisk {
    disks: Vec<PartDisk>,
    /// In order, with gaps where disks were that are gone.
    stretches: Vec<Stretch>,
    /// Where the data of each disk ends, and of each that is gone.
    ends: Vec<u64>,
}

/// Where the data lies.
fn stretches(spans: &[Span], gone: &Gone) -> Vec<Stretch> {
    let mut devices = 0..;
    let stretch = |span: &Span| {
        let at = match span.role {
            Role::Device(_) => devices.next().map(|number| (number, 0)),
            Role::Header(number) => gone.header.map(|header| (number, header.at)),
            Role::Gap => None,
        };
        at.map(|at| Stretch::of(span.start..span.end, at))
    };
    spans.iter().filter_map(stretch).collect()
}

/// A piece of a range, on the disk that has it.
struct On<'d> {
    number: usize,
    disk: &'d PartDisk,
    /// Where it is there.
    at: u64,
    /// Its place in the range.
    piece: Range<usize>,
}

impl On<'_> {
    fn one(&self) -> One<'_> {
        self.disk.one()
    }

    fn range(&self) -> Range<u64> {
        self.at..self.at + self.piece.len() as u64
    }
}

impl PartDisk {
    fn one(&self) -> One<'_> {
        One(self.place, &self.file)
    }

    /// What failed names the disk, which is one of several.
    fn named<T>(&self, done: Result<T, DiskFailed>) -> Result<T, DiskFailed> {
        let path = self.device.path().display();
        done.map_err(|DiskFailed(why)| DiskFailed(format!("{path}: {why}")))
    }
}

impl PartsDisk {
    /// Of these devices, at least one, which are the pieces of a volume. The journal, of so many
    /// bytes, lies behind the data of the first one, or where it has moved.
    pub fn new(
        devices: impl Iterator<Item = (Uuid, Arc<Device>, Granularity)>,
        (spans, gone): (&[Span], &Gone),
        journal: u64,
        writable: bool,
    ) -> Self {
        let device_spans = spans.iter().filter(|span| span.role.is_device());
        let held = devices.zip(gone.others()).zip(device_spans);
        let disks = held.map(|(((uuid, device, granularity), place), span)| PartDisk {
            uuid,
            file: FileDisk::new(&device, writable),
            device,
            granularity,
            range: span.start..span.end,
            leaves: span.role == Role::Device(Stay::Leaves),
            place,
        });
        let disks: Vec<PartDisk> = disks.collect();
        let mut stretches = stretches(spans, gone);
        let end = spans.last().map_or(0, |last| last.end);
        let behind_first = disks.first().map_or(0, |it| it.range.end - it.range.start);
        let moved = |it: OnDevice| (gone.number_of(it.device), it.at);
        let at = gone.journal.map_or((0, behind_first), moved);
        stretches.push(Stretch::of(end..end + journal, at));
        let is_whole = |span: &&Span| !matches!(span.role, Role::Header(_));
        let ends = spans.iter().filter(is_whole).map(|span| span.end);
        Self {
            ends: ends.collect(),
            disks,
            stretches,
        }
    }

    /// In the order of the volume.
    pub fn disks(&self) -> &[PartDisk] {
        &self.disks
    }

    /// Where the data of each disk ends in the volume, and of each that is gone.
    pub fn ends(&self) -> Vec<u64> {
        self.ends.clone()
    }

    /// The disks that the pool's header and the journal lie on.
    pub fn hosts(&self) -> Option<(&PartDisk, &PartDisk)> {
        let (header, journal) = (self.stretches.first()?, self.stretches.last()?);
        Some((self.disks.get(header.disk)?, self.disks.get(journal.disk)?))
    }

    /// Kernel fds of the disks.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let disks = self.disks.iter();
        disks.flat_map(|disk| std::iter::once(disk.device.fd()).chain(disk.file.through()))
    }

    pub fn devices(&self) -> impl Iterator<Item = &Arc<Device>> {
        self.disks.iter().map(|disk| &disk.device)
    }

    fn find(&self, at: u64) -> Option<&Stretch> {
        let mut stretches = self.stretches.iter();
        stretches.find(|stretch| stretch.places.contains(&at))
    }

    /// The pieces of a range. A place that a record names may be anywhere.
    fn pieces(&self, at: u64, len: usize) -> Result<Vec<On<'_>>, DiskFailed> {
        let (mut pieces, mut done) = (Vec::new(), 0);
        while done < len {
            let place = at.checked_add(done as u64);
            let stretch = place.and_then(|place| Some((place, self.find(place)?)));
            let Some((place, stretch)) = stretch else {
                return Err(DiskFailed("a place that is on none of the disks".into()));
            };
            let room = usize::try_from(stretch.places.end - place).unwrap_or(usize::MAX);
            let piece = done..len.min(done.saturating_add(room));
            done = piece.end;
            pieces.push(On {
                number: stretch.disk,
                disk: &self.disks[stretch.disk],
                at: place.wrapping_sub(stretch.back),
                piece,
            });
        }
        Ok(pieces)
    }

    /// As `pieces`, for hints.
    /// As [`FileDisk::discard`], of the parts that the range lies on.
    pub fn discard(&self, range: &Range<u64>, files: bool) -> Result<u64, DiskFailed> {
        let pieces = self.pieces(range.start, (range.end - range.start) as usize)?;
        let each = pieces.iter();
        each.map(|on| on.disk.named(on.disk.file.discard(&on.range(), files)))
            .sum()
    }

    /// Whether any of the disks is told what it need not keep.
    pub fn is_told(&self, files: bool) -> bool {
        self.disks.iter().any(|disk| disk.file.is_told(files))
    }

    fn each(&self, range: Range<u64>, mut work: impl FnMut(&FileDisk, Range<u64>)) {
        let pieces = self.pieces(range.start, (range.end - range.start) as usize);
        let pieces = pieces.into_iter().flatten();
        pieces.for_each(|on| work(&on.disk.file, on.range()));
    }
}

impl Disk for PartsDisk {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed> {
        let pieces = self.pieces(at, to.len())?;
        let mut pieces = pieces.into_iter();
        pieces.try_for_each(|on| {
            let done = on.one().read(on.at, &mut to[on.piece.clone()]);
            on.disk.named(done)
        })
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        let pieces = self.pieces(at, bytes.len())?;
        let mut pieces = pieces.into_iter();
        pieces.try_for_each(|on| {
            let done = on.one().write(on.at, &bytes[on.piece.clone()]);
            on.disk.named(done)
        })
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        let pieces = self.pieces(at, bytes.len())?;
        let mut pieces = pieces.into_iter();
        pieces.try_for_each(|on| {
            let done = on.one().write_through(on.at, &bytes[on.piece.clone()]);
            on.disk.named(done)
        })
    }

    /// Of all, whatever was written by whom.
    fn sync(&self) -> Result<(), DiskFailed> {
        let calls = self.disks.iter().map(|disk| disk.file.call_sync());
        let calls: Vec<FileCall> = calls.collect();
        let mut all = Ok(());
        for (number, done) in each_of(at_once(&calls), &calls).into_iter().enumerate() {
            let done = match done {
                _ if number > 0 && !site::step() => Ok(()),
                Some(done) => done.map(drop).map_err(super::file::failed),
                None => self.disks[number].one().sync(),
            };
            all = all.and(self.disks[number].named(done));
        }
        all
    }

    fn settle(&self, ranges: &[Range<u64>]) -> Result<(), DiskFailed> {
        let begin = |range: &Range<u64>| self.begin_writing(range.clone());
        ranges.iter().for_each(begin);
        let mut on_each = vec![Vec::new(); self.disks.len()];
        for range in ranges {
            let pieces = self.pieces(range.start, (range.end - range.start) as usize)?;
            let pieces = pieces.into_iter();
            pieces.for_each(|on| on_each[on.number].push(on.range()));
        }
        let on_each = on_each.iter().enumerate();
        let mut written = on_each.filter(|(_, ranges)| !ranges.is_empty());
        written.try_for_each(|(number, ranges)| match number == 0 || site::step() {
            true => self.disks[number].named(self.disks[number].one().settle(ranges)),
            false => Ok(()),
        })
    }

    fn gathers(&self) -> Option<u64> {
        self.disks.first().and_then(|disk| disk.file.gathers())
    }

    fn homes(&self) -> Range<u64> {
        let end = self.ends.last().copied().unwrap_or(0);
        DATA_START..DATA_START + end
    }

    fn prepare_write(&self, range: Range<u64>) {
        self.each(range, FileDisk::prepare_write);
    }

    fn begin_writing(&self, range: Range<u64>) {
        self.each(range, FileDisk::begin_writing);
    }

    fn forget(&self, at: u64, len: u64) {
        self.each(at..at + len, |file, range| {
            file.forget(range.start, range.end - range.start);
        });
    }
}

impl DiskLegs for PartsDisk {
    fn has_place(&self, at: u64) -> bool {
        self.find(at).is_some()
    }

    /// Nobody reads over the end of a part at once: they end at multiples of 2 MiB.
    fn read(&self, at: u64, read: &mut dyn FnMut(DiskFds<'_>) -> io::Result<()>) -> io::Result<()> {
        let stretch = self.find(at).ok_or(io::ErrorKind::UnexpectedEof)?;
        let disk = &self.disks[stretch.disk];
        read(DiskFds {
            plain: disk.device.fd(),
            direct: disk.file.through(),
            back: stretch.back,
        })?;
        disk.device.check_len()
    }

    fn are_whole(&self) -> bool {
        !self.disks.iter().any(|disk| disk.device.is_cut())
    }
}
