//! Buffers of the calling program, which may be bad pointers.

use std::marker::PhantomData;
use std::ops::Range;

use crate::arch::{PlainCopy, copier};
use crate::error::Fault;

/// Zeros to copy from.
pub(crate) static ZEROS: [u8; 16384] = [0; 16384];

/// A buffer of the program, to be read. Reading it may fault, which gives [`Fault`].
#[derive(Clone, Copy, Debug)]
pub struct UserBytes<'a> {
    start: *const u8,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

/// A buffer of the program, to be filled. Writing it may fault, which gives [`Fault`].
#[derive(Debug)]
pub struct UserBytesMut<'a> {
    start: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

/// What both kinds of buffers have.
macro_rules! user_buffer {
    ($name:ident, $pointer:ty) => {
        impl $name<'_> {
            /// A buffer at an address that the program named; nothing is assumed of it, it may be
            /// unmapped.
            ///
            /// # Safety
            /// If the range is accessible at all, it must be memory of the calling program, which
            /// no Rust reference of Nacre covers.
            pub const unsafe fn from_raw(start: $pointer, len: usize) -> Self {
                Self {
                    start,
                    len,
                    lifetime: PhantomData,
                }
            }

            /// Bytes in the buffer.
            #[inline]
            pub const fn len(&self) -> usize {
                self.len
            }

            /// Whether the buffer has no bytes.
            #[inline]
            pub const fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// Start and length of a part, which must lie inside the buffer.
            #[inline]
            fn part(&self, range: Range<usize>) -> ($pointer, usize) {
                assert!(
                    range.start <= range.end && range.end <= self.len,
                    "slice outside of the buffer"
                );
                let start = self.start.wrapping_add(range.start);
                (start, range.end - range.start)
            }
        }
    };
}

user_buffer!(UserBytes, *const u8);
user_buffer!(UserBytesMut, *mut u8);

impl<'a> UserBytes<'a> {
    /// A part of the buffer, which must lie inside it.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> UserBytes<'a> {
        let (start, len) = self.part(range);
        Self {
            start,
            len,
            lifetime: PhantomData,
        }
    }

    /// Copies the whole buffer to `to`, which must be as long.
    pub fn copy_to_slice(&self, to: &mut [u8]) -> Result<(), Fault> {
        assert_eq!(
            to.len(),
            self.len,
            "copy between buffers of different lengths"
        );
        // SAFETY: `to` is ours alone; the source may be anything, faults are caught.
        unsafe { PlainCopy::BASIC.copy(to.as_mut_ptr(), self.start, self.len) }.map_err(|_| Fault)
    }

    #[inline]
    pub(crate) const fn as_ptr(&self) -> *const u8 {
        self.start
    }
}

impl<'a> From<&'a [u8]> for UserBytes<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            len: bytes.len(),
            lifetime: PhantomData,
        }
    }
}

impl<'a> UserBytesMut<'a> {
    /// A part of the buffer, which must lie inside it.
    #[inline]
    pub fn slice(&mut self, range: Range<usize>) -> UserBytesMut<'_> {
        let (start, len) = self.part(range);
        UserBytesMut {
            start,
            len,
            lifetime: PhantomData,
        }
    }

    /// Copies `from` to the buffer, which must be as long.
    #[inline]
    pub fn copy_from_slice(&mut self, from: &[u8]) -> Result<(), Fault> {
        assert_eq!(
            from.len(),
            self.len,
            "copy between buffers of different lengths"
        );
        // SAFETY: the destination is the program's, as `from_raw` demands; faults are caught.
        unsafe { PlainCopy::BASIC.copy(self.start, from.as_ptr(), self.len) }.map_err(|_| Fault)
    }

    /// Fills the whole buffer with zeros.
    pub fn fill_zero(&mut self) -> Result<(), Fault> {
        let copy = copier().plain;
        for at in (0..self.len).step_by(ZEROS.len()) {
            let len = ZEROS.len().min(self.len - at);
            // SAFETY: the destination is the program's, as `from_raw` demands; faults are caught.
            unsafe { copy.copy(self.start.wrapping_add(at), ZEROS.as_ptr(), len) }
                .map_err(|_| Fault)?;
        }
        Ok(())
    }

    #[inline]
    pub(crate) const fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }
}

impl<'a> From<&'a mut [u8]> for UserBytesMut<'a> {
    #[inline]
    fn from(bytes: &'a mut [u8]) -> Self {
        Self {
            start: bytes.as_mut_ptr(),
            len: bytes.len(),
            lifetime: PhantomData,
        }
    }
}
