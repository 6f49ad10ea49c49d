//! A call in flight: its arguments, decoded on demand, and ways to have the kernel execute it.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;

use nacre_media::{UserBytes, UserBytesMut};
use nacre_vfs::{Answer, KernelNode, Reply, Vfs};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::arch::x86_64::entry::{self, Frame};
use crate::entry::errno::Stop;
use crate::entry::table;
use crate::entry::user::{self, StringBuffer};
use crate::mapping::{around, buffers, holes};
use crate::program::descriptors;
use crate::program::host;
use crate::program::instances;
use crate::program::shown;
use crate::runtime::kernel::{self, Raw, checked};
use crate::runtime::stack;
use crate::runtime::tls::{ALTERNATE, shares_memory, thread};

/// What a handler answers: a value, or why not.
pub type Verdict = Result<isize, Stop>;

/// Most bytes that one call moves, as in the kernel.
const MAX_TRANSFER: usize = 0x7fff_f000;
/// Most buffers of one vectored call.
const MAX_VECTORS: usize = 1024;
/// Relative to the working directory.
pub const HERE: i32 = libc::AT_FDCWD;

/// A call in flight.
pub struct Call<'a> {
    frame: &'a mut Frame,
    vfs: &'static Vfs,
}

/// Where a call has a path.
#[derive(Clone, Copy)]
pub struct PathAt {
    /// Argument that holds the directory fd.
    pub dir: Option<usize>,
    /// Argument that holds the path.
    pub path: usize,
    /// Whether a symbolic link at the end is followed.
    pub follow: bool,
}

/// A path argument relative to the working directory. A symbolic link at its end is followed.
pub const fn path_in(path: usize) -> PathAt {
    PathAt {
        dir: None,
        path,
        follow: true,
    }
}

/// As [`path_in`], but a symbolic link at the end is meant itself.
pub const fn name_in(path: usize) -> PathAt {
    PathAt {
        follow: false,
        ..path_in(path)
    }
}

/// As [`path_in`], behind its directory fd.
pub const fn path_at(dir: usize) -> PathAt {
    PathAt {
        dir: Some(dir),
        path: dir + 1,
        follow: true,
    }
}

/// As [`name_in`], behind its directory fd.
pub const fn name_at(dir: usize) -> PathAt {
    PathAt {
        follow: false,
        ..path_at(dir)
    }
}

impl PathAt {
    /// The same, of which a symbolic link at the end is followed as flags say.
    pub const fn followed_if(self, follow: bool) -> PathAt {
        PathAt { follow, ..self }
    }
}

/// `struct iovec`.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
pub struct Vector {
    /// Address.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

impl<'a> Call<'a> {
    /// The call of a frame, served by `vfs`.
    #[inline]
    pub fn new(frame: &'a mut Frame, vfs: &'static Vfs) -> Self {
        Call { frame, vfs }
    }

    /// The process's file system state.
    #[inline]
    pub fn vfs(&self) -> &'static Vfs {
        self.vfs
    }

    /// The frame.
    pub fn frame(&mut self) -> &mut Frame {
        self.frame
    }

    /// Call number.
    #[inline]
    pub fn number(&self) -> usize {
        self.frame.rax
    }

    /// Argument `i` as it came.
    #[inline]
    pub fn arg(&self, i: usize) -> usize {
        self.frame.args[i]
    }

    /// Argument `i` as an int (fds, flags).
    #[inline]
    pub fn int(&self, i: usize) -> i32 {
        self.frame.args[i] as i32
    }

    /// Argument `i` as an unsigned int (modes, ids).
    #[inline]
    pub fn uint(&self, i: usize) -> u32 {
        self.frame.args[i] as u32
    }

    /// Argument `i` as a signed 64-bit value (offsets).
    #[inline]
    pub fn long(&self, i: usize) -> i64 {
        self.frame.args[i] as i64
    }

    /// The struct that argument `i` points to.
    pub fn read<T: FromBytes>(&self, i: usize) -> Result<T, Stop> {
        Ok(user::read(self.arg(i))?)
    }

    /// As [`Call::read`] of a struct that may grow, of which argument `i + 1` says how long the
    /// program's is. What it has beyond ours must be zero.
    pub fn read_growing<T: FromBytes>(&self, i: usize) -> Result<T, Stop> {
        const MOST: usize = 4096;
        let (at, given) = (self.arg(i), self.arg(i + 1));
        if given < size_of::<T>() {
            return Err(Stop::Errno(libc::EINVAL));
        }
        if given > MOST {
            return Err(Stop::Errno(libc::E2BIG));
        }
        let mut more = [0; MOST];
        let more = &mut more[size_of::<T>()..given];
        user::read_bytes(at.wrapping_add(size_of::<T>()), more)?;
        match more.iter().all(|&byte| byte == 0) {
            true => self.read(i),
            false => Err(Stop::Errno(libc::E2BIG)),
        }
    }

    /// As [`Call::read`]; None for a null pointer.
    pub fn read_optional<T: FromBytes>(&self, i: usize) -> Result<Option<T>, Stop> {
        if self.arg(i) == 0 {
            Ok(None)
        } else {
            self.read(i).map(Some)
        }
    }

    /// Writes a struct where argument `i` points to.
    pub fn write<T: IntoBytes + Immutable>(&self, i: usize, value: &T) -> Result<(), Stop> {
        Ok(user::write(self.arg(i), value)?)
    }

    /// The string that argument `i` points to.
    pub fn string<'b>(&self, i: usize, buffer: &'b mut StringBuffer) -> Result<&'b [u8], Stop> {
        Ok(buffer.read(self.arg(i))?)
    }

    /// The program's buffer at argument `i`, length in `i + 1`, to read from.
    #[inline]
    pub fn source(&self, i: usize) -> Result<UserBytes<'static>, Stop> {
        source(self.arg(i), self.arg(i + 1))
    }

    /// The program's buffer at argument `i`, length in `i + 1`, to write to.
    #[inline]
    pub fn sink(&self, i: usize) -> Result<UserBytesMut<'static>, Stop> {
        sink(self.arg(i), self.arg(i + 1))
    }

    /// The buffers of the vector at argument `i`, count in `i + 1`, to read from.
    pub fn sources(&self, i: usize) -> Result<Vec<UserBytes<'static>>, Stop> {
        self.vectors(i)?
            .iter()
            .map(|v| source(v.start, v.len))
            .collect()
    }

    /// The buffers of the vector at argument `i`, count in `i + 1`, to write to.
    pub fn sinks(&self, i: usize) -> Result<Vec<UserBytesMut<'static>>, Stop> {
        self.vectors(i)?
            .iter()
            .map(|v| sink(v.start, v.len))
            .collect()
    }

    /// The buffers of the vector at argument `i`, count in `i + 1`.
    pub fn vectors(&self, i: usize) -> Result<Vec<Vector>, Stop> {
        let (start, count) = (self.arg(i), self.arg(i + 1));
        if count > MAX_VECTORS {
            return Err(Stop::Errno(libc::EINVAL));
        }
        let mut room = MAX_TRANSFER;
        let mut vectors = Vec::with_capacity(count);
        for k in 0..count {
            let mut one: Vector = user::read(start.wrapping_add(k * size_of::<Vector>()))?;
            if one.len > isize::MAX as usize {
                return Err(Stop::Errno(libc::EINVAL));
            }
            one.len = one.len.min(room);
            room -= one.len;
            vectors.push(one);
        }
        Ok(vectors)
    }

    /// Answers a call whose first argument is an fd, and remembers fds of the kernel.
    #[inline(always)]
    pub fn on_fd(&self, answer: Answer) -> Verdict {
        match answer {
            Ok(Reply::Done(value)) => Ok(value as isize),
            Err(error) => Err(error.into()),
            Ok(_) => self.leave_fd_to_kernel(),
        }
    }

    /// The kernel is to do a call on its fd. Those of our own do not exist for the program.
    fn leave_fd_to_kernel(&self) -> Verdict {
        let fd = self.int(0);
        if descriptors::is_internal(fd) {
            return Err(Stop::Errno(libc::EBADF));
        }
        self.note_kernel(fd);
        Err(Stop::Native)
    }

    /// Remembers that an fd is the kernel's. A child that shares its parent's memory has other fds.
    pub fn note_kernel(&self, fd: i32) {
        if !shares_memory() {
            table::mark_kernel(fd, || {
                !self.vfs.ours(fd) && !descriptors::is_internal(fd) && !instances::has(fd)
            });
        }
    }

    /// Answers a call with one path: asks `serve`, and lets the kernel execute what is its, with
    /// another path if need be. A host path that fails may lead into a pool by a symbolic link.
    /// `serve` is not asked about paths that are plainly the host's.
    pub fn on_path(
        &mut self,
        place: PathAt,
        serve: &dyn Fn(&Vfs, i32, &[u8]) -> Answer,
    ) -> Verdict {
        match self.at_path(place, |_, _| {}, serve)? {
            Passed::Value(value) | Passed::Kernel(value) => Ok(value),
        }
    }

    /// As [`Call::on_path`] for calls that return a new descriptor.
    pub fn on_path_to_fd(
        &mut self,
        place: PathAt,
        serve: &dyn Fn(&Vfs, i32, &[u8]) -> Answer,
    ) -> Verdict {
        let passed = self.at_path(place, Vfs::prepare_for_host, serve)?;
        match passed {
            Passed::Kernel(fd) if fd >= 0 => self.note_kernel(fd as i32),
            Passed::Value(fd) => table::unmark(fd as i32),
            Passed::Kernel(_) => {}
        }
        let (Passed::Value(fd) | Passed::Kernel(fd)) = passed;
        Ok(fd)
    }

    /// `before` comes before a path goes to the host without `serve` being asked.
    fn at_path(
        &mut self,
        place: PathAt,
        before: fn(&Vfs, &[u8]),
        serve: &dyn Fn(&Vfs, i32, &[u8]) -> Answer,
    ) -> Result<Passed, Stop> {
        let mut buffer = StringBuffer::new();
        let path = self.string(place.path, &mut buffer)?;
        let dir = place.dir.map_or(HERE, |i| self.int(i));
        if place.follow && path.starts_with(b"/proc/") && around::is_pool_behind(path) {
            return Err(Stop::Errno(libc::EPERM));
        }
        let passed = if self.vfs.is_plainly_hosts(dir, path) {
            if shown::are_looked_at()
                && let Some(inside) = self.behind_shown(dir, path, place.follow)
            {
                let reply = serve(self.vfs, HERE, &inside)?;
                return Ok(self.pass(place, reply));
            }
            before(self.vfs, path);
            Passed::Kernel(self.native())
        } else {
            self.pass(place, serve(self.vfs, dir, path)?)
        };
        if passed != Passed::Kernel(-libc::ENOENT as isize) {
            return Ok(passed);
        }
        match self.vfs.retry_after_enoent(dir, path, place.follow) {
            None => Ok(passed),
            Some(path) => match serve(self.vfs, HERE, &path)? {
                Reply::Kernel => Ok(passed),
                reply => Ok(self.pass(place, reply)),
            },
        }
    }

    /// The path in a pool that a path of the host leads to, where the kernel shows the pool.
    fn behind_shown(&self, dir: i32, path: &[u8], follow: bool) -> Option<Vec<u8>> {
        let there = device_of(dir, path, follow);
        // What is not there yet is made in its folder.
        let device = there.or_else(|| device_of(dir, folder_of(path), true));
        shown::is(device?)
            .then(|| self.vfs.leads_into(dir, path, follow))
            .flatten()
    }

    /// Does what a reply to a call with one path says.
    fn pass(&mut self, place: PathAt, reply: Reply) -> Passed {
        match reply {
            Reply::Done(value) => Passed::Value(value as isize),
            Reply::Kernel | Reply::KernelPaths(..) => Passed::Kernel(self.native()),
            Reply::KernelPath(path) => {
                Passed::Value(self.native_with(&[(place.path, &terminated(path))]))
            }
            Reply::KernelNode(node) => Passed::Value(self.open_node(&node)),
        }
    }

    /// Opens a fifo or device node of a pool as the program asked for.
    pub fn open_node(&mut self, node: &KernelNode) -> Raw {
        let open = libc::SYS_openat as usize;
        host::here().open_node(node, node.flags, |folder, name, flags| {
            self.interruptible(open, [folder, name, flags, 0, 0, 0])
        })
    }

    /// Serves another call in the place of this one, as the table says.
    pub fn serve_another(&mut self, number: i64, args: [usize; 6]) -> Verdict {
        let made = (self.frame.rax, self.frame.args);
        (self.frame.rax, self.frame.args) = (number as usize, args);
        if holes::exist() {
            buffers::prepare(self);
        }
        let verdict = match table::find(self.frame.rax) {
            Some(serve) => serve(self),
            None => Err(Stop::Native),
        };
        (self.frame.rax, self.frame.args) = made;
        verdict
    }

    /// Has the kernel execute the call now. It may block and be interrupted.
    pub fn native(&mut self) -> Raw {
        let (number, args) = (self.frame.rax, self.frame.args);
        self.interruptible(number, args)
    }

    /// As [`Call::native`] with some arguments replaced by the addresses of byte strings.
    pub fn native_with(&mut self, replaced: &[(usize, &[u8])]) -> Raw {
        let (number, mut args) = (self.frame.rax, self.frame.args);
        for (i, bytes) in replaced {
            args[*i] = bytes.as_ptr() as usize;
        }
        self.interruptible(number, args)
    }

    /// As [`Call::native`] with another number as argument `i`.
    pub fn native_with_number(&mut self, i: usize, value: usize) -> Raw {
        let (number, mut args) = (self.frame.rax, self.frame.args);
        args[i] = value;
        self.interruptible(number, args)
    }

    /// Executes a system call during which signals are delivered as if the thread were not inside
    /// Nacre. No lock may be held: a handler may leave by longjmp and never come back.
    pub fn interruptible(&mut self, number: usize, args: [usize; 6]) -> Raw {
        let thread = thread();
        if thread.deferred.load(Relaxed) & ALTERNATE != 0 {
            // All signals are blocked already, and the program's stack is not to be returned to
            // yet.
            // SAFETY: as in `outside`.
            return unsafe { kernel::syscall(number, args) };
        }
        self.frame.execute_natively();
        thread.shown.store(&raw mut self.frame.shown, Relaxed);
        let result = self.outside(number, args);
        thread.shown.store(core::ptr::null_mut(), Relaxed);
        result
    }

    /// As [`Call::interruptible`], but handlers are shown where the kernel found us: for calls that
    /// may leave this thread state to somebody else.
    pub fn outside(&mut self, number: usize, args: [usize; 6]) -> Raw {
        let thread = thread();
        let rsp = stack::suspend(thread, self.frame);
        // SAFETY: a call that the program made itself, or one on buffers of ours that live on; the
        // stack is the one it was made on.
        let result = unsafe { entry::execute(number, args, rsp, thread.offset()) };
        stack::resume(thread, self.frame);
        result
    }
}

/// The side that answered a call with a path, and its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passed {
    /// A pool, or the kernel for a path that a pool's led to.
    Value(isize),
    /// The kernel, for the path as it came.
    Kernel(Raw),
}

/// The path with its NUL.
pub fn terminated(mut path: Vec<u8>) -> Vec<u8> {
    path.push(0);
    path
}

/// The device number of what the kernel finds at a path.
fn device_of(dir: i32, path: &[u8], follow: bool) -> Option<u64> {
    let mut told = MaybeUninit::<libc::stat>::zeroed();
    let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    let (name, out) = (terminated(path.to_vec()), told.as_mut_ptr() as usize);
    let args = [dir as usize, name.as_ptr() as usize, out, flags as usize];
    checked(libc::SYS_newfstatat, &args).ok()?;
    // SAFETY: the kernel has filled it in.
    Some(unsafe { told.assume_init() }.st_dev)
}

/// The folder in which a path's last name is.
fn folder_of(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        None => b".",
        Some(0) => b"/",
        Some(slash) => &path[..slash],
    }
}

/// The program's bytes at an address, to read from. At most what one call moves.
#[inline]
pub fn source(start: usize, len: usize) -> Result<UserBytes<'static>, Stop> {
    let len = checked_len(start, len)?;
    // SAFETY: UserBytes tolerates any address of the program: a fault ends the copy with an error.
    Ok(unsafe { UserBytes::from_raw(start as *const u8, len) })
}

/// The program's bytes at an address, to write to. At most what one call moves.
#[inline]
pub fn sink(start: usize, len: usize) -> Result<UserBytesMut<'static>, Stop> {
    let len = checked_len(start, len)?;
    // SAFETY: as in `source`; what the program aliases is the program's business.
    Ok(unsafe { UserBytesMut::from_raw(start as *mut u8, len) })
}

/// As [`sink`]; None for what need not be plausible.
#[inline(always)]
pub fn sink_for_now(start: usize, len: usize) -> Option<UserBytesMut<'static>> {
    // SAFETY: as in `sink`.
    (len <= MAX_TRANSFER && user::plausible(start, MAX_TRANSFER))
        .then(|| unsafe { UserBytesMut::from_raw(start as *mut u8, len) })
}

#[inline]
fn checked_len(start: usize, len: usize) -> Result<usize, Stop> {
    let len = len.min(MAX_TRANSFER);
    if user::plausible(start, len) {
        Ok(len)
    } else {
        Err(Stop::Errno(libc::EFAULT))
    }
}
