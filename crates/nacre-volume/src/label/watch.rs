//! Whether a disk is still that of its pool, before each commit (D93).

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use nacre_media::Device;
use nacre_types::Uuid;
use rustix::io::{Errno, pread};

use super::{Copy, decode};
use crate::layout::{LABEL_SIZE, second_copy};

/// A copy as it is on the disk.
type Bytes = [u8; LABEL_SIZE as usize];

/// What a look at a disk that found a label has seen: as long as that stays, so does the answer.
#[derive(Debug, Default)]
pub(crate) struct LabelWatch(Mutex<Option<Box<Seen>>>);

#[derive(Debug)]
struct Seen {
    first: Bytes,
    /// Where the second copy is: the disk is at least as long.
    second: Option<u64>,
}

impl LabelWatch {
    /// As [`has_one_of`], of one device of one pool.
    pub fn has_one_of(&self, device: &Device, pool: Uuid) -> bool {
        // Not waited for: it may have been held when this process was forked.
        let Ok(mut seen) = self.0.try_lock() else {
            return has_one_of(device, pool);
        };
        if seen.as_ref().is_some_and(|seen| seen.is_there(device)) {
            return true;
        }
        *seen = see(device, pool).ok().flatten().map(Box::new);
        seen.is_some() || has_one_of(device, pool)
    }
}

impl Seen {
    fn is_there(&self, device: &Device) -> bool {
        let mut bytes = [0; LABEL_SIZE as usize];
        let mut last = [0];
        let is_as_it_was = pread(device.fd(), &mut bytes, 0) == Ok(bytes.len());
        let reaches = |second| pread(device.fd(), &mut last, second + LABEL_SIZE - 1) == Ok(1);
        is_as_it_was && bytes == self.first && self.second.is_none_or(reaches)
    }
}

/// The first copy, if it is whole and of the pool, and the disk reaches behind the second.
fn see(device: &Device, pool: Uuid) -> Result<Option<Seen>, Errno> {
    let mut first = [0; LABEL_SIZE as usize];
    pread(device.fd(), &mut first, 0)?;
    let size = own_size(&first, pool);
    let seen = size.map(|size| Seen {
        first,
        second: second_copy(size),
    });
    Ok(seen.filter(|seen| seen.is_there(device)))
}

/// Bytes of the device by a copy that is whole and of the pool.
fn own_size(copy: &Bytes, pool: Uuid) -> Option<u64> {
    match decode(copy) {
        Copy::Good(label) if label.pool == pool => Some(label.own().size),
        _ => None,
    }
}

/// Whether the pool can be opened by this device again: it is as long as it was, and one copy is
/// whole. While somebody writes labels none may seem so for a moment. A device that cannot be read
/// tells nothing.
pub(crate) fn has_one_of(device: &Device, pool: Uuid) -> bool {
    let tries = [0, 1, 10].map(Duration::from_millis);
    tries.into_iter().any(|wait| {
        thread::sleep(wait);
        look_for_one(device, pool).unwrap_or(true)
    })
}

fn look_for_one(device: &Device, pool: Uuid) -> Result<bool, Errno> {
    let mut bytes = [0; LABEL_SIZE as usize];
    pread(device.fd(), &mut bytes, 0)?;
    let first = own_size(&bytes, pool);
    let Some(second) = second_copy(first.unwrap_or(device.len())) else {
        return Ok(first.is_some());
    };
    let is_whole = pread(device.fd(), &mut bytes, second)? == bytes.len();
    Ok(is_whole && (first.is_some() || own_size(&bytes, pool).is_some()))
}
