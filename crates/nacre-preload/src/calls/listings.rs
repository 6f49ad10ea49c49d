//! Listings of folders. Those of the kernel are its own, but for one thing: who lists the open
//! descriptors of this process is not shown ours, which it could neither use nor close.

use std::os::fd::BorrowedFd;

use libc::{SYS_getdents, SYS_getdents64};
use nacre_vfs::Answer;
use rustix::fs::{self, AtFlags, Stat};

use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry};
use crate::entry::user;
use crate::program::descriptors;

/// The calls of this family. They look at fds of the kernel, too.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_getdents, "getdents", |c| {
        list(c, c.vfs().getdents(c.int(0), c.sink(1)?), 18)
    }),
    entry(SYS_getdents64, "getdents64", |c| {
        list(c, c.vfs().getdents64(c.int(0), c.sink(1)?), 19)
    }),
];

/// Where a record says how long it is.
const LENGTH: usize = 16;

/// `name` is where a record's name begins.
fn list(c: &mut Call<'_>, answer: Answer, name: usize) -> Verdict {
    match c.on_fd(answer) {
        Err(Stop::Native) => {}
        verdict => return verdict,
    }
    loop {
        let len = c.native();
        if len <= 0 || !may_list_numbers(c.arg(1), len as usize, name) {
            return Ok(len);
        }
        match without_ours(c, len as usize, name)? {
            // The end would be told too early.
            0 => {}
            left => return Ok(left as isize),
        }
    }
}

/// Whether the first name that does not begin with a dot begins with a digit, as all do in a
/// listing of descriptors.
fn may_list_numbers(start: usize, len: usize, name: usize) -> bool {
    let mut at = 0;
    while at + name < len {
        let (Ok(first), Ok(step)) = (
            user::read::<u8>(start + at + name),
            user::read::<u16>(start + at + LENGTH),
        ) else {
            return false;
        };
        if first != b'.' || step == 0 {
            return first.is_ascii_digit();
        }
        at += usize::from(step);
    }
    false
}

/// Takes the records of our own descriptors out of the program's buffer; the length of the others.
fn without_ours(c: &Call<'_>, len: usize, name: usize) -> Result<usize, Stop> {
    let mut records = vec![0; len];
    user::read_bytes(c.arg(1), &mut records)?;
    let (mut from, mut to) = (0, 0);
    while let Some(record) = record_at(&records[from..]) {
        let (end, hidden) = (from + record.len(), is_ours(c.int(0), &record[name..]));
        if !hidden {
            records.copy_within(from..end, to);
            to += end - from;
        }
        from = end;
    }
    if to < from {
        user::write_bytes(c.arg(1), &records[..to])?;
    }
    Ok(to)
}

fn record_at(records: &[u8]) -> Option<&[u8]> {
    let length = records.get(LENGTH..LENGTH + 2)?;
    let len = usize::from(u16::from_le_bytes([length[0], length[1]]));
    records.get(..len).filter(|record| record.len() > LENGTH)
}

/// Whether a name in the folder `dir` stands for a descriptor of ours.
fn is_ours(dir: i32, name: &[u8]) -> bool {
    let text = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let number = core::str::from_utf8(text).ok().and_then(|n| n.parse().ok());
    number.is_some_and(|fd| descriptors::is_internal(fd) && lists(dir, fd, text))
}

/// Whether a folder of /proc shows what is open as `fd` here. It is asked itself, as a sandbox may
/// have no /proc. Beside a folder `fdinfo` stands `fd`.
fn lists(dir: i32, fd: i32, number: &[u8]) -> bool {
    // SAFETY: numbers that are asked about while this call lasts; if a thread of the program closes
    // one the kernel says so.
    let (dir, fd) = unsafe { (BorrowedFd::borrow_raw(dir), BorrowedFd::borrow_raw(fd)) };
    if !fs::fstatfs(dir).is_ok_and(|found| found.f_type == fs::PROC_SUPER_MAGIC) {
        return false;
    }
    let there = fs::statat(dir, [b"../fd/", number].concat(), AtFlags::empty());
    let here = fs::fstat(fd);
    here.is_ok() && here.map(identity) == there.map(identity)
}

/// What no other file has at the same time.
fn identity(stat: Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
