//! Reading and writing files, by ordinary calls of the C library.

use super::measure::Work;
use super::row::{PROGRAM, READER, SHELL, Sharing};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::uio::{pread, pwrite};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Random places in a part of a file, multiples of the size of an operation.
pub struct Places {
    state: u64,
    start: u64,
    slots: u64,
    size: u64,
}

impl Places {
    /// In the whole file, or in the caller's half of it if callers share it.
    pub fn new(bytes: u64, size: usize, caller: usize, callers: usize, sharing: Sharing) -> Places {
        let size = size as u64;
        let is_divided = callers > 1 && sharing == Sharing::Same;
        let room = if is_divided {
            bytes / callers as u64
        } else {
            bytes
        };
        Places {
            state: 0x9e37_79b9_7f4a_7c15 ^ (caller as u64 + 1),
            start: if is_divided { room * caller as u64 } else { 0 },
            slots: (room / size).max(1),
            size,
        }
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        // The upper half of the product: as even as a remainder, without a division.
        let slot = (u128::from(self.state) * u128::from(self.slots)) >> 64;
        self.start + slot as u64 * self.size
    }
}

/// A path as the C library takes it.
pub fn path_of(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Bytes to write: not zeros, which a medium might treat as nothing.
pub fn contents(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8 + 1).collect()
}

/// A file of `bytes` written bytes.
pub fn data_file(path: &Path, bytes: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let piece = contents(1 << 20);
    let mut at = file.metadata()?.len();
    while at < bytes {
        let len = (bytes - at).min(piece.len() as u64);
        file.write_all_at(&piece[..len as usize], at)?;
        at += len;
    }
    Ok(file)
}

/// Whether a call did all that it was asked to.
#[inline]
fn whole(done: usize, buffer: &[u8]) -> io::Result<()> {
    if done == buffer.len() {
        Ok(())
    } else {
        Err(io::Error::other("a call did less than it was asked to"))
    }
}

pub struct Pread {
    pub file: File,
    pub places: Places,
    pub buffer: Vec<u8>,
}

impl Work for Pread {
    fn step(&mut self, _: usize) -> io::Result<()> {
        let read = pread(&self.file, &mut self.buffer, self.places.next() as i64)?;
        whole(read, &self.buffer)
    }
}

pub struct Pwrite {
    pub file: File,
    pub places: Places,
    pub buffer: Vec<u8>,
    pub syncs: bool,
}

impl Work for Pwrite {
    fn step(&mut self, _: usize) -> io::Result<()> {
        let written = pwrite(&self.file, &self.buffer, self.places.next() as i64)?;
        whole(written, &self.buffer)?;
        if self.syncs {
            self.file.sync_all()
        } else {
            Ok(())
        }
    }
}

/// Writes at the end of a file that starts empty again when it has become as long as `bytes`.
pub struct Append {
    file: File,
    buffer: Vec<u8>,
    bytes: u64,
}

impl Append {
    pub fn new(path: &Path, size: usize, bytes: u64) -> io::Result<Append> {
        Ok(Append {
            file: File::create(path)?,
            buffer: contents(size),
            bytes,
        })
    }
}

impl Work for Append {
    fn chunk(&self) -> usize {
        (self.bytes / self.buffer.len() as u64).max(1) as usize
    }
    fn step(&mut self, _: usize) -> io::Result<()> {
        self.file.write_all(&self.buffer)
    }
    fn clean(&mut self, _: usize) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0)).map(|_| ())
    }
}

/// A whole file read by its name, as most programs read small ones.
pub struct OpenReadClose {
    path: CString,
    buffer: Vec<u8>,
}

impl OpenReadClose {
    pub fn new(path: &Path, size: usize) -> io::Result<OpenReadClose> {
        fs::write(path, contents(size))?;
        Ok(OpenReadClose {
            path: path_of(path)?,
            buffer: vec![0; size],
        })
    }
}

impl Work for OpenReadClose {
    fn step(&mut self, _: usize) -> io::Result<()> {
        let file = open(self.path.as_c_str(), OFlag::O_RDONLY, Mode::empty())?;
        File::from(file).read_exact_at(&mut self.buffer, 0)
    }
}

/// What the loop costs by itself.
pub struct Nothing(pub Places);

impl Work for Nothing {
    fn step(&mut self, _: usize) -> io::Result<()> {
        black_box(self.0.next());
        Ok(())
    }
}

/// What reading the clock costs.
pub struct Clock;

impl Work for Clock {
    fn step(&mut self, _: usize) -> io::Result<()> {
        black_box(std::time::Instant::now());
        Ok(())
    }
}

/// A shell that has a file of the folder open and, for each line that it reads, forks a child that
/// ends at once.
///
/// Not a child of ours: what forking us costs grows with the text of `nacre`.
pub struct Forks {
    shell: Child,
    lines: ChildStdin,
    replies: ChildStdout,
}

/// The brackets are what forks; the shell's own commands need no other program.
const FORKS_FOR_EACH_LINE: &str = r#"exec 3<"$0"; while read -r _; do (:); echo; done"#;

impl Forks {
    pub fn start(folder: &Path) -> io::Result<Forks> {
        let file = folder.join("for-sh");
        fs::write(&file, "text\n")?;
        let mut command = Command::new(found(SHELL));
        command.args(["-c", FORKS_FOR_EACH_LINE]).arg(file);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn()?;
        let pipes = (shell.stdin.take(), shell.stdout.take());
        let (Some(lines), Some(replies)) = pipes else {
            return Err(io::Error::other("a shell without pipes"));
        };
        Ok(Forks {
            shell,
            lines,
            replies,
        })
    }
}

impl Work for Forks {
    fn step(&mut self, _: usize) -> io::Result<()> {
        self.lines.write_all(b"\n")?;
        self.replies.read_exact(&mut [0])
    }
}

impl Drop for Forks {
    fn drop(&mut self) {
        // It waits for a line; if it cannot be killed it has ended.
        let _has_ended = self.shell.kill();
        let _is_gone = self.shell.wait();
    }
}

/// A program from its start to its end; what it says is not looked at.
pub struct Program(Command);

impl Program {
    /// One that uses no file.
    pub fn idle() -> Program {
        Program(Command::new(found(PROGRAM)))
    }

    /// One that reads a file of the folder, which is made.
    pub fn reader(folder: &Path) -> io::Result<Program> {
        let file = folder.join("for-cat");
        fs::write(&file, "text\n")?;
        let mut command = Command::new(found(READER));
        command.arg(file).stdout(Stdio::null());
        Ok(Program(command))
    }
}

/// A program as the shell would find it, so that who starts it need not look.
fn found(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places
        .find(|place| place.is_file())
        .unwrap_or_else(|| name.into())
}

impl Work for Program {
    fn step(&mut self, _: usize) -> io::Result<()> {
        let status = self.0.status()?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("{status}"))),
        }
    }
}

/// A system call about nothing that is stored.
pub struct NotOurs;

impl Work for NotOurs {
    fn step(&mut self, _: usize) -> io::Result<()> {
        black_box(std::os::unix::process::parent_id());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Forks, Places, Work, data_file};
    use crate::bench::row::Sharing;
    use std::collections::HashSet;

    #[test]
    fn places_are_whole_slots_inside_of_the_file() {
        let mut places = Places::new(1 << 16, 4096, 0, 1, Sharing::Same);
        let seen: HashSet<u64> = (0..1000).map(|_| places.next()).collect();
        assert_eq!(seen.len(), 16);
        assert!(seen.iter().all(|at| at % 4096 == 0 && at + 4096 <= 1 << 16));
    }

    #[test]
    fn callers_of_one_file_keep_apart() {
        let seen = |caller| {
            let mut places = Places::new(1 << 16, 64, caller, 2, Sharing::Same);
            (0..5000).map(|_| places.next()).collect::<HashSet<u64>>()
        };
        assert!(seen(0).is_disjoint(&seen(1)));
        let mut own = Places::new(1 << 16, 64, 1, 2, Sharing::Own);
        assert!((0..1000).any(|_| own.next() < 1 << 15));
    }

    #[test]
    fn a_shell_forks_for_each_line_and_ends_with_its_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut forks = Forks::start(folder.path()).expect("a shell");
        let children = format!("/proc/{}/stat", forks.shell.id());
        // Page faults of children that were waited for: the fourth field behind the state.
        let of_children = || {
            let stat = std::fs::read_to_string(&children).expect("its state");
            let fields = stat.rsplit(") ").next().expect("fields");
            let faults = fields.split(' ').nth(8).expect("faults");
            faults.parse::<u64>().expect("a number")
        };
        let mut seen = of_children();
        for index in 0..3 {
            forks.step(index).expect("a child");
            let now = of_children();
            assert!(now > seen, "{now} faults of children, {seen} before");
            seen = now;
        }
        drop(forks);
        assert!(!std::path::Path::new(&children).exists());
    }

    #[test]
    fn a_data_file_is_written_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        for _ in 0..2 {
            let file = data_file(&path, 3 << 19).expect("made");
            assert_eq!(file.metadata().expect("its length").len(), 3 << 19);
        }
        assert!(!std::fs::read(&path).expect("read").contains(&0));
    }
}
