//! Long work on several processors, which gives way to whoever else wants them.

use std::mem::MaybeUninit;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

/// So long a helper sleeps, at most, that was preempted: somebody else wants its processor.
const GIVES_WAY: Duration = Duration::from_millis(50);
/// Who was preempted behind so little time has lost a whole turn to somebody who wants all of it.
/// Who ran for longer gave way to something short, and sleeps less.
const TURN: Duration = Duration::from_millis(3);

/// What is done with one number. `Break`: nothing more is to be done.
pub type One<'w, E> = dyn Fn(u64) -> Result<ControlFlow<()>, E> + Sync + 'w;

struct Work<'w, E> {
    next: AtomicU64,
    end: u64,
    done: AtomicU64,
    is_over: AtomicBool,
    failure: Mutex<Option<E>>,
    one: &'w One<'w, E>,
}

/// Does something with each number, on this thread and as many others as `threads` says besides.
/// `told` hears on this one how many are done, and may break off. Answers whether all were done, or
/// what failed first.
///
/// The others stop for a moment where programs want their processors. They start in tools alone:
/// a program that knows nothing of them gets no threads.
pub fn each<E: Send>(
    numbers: Range<u64>,
    threads: usize,
    one: &One<'_, E>,
    told: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<bool, E> {
    let work = Work {
        next: AtomicU64::new(numbers.start),
        end: numbers.end,
        done: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        failure: Mutex::new(None),
        one,
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // As many as the system allows.
            let _helper = Builder::new().spawn_scoped(scope, || work.help());
        }
        while work.step() {
            if told(work.done.load(Relaxed)).is_break() {
                work.is_over.store(true, Relaxed);
            }
        }
    });
    work.outcome()
}

impl<E> Work<'_, E> {
    /// Does the next one. `false`: there is none, or none is wanted.
    fn step(&self) -> bool {
        if self.is_over.load(Relaxed) {
            return false;
        }
        let number = self.next.fetch_add(1, Relaxed);
        if number >= self.end {
            return false;
        }
        match (self.one)(number) {
            Ok(ControlFlow::Continue(())) => drop(self.done.fetch_add(1, Relaxed)),
            Ok(ControlFlow::Break(())) => self.is_over.store(true, Relaxed),
            Err(error) => self.fail(error),
        }
        true
    }

    fn fail(&self, error: E) {
        self.is_over.store(true, Relaxed);
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
    }

    fn help(&self) {
        let (mut seen, mut since) = (preemptions(), Instant::now());
        while self.step() {
            if preemptions() != seen {
                thread::sleep(pause_after(since.elapsed()));
                (seen, since) = (preemptions(), Instant::now());
            }
        }
    }

    fn outcome(self) -> Result<bool, E> {
        let failure = self.failure.into_inner();
        match failure.unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(!self.is_over.into_inner()),
        }
    }
}

/// How long a helper sleeps that ran for so long before it was preempted.
fn pause_after(ran: Duration) -> Duration {
    GIVES_WAY.mul_f64(TURN.div_duration_f64(ran.max(TURN)))
}

/// How often others got this thread's processor while it wanted to go on.
fn preemptions() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: it fills the structure, which is valid when zeroed, too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nivcsw
}

#[cfg(test)]
mod tests {
    use super::{GIVES_WAY, TURN, each, pause_after};
    use std::convert::Infallible;
    use std::ops::ControlFlow;
    use std::sync::Mutex;

    fn go_on(_: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn each_number_comes_once_whatever_the_threads() {
        for threads in [1, 2, 7] {
            let seen = Mutex::new(Vec::new());
            let one = |number| {
                seen.lock().expect("nobody panics").push(number);
                Ok::<_, Infallible>(ControlFlow::Continue(()))
            };
            let mut told = 0;
            let mut tell = |done| {
                told = done;
                ControlFlow::Continue(())
            };
            assert_eq!(each(10..1000, threads, &one, &mut tell), Ok(true));
            let mut seen = seen.into_inner().expect("nobody panics");
            if threads == 1 {
                assert_eq!((told, seen.is_sorted()), (990, true));
            }
            seen.sort_unstable();
            assert_eq!(seen, (10..1000).collect::<Vec<u64>>());
        }
    }

    #[test]
    fn who_is_preempted_seldom_sleeps_less() {
        assert_eq!(pause_after(TURN / 9), GIVES_WAY);
        assert_eq!(pause_after(TURN * 10), GIVES_WAY / 10);
    }

    #[test]
    fn the_first_failure_ends_it_and_is_told() {
        let seen = Mutex::new(0);
        let one = |number| {
            *seen.lock().expect("nobody panics") += 1;
            match number {
                5.. => Err("five"),
                _ => Ok(ControlFlow::Continue(())),
            }
        };
        assert_eq!(each(0..1_000_000, 3, &one, &mut go_on), Err("five"));
        assert!(*seen.lock().expect("nobody panics") < 1000);
    }

    #[test]
    fn who_hears_how_far_it_is_may_break_off_and_so_may_the_work() {
        let one = |_| Ok::<_, Infallible>(ControlFlow::Continue(()));
        let mut until_ten = |done| match done {
            10.. => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        assert_eq!(each(0..u64::MAX, 2, &one, &mut until_ten), Ok(false));
        let until_five = |number| match number {
            5 => Ok::<_, Infallible>(ControlFlow::Break(())),
            _ => Ok(ControlFlow::Continue(())),
        };
        assert_eq!(each(0..u64::MAX, 2, &until_five, &mut go_on), Ok(false));
        assert_eq!(each(0..5, 2, &until_five, &mut go_on), Ok(true));
    }
}
