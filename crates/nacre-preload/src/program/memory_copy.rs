//! Copies of programs of pools in memory files, from which they are executed. Processes that
//! execute the same program share one, as long as any of them lives: who comes later finds it by
//! /proc, and takes it if it is sealed and holds what the program in the pool does.

use core::ffi::{CStr, c_void};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use nacre_media::UserBytesMut;
use nacre_vfs::ExecImage;
use rustix::fs::{self, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{self, Errno};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::entry::call::{Call, terminated};
use crate::entry::errno::Stop;
use crate::runtime::kernel;

/// Bytes read at once: pieces that stay in the cache are quicker than a mapping, whose pages would
/// all be faulted in.
const PIECE: usize = 128 << 10;
/// Most processes at which a copy is looked for.
const PROCESSES_MAX: usize = 64;
/// Most copies that are compared, as there may be some of older programs with the same name.
const COPIES_MAX: usize = 2;
/// What makes a copy one that nobody can change any more.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::WRITE)
    .union(SealFlags::SEAL);

/// A copy of a program in a memory file.
pub struct MemoryCopy {
    fd: OwnedFd,
    memory: Mapped,
    /// Others execute it.
    is_sealed: bool,
}

/// All of a file.
struct Mapped {
    at: *mut c_void,
    len: usize,
}

impl MemoryCopy {
    /// A copy of the program at `path`.
    pub fn of(c: &Call<'_>, program: &ExecImage, path: &[u8]) -> Result<MemoryCopy, Stop> {
        let how = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = fs::memfd_create(name(path).as_c_str(), how)?;
        let len = fill(c, program, &fd)?;
        let memory = Mapped::of(&fd, len, MapFlags::SHARED)?;
        Ok(MemoryCopy {
            fd,
            memory,
            is_sealed: false,
        })
    }

    /// The one that another process executes. What is changed in its bytes changes no copy.
    pub fn of_another(c: &Call<'_>, program: &ExecImage, path: &[u8]) -> Option<MemoryCopy> {
        let len = usize::try_from(program.size).ok().filter(|&len| len > 0)?;
        let link = [b"/memfd:", name(path).as_bytes(), b" (deleted)"].concat();
        let kin = [Some(kernel::getpid() as u32), parent()];
        let processes = kin
            .into_iter()
            .flatten()
            .chain(c.vfs().processes_beside(program));
        let copies = processes
            .take(PROCESSES_MAX)
            .filter_map(|pid| executed(pid, &link, len));
        let same = |fd: OwnedFd| {
            let mut memory = Mapped::of(&fd, len, MapFlags::PRIVATE).ok()?;
            holds(c, program, memory.bytes()).then_some(MemoryCopy {
                fd,
                memory,
                is_sealed: true,
            })
        };
        copies.take(COPIES_MAX).find_map(same)
    }

    /// Its contents.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.memory.bytes()
    }

    /// What can be executed; nobody can change it any more.
    pub fn sealed(self) -> Result<OwnedFd, Stop> {
        let MemoryCopy {
            fd,
            memory,
            is_sealed,
        } = self;
        drop(memory);
        if !is_sealed {
            fs::fcntl_add_seals(&fd, SEALS)?;
        }
        Ok(fd)
    }
}

/// What a copy is called, after the last part of the program's path.
fn name(path: &[u8]) -> CString {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(b"program");
    let name = terminated(name[..name.len().min(200)].to_vec());
    let name = CStr::from_bytes_with_nul(&name).unwrap_or(c"program");
    name.to_owned()
}

fn parent() -> Option<u32> {
    rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32)
}

/// The sealed copy of this name and length that a process executes, if it may be asked, and this
/// user made it.
fn executed(pid: u32, link: &[u8], len: usize) -> Option<OwnedFd> {
    let path = format!("/proc/{pid}/exe");
    let found = fs::readlink(&path, Vec::new()).ok()?;
    if found.as_bytes() != link {
        return None;
    }
    // Meanwhile the number may be another process's.
    let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let copy = fs::open(&path, how, Mode::empty()).ok()?;
    let is_sealed = fs::fcntl_get_seals(&copy).is_ok_and(|seals| seals.contains(SEALS));
    let is_ours = fs::fstat(&copy).is_ok_and(|meta| {
        meta.st_uid == rustix::process::geteuid().as_raw()
            && usize::try_from(meta.st_size) == Ok(len)
    });
    (is_sealed && is_ours).then_some(copy)
}

/// Whether a program is these bytes.
fn holds(c: &Call<'_>, program: &ExecImage, bytes: &[u8]) -> bool {
    let mut piece = vec![0u8; PIECE.min(bytes.len())];
    let mut rest = bytes;
    loop {
        let room = UserBytesMut::from(piece.as_mut_slice());
        let done = (bytes.len() - rest.len()) as u64;
        match c.vfs().read_image(program, done, room) {
            Ok(0) => return rest.is_empty(),
            Ok(read) if rest.starts_with(&piece[..read]) => rest = &rest[read..],
            _ => return false,
        }
    }
}

/// Writes a program to a file; answers its length.
fn fill(c: &Call<'_>, program: &ExecImage, fd: &OwnedFd) -> Result<usize, Stop> {
    let mut piece = vec![0u8; PIECE.min(program.size as usize)];
    let mut done = 0;
    loop {
        let room = UserBytesMut::from(piece.as_mut_slice());
        let mut rest = match c.vfs().read_image(program, done as u64, room)? {
            0 => return Ok(done),
            read => &piece[..read],
        };
        done += rest.len();
        while !rest.is_empty() {
            rest = &rest[io::write(fd, rest)?..];
        }
    }
}

impl Mapped {
    fn of(fd: impl AsFd, len: usize, how: MapFlags) -> Result<Mapped, Errno> {
        let (mut at, rights) = (core::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        if len > 0 {
            // SAFETY: a fresh mapping at an address of the kernel's choice.
            at = unsafe { mmap(at, len, rights, how, fd, 0) }?;
        }
        Ok(Mapped { at, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as many bytes are mapped there. Nobody else has the file, or it is sealed, so
        // that it neither shrinks nor changes.
        unsafe { core::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping that `of` made, of which no slice is left.
            let _ = unsafe { munmap(self.at, self.len) };
        }
    }
}
