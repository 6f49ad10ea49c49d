//! The program to run: where it is, and whether it can be intercepted.

use super::mounts::Mount;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const SET_IDS: u32 = 0o6000;
const PT_INTERP: u32 = 3;
/// More program headers than any real program has.
const HEADERS_MAX: u64 = 256;

/// A program and its arguments.
pub struct Program {
    words: Vec<OsString>,
    /// It is stored in a pool, which only an intercepted process can read.
    stored: bool,
    warning: Option<String>,
}

impl Program {
    /// The words of the command line, or the user's shell.
    pub fn new(words: &[OsString], mounts: &[Mount]) -> Program {
        let mut words = words.to_vec();
        if words.is_empty() {
            words.push(env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
        }
        let stored = is_stored(Path::new(&words[0]), mounts);
        let warning = if stored { None } else { warning(&words[0]) };
        Program {
            words,
            stored,
            warning,
        }
    }

    pub fn name(&self) -> String {
        self.words[0].to_string_lossy().into_owned()
    }

    /// Why the program will not see the pools, if so.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// What starts it. A program stored in a pool is started by a shell that sees the pool.
    pub fn command(&self) -> Command {
        if self.stored {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "exec \"$0\" \"$@\""]).args(&self.words);
            return shell;
        }
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        command
    }
}

fn is_stored(program: &Path, mounts: &[Mount]) -> bool {
    mounts
        .iter()
        .any(|mount| program.starts_with(&mount.folder))
}

fn warning(word: &OsStr) -> Option<String> {
    let path = find(word)?;
    let shown = path.display();
    if is_static(&path) == Some(true) {
        return Some(format!(
            "{shown} is statically linked: its calls cannot be intercepted, so it does not see the pool"
        ));
    }
    let meta = fs::metadata(&path).ok()?;
    let foreign = meta.uid() != rustix::process::geteuid().as_raw();
    (meta.mode() & SET_IDS != 0 && foreign).then(|| {
        format!("{shown} changes its user or group at start: such programs are left alone and do not see the pool")
    })
}

/// As the shell finds it.
fn find(word: &OsStr) -> Option<PathBuf> {
    if word.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(word));
    }
    let path = env::var_os("PATH")?;
    let mut places = env::split_paths(&path).map(|folder| folder.join(word));
    places.find(|place| {
        fs::metadata(place)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

/// Whether a file is a 64-bit ELF program without an interpreter; `None` if it is something else.
fn is_static(path: &Path) -> Option<bool> {
    let file = File::open(path).ok()?;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let number = |at: usize, len: usize| {
        header[at..at + len]
            .iter()
            .rev()
            .fold(0u64, |value, &byte| value << 8 | u64::from(byte))
    };
    let (start, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    for index in 0..count.min(HEADERS_MAX) {
        let mut kind = [0; 4];
        let at = start.checked_add(index.checked_mul(size)?)?;
        file.read_exact_at(&mut kind, at).ok()?;
        if u32::from_le_bytes(kind) == PT_INTERP {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::{Mount, Program, find, is_static, is_stored};
    use std::ffi::OsStr;
    use std::path::Path;

    #[test]
    fn shells_are_dynamic_and_texts_are_no_programs() {
        let shell = find(OsStr::new("sh")).expect("a shell");
        assert_eq!(is_static(&shell), Some(false));
        assert_eq!(is_static(Path::new("/etc/passwd")), None);
        assert_eq!(is_static(Path::new("/nothing")), None);
    }

    #[test]
    fn a_program_without_interpreter_is_static() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("static");
        let mut bytes = vec![0u8; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[32], bytes[54], bytes[56], bytes[64]) = (64, 56, 1, 1);
        std::fs::write(&path, &bytes).expect("written");
        assert_eq!(is_static(&path), Some(true));
        let warned = Program::new(&[path.into_os_string()], &[]);
        assert!(
            warned
                .warning()
                .is_some_and(|text| text.contains("statically linked"))
        );
    }

    #[test]
    fn programs_of_a_pool_are_started_inside() {
        let mounts = [Mount {
            folder: "/nacre".into(),
            pool: "/p".into(),
        }];
        assert!(is_stored(Path::new("/nacre/bin/x"), &mounts));
        assert!(!is_stored(Path::new("/nacre2/x"), &mounts));
        let program = Program::new(&["/nacre/x".into(), "-y".into()], &mounts);
        let command = program.command();
        assert_eq!(command.get_program(), "/bin/sh");
        assert_eq!(command.get_args().last(), Some(OsStr::new("-y")));
    }
}
