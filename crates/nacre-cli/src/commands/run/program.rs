//! The program to run: where it is, and whether it can be intercepted.

use super::mounts::Mount;
use crate::failure::{Failure, Result};
use nacre_types::reach::{self, Named, Policy, Rights, Start, Unserved};
use rustix::process::{getegid, geteuid};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program and its arguments.
pub struct Program {
    words: Vec<OsString>,
    /// It is stored in a pool, which only an intercepted process can read, or is a dynamic linker,
    /// whose program may be.
    by_shell: bool,
    unserved: Option<Unserved>,
}

impl Program {
    /// The words of the command line, or the user's shell.
    pub fn new(words: &[OsString], mounts: &[Mount]) -> Program {
        let mut words = words.to_vec();
        if words.is_empty() {
            words.push(env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
        }
        let stored = is_stored(Path::new(&words[0]), mounts);
        let path = match stored {
            true => None,
            false => find(&words[0]),
        };
        Program {
            by_shell: stored || path.as_deref().is_some_and(is_linker),
            unserved: path.and_then(|path| unserved(&path)),
            words,
        }
    }

    pub fn name(&self) -> String {
        self.words[0].to_string_lossy().into_owned()
    }

    /// Whether it does not see the pool by itself.
    pub fn is_unserved(&self) -> bool {
        self.unserved.is_some()
    }

    /// Whether it starts if it is told to load the library.
    pub fn may_load(&self) -> bool {
        self.unserved.as_ref().is_none_or(Unserved::may_load)
    }

    /// Refuses a program that would look for the pool's files among the host's; warns of one that
    /// may run.
    pub fn check(&self, mounts: &[Mount], policy: Policy) -> Result<()> {
        let Some(why) = &self.unserved else {
            return Ok(());
        };
        let finds = |mount: &Mount| {
            let shown = mount.by_kernel();
            shown.is_some_and(|shown| reach::finds(Some(why), &shown))
        };
        let hidden = |mount: &&Mount| !finds(mount);
        let mounts: Vec<&Mount> = mounts.iter().filter(hidden).collect();
        if mounts.is_empty() {
            return Ok(());
        }
        let named = self.named(&mounts).filter(|_| policy == Policy::Refuse);
        if let Some(named) = named {
            let at = |mount: &&&Mount| mount.folder.as_os_str().as_bytes() == named.mount;
            let taken = mounts.iter().find(at).and_then(|mount| mount.taken());
            let refusal = reach::refusal(&self.name(), why, &named, taken.as_ref());
            return Err(Failure::Unserved(refusal));
        }
        let name = self.name();
        eprintln!("nacre: {name} {why}: it sees what is there, not the pool");
        Ok(())
    }

    fn named(&self, mounts: &[&Mount]) -> Option<Named> {
        let bytes = |text: &OsString| text.as_bytes().to_vec();
        let mounts: Vec<&[u8]> = mounts
            .iter()
            .map(|mount| mount.folder.as_os_str().as_bytes())
            .collect();
        let arguments: Vec<Vec<u8>> = self.words[1..].iter().map(bytes).collect();
        let variable =
            |(name, value): (OsString, OsString)| [bytes(&name), bytes(&value)].join(&b'=');
        let environment: Vec<Vec<u8>> = env::vars_os().map(variable).collect();
        let folder = env::current_dir().unwrap_or_default();
        let start = Start {
            mounts: &mounts,
            folder: folder.as_os_str().as_bytes(),
            arguments: &arguments,
            environment: &environment,
        };
        start.named()
    }

    /// What starts it: a shell that sees the pool, if it must be found there.
    pub fn command(&self) -> Command {
        if self.by_shell {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "exec \"$0\" \"$@\""]).args(&self.words);
            return shell;
        }
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        if self.unserved.is_some()
            && let Ok(folder) = env::current_dir()
        {
            // Below the mount, not the folder that it covers.
            command.current_dir(folder);
        }
        command
    }
}

fn is_stored(program: &Path, mounts: &[Mount]) -> bool {
    mounts
        .iter()
        .any(|mount| program.starts_with(&mount.folder))
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

fn is_linker(path: &Path) -> bool {
    look(path).is_some_and(|found| reach::is_linker(path.as_os_str().as_bytes(), &found.head))
}

/// Why a program, or the interpreter of a script, cannot be served.
fn unserved(path: &Path) -> Option<Unserved> {
    let found = look(path)?;
    if let Some(line) = found.head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next()?.trim_ascii();
        let interpreter = line.split(|byte| b" \t".contains(byte)).next()?;
        return of_program(path, &look(Path::new(OsStr::from_bytes(interpreter)))?);
    }
    of_program(path, &found)
}

fn of_program(path: &Path, found: &Found) -> Option<Unserved> {
    let read = |offset, room: &mut [u8]| found.file.read_at(room, offset as u64).unwrap_or(0);
    let why = reach::unserved_at(path.as_os_str().as_bytes(), &found.head, read);
    let rights = Rights {
        mode: found.meta.mode(),
        owner: (found.meta.uid(), found.meta.gid()),
        caller: (geteuid().as_raw(), getegid().as_raw()),
    };
    why.or_else(|| rights.gained().then_some(Unserved::Privileged))
}

/// A program's file: its first bytes, and whose it is.
struct Found {
    file: File,
    head: Vec<u8>,
    meta: Metadata,
}

fn look(path: &Path) -> Option<Found> {
    let file = File::open(path).ok()?;
    let meta = file.metadata().ok().filter(Metadata::is_file)?;
    let mut head = Vec::new();
    let first = (&file).take(reach::HEAD as u64).read_to_end(&mut head);
    first.ok()?;
    Some(Found { file, head, meta })
}

#[cfg(test)]
mod tests {
    use super::{Mount, Policy, Program, is_stored};
    use std::ffi::OsStr;
    use std::path::Path;

    #[test]
    fn what_cannot_be_served_and_names_a_mount_is_refused() {
        let mounts = [Mount {
            folder: "/nacre".into(),
            pool: "/p".into(),
        }];
        let shell = Program::new(&["sh".into(), "/nacre/x".into()], &mounts);
        assert!(shell.check(&mounts, Policy::Refuse).is_ok());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("static");
        let mut bytes = vec![0u8; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[18], bytes[32], bytes[54], bytes[56], bytes[64]) = (62, 64, 56, 1, 1);
        std::fs::write(&path, &bytes).expect("written");
        let check = |argument: &str, policy| {
            let words = [path.clone().into_os_string(), argument.into()];
            Program::new(&words, &mounts).check(&mounts, policy)
        };
        let refused = check("of=/nacre/x", Policy::Refuse).map_err(|failure| failure.to_string());
        assert!(
            refused.is_err_and(
                |text| text.contains("statically linked") && text.contains("of=/nacre/x")
            )
        );
        assert!(check("/elsewhere", Policy::Refuse).is_ok());
        assert!(check("/nacre/x", Policy::Allow).is_ok());
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
