//! A lock that knows who holds it, so that the death of its holder is noticed.
//!
//! One word: `generation (32) | 0.. | slot + 1 (16) | contended (1)`, zero when free. Taking and
//! giving back are one store each; a death before or after leaves the lock free or owned by a dead
//! slot, never in between. A death between giving back and waking delays the waiters by one round.
//!
//! Giving back is a look and a plain store, not a compare-and-swap, which would wait until all
//! stores before it have reached the cache. Between the two nobody else takes the lock: as long as
//! its owner lives and has its slot, all that anybody may do to the word is to set the contended
//! bit. A guard copied by fork finds a word that is not its own and stores nothing. What the store
//! may overwrite is the bit of a waiter who came in between and is then not woken; it sleeps out
//! its round, no more. That this hardly ever happens is the waiter's doing: it goes on looking for
//! longer than look and store take before it sleeps, so that only an owner who is interrupted right
//! there makes it wait.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

use crate::liveness::process;
use crate::round::ROUND;
use crate::slot_ref::{Liveness, SlotRef};
use crate::step::Fault;
use crate::{Session, step};

const CONTENDED: u64 = 1;
const SPINS: u32 = 100;
/// How often a waiter who has announced itself looks again before it sleeps: a microsecond or so.
const LOOKS: u32 = 40;
/// After how many rounds of waiting for a stopped process somebody is told: 2 s.
const STALL_ROUNDS: u32 = 200;
/// The process that holds the lock is dead. Reap it ([`Session::reap`]), then lock again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the owner of the lock died: {0:?}")]
pub struct DeadOwner(pub SlotRef);

static STALL_REPORT: OnceLock<fn(u32)> = OnceLock::new();

/// Says whom to tell, by its number, that a process is waited for that is stopped in the middle of
/// an operation: by a signal or in a debugger. Once for each wait; `report` must not use the pool.
pub fn report_stalls(report: fn(u32)) {
    STALL_REPORT.get_or_init(|| report);
    nacre_media::report_long_waits(report_if_stopped);
}

/// What to tell about such a wait for process `pid`.
pub fn stall_text(pid: u32) -> String {
    let text = format!(
        "waiting for process {pid}, which is stopped in the middle of an operation on the pool; "
    );
    match process::is_traced_by_us(pid) {
        true => {
            text + "it is this program that stops it: let what it writes itself (strace -o FILE) be outside of the pool"
        }
        false => text + &format!("continue it (kill -CONT {pid}) or end it"),
    }
}

/// A lock between processes in 8 bytes of shared memory.
///
/// It is not reentrant: a process that locks twice waits for its other thread.
#[repr(transparent)]
pub struct OwnedLock(AtomicU64);

fn word_of(owner: SlotRef) -> u64 {
    u64::from(owner.generation) << 32 | (u64::from(owner.slot) + 1) << 1
}

fn owner_of(word: u64) -> Option<SlotRef> {
    let slot = (word as u32 >> 1).checked_sub(1)?;
    Some(SlotRef {
        slot: slot as u16,
        generation: (word >> 32) as u32,
    })
}

impl OwnedLock {
    /// Waits until the lock is `me`'s. A holder whose slot was recovered and released already is
    /// followed silently.
    #[inline]
    pub fn lock(&self, session: &Session, me: SlotRef) -> Result<(), DeadOwner> {
        if self.take(0, word_of(me)) {
            Ok(())
        } else {
            self.lock_slowly(session, me)
        }
    }

    /// Takes the lock if it is free, or was held by a slot that is recovered already.
    #[inline]
    pub fn try_lock(&self, session: &Session, me: SlotRef) -> bool {
        self.take(0, word_of(me))
            || self.take_stale(session, self.0.load(Ordering::Relaxed), word_of(me))
    }

    /// As [`OwnedLock::try_lock`], if nothing is known of a former owner.
    #[inline(always)]
    pub fn try_lock_free(&self, me: SlotRef) -> bool {
        self.take(0, word_of(me))
    }

    /// Gives the lock back. Nothing happens if `me` does not hold it (a guard copied by fork).
    #[inline(always)]
    pub fn unlock(&self, me: SlotRef) {
        step::point();
        let mine = word_of(me);
        if self.0.load(Ordering::Relaxed) == mine || step::has(Fault::ForeignUnlock) {
            step::point();
            self.0.store(0, Ordering::Release);
        } else {
            self.unlock_contended(mine | CONTENDED);
        }
    }

    /// Takes the lock over from `dead`, whose work has been recovered. False if `dead` does not
    /// hold it any more.
    pub fn steal(&self, dead: SlotRef, me: SlotRef) -> bool {
        let dead = word_of(dead);
        let mine = word_of(me) | CONTENDED;
        self.take(dead, mine) || self.take(dead | CONTENDED, mine)
    }

    /// The present holder of the lock.
    pub fn owner(&self) -> Option<SlotRef> {
        owner_of(self.0.load(Ordering::Relaxed))
    }

    /// Whether `who` holds the lock.
    #[inline]
    pub fn is_held_by(&self, who: SlotRef) -> bool {
        self.0.load(Ordering::Relaxed) & !CONTENDED == word_of(who)
    }

    /// Whether nobody holds the lock, in one order with all locking of it and other such loads and
    /// stores.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    #[inline(always)]
    fn take(&self, from: u64, to: u64) -> bool {
        step::exchange(&self.0, (from, to), Fault::TornLock)
    }

    /// A word of an older generation of its slot: that holder died and was recovered.
    fn take_stale(&self, session: &Session, seen: u64, to: u64) -> bool {
        match owner_of(seen) {
            Some(owner) if !session.is_current(owner) || step::has(Fault::LivingIsStale) => {
                self.take(seen, to | CONTENDED)
            }
            _ => false,
        }
    }

    #[cold]
    fn unlock_contended(&self, mine: u64) {
        if self
            .0
            .compare_exchange(mine, 0, Ordering::Release, Ordering::Relaxed)
            .is_ok()
        {
            step::point();
            wake(low_half(&self.0), 1);
        }
    }

    #[cold]
    fn lock_slowly(&self, session: &Session, me: SlotRef) -> Result<(), DeadOwner> {
        for _ in 0..SPINS {
            spin_loop();
            if self.0.load(Ordering::Relaxed) == 0 && self.take(0, word_of(me)) {
                return Ok(());
            }
        }
        // Whoever waited takes the lock as contended: others may sleep on it still.
        let mine = word_of(me) | CONTENDED;
        let mut rounds = 0;
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            if seen == 0 {
                if self.take(0, mine) {
                    return Ok(());
                }
            } else if self.take_stale(session, seen, mine) {
                return Ok(());
            } else if self.announce_waiter(seen) && self.stays(seen | CONTENDED) {
                self.wait_a_round(session, seen | CONTENDED)?;
                rounds += 1;
                if rounds == STALL_ROUNDS {
                    let owner = owner_of(seen).and_then(|owner| session.pid_of(owner));
                    owner.inspect(|&pid| report_if_stopped(pid));
                }
            }
        }
    }

    fn announce_waiter(&self, seen: u64) -> bool {
        seen & CONTENDED != 0
            || self
                .0
                .compare_exchange(seen, seen | CONTENDED, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Whether the lock is not given back by an owner who looked before it could see `announced`.
    fn stays(&self, announced: u64) -> bool {
        (0..LOOKS).all(|_| {
            spin_loop();
            self.0.load(Ordering::Relaxed) == announced
        })
    }

    fn wait_a_round(&self, session: &Session, seen: u64) -> Result<(), DeadOwner> {
        let waited = wait(low_half(&self.0), seen as u32);
        if waited == Err(Errno::TIMEDOUT) && self.0.load(Ordering::Relaxed) == seen {
            let owner = owner_of(seen).filter(|&owner| session.is_current(owner));
            if let Some(owner) = owner.filter(|&owner| session.liveness(owner) != Liveness::Alive) {
                return Err(DeadOwner(owner));
            }
        }
        Ok(())
    }
}

/// The half with the slot, for the kernel to compare.
pub(crate) fn low_half(word: &AtomicU64) -> &AtomicU32 {
    const { assert!(cfg!(target_endian = "little")) };
    // SAFETY: the first four bytes of a live, aligned AtomicU64; only its address is used, the
    // kernel does the reading.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}

#[cold]
pub(crate) fn report_if_stopped(pid: u32) {
    if let Some(report) = STALL_REPORT.get().filter(|_| process::is_stopped(pid)) {
        report(pid);
    }
}

/// Sleeps until woken, at most one round, unless `word` is not `expected` any more. `TIMEDOUT`
/// tells that the round was over.
pub(crate) fn wait(word: &AtomicU32, expected: u32) -> Result<(), Errno> {
    #[cfg(feature = "kill-steps")]
    if let Some(stage) = step::stage() {
        let over = word.load(Ordering::Relaxed) == expected && stage.sleep();
        return if over { Err(Errno::TIMEDOUT) } else { Ok(()) };
    }
    futex::wait(word, futex::Flags::empty(), expected, Some(&ROUND))
}

/// Sleeps until woken, at most so long, unless `word` is not `expected` any more.
pub(crate) fn wait_for(word: &AtomicU32, expected: u32, time: Duration) {
    let time = futex::Timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    };
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&time));
}

/// Wakes up to `count` sleepers of all processes.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    #[cfg(feature = "kill-steps")]
    if let Some(stage) = step::stage() {
        return stage.wake();
    }
    let _ = futex::wake(word, futex::Flags::empty(), count);
}

#[cfg(test)]
mod tests {
    use super::{CONTENDED, owner_of, word_of};
    use crate::SlotRef;

    #[test]
    fn a_lock_word_names_slot_and_generation() {
        for (slot, generation) in [(0, 1), (8191, u32::MAX), (5, 0)] {
            let owner = SlotRef { slot, generation };
            assert_eq!(owner_of(word_of(owner)), Some(owner));
            assert_eq!(owner_of(word_of(owner) | CONTENDED), Some(owner));
        }
        assert_eq!(owner_of(0), None);
    }
}
