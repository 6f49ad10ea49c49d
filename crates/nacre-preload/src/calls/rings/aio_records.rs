//! For each request block of the program one of ours, which the kernel is given instead.
//!
//! The kernel reads a block only while it is submitted, but names it in the completion. A thread
//! may take that completion before `io_submit` returns, so the program's own block must hold at any
//! time what the program wrote there: another one is submitted, and its address replaced in the
//! completion. A record stays with its block for ever, so whoever meets its address can tell which
//! block it stands for. Nothing here is locked: processes fork and share memory as they like.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::AcqRel, Ordering::Acquire};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct iocb`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Block {
    /// What comes back in the completion.
    pub data: u64,
    /// The kernel's.
    pub key: u32,
    /// `RWF_...`.
    pub rw_flags: u32,
    /// What to do.
    pub opcode: u16,
    /// Priority.
    pub priority: i16,
    /// Descriptor.
    pub fd: i32,
    /// Address of bytes or of a vector.
    pub buffer: u64,
    /// Bytes, or parts of the vector.
    pub len: u64,
    /// Where in the file.
    pub offset: i64,
    /// Zero.
    pub reserved: u64,
    /// Whether `event_fd` is told, and whether there is a priority.
    pub flags: u32,
    /// Descriptor of an event.
    pub event_fd: u32,
}

#[repr(C, align(128))]
struct Record {
    block: Block,
    /// Address of the program's block; 0 if the record is free.
    user: AtomicUsize,
}

const RECORDS: usize = 1 << 18;
const BYTES: usize = RECORDS * size_of::<Record>();
/// How far from its place a record is looked for.
const PROBES: usize = 1 << 12;

static ROOM: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());

/// Addresses for all records; memory is taken as they are used.
fn room() -> Option<*mut Record> {
    let seen = ROOM.load(Acquire);
    if !seen.is_null() {
        return Some(seen);
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping at an address of the kernel's choice.
    let fresh = unsafe { mmap_anonymous(core::ptr::null_mut(), BYTES, access, flags) };
    let fresh = fresh.ok()?.cast::<Record>();
    match ROOM.compare_exchange(seen, fresh, AcqRel, Acquire) {
        Ok(_) => Some(fresh),
        Err(other) => {
            // SAFETY: mapped above, and known to nobody.
            let _ = unsafe { munmap(fresh.cast(), BYTES) };
            Some(other)
        }
    }
}

/// The record of the block at `user`; None if there are too many.
fn record_of(user: usize) -> Option<*mut Record> {
    let room = room()?;
    let first = user / size_of::<Block>();
    (0..PROBES).find_map(|i| {
        let record = room.wrapping_add((first + i) % RECORDS);
        // SAFETY: the index is within the room, which is never unmapped; the field is atomic.
        let owner = unsafe { &(*record).user };
        match owner.compare_exchange(0, user, AcqRel, Acquire) {
            Ok(_) => Some(record),
            Err(other) => (other == user).then_some(record),
        }
    })
}

/// Address of a block with these contents, to be submitted instead of the one at `user`.
pub fn stand_in(user: usize, block: Block) -> Option<usize> {
    let record = record_of(user)?;
    // SAFETY: the record belongs to the program's block, and a program has a block in one
    // submission at a time.
    unsafe { (&raw mut (*record).block).write_volatile(block) };
    Some(record as usize)
}

/// Address of the program's block that the one at `address` stands for, if it is one of ours.
pub fn stands_for(address: usize) -> Option<usize> {
    let start = ROOM.load(Acquire) as usize;
    let offset = address.wrapping_sub(start);
    if start == 0 || offset >= BYTES || !offset.is_multiple_of(size_of::<Record>()) {
        return None;
    }
    // SAFETY: a record within the room, by the checks above; the field is atomic.
    let user = unsafe { &(*(address as *const Record)).user }.load(Acquire);
    (user != 0).then_some(user)
}

#[cfg(test)]
mod tests {
    use super::{Block, RECORDS, stand_in, stands_for};
    use zerocopy::FromZeros;

    #[test]
    fn a_block_keeps_its_record_and_a_record_its_block() {
        let near = 0x7f00_0000_1000_usize;
        let far = near + RECORDS * size_of::<Block>();
        let block = Block::new_zeroed();
        let records = [near, far, near + 64].map(|user| stand_in(user, block).unwrap());
        assert_eq!(
            records.map(stands_for),
            [Some(near), Some(far), Some(near + 64)]
        );
        assert_eq!(stand_in(far, block), Some(records[1]));
        assert_eq!(stands_for(near), None);
        assert_eq!(stands_for(records[0] + 8), None);
    }
}
