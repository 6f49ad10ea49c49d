//! The library's own memory: never libc's malloc, whose locks a forked child or an intercepted
//! call in the middle of malloc would meet.
//!
//! Powers of two from free lists over mapped chunks, bigger blocks mapped one by one. One lock:
//! hot paths do not allocate, so nothing here is inlined either: copies at each drop are text that
//! each forked child faults in again. Signals cannot interrupt a holder, they are deferred inside
//! Nacre.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{Ordering::SeqCst, compiler_fence};

use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap,
};

use crate::runtime::PAGE;
use crate::runtime::spin::SpinLock;

const SMALLEST: usize = 16;
const CLASS_COUNT: usize = 12;
const LARGEST: usize = SMALLEST << (CLASS_COUNT - 1);
const CHUNK: usize = 256 << 10;
const HUGE: usize = 2 << 20;

/// The global allocator of the shared object.
pub struct Allocator(SpinLock<Lists>);

struct Lists {
    free: [*mut u8; CLASS_COUNT],
    /// Unused rest of the newest chunk.
    rest: *mut u8,
    rest_len: usize,
}

// SAFETY: the pointers lead to memory that belongs to the lists alone.
unsafe impl Send for Lists {}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator(SpinLock::new(Lists {
    free: [null_mut(); CLASS_COUNT],
    rest: null_mut(),
    rest_len: 0,
}));

/// Locks the allocator around a fork, so that the child finds it in order.
pub fn lock_for_fork() {
    ALLOCATOR.0.hold_for_fork();
}

/// Undoes [`lock_for_fork`], in the parent and in the child.
pub fn unlock_after_fork() {
    ALLOCATOR.0.release_after_fork();
}

/// Free list for a layout; None: mapped on its own.
fn class(layout: &Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST);
    (size <= LARGEST && layout.align() <= PAGE)
        .then(|| (size.next_power_of_two() / SMALLEST).trailing_zeros() as usize)
}

impl Lists {
    /// A block that was given back.
    fn take_used(&mut self, class: usize) -> Option<*mut u8> {
        let block = self.free[class];
        if block.is_null() {
            return None;
        }
        // SAFETY: a free block holds the address of the next one; it is ours alone.
        self.free[class] = unsafe { block.cast::<*mut u8>().read() };
        Some(block)
    }

    /// Cuts a block from the chunk. Blocks up to a page are aligned to their size, as the rest is
    /// skipped up to the next multiple.
    fn carve(&mut self, size: usize) -> *mut u8 {
        let align = size.min(PAGE);
        let skip = self.rest.align_offset(align);
        if self.rest.is_null() || skip.saturating_add(size) > self.rest_len {
            self.rest_len = 0;
            compiler_fence(SeqCst);
            self.rest = map(CHUNK);
            if self.rest.is_null() {
                return null_mut();
            }
            compiler_fence(SeqCst);
            self.rest_len = CHUNK;
            return self.carve(size);
        }
        let block = self.rest.wrapping_add(skip);
        // A holder that dies in between loses some bytes; the other way round they would be given
        // out twice.
        self.rest_len -= skip + size;
        compiler_fence(SeqCst);
        self.rest = block.wrapping_add(size);
        block
    }

    fn put(&mut self, class: usize, block: *mut u8) {
        // SAFETY: the block has at least 16 bytes and was just given back.
        unsafe { block.cast::<*mut u8>().write(self.free[class]) };
        compiler_fence(SeqCst);
        self.free[class] = block;
    }
}

fn map(len: usize) -> *mut u8 {
    // SAFETY: a fresh private mapping at an address of the kernel's choice.
    unsafe {
        mmap_anonymous(
            null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .map_or(null_mut(), |at| at.cast())
}

fn map_big(layout: &Layout) -> *mut u8 {
    let len = layout.size().next_multiple_of(PAGE);
    match layout.align() {
        _ if len >= HUGE => in_huge_pages(map_aligned(len, layout.align().max(HUGE)), len),
        ..=PAGE => map(len),
        align => map_aligned(len, align),
    }
}

fn map_aligned(len: usize, align: usize) -> *mut u8 {
    let whole = map(len + align);
    if whole.is_null() {
        return whole;
    }
    let skip = whole.align_offset(align);
    let end = whole.wrapping_add(skip + len);
    // SAFETY: both ranges are unused ends of the mapping made above.
    let _ = unsafe {
        (skip > 0).then(|| munmap(whole.cast(), skip));
        (skip < align).then(|| munmap(end.cast(), align - skip))
    };
    whole.wrapping_add(skip)
}

/// A disk takes what lies in few pieces of memory sooner, and it costs fewer faults.
fn in_huge_pages(at: *mut u8, len: usize) -> *mut u8 {
    // SAFETY: a hint, for a mapping that is ours alone.
    let _ = unsafe { madvise(at.cast(), len, Advice::LinuxHugepage) };
    at
}

// SAFETY: blocks are disjoint, as large and as aligned as the layout asks, and stay valid until
// dealloc gives them back.
unsafe impl GlobalAlloc for Allocator {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(&layout) {
            Some(class) => {
                let mut lists = self.0.lock();
                let used = lists.take_used(class);
                used.unwrap_or_else(|| lists.carve(SMALLEST << class))
            }
            None => map_big(&layout),
        }
    }

    /// What was never given out is zero as the kernel made it, and stays untouched: that is most of
    /// what a process takes as it starts.
    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(&layout) else {
            return map_big(&layout);
        };
        let mut lists = self.0.lock();
        let Some(block) = lists.take_used(class) else {
            return lists.carve(SMALLEST << class);
        };
        drop(lists);
        // SAFETY: the block is the caller's now, and has at least as many bytes.
        unsafe { block.write_bytes(0, layout.size()) };
        block
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(&layout) {
            Some(class) => self.0.lock().put(class, block),
            None => {
                // SAFETY: `map_big` mapped exactly this range for this layout.
                let _ = unsafe { munmap(block.cast(), layout.size().next_multiple_of(PAGE)) };
            }
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps `size` valid for the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let (old_class, new_class) = (class(&layout), class(&new));
        if old_class.is_some() && old_class == new_class {
            return block;
        }
        let pages = |layout: &Layout| layout.size().next_multiple_of(PAGE);
        if old_class.is_none() && new_class.is_none() && layout.align() <= PAGE {
            // SAFETY: the block is a mapping of its own, made by `map_big`.
            let moved = unsafe {
                mremap(
                    block.cast(),
                    pages(&layout),
                    pages(&new),
                    MremapFlags::MAYMOVE,
                )
            };
            return moved.map_or(null_mut(), |at| at.cast());
        }
        // SAFETY: both blocks hold at least the smaller size, and are disjoint.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};

    #[test]
    fn zeroed_blocks_are_zero_also_if_they_were_used() {
        for size in [1, 16, 100, 4096, 30_000, 32_768, 40_000] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            for _ in 0..3 {
                // SAFETY: the layout is not empty; the block is read and written within its size,
                // and given back once.
                unsafe {
                    let block = alloc_zeroed(layout);
                    let bytes = std::slice::from_raw_parts_mut(block, size);
                    assert!(bytes.iter().all(|&byte| byte == 0), "{size}");
                    bytes.fill(0xaa);
                    dealloc(block, layout);
                }
            }
        }
    }

    #[test]
    fn blocks_are_aligned_and_disjoint() {
        let mut blocks = Vec::new();
        for size in [1, 16, 17, 100, 4096, 5000, 32768, 32769, 1 << 20] {
            for align in [1, 8, 64, 4096, 1 << 16] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the layout is not empty, and the block is written within its size.
                let block = unsafe { alloc(layout) };
                assert!(!block.is_null());
                assert_eq!(block as usize % align, 0);
                // SAFETY: the allocator gave `size` bytes at `block` to this test alone.
                unsafe { block.write_bytes(blocks.len() as u8, size) };
                blocks.push((block, layout));
            }
        }
        for (i, (block, layout)) in blocks.into_iter().enumerate() {
            // SAFETY: the block is alive and has `layout.size()` bytes; it is given back once.
            unsafe {
                let bytes = std::slice::from_raw_parts(block, layout.size());
                assert!(bytes.iter().all(|&byte| byte == i as u8));
                dealloc(block, layout);
            }
        }
    }

    #[test]
    fn growing_and_shrinking_keeps_the_bytes() {
        let mut layout = Layout::from_size_align(10, 8).unwrap();
        // SAFETY: sizes and layouts match throughout, and only valid bytes are read.
        unsafe {
            let mut block = alloc(layout);
            block.copy_from(b"0123456789".as_ptr(), 10);
            for size in [12, 60_000, 200_000, 50_000, 100, 10] {
                block = realloc(block, layout, size);
                layout = Layout::from_size_align(size, 8).unwrap();
                assert_eq!(std::slice::from_raw_parts(block, 10), b"0123456789");
            }
            dealloc(block, layout);
        }
    }
}
