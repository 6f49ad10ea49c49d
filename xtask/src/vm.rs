//! The virtual machine of tests/vm/boot.sh, for what needs an NVDIMM, a clock that counts
//! instructions, or a power cut.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::target_folder;

/// A machine that is to be started.
pub struct Vm<'a> {
    /// `icount` or `tcg`, as boot.sh explains.
    pub mode: &'a str,
    /// The folder that host and guest share.
    pub share: &'a Path,
    /// What it runs.
    pub script: &'a Path,
    /// After so many seconds it is switched off.
    pub limit: u64,
}

impl Vm<'_> {
    pub fn command(&self, root: &Path) -> Command {
        let mut command = boot(root);
        command
            .arg(self.script)
            .env("MODE", self.mode)
            .env("SHARE", self.share)
            .env("LIMIT", self.limit.to_string());
        command
    }
}

/// Where kernel and initramfs are kept.
pub fn work(root: &Path) -> PathBuf {
    std::env::var_os("NACRE_VM_WORK").map_or_else(|| target_folder(root).join("vm"), PathBuf::from)
}

/// Fetches what a machine needs. False if there can be none here; boot.sh has said why.
pub fn is_available(root: &Path) -> Result<bool, String> {
    let status = boot(root).stdout(Stdio::null()).status();
    let status = status.map_err(|error| format!("boot.sh: {error}"))?;
    match status.code() {
        Some(0) => Ok(true),
        Some(3) => Ok(false),
        _ => Err(format!("boot.sh: {status}")),
    }
}

fn boot(root: &Path) -> Command {
    let mut command = Command::new(root.join("tests/vm/boot.sh"));
    command.env("WORK", work(root));
    command
}
