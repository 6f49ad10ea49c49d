//! Bytes of a device that were checked once, to be copied from or to the program.

use nacre_types::{DeviceOffset, LINE_SIZE, StoreKind};

use crate::arch;
use crate::error::CopyError;
use crate::media::Media;
use crate::token::Unfenced;
use crate::user::{UserBytes, UserBytesMut};

/// Bytes of a device that lie in its window; made by [`Media::checked_slice`].
#[derive(Clone, Copy)]
pub struct CheckedSlice<'m> {
    media: &'m Media,
    /// First byte; `len` bytes from there on are mapped as long as `media` lives.
    first: *mut u8,
    at: DeviceOffset,
    len: usize,
}

impl Media {
    /// The `len` bytes that begin `skip` bytes behind the start of the window, if they lie in it.
    /// Behind an image there are none.
    #[inline(always)]
    pub fn checked_slice(&self, skip: u64, len: usize) -> Option<CheckedSlice<'_>> {
        Some(CheckedSlice {
            media: self,
            first: self.behind_start(skip, len as u64, self.readable)?,
            at: DeviceOffset(self.start + skip),
            len,
        })
    }
}

impl CheckedSlice<'_> {
    /// As [`Media::read_user`], into a buffer that is as long.
    #[inline(always)]
    pub fn read_user(&self, to: UserBytesMut<'_>) -> Result<(), CopyError> {
        assert!(to.len() == self.len, "a buffer of another length");
        // SAFETY: `first` is the address of `at`, and `len` bytes are mapped there.
        unsafe { self.media.read_from(self.first, self.at, to) }
    }

    /// As [`Media::write_user`], of as many bytes.
    #[inline(always)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn write_user(&self, bytes: UserBytes<'_>, kind: StoreKind) -> Result<Unfenced, CopyError> {
        assert!(bytes.len() == self.len, "a buffer of another length");
        let (from, len) = (bytes.as_ptr(), bytes.len());
        let to = self.media.store_address(self.at, len as u64);
        let stream = len >= self.media.stream_min;
        // SAFETY: `to` is the address of `at`, just checked to be writable.
        unsafe { self.media.put_to(to, (self.at, kind), from, len, stream)? };
        Ok(Unfenced::nothing())
    }

    /// Says that the program's bytes will be stored here next. What keeps the first of their lines
    /// waiting then passes meanwhile. A hint: nothing depends on it.
    #[inline(always)]
    pub fn expect_store(&self) {
        self.media.prefetch(self.first, self.len);
    }

    /// Says that these bytes will be loaded soon: who looks at many places waits for several at
    /// once. A hint: nothing depends on it.
    #[inline]
    pub fn expect_load(&self) {
        let before = (self.at.0 % LINE_SIZE) as usize;
        let first = self.first.wrapping_sub(before);
        for line in (0..before + self.len).step_by(LINE_SIZE as usize) {
            arch::prefetch_line_to_load(first.wrapping_add(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use nacre_types::{DeviceOffset, StoreKind};

    use crate::media::Media;
    use crate::user::{UserBytes, UserBytesMut};

    #[test]
    fn bytes_go_in_and_come_out() {
        let media = Media::memory(8192).unwrap();
        let slice = media.checked_slice(4090, 100).unwrap();
        let bytes: Vec<u8> = (0..100).collect();
        slice.expect_store();
        slice.expect_load();
        let stored = slice.write_user(UserBytes::from(&bytes[..]), StoreKind::Data);
        media
            .fence(stored.unwrap())
            .expect("a device that does not fail");
        let mut back = [0; 100];
        slice.read_user(UserBytesMut::from(&mut back[..])).unwrap();
        assert_eq!(back[..], bytes[..]);
        assert_eq!(media.load_u8(DeviceOffset(4095)), 5);
    }

    #[test]
    fn what_does_not_lie_in_the_window_is_none() {
        let media = Media::memory(8192).unwrap();
        assert!(media.checked_slice(8192, 0).is_some());
        for (skip, len) in [(8192, 1), (8190, 3), (u64::MAX, 2), (0, 8193)] {
            assert!(media.checked_slice(skip, len).is_none());
        }
    }

    #[test]
    #[should_panic(expected = "another length")]
    fn a_buffer_of_another_length_is_a_bug() {
        let media = Media::memory(8192).unwrap();
        let slice = media.checked_slice(0, 100).unwrap();
        let _never = slice.read_user(UserBytesMut::from(&mut [0; 99][..]));
    }
}
