//! The volume piece by piece: devices, and what those that are gone have left (D70).
//!
//! A device that is gone keeps its addresses, which nobody gets. So all other units keep theirs.
//! The pool's header, at the start of the volume, then lies in a block of a device that stays.

use std::ops::Range;
use std::sync::Arc;

use nacre_media::{AddressRange, Device, DeviceKind, Granularity, LegState, Media, blocks_of_sums};
use nacre_types::{BLOCK_SIZE, DeviceOffset, UNIT_SHIFT, Uuid};

use crate::disk::cache::{Cache, Wish};
use crate::error::VolumeError;
use crate::label::Gone;
use crate::label::stay::Stay;
pub(crate) use crate::label::stay::{Role, Span};
use crate::layout::DATA_START;

/// The part of the volume that one device holds.
#[derive(Debug)]
pub(crate) struct Segment {
    pub media: Media,
    /// First volume offset.
    pub start: u64,
    /// First volume offset behind it.
    pub end: u64,
    pub(crate) device: Uuid,
    pub(crate) granularity: Granularity,
    pub(crate) role: Role,
}

/// A device that is to become part of a volume.
pub(crate) struct Part {
    pub device: Arc<Device>,
    pub uuid: Uuid,
    /// Bytes of it that the pool has; it may have become larger since.
    pub size: u64,
    /// Bytes of its data.
    pub data: u64,
    pub granularity: Granularity,
    /// Bytes of its journal, behind the data; 0 for none.
    pub journal: u64,
    /// Whether its records may be written beside contents that they need.
    pub beside: bool,
    /// Whether its units have checksums.
    pub sums: bool,
    /// Bytes of memory that an image of it may take; 0 for no wish.
    pub cache: u64,
    /// Milliseconds after which the disk gets what was stored, if nobody waits for that; else 0.
    pub saved_every: u32,
    /// What it is to the others that hold the same; `None` without copies.
    pub state: Option<LegState>,
    /// Whether it stays in the pool.
    pub stay: Stay,
}

impl Part {
    /// Devices by their identities.
    pub fn known(parts: &[Part]) -> Vec<(Uuid, Arc<Device>)> {
        let known = parts.iter();
        known
            .map(|part| (part.uuid, Arc::clone(&part.device)))
            .collect()
    }
}

impl Part {
    /// The disk behind the image, of a device of this kind.
    pub fn cache(&self, kind: DeviceKind) -> Result<Option<Cache>, VolumeError> {
        Cache::of((&self.device, kind), self.data, self.wish())
    }

    /// What its label says of a cache.
    pub fn wish(&self) -> Wish {
        Wish {
            journal: self.journal,
            beside: self.beside,
            sums: self.sums,
            room: self.cache,
            saved_every: self.saved_every,
        }
    }
}

/// Which units of a volume nobody gets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Closed {
    /// Those that are not there, and those in which the header lies.
    pub gone: Vec<Range<u64>>,
    /// Those of the device that leaves.
    pub leaving: Option<Range<u64>>,
    /// Those that are not there, though files name some of them: what they held is lost (D95).
    pub holes: Vec<Range<u64>>,
}

impl Closed {
    /// Of a volume with such pieces, and a journal of so many bytes that may have moved.
    pub(crate) fn of(spans: &[Span], gone: &Gone, journal: u64) -> Self {
        let units = |at: u64, len: u64| at >> UNIT_SHIFT..(at + len) >> UNIT_SHIFT;
        let all = |span: &Span| units(span.start, span.end - span.start);
        let is_closed = |span: &&Span| !span.role.is_device();
        let mut closed: Vec<_> = spans.iter().filter(is_closed).map(all).collect();
        let mut devices = spans.iter().filter(|span| span.role.is_device());
        let moved = [(gone.header, BLOCK_SIZE), (gone.journal, journal)];
        for (place, len) in moved.into_iter().filter_map(|(at, len)| Some((at?, len))) {
            let host = devices.clone().nth(gone.number_of(place.device));
            closed.extend(host.map(|host| units(host.start + place.at, len)));
        }
        let leaving = devices.find(|span| span.role == Role::Device(Stay::Leaves));
        Self {
            gone: closed,
            leaving: leaving.map(all),
            holes: Vec::new(),
        }
    }

    /// What has checksums is nobody's.
    pub(crate) fn add_sums(&mut self, cache: Option<&Cache>) {
        if let Some(units) = cache.and_then(|cache| cache.sums.as_ref()) {
            self.gone.extend(blocks_of_sums(units.end - units.start));
        }
    }

    /// Of disks that hold a common part, of which these parts are holes.
    pub(crate) fn of_holes(parts: &[Range<u64>]) -> Self {
        Self {
            holes: parts.iter().map(units_of).collect(),
            ..Self::default()
        }
    }
}

/// The units of a part of the logical disk.
pub(crate) fn units_of(part: &Range<u64>) -> Range<u64> {
    (part.start - DATA_START) >> UNIT_SHIFT..(part.end - DATA_START) >> UNIT_SHIFT
}

/// What comes next in the volume.
enum Piece<'p> {
    Device(&'p Part),
    Header(usize, &'p Part, u64),
    Gap(u64),
}

impl Piece<'_> {
    fn len(&self) -> u64 {
        match self {
            Piece::Device(part) => part.data,
            Piece::Header(..) => BLOCK_SIZE,
            Piece::Gap(len) => *len,
        }
    }

    fn role(&self) -> Role {
        match self {
            Piece::Device(part) => Role::Device(part.stay),
            Piece::Header(number, ..) => Role::Header(*number),
            Piece::Gap(_) => Role::Gap,
        }
    }

    fn map(&self, start: u64, place: AddressRange) -> Result<Segment, VolumeError> {
        let (media, part) = match self {
            Piece::Device(part) => {
                let map = match part.journal {
                    0 => Media::map,
                    _ => Media::map_behind_image,
                };
                let at = DeviceOffset(DATA_START);
                let media = map(&part.device, at, part.data, Some(place))?;
                (media, Some(part))
            }
            Piece::Header(_, part, at) => {
                let at = DeviceOffset(DATA_START + at);
                let media = Media::map(&part.device, at, BLOCK_SIZE, Some(place))?;
                (media, Some(part))
            }
            // What a damaged word names there reads as zeros.
            Piece::Gap(len) => (Media::memory_at(*len, place)?, None),
        };
        Ok(Segment {
            media,
            start,
            end: start + self.len(),
            device: part.map_or(Uuid([0; 16]), |part| part.uuid),
            granularity: part.map_or_else(Default::default, |part| part.granularity),
            role: self.role(),
        })
    }
}

/// The volume piece by piece.
fn pieces<'p>(parts: &'p [Part], gone: &Gone) -> Result<Vec<Piece<'p>>, VolumeError> {
    let mut pieces = Vec::with_capacity(parts.len() + 1);
    let mut left = parts.iter();
    for index in 0..parts.len() + gone.entries.len() {
        let entry = gone.entries.iter().find(|(place, _)| *place == index);
        let Some((_, entry)) = entry else {
            pieces.push(Piece::Device(left.next().ok_or(VolumeError::NoDevices)?));
            continue;
        };
        let mut len = entry.data;
        if let (0, Some(header)) = (index, gone.header) {
            let number = gone.number_of(header.device);
            let host = parts.get(number).ok_or(VolumeError::NoDevices)?;
            pieces.push(Piece::Header(number, host, header.at));
            len -= BLOCK_SIZE;
        }
        if len > 0 {
            pieces.push(Piece::Gap(len));
        }
    }
    Ok(pieces)
}

/// As `pieces`, where they are and what.
pub(crate) fn spans(parts: &[Part], gone: &Gone) -> Result<Vec<Span>, VolumeError> {
    let mut end = 0;
    let pieces = pieces(parts, gone)?;
    let spans = pieces.iter().map(|piece| {
        let start = end;
        end += piece.len();
        let role = piece.role();
        Span { start, end, role }
    });
    Ok(spans.collect())
}

/// Maps the parts and what lies between them side by side.
pub(crate) fn map_all(parts: &[Part], gone: &Gone) -> Result<Vec<Segment>, VolumeError> {
    let pieces = pieces(parts, gone)?;
    let mut place = AddressRange::reserve(pieces.iter().map(Piece::len).sum())?;
    let (mut segments, mut start) = (Vec::with_capacity(pieces.len()), 0);
    for piece in &pieces {
        let rest = place.split_off(piece.len() as usize);
        segments.push(piece.map(start, place)?);
        (place, start) = (rest, start + piece.len());
    }
    Ok(segments)
}
