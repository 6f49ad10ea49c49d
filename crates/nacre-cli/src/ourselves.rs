//! This program, started once more.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The program that runs, also if another one has its name by now, as after an upgrade.
pub fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(env::args_os().next().unwrap_or_else(|| "nacre".into()));
    command
}

/// The kernel calls who is started by [`command`] `exe`, and so would `ps` and `nacre list`.
pub fn take_name() {
    let _stays_nameless = rustix::thread::set_name(c"nacre");
}
