//! A range of the medium that was checked once: the loads and stores in it need no further look at
//! the window.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use nacre_types::{DeviceOffset, StoreKind};

use crate::arch;
use crate::fault::POISON;
use crate::media::Media;
use crate::token::Unfenced;

const WORD: usize = size_of::<u64>();

/// `N` bytes of a device (a multiple of 8, at a multiple of 8) that lie in its window; made by
/// [`Media::checked_range`].
///
/// As with [`Media`], others may change the bytes at any time: loads of words are atomic (acquire),
/// copies may be torn. Places are counted from the range's start; one that does not lie in the
/// range is a bug of the caller and panics.
#[derive(Clone, Copy)]
pub struct CheckedRange<'m, const N: usize> {
    media: &'m Media,
    /// First byte; `N` bytes from there on are mapped as long as `media` lives, and aligned to 8.
    first: *mut u8,
    at: DeviceOffset,
}

impl Media {
    /// The `N` bytes at `at`, a multiple of 8.
    #[inline(always)]
    pub fn checked_range<const N: usize>(&self, at: DeviceOffset) -> CheckedRange<'_, N> {
        const { assert!(N > 0 && N.is_multiple_of(WORD)) }
        let first = self.address(at, N as u64);
        assert!(
            first.addr().is_multiple_of(WORD),
            "a checked range at a misaligned offset"
        );
        CheckedRange {
            media: self,
            first,
            at,
        }
    }
}

impl<const N: usize> CheckedRange<'_, N> {
    /// Word number `index`, little-endian.
    #[inline(always)]
    pub fn word(&self, index: usize) -> u64 {
        // SAFETY: `word_address` yields 8 aligned bytes of the mapping, which everybody accesses
        // atomically.
        let word = unsafe { AtomicU64::from_ptr(self.word_address(index)) };
        u64::from_le(word.load(Ordering::Acquire))
    }

    /// All words, little-endian, each loaded by itself.
    #[inline]
    pub fn words<const W: usize>(&self) -> [u64; W] {
        const { assert!(W * WORD == N) }
        // Not `from_fn`, whose closure is not always inlined.
        let mut words = [0; W];
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.word(index);
        }
        words
    }

    /// The 4 bytes at `place` (a multiple of 4), little-endian.
    #[inline]
    pub fn u32(&self, place: usize) -> u32 {
        assert!(place <= N - 4 && place.is_multiple_of(4));
        let address = self.first.wrapping_add(place).cast::<u32>();
        // SAFETY: 4 aligned bytes of the span, checked above; everybody accesses them atomically.
        u32::from_le(unsafe { AtomicU32::from_ptr(address) }.load(Ordering::Acquire))
    }

    /// The 2 bytes at `place` (a multiple of 2), little-endian.
    #[inline]
    pub fn u16(&self, place: usize) -> u16 {
        assert!(place <= N - 2 && place.is_multiple_of(2));
        let address = self.first.wrapping_add(place).cast::<u16>();
        // SAFETY: as in `u32`.
        u16::from_le(unsafe { AtomicU16::from_ptr(address) }.load(Ordering::Acquire))
    }

    /// Copies the bytes from `place` on to `to`. Where the device fails it gives poison
    /// ([`crate::fault::POISON`]) and [`Media::health`] tells.
    #[inline]
    pub fn read(&self, place: usize, to: &mut [u8]) {
        assert!(to.len() <= N && place <= N - to.len());
        let from = self.first.wrapping_add(place);
        // SAFETY: `to` is ours alone, the source lies in the range, and no reference covers the
        // mapping.
        if unsafe {
            self.media
                .copier
                .plain
                .copy(to.as_mut_ptr(), from, to.len())
        }
        .is_err()
        {
            self.media.watched.fail();
            to.fill(POISON);
        }
    }

    /// Stores word number `index`, little-endian, and flushes its line, as [`Media::store_u64`].
    #[inline]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn store_word(&self, index: usize, value: u64, kind: StoreKind) -> Unfenced {
        self.store_word_lazy(index, value, kind);
        let address = self.word_address(index).cast::<u8>();
        // SAFETY: the word lies in the mapping, and the method was chosen for this processor.
        unsafe { arch::flush_lines(self.media.flush, address, WORD) };
        if let Some(watcher) = self.media.watcher() {
            let at = self.at.add((index * WORD) as u64);
            watcher.flushed(at, WORD as u64, kind);
        }
        Unfenced::nothing()
    }

    /// As [`CheckedRange::store_word`] without the flush, as [`Media::store_u64_lazy`].
    #[inline(always)]
    #[cfg_attr(feature = "explore", track_caller)]
    pub fn store_word_lazy(&self, index: usize, value: u64, kind: StoreKind) {
        if self.media.writable == 0 {
            return self
                .media
                .imaged_store_u64(self.at.add((index * WORD) as u64), value, kind);
        }
        // SAFETY: `word_address` yields 8 aligned bytes of the mapping, which is writable, and
        // everybody accesses them atomically.
        unsafe { AtomicU64::from_ptr(self.word_address(index)) }
            .store(value.to_le(), Ordering::Release);
        if let Some(watcher) = self.media.watcher() {
            let at = self.at.add((index * WORD) as u64);
            watcher.word(at, value, kind);
        }
    }

    #[inline(always)]
    fn word_address(&self, index: usize) -> *mut u64 {
        assert!(index < N / WORD, "a word outside of the span");
        self.first.cast::<u64>().wrapping_add(index)
    }
}

#[cfg(test)]
mod tests {
    use nacre_types::{DeviceOffset, StoreKind};

    use crate::media::Media;

    fn medium() -> Media {
        let media = Media::memory(8192).unwrap();
        let bytes: Vec<u8> = (0..=255).collect();
        media
            .fence(media.write(DeviceOffset(4096), &bytes, StoreKind::Metadata))
            .expect("a device that does not fail");
        media
    }

    #[test]
    fn loads_agree_with_those_of_the_media() {
        let media = medium();
        let span = media.checked_range::<256>(DeviceOffset(4096));
        let words = span.words::<32>();
        for (index, word) in (0u64..).zip(words) {
            assert_eq!(word, media.load_u64(DeviceOffset(4096 + index * 8)));
            assert_eq!(word, span.word(index as usize));
        }
        assert_eq!(span.u32(252), 0xfffe_fdfc);
        assert_eq!(span.u16(254), 0xfffe);
        let mut bytes = [0; 5];
        span.read(251, &mut bytes);
        assert_eq!(bytes, [251, 252, 253, 254, 255]);
    }

    #[test]
    fn stores_reach_the_media() {
        let media = medium();
        let span = media.checked_range::<64>(DeviceOffset(4096));
        media
            .fence(span.store_word(7, 77, StoreKind::Metadata))
            .expect("a device that does not fail");
        span.store_word_lazy(0, 5, StoreKind::Metadata);
        assert_eq!(media.load_u64(DeviceOffset(4096 + 56)), 77);
        assert_eq!(media.load_u64(DeviceOffset(4096)), 5);
    }

    #[test]
    fn nothing_outside_is_reached() {
        let media = medium();
        let refused =
            |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
        let span = media.checked_range::<64>(DeviceOffset(4096));
        assert!(refused(&|| _ = span.word(8)));
        assert!(refused(&|| _ = span.u32(61)));
        assert!(refused(&|| _ = span.u16(64)));
        assert!(refused(&|| span.read(60, &mut [0; 5])));
        assert!(refused(&|| span.read(usize::MAX, &mut [0; 2])));
        assert!(refused(&|| span.store_word_lazy(8, 0, StoreKind::Metadata)));
        assert!(refused(
            &|| _ = media.checked_range::<64>(DeviceOffset(8192 - 56))
        ));
        assert!(refused(&|| _ = media.checked_range::<64>(DeviceOffset(4))));
    }
}
