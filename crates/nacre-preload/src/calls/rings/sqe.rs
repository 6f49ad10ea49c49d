//! Requests of io_uring as the system calls that do the same.

use super::later::HeldRequest;
use super::request::{Request, Transfer};
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::user::{self, StringBuffer};

/// `struct io_uring_sqe`, its first 64 bytes.
#[derive(Clone, Copy)]
pub struct Sqe(pub [u64; 8]);

/// The descriptor is the index of a registered file.
pub const FIXED_FILE: u8 = 1;
/// Waits until all before it are done, and all behind it wait.
pub const DRAIN: u8 = 1 << 1;
/// The next request waits until this one is done, and is cancelled if it fails.
pub const LINK: u8 = 1 << 2;
/// As `LINK`, whether it fails or not.
pub const HARD_LINK: u8 = 1 << 3;
/// The kernel chooses the buffer.
pub const BUFFER_SELECT: u8 = 1 << 5;
/// Completes only if it fails.
pub const SKIP_SUCCESS: u8 = 1 << 6;

/// What a request does.
pub enum Action {
    /// Reads or writes a file.
    Transfer(Transfer),
    /// A call on a descriptor, the first argument.
    OnFd(Request),
    /// A call on one or two paths, each relative to a descriptor.
    OnPaths(Request, [Option<(i32, usize)>; 2]),
    /// A call on the program's memory.
    OnMemory(Request),
}

impl Sqe {
    fn opcode(&self) -> u8 {
        self.0[0] as u8
    }

    /// `IOSQE_...`.
    pub fn flags(&self) -> u8 {
        (self.0[0] >> 8) as u8
    }

    /// Without a flag.
    pub fn without(self, flag: u8) -> Self {
        let mut words = self.0;
        words[0] &= !(u64::from(flag) << 8);
        Sqe(words)
    }

    /// The descriptor, or the index of a registered file.
    pub fn fd(&self) -> i32 {
        (self.0[0] >> 32) as i32
    }

    fn offset(&self) -> usize {
        self.0[1] as usize
    }

    fn address(&self) -> usize {
        self.0[2] as usize
    }

    fn len(&self) -> usize {
        self.0[3] as u32 as usize
    }

    /// What its completion names.
    pub fn user_data(&self) -> u64 {
        self.0[4]
    }

    fn op_flags(&self) -> u32 {
        (self.0[3] >> 32) as u32
    }

    /// One more than the index of the registered file that is to be made or closed, or 0.
    pub fn file_index(&self) -> u32 {
        (self.0[5] >> 32) as u32
    }

    /// Opens a file.
    pub fn opens(&self) -> bool {
        matches!(self.opcode(), OPENAT | OPENAT2)
    }

    /// Closes a registered file.
    pub fn closes_registered(&self) -> bool {
        self.opcode() == CLOSE && self.file_index() != 0
    }

    /// What it does, on a descriptor in the place of its own.
    pub fn action(&self, fd: i32) -> Option<Action> {
        let transfer = |write, vectored| {
            Some(Action::Transfer(Transfer {
                fd,
                write,
                vectored,
                at: self.address(),
                len: self.len(),
                offset: self.offset() as i64,
                flags: self.op_flags(),
            }))
        };
        match self.opcode() {
            READV | READV_FIXED => transfer(false, true),
            WRITEV | WRITEV_FIXED => transfer(true, true),
            READ | READ_FIXED => transfer(false, false),
            WRITE | WRITE_FIXED => transfer(true, false),
            _ => self.on_fd(fd as usize).or_else(|| self.on_paths(fd)),
        }
    }

    fn on_fd(&self, fd: usize) -> Option<Action> {
        const DATASYNC: u32 = 1;
        let (at, offset, len) = (self.address(), self.offset(), self.len());
        let flags = self.op_flags();
        let request = |number, args: &[usize]| Some(Action::OnFd(Request::new(number, args)));
        match self.opcode() {
            FSYNC if flags & DATASYNC != 0 => request(libc::SYS_fdatasync, &[fd]),
            FSYNC => request(libc::SYS_fsync, &[fd]),
            SYNC_FILE_RANGE => request(
                libc::SYS_sync_file_range,
                &[fd, offset, len, flags as usize],
            ),
            FALLOCATE => request(libc::SYS_fallocate, &[fd, len, offset, at]),
            FADVISE => request(libc::SYS_fadvise64, &[fd, offset, len, flags as usize]),
            FTRUNCATE => request(libc::SYS_ftruncate, &[fd, offset]),
            CLOSE if self.file_index() == 0 => request(libc::SYS_close, &[fd]),
            SET_XATTR_OF_FD => request(libc::SYS_fsetxattr, &[fd, at, offset, len, flags as usize]),
            GET_XATTR_OF_FD => request(libc::SYS_fgetxattr, &[fd, at, offset, len]),
            MADVISE => Some(Action::OnMemory(Request::new(
                libc::SYS_madvise,
                &[at, len, flags as usize],
            ))),
            _ => None,
        }
    }

    fn on_paths(&self, fd: i32) -> Option<Action> {
        let (dir, at, other, len) = (fd as usize, self.address(), self.offset(), self.len());
        let (flags, here) = (self.op_flags() as usize, Some((fd, at)));
        let one = |number, args: &[usize]| {
            Some(Action::OnPaths(Request::new(number, args), [here, None]))
        };
        let two = |number| {
            let request = Request::new(number, &[dir, at, len, other, flags]);
            Some(Action::OnPaths(request, [here, Some((len as i32, other))]))
        };
        let path = self.0[6] as usize;
        let by_path = |number, args: &[usize]| {
            let place = [Some((libc::AT_FDCWD, path)), None];
            Some(Action::OnPaths(Request::new(number, args), place))
        };
        match self.opcode() {
            OPENAT => one(libc::SYS_openat, &[dir, at, flags, len]),
            OPENAT2 => one(libc::SYS_openat2, &[dir, at, other, len]),
            STATX => one(libc::SYS_statx, &[dir, at, flags, len, other]),
            UNLINKAT => one(libc::SYS_unlinkat, &[dir, at, flags]),
            MKDIRAT => one(libc::SYS_mkdirat, &[dir, at, len]),
            SYMLINKAT => Some(Action::OnPaths(
                Request::new(libc::SYS_symlinkat, &[at, dir, other]),
                [Some((fd, other)), None],
            )),
            RENAMEAT => two(libc::SYS_renameat2),
            LINKAT => two(libc::SYS_linkat),
            SET_XATTR => by_path(libc::SYS_setxattr, &[path, at, other, len, flags]),
            GET_XATTR => by_path(libc::SYS_getxattr, &[path, at, other, len]),
            _ => None,
        }
    }
}

impl Action {
    /// Whether it may concern a pool.
    pub fn is_ours(&self, c: &Call<'_>) -> bool {
        match self {
            Action::Transfer(transfer) => c.vfs().ours(transfer.fd),
            Action::OnFd(request) => c.vfs().ours(request.first() as i32),
            Action::OnPaths(_, paths) => paths.iter().flatten().any(|&(dir, at)| {
                let mut buffer = StringBuffer::new();
                let path = buffer.read(at);
                path.is_ok_and(|path| !c.vfs().is_plainly_hosts(dir, path))
            }),
            Action::OnMemory(_) => true,
        }
    }

    /// What is to be done by another thread, if this one would wait for a disk.
    pub fn later(&self, c: &Call<'_>) -> Option<HeldRequest> {
        match *self {
            Action::Transfer(transfer) => HeldRequest::transfer(c, transfer),
            Action::OnFd(request) => HeldRequest::sync(c, request),
            _ => None,
        }
    }

    /// Serves it if that is done at once and changes nothing.
    pub fn serve_now(&self, c: &Call<'_>) -> Option<usize> {
        match *self {
            Action::Transfer(transfer) => transfer.read_now(c),
            _ => None,
        }
    }

    /// Serves it.
    pub fn serve(&self, c: &mut Call<'_>) -> Verdict {
        match *self {
            Action::Transfer(transfer) => transfer.serve(c),
            Action::OnFd(request) | Action::OnPaths(request, _) | Action::OnMemory(request) => {
                request.serve(c)
            }
        }
    }

    /// Has the kernel do it at once, if that cannot block for long: it is on a file or on paths.
    pub fn by_kernel(&self) -> Verdict {
        let done = match *self {
            Action::Transfer(transfer) if is_file(transfer.fd) => transfer.by_kernel(),
            Action::OnFd(request) if is_file(request.first() as i32) => request.by_kernel(),
            Action::OnPaths(request, _) if !request.opens() => request.by_kernel(),
            _ => return Err(Stop::Native),
        };
        Ok(done)
    }

    /// Bytes that it is to move, if it moves any.
    pub fn wanted(&self) -> Option<usize> {
        let Action::Transfer(transfer) = self else {
            return None;
        };
        match transfer.vectored {
            false => Some(transfer.len),
            true => (0..transfer.len).try_fold(0, |sum, i| {
                let len: usize = user::read(transfer.at + i * 16 + 8).ok()?;
                Some(sum + len)
            }),
        }
    }
}

/// Whether the kernel's file behind a descriptor is one of bytes.
fn is_file(fd: i32) -> bool {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    let args = [fd as usize, stat.as_mut_ptr() as usize];
    let found = crate::runtime::kernel::checked(libc::SYS_fstat, &args);
    // SAFETY: fstat filled the struct.
    found.is_ok() && unsafe { stat.assume_init() }.st_mode & libc::S_IFMT == libc::S_IFREG
}

const READV: u8 = 1;
const WRITEV: u8 = 2;
const FSYNC: u8 = 3;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const SYNC_FILE_RANGE: u8 = 8;
const FALLOCATE: u8 = 17;
const OPENAT: u8 = 18;
const CLOSE: u8 = 19;
const STATX: u8 = 21;
const READ: u8 = 22;
const WRITE: u8 = 23;
const FADVISE: u8 = 24;
const MADVISE: u8 = 25;
const OPENAT2: u8 = 28;
const RENAMEAT: u8 = 35;
const UNLINKAT: u8 = 36;
const MKDIRAT: u8 = 37;
const SYMLINKAT: u8 = 38;
const LINKAT: u8 = 39;
const SET_XATTR_OF_FD: u8 = 41;
const SET_XATTR: u8 = 42;
const GET_XATTR_OF_FD: u8 = 43;
const GET_XATTR: u8 = 44;
const FTRUNCATE: u8 = 55;
const READV_FIXED: u8 = 60;
const WRITEV_FIXED: u8 = 61;
/// What is not done on files of a pool.
pub const NOT_SERVED: [u8; 2] = [SPLICE, TEE];
const SPLICE: u8 = 30;
const TEE: u8 = 33;
