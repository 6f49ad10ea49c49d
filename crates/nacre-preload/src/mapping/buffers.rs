//! What a call gives to the kernel, or to us, when it may lie in a hole of a mapping.

use core::mem::offset_of;

use super::holes::touch;
use crate::calls::xattr::{SYS_GETXATTRAT, SYS_SETXATTRAT};
use crate::entry::abi::XattrArgs;
use crate::entry::call::{Call, Vector};
use crate::entry::user;

/// Most entries of a vector.
const MAX_VECTORS: usize = 1024;
/// Bytes of the largest struct that a call takes.
const STRUCT: usize = 512;
/// Most bytes of a buffer of a call that is not known.
const MOST: usize = 64 << 10;

/// Makes accessible what a call will access.
pub fn prepare(c: &Call<'_>) {
    const READ: bool = false;
    const WRITE: bool = true;
    match c.number() as i64 {
        libc::SYS_mmap
        | libc::SYS_munmap
        | libc::SYS_mremap
        | libc::SYS_mprotect
        | libc::SYS_pkey_mprotect
        | libc::SYS_msync
        | libc::SYS_madvise
        | libc::SYS_mseal
        | libc::SYS_remap_file_pages
        | libc::SYS_shmat => {}
        libc::SYS_mlock | libc::SYS_mlock2 => touch(c.vfs(), c.arg(0), c.arg(1), WRITE),
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_recvfrom => {
            touch(c.vfs(), c.arg(1), c.arg(2), WRITE)
        }
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendto => {
            touch(c.vfs(), c.arg(1), c.arg(2), READ)
        }
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => {
            vectors(c, c.arg(1), c.arg(2), WRITE)
        }
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 | libc::SYS_vmsplice => {
            vectors(c, c.arg(1), c.arg(2), READ);
        }
        SYS_GETXATTRAT => attribute(c, WRITE),
        SYS_SETXATTRAT => attribute(c, READ),
        libc::SYS_recvmsg => message(c, c.arg(1), WRITE),
        libc::SYS_sendmsg => message(c, c.arg(1), READ),
        libc::SYS_recvmmsg => messages(c, WRITE),
        libc::SYS_sendmmsg => messages(c, READ),
        _ => anything(c),
    }
}

/// Buffers of a call that is not looked at closer: the kernel may store into all of them.
fn anything(c: &Call<'_>) {
    for i in 0..6 {
        let len = if i < 5 { c.arg(i + 1) } else { 0 };
        touch(c.vfs(), c.arg(i), len.clamp(STRUCT, MOST), true);
    }
}

fn vectors(c: &Call<'_>, start: usize, count: usize, write: bool) {
    let count = count.min(MAX_VECTORS);
    touch(c.vfs(), start, count * size_of::<Vector>(), false);
    for i in 0..count {
        let Ok(one) = user::read::<Vector>(start.wrapping_add(i * size_of::<Vector>())) else {
            return;
        };
        touch(c.vfs(), one.start, one.len, write);
    }
}

fn attribute(c: &Call<'_>, write: bool) {
    anything(c);
    if let Ok((start, len)) = user::read(c.arg(4)).map(|args: XattrArgs| args.room()) {
        touch(c.vfs(), start, len.min(MOST), write);
    }
}

fn message(c: &Call<'_>, at: usize, write: bool) {
    type Header = libc::msghdr;
    touch(c.vfs(), at, size_of::<Header>(), write);
    let word = |offset| user::read::<usize>(at.wrapping_add(offset));
    let [name, control] = [
        offset_of!(Header, msg_name),
        offset_of!(Header, msg_control),
    ];
    for buffer in [name, control].into_iter().flat_map(word) {
        touch(c.vfs(), buffer, STRUCT, write);
    }
    let vector = word(offset_of!(Header, msg_iov));
    if let (Ok(start), Ok(count)) = (vector, word(offset_of!(Header, msg_iovlen))) {
        vectors(c, start, count, write);
    }
}

fn messages(c: &Call<'_>, write: bool) {
    for i in 0..c.arg(2).min(MAX_VECTORS) {
        let at = c.arg(1).wrapping_add(i * size_of::<libc::mmsghdr>());
        message(c, at, write);
    }
}
