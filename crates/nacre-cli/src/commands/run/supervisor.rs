//! Starting the program, staying beside it, and passing on signals and its status.
//!
//! The program stays in the supervisor's process group, so that it has the terminal and stops and
//! goes on together with the supervisor. Signals from the keyboard reach it by themselves; the
//! supervisor only must not die of them. Signals sent to the supervisor alone are passed on.

use crate::attached::Attached;
use crate::commands::upkeep::{Names, tell_unwritten};
use crate::failure::{Failure, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How often the supervisor looks for processes that died without leaving.
const REAP_EVERY: Duration = Duration::from_secs(1);
const FROM_KEYBOARD: [i32; 2] = [SIGINT, SIGQUIT];
const PASSED_ON: [(i32, Signal); 4] = [
    (SIGTERM, Signal::TERM),
    (SIGHUP, Signal::HUP),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
];

/// Runs a command to its end and gives its status.
pub fn keep(mut command: Command, name: &str, pools: &[Attached]) -> Result<ExitCode> {
    // Before the start, so that no signal is missed. Handlers, unlike ignored signals, are not
    // inherited.
    let signals =
        arrivals().map_err(|error| Failure::io("waiting for signals (a thread)", error))?;
    let mut child = command.spawn().map_err(|error| Failure::Start {
        program: name.to_string(),
        error,
    })?;
    let status = wait(&mut child, &signals, pools)?;
    reap(pools);
    Ok(exit_code(status))
}

/// A channel of the signals that arrive from now on.
fn arrivals() -> std::io::Result<Receiver<i32>> {
    let passed_on = PASSED_ON.iter().map(|(number, _)| *number);
    let mut signals = Signals::new(passed_on.chain(FROM_KEYBOARD).chain([SIGCHLD]))?;
    let (sender, receiver) = channel();
    let tell = move || signals.forever().all(|signal| sender.send(signal).is_ok());
    thread::Builder::new().spawn(tell)?;
    Ok(receiver)
}

fn wait(child: &mut Child, signals: &Receiver<i32>, pools: &[Attached]) -> Result<ExitStatus> {
    let lost = |error| Failure::io("the program", error);
    let mut commits: Vec<Commits<'_>> = pools.iter().map(Commits::of).collect();
    let mut names: Vec<Names> = pools.iter().map(|_| Names::default()).collect();
    loop {
        if let Some(status) = child.try_wait().map_err(lost)? {
            return Ok(status);
        }
        let next = commits.iter().map(Commits::next).min();
        match signals.recv_timeout(next.map_or(REAP_EVERY, |next| next.min(REAP_EVERY))) {
            Ok(signal) => pass_on(signal, child),
            Err(RecvTimeoutError::Timeout) => {
                reap(pools);
                for (names, pool) in names.iter_mut().zip(pools) {
                    names.look(&pool.fs);
                }
                commits.iter_mut().for_each(Commits::commit_if_due);
            }
            Err(RecvTimeoutError::Disconnected) => return child.wait().map_err(lost),
        }
    }
}

fn pass_on(number: i32, child: &Child) {
    let signal = PASSED_ON.iter().find(|(passed, _)| *passed == number);
    if let (Some((_, signal)), Some(pid)) = (signal, Pid::from_raw(child.id() as i32)) {
        // It may have ended meanwhile; the next round of the loop sees that.
        let _ended_meanwhile = kill_process(pid, *signal);
    }
}

/// Finishes what processes left that were killed.
fn reap(pools: &[Attached]) {
    for pool in pools {
        // A copy that was overwritten is given up before more of it is read.
        let _told = pool.fs.store().volume().check_copies();
        if let Err(error) = pool.fs.reap_dead() {
            eprintln!(
                "nacre: {}: cannot clean up after a dead process: {error}",
                pool.path.display()
            );
        }
    }
}

/// Gives a disk what its cache holds, every now and then.
struct Commits<'a> {
    pool: &'a Attached,
    last: Instant,
}

impl<'a> Commits<'a> {
    fn of(pool: &'a Attached) -> Self {
        let last = Instant::now();
        Self { pool, last }
    }

    /// The time until the next one.
    fn next(&self) -> Duration {
        self.pool.commit_every.saturating_sub(self.last.elapsed())
    }

    fn commit_if_due(&mut self) {
        if !self.next().is_zero() {
            return;
        }
        self.last = Instant::now();
        if let Err(error) = self.pool.fs.store().commit_now() {
            tell_unwritten(&self.pool.path, &error);
        }
    }
}

/// As shells show it: 128 + N for signal N.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(code as u8)
}

#[cfg(test)]
mod tests {
    use super::{exit_code, keep};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitCode, ExitStatus};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// A signal to this process is one to each supervisor in it.
    fn only_supervisor() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn same(left: ExitCode, right: u8) -> bool {
        format!("{left:?}") == format!("{:?}", ExitCode::from(right))
    }

    #[test]
    fn status_is_the_programs_own() {
        let _only = only_supervisor();
        assert!(same(exit_code(ExitStatus::from_raw(3 << 8)), 3));
        assert!(same(exit_code(ExitStatus::from_raw(9)), 137));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exit 7"]);
        assert!(same(keep(command, "sh", &[]).expect("ran"), 7));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "kill -TERM $$"]);
        assert!(same(keep(command, "sh", &[]).expect("ran"), 143));
    }

    #[test]
    fn a_signal_to_the_supervisor_reaches_the_program() {
        let _only = only_supervisor();
        let mut command = Command::new("/bin/sh");
        command.args([
            "-c",
            "trap 'exit 5' USR1; kill -USR1 $PPID; sleep 10 & wait; exit 6",
        ]);
        assert!(same(keep(command, "sh", &[]).expect("ran"), 5));
    }

    #[test]
    fn missing_programs_are_named() {
        let _only = only_supervisor();
        let failure = keep(Command::new("/nothing/there"), "/nothing/there", &[]);
        let text = failure.err().map(|failure| failure.to_string());
        assert!(text.is_some_and(|text| text.starts_with("/nothing/there: cannot be started")));
    }
}
