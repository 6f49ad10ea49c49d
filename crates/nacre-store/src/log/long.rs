//! Records longer than a lane holds: their changes lie in free units, and a short record names
//! these.

use nacre_media::crc32c_append;
use nacre_types::{UNIT_SIZE, UnitNo, VolumeOffset, site};
use nacre_volume::Volume;
use zerocopy::{FromBytes, IntoBytes};

use crate::alloc::Run;
use crate::layout::{HEADER_UNITS, MAX_LONG_RECORD, RawLong, RawRecord, RawSegment};

const HEAD: usize = size_of::<RawRecord>();
const SEGMENT: usize = size_of::<RawSegment>();

/// A short record for `count` changes of `len` bytes, without its head and checksums.
pub(crate) fn encode(segments: &[Run], len: usize, count: u32) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    let long = RawLong {
        len: (len as u64).into(),
        crc: 0.into(),
        count: count.into(),
    };
    bytes.extend_from_slice(long.as_bytes());
    for run in segments {
        let segment = RawSegment {
            start: run.start.0.into(),
            count: run.count.into(),
        };
        bytes.extend_from_slice(segment.as_bytes());
    }
    bytes
}

/// Fills in the checksum of the changes.
pub(crate) fn seal(short: &mut [u8], seed: u32, changes: &[u8]) {
    if let Ok((long, _)) = RawLong::mut_from_prefix(&mut short[HEAD..]) {
        long.crc = crc32c_append(seed, changes).into();
    }
}

/// The changes that a sound short record names, and how many; `None` if they are not what was
/// written.
pub(crate) fn read(volume: &Volume, short: &[u8], seed: u32) -> Option<(Vec<u8>, u32)> {
    let (long, rest) = RawLong::read_from_prefix(short.get(HEAD..)?).ok()?;
    let len = usize::try_from(long.len.get()).ok()?;
    if len > MAX_LONG_RECORD || len as u64 > volume.len() {
        return None;
    }
    let mut changes = vec![0; len];
    let mut done = 0;
    for segment in rest.chunks_exact(SEGMENT) {
        let segment = RawSegment::read_from_bytes(segment).ok()?;
        let (start, count) = (segment.start.get(), segment.count.get());
        let inside = start >= HEADER_UNITS
            && start
                .checked_add(count)
                .is_some_and(|end| end <= volume.units());
        if !inside {
            return None;
        }
        let part = ((len - done) as u64).min(count * UNIT_SIZE) as usize;
        let at: VolumeOffset = UnitNo(start).offset();
        volume.read(at, &mut changes[done..done + part]);
        done += part;
    }
    let complete = done == len && site::check(long.crc.get() == crc32c_append(seed, &changes));
    complete.then_some((changes, long.count.get()))
}
