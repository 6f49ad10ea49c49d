//! Robust mutexes of the program that its threads hold. The C library links them in a list for each
//! thread, and so it does with those that Nacre takes: it then stores to the one before, which no
//! fault can supply in the middle of a call of ours.

use libc::SYS_get_robust_list;
use rustix::fs::{Dir, Mode, OFlags};

use crate::entry::user;
use crate::program::process;
use crate::runtime::kernel::checked;

/// No thread holds more, as far as the kernel looks.
const MOST: usize = 2048;
/// Bits of an address that do not belong to it.
const MARKS: usize = 1;

/// Where the mutexes are that threads of this process hold, or are about to.
pub fn nodes() -> Vec<usize> {
    let mut found = Vec::new();
    of_thread(0, &mut found);
    if process::has_threads() {
        others().for_each(|thread| of_thread(thread, &mut found));
    }
    found
}

fn others() -> impl Iterator<Item = usize> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(c"/proc/self/task", flags, Mode::empty());
    let entries = folder.and_then(Dir::new).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok())
}

fn of_thread(thread: usize, found: &mut Vec<usize>) {
    let (mut head, mut len) = (0usize, 0usize);
    let args = [thread, &raw mut head as usize, &raw mut len as usize];
    if checked(SYS_get_robust_list, &args).is_err() || head == 0 {
        return;
    }
    let word = |at: usize| user::read::<usize>(at & !MARKS).unwrap_or(0);
    // Behind the list and an offset.
    found.extend(Some(word(head + 2 * size_of::<usize>())).filter(|&at| at != 0));
    let mut at = word(head);
    for _ in 0..MOST {
        if at == 0 || at & !MARKS == head {
            return;
        }
        found.push(at & !MARKS);
        at = word(at);
    }
}
