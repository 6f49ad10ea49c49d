//! Who alone changes a pool may let the kernel keep what it was told of it (D65, D109).
//!
//! One word says which process does. It looks for others after it has said so, and whoever takes a
//! slot to change something looks at the word after that: of the two at least one sees the other.
//! Who then finds somebody there waits until the kernel has forgotten, or that process is dead.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

use crate::Session;
use crate::slot_ref::{Liveness, SlotRef};

/// Somebody waits for its end.
const WANTED: u32 = 1 << 31;
/// How long is waited before the other side is looked at again.
const ROUND: futex::Timespec = futex::Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// So many rounds, five seconds, are waited for a server that is stopped: one that shows no sign
/// that it makes the kernel forget.
const PATIENCE: u32 = 250;
/// The server makes the kernel forget: this goes up meanwhile.
const SIGN: u32 = 1 << 16;
const SIGNS: u32 = 0x7fff << 16;

fn word_of(slot: SlotRef) -> u32 {
    u32::from(slot.slot) + 1
}

impl Session {
    fn kernel_cache(&self) -> &AtomicU32 {
        &self.memory.header().kernel_cache
    }

    /// From now on the kernel may keep what this process tells it. `false`: others may change it.
    pub fn begin_kernel_cache(&self, me: SlotRef) -> bool {
        let word = self.kernel_cache();
        if word
            .compare_exchange(0, word_of(me), SeqCst, SeqCst)
            .is_err()
        {
            return false;
        }
        let mut others = self.current_slots().filter(|&slot| slot != me);
        let alone = !others.any(|slot| self.may_change(slot));
        if !alone {
            self.end_kernel_cache();
        }
        alone
    }

    /// Waits until somebody wants it to end, at most so long. True: somebody does.
    pub fn wait_for_kernel_cache_end(&self, me: SlotRef, at_most: Duration) -> bool {
        let at_most = futex::Timespec {
            tv_sec: at_most.as_secs() as i64,
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        let word = self.kernel_cache();
        if word.load(SeqCst) == word_of(me) {
            // Woken, too late, or in vain: the word tells.
            let _ = futex::wait(word, futex::Flags::empty(), word_of(me), Some(&at_most));
        }
        word.load(SeqCst) != word_of(me)
    }

    /// The kernel is forgetting, which takes a while: whoever waits goes on waiting.
    pub fn show_kernel_cache_end(&self) {
        let word = self.kernel_cache();
        let found = word.load(SeqCst);
        if found & WANTED != 0 {
            let shown = found & !SIGNS | found.wrapping_add(SIGN) & SIGNS;
            // Who waits for a dead one may clear it meanwhile.
            let _ = word.compare_exchange(found, shown, SeqCst, SeqCst);
        }
    }

    /// The kernel has forgotten everything.
    pub fn end_kernel_cache(&self) {
        self.kernel_cache().store(0, SeqCst);
        self.wake_kernel_cache();
    }

    /// Says that its end is wanted. The word then; 0 if nothing is kept.
    pub fn want_kernel_cache_end(&self) -> u32 {
        let word = self.kernel_cache();
        let found = word.load(SeqCst);
        if found == 0 || found & WANTED != 0 {
            return found;
        }
        match word.compare_exchange(found, found | WANTED, SeqCst, SeqCst) {
            Ok(_) => {
                self.wake_kernel_cache();
                found | WANTED
            }
            Err(changed) => changed,
        }
    }

    fn wake_kernel_cache(&self) {
        // Who is not woken looks by himself.
        let _ = futex::wake(self.kernel_cache(), futex::Flags::empty(), i32::MAX as u32);
    }

    /// Behind taking a slot: nothing that changes from now on is kept by the kernel.
    pub(crate) fn await_kernel_cache_end(&self, me: SlotRef) {
        if self.kernel_cache().load(SeqCst) != 0 {
            self.await_its_end(me);
        }
    }

    #[cold]
    fn await_its_end(&self, me: SlotRef) {
        let (mut rounds, mut last) = (0, 0);
        loop {
            let found = self.want_kernel_cache_end();
            if found == 0 {
                return;
            }
            if found != last {
                (rounds, last) = (0, found);
            }
            let server = self.user_of((found as u16).wrapping_sub(1));
            // A slot of the caller's own was that of a process which died.
            let gone = server.slot == me.slot || self.liveness(server) != Liveness::Alive;
            if gone || rounds == PATIENCE {
                // Whoever is quicker clears it as well.
                let _ = self
                    .kernel_cache()
                    .compare_exchange(found, 0, SeqCst, SeqCst);
                continue;
            }
            let flags = futex::Flags::empty();
            let waited = futex::wait(self.kernel_cache(), flags, found, Some(&ROUND));
            rounds += u32::from(waited == Err(Errno::TIMEDOUT));
        }
    }
}
