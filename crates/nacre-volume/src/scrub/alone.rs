//! Comparing what disks hold with the checksums of units (D130).

use std::os::fd::AsFd;

use nacre_cache::DiskFailed;
use nacre_media::GRANULE;
use nacre_types::{UNIT_SIZE, VolumeOffset};
use rustix::io::pread;

use super::in_volume;
use crate::error::VolumeError;
use crate::layout::DATA_START;
use crate::volume::Volume;

/// So much is compared at a time, while nobody commits.
const SPAN: u64 = 1 << 20;
const _: () = assert!(SPAN.is_multiple_of(UNIT_SIZE) && UNIT_SIZE.is_multiple_of(GRANULE));

impl Volume {
    /// Whether what is on its disks has checksums.
    pub fn has_checksums(&self) -> bool {
        self.cached().is_some_and(|(_, image)| image.has_sums())
    }

    /// Tells which of several copies of a unit of a span has its checksum.
    pub(super) fn judge_by_sums(&self, span: u64) -> impl Fn(u64, &[&[u8]]) -> Option<usize> {
        let image = self.head.media.image();
        if let (Some(image), Some(legs)) = (image, self.legs()) {
            image.bring_sums(legs.spans().bytes(span));
        }
        move |at, copies| image?.right_of(at, copies)
    }

    /// In how many spans a disk that is alone is compared with checksums; 0 if it cannot be.
    pub fn checked_spans(&self) -> u64 {
        let can_be = self.has_checksums() && self.legs().is_none() && self.direct().is_some();
        match can_be {
            true => self.len().div_ceil(SPAN),
            false => 0,
        }
    }

    fn direct(&self) -> Option<std::sync::Arc<std::os::fd::OwnedFd>> {
        self.cache.as_ref()?.disk.shared()
    }

    /// Units of a span that the disk has not as they were given to it. Some may be free.
    pub fn wrong_in(&self, span: u64) -> Result<Vec<VolumeOffset>, VolumeError> {
        let (Some((cache, image)), Some(disk)) = (self.cached(), self.direct()) else {
            return Ok(Vec::new());
        };
        let start = DATA_START + span * SPAN;
        let range = start..(start + SPAN).min(DATA_START + self.len());
        image.bring_sums(range.clone());
        let mut buffer = cache.buffer();
        buffer.set_len((range.end - range.start) as usize);
        let (mut wrong, mut done) = (Vec::new(), Ok(()));
        image.while_nobody_commits(&mut || {
            done = read_all(disk.as_fd(), start, buffer.bytes_mut());
            let units = (start..).step_by(UNIT_SIZE as usize);
            let units = units.zip(buffer.bytes().chunks_exact(UNIT_SIZE as usize));
            let is_wrong =
                |(at, bytes): &(u64, &[u8])| image.has_home(*at) && image.tells_wrong(*at, bytes);
            wrong = units
                .filter(is_wrong)
                .map(|(at, _)| in_volume(at))
                .collect();
        });
        cache.keep_buffer(buffer);
        done.map_err(|errno| cache.failed(DiskFailed(errno.to_string()).into()))?;
        Ok(wrong)
    }
}

/// Past the page cache.
fn read_all(disk: impl AsFd, at: u64, to: &mut [u8]) -> rustix::io::Result<()> {
    match pread(disk, &mut *to, at)? {
        read if read == to.len() => Ok(()),
        _ => Err(rustix::io::Errno::IO),
    }
}
