//! The list of robust futexes of the calling thread: words that the kernel marks when the thread
//! executes a program.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use crate::entry::user;
use crate::runtime::kernel::checked;

/// `struct robust_list_head`: the list, how far the words are from what is listed, what is about to
/// be listed.
const WORDS: usize = 3;
const OFFSET: usize = 8;
const PENDING: usize = 16;

/// A list for threads that have none: it ends where it begins, and what is listed is the word.
static OWN: [AtomicUsize; WORDS] = [const { AtomicUsize::new(0) }; WORDS];

/// While it lives, a word is marked when the thread executes a program.
pub struct Pending {
    /// Where the head says what is about to be listed.
    place: usize,
}

impl Pending {
    /// None: the kernel will not mark it.
    pub fn start(word: &AtomicU32) -> Option<Self> {
        let head = match head()? {
            0 => own()?,
            head => head,
        };
        let offset: usize = user::read(head + OFFSET).ok()?;
        let place = head + PENDING;
        // The thread is about to take a mutex of its own, and executes a program in a handler.
        if user::read::<usize>(place).ok()? != 0 {
            return None;
        }
        let listed = (word.as_ptr() as usize).wrapping_sub(offset);
        user::write(place, &listed).ok()?;
        Some(Pending { place })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // It was written before; a program that has taken its memory away loses nothing.
        let _ = user::write(self.place, &0usize);
    }
}

/// The thread's list; 0 if it has none.
fn head() -> Option<usize> {
    let (mut head, mut len) = (0usize, 0usize);
    let args = [0, &raw mut head as usize, &raw mut len as usize];
    checked(libc::SYS_get_robust_list, &args).ok()?;
    Some(head)
}

fn own() -> Option<usize> {
    let head = OWN.as_ptr() as usize;
    OWN[0].store(head, Relaxed);
    checked(libc::SYS_set_robust_list, &[head, size_of_val(&OWN)]).ok()?;
    Some(head)
}
