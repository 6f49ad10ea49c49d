//! Processes for the tests: fork, wait, kill.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nacre_session::{Geometry, Session, SlotRef};
use nacre_types::Ino;

pub const GEOMETRY: Geometry = Geometry {
    units: 5000,
    max_objects: 4096,
    lanes: 4,
};
pub const FILE: Ino = Ino(7);

/// A forked child; killed and waited for on drop.
pub struct Child(i32);

#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Killed,
}

/// Runs `body` in a child process; a panic there is exit code 101.
pub fn fork(body: impl FnOnce()) -> Child {
    // SAFETY: the child runs `body`, which needs no other thread of this process, and leaves by
    // _exit.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = catch_unwind(AssertUnwindSafe(body));
            // SAFETY: ends the child without running the exit handlers of the test harness.
            unsafe { libc::_exit(if outcome.is_ok() { 0 } else { 101 }) }
        }
        pid if pid > 0 => Child(pid),
        _ => panic!("fork failed"),
    }
}

impl Child {
    pub fn pid(&self) -> u32 {
        self.0 as u32
    }

    /// Kills without waiting: the child becomes a zombie.
    pub fn kill(&self) {
        // SAFETY: the child has not been waited for, so the number is still its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }

    /// Waits until the child has stopped or ended. True if it has stopped.
    pub fn await_stop(&mut self) -> bool {
        let mut status = 0;
        // SAFETY: waits for a child of this process that was not waited for yet.
        unsafe { libc::waitpid(self.0, &mut status, libc::WUNTRACED) };
        if libc::WIFSTOPPED(status) {
            return true;
        }
        self.0 = 0;
        assert_eq!(status, 0);
        false
    }

    /// Lets a stopped child go on.
    pub fn go_on(&self) {
        // SAFETY: the child has not been waited for, so the number is still its own.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }

    pub fn wait(mut self) -> End {
        self.reap()
    }

    fn reap(&mut self) -> End {
        let mut status = 0;
        // SAFETY: waits for a child of this process, once.
        unsafe { libc::waitpid(self.0, &mut status, 0) };
        self.0 = 0;
        if libc::WIFEXITED(status) {
            End::Exit(libc::WEXITSTATUS(status))
        } else {
            End::Killed
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.0 != 0 {
            self.kill();
            self.reap();
        }
    }
}

pub fn session() -> (Session, SlotRef) {
    let session = Session::memory(GEOMETRY).unwrap();
    session.set_ready();
    let me = session.claim_slot().unwrap();
    (session, me)
}

/// A word of shared memory for the tests to talk through.
pub fn mailbox(session: &Session, index: u64) -> &AtomicU64 {
    &session.icore(4000 + index).alloc_hint
}

pub fn post(session: &Session, index: u64, value: u64) {
    mailbox(session, index).store(value, Ordering::SeqCst);
}

pub fn await_value(session: &Session, index: u64, value: u64) {
    await_true(|| mailbox(session, index).load(Ordering::SeqCst) == value);
}

pub fn await_true(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "nothing happened for a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn sleep_forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// What the layer above does for a dead process, without anything to undo.
pub fn reap(session: &Session, me: SlotRef, dead: SlotRef) {
    let recovered: Result<(), Infallible> = session.reap(me, dead, &mut |dead| {
        session.release_ofds_of(me, dead, &mut |_| {});
        Ok(())
    });
    recovered.unwrap();
}

pub fn reap_all(session: &Session, me: SlotRef) {
    let dead: Vec<SlotRef> = session.dead_slots().collect();
    dead.into_iter().for_each(|dead| reap(session, me, dead));
}

/// Runs `body` in a child that dies at its first step, then at its second, and so on until it
/// survives; after each, `check` looks at what is left. Returns how many deaths there were.
pub fn die_at_every_step(session: &Session, body: impl Fn(), mut check: impl FnMut(u64)) -> u64 {
    for n in 1..100_000 {
        let end = fork(|| {
            nacre_session::step::arm(n);
            body();
        })
        .wait();
        assert_ne!(end, End::Exit(101), "step {n}");
        check(n);
        if end == End::Exit(0) {
            assert!(!session.address_range().is_empty());
            return n - 1;
        }
    }
    unreachable!("the body never ends")
}
