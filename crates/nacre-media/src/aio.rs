//! The kernel's asynchronous I/O.
//!
//! No thread is needed for it: programs that these libraries are loaded into may not expect any.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null;
use std::time::Duration;

use libc::{c_long, syscall};
use rustix::io::Errno;
use rustix::process::getpid;
use rustix::time::Timespec;

use crate::confined::is_confined;
use crate::error::last_errno;

/// A call, as the kernel knows it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Request {
    data: u64,
    key_and_flags: u64,
    operation: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len: u64,
    at: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// What became of one.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Done {
    data: u64,
    request: u64,
    result: i64,
    more: i64,
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC: u16 = 3;
/// The most calls at a time.
pub(crate) const MOST: usize = 8;
/// So many times a process that has no context is told to do without one. When the process ends
/// the kernel waits until no processor can see its contexts any more, for 32 ms where this was
/// measured. One that makes few calls ends sooner if it makes them alone.
const SELDOM: u32 = if cfg!(test) { 0 } else { 64 };

impl Request {
    /// Reads so many bytes of a place of a file to memory, which stays until the call is done.
    pub fn read(fd: BorrowedFd<'_>, at: u64, to: *mut u8, len: usize) -> Self {
        Self::of(READ, fd, at, to, len)
    }

    /// Writes bytes to a place of a file.
    pub fn write(fd: BorrowedFd<'_>, at: u64, bytes: *const [u8]) -> Self {
        Self::of(WRITE, fd, at, bytes.cast(), bytes.len())
    }

    /// Syncs a file.
    pub fn sync(fd: BorrowedFd<'_>) -> Self {
        Self {
            operation: SYNC,
            fd: fd.as_raw_fd() as u32,
            ..Self::default()
        }
    }

    fn of(operation: u16, fd: BorrowedFd<'_>, at: u64, memory: *const u8, len: usize) -> Self {
        Self {
            operation,
            fd: fd.as_raw_fd() as u32,
            buffer: memory.expose_provenance() as u64,
            len: len as u64,
            at: at as i64,
            ..Self::default()
        }
    }

    /// Which of several it is.
    pub fn numbered(self, number: usize) -> Self {
        Self {
            data: number as u64,
            ..self
        }
    }
}

/// Where the kernel keeps the calls of one process.
#[derive(Debug)]
pub(crate) struct Context {
    /// 0: none yet.
    number: u64,
    /// The process that made it. To another one the number means nothing, or something else.
    owner: i32,
    /// How many calls it is for at a time.
    room: usize,
    /// How often it was asked for before it was made, and by which process.
    asked: u32,
    asked_by: i32,
    /// So often that is in vain.
    seldom: u32,
}

impl Default for Context {
    fn default() -> Self {
        Self::new()
    }
}

impl Context {
    /// For who can make calls alone as well: it is there once it is asked for often.
    pub const fn new() -> Self {
        Self::of(MOST, SELDOM)
    }

    /// For so many calls at a time, at once.
    pub const fn with_room(room: usize) -> Self {
        Self::of(room, 0)
    }

    const fn of(room: usize, seldom: u32) -> Self {
        Self {
            number: 0,
            owner: 0,
            room,
            asked: 0,
            asked_by: 0,
            seldom,
        }
    }

    /// By which the kernel knows it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// As [`Context::number`], of one of this process, which is made if need be.
    pub fn ready(&mut self) -> Option<u64> {
        let can = !is_confined() && (self.is_ours() || self.is_worth_it() && self.make().is_ok());
        can.then_some(self.number)
    }

    /// Whether this process has asked often enough.
    fn is_worth_it(&mut self) -> bool {
        let process = getpid().as_raw_nonzero().get();
        if self.asked_by != process {
            (self.asked_by, self.asked) = (process, 0);
        }
        self.asked = self.asked.saturating_add(1);
        self.asked > self.seldom
    }

    /// Whether this process has made it.
    pub fn is_ours(&self) -> bool {
        self.number != 0 && self.owner == getpid().as_raw_nonzero().get()
    }

    /// Begins calls, the first ones; answers how many.
    ///
    /// # Safety
    ///
    /// What they name stays until [`Context::wait`] has told of those that were begun, or the
    /// process has ended.
    pub unsafe fn begin(&mut self, requests: &mut [Request]) -> usize {
        // SAFETY: the caller's promise.
        self.ready()
            .map_or(0, |number| unsafe { Self::begin_in(number, requests) })
    }

    /// As [`Context::begin`], in a context of this process, whoever uses it meanwhile.
    ///
    /// # Safety
    ///
    /// As of [`Context::begin`].
    pub unsafe fn begin_in(number: u64, requests: &mut [Request]) -> usize {
        let each = requests.iter_mut();
        let mut pointers: Vec<*mut Request> = each.map(|one| one as *mut _).collect();
        let (count, first) = (pointers.len(), pointers.as_mut_ptr());
        // SAFETY: the requests are read in the call; the rest is the caller's promise.
        answer(unsafe { syscall(libc::SYS_io_submit, number, count, first) }).unwrap_or(0)
    }

    fn make(&mut self) -> Result<(), Errno> {
        let mut made = 0u64;
        // SAFETY: the kernel stores a number to a word of this thread's.
        answer(unsafe { syscall(libc::SYS_io_setup, self.room, &raw mut made) })?;
        (self.number, self.owner) = (made, getpid().as_raw_nonzero().get());
        Ok(())
    }

    /// Waits for at least one call of a context, but not longer than `most`; adds number and result
    /// of up to `count` calls.
    ///
    /// # Safety
    ///
    /// It is a context of this process.
    pub unsafe fn take(
        number: u64,
        most: Duration,
        count: usize,
        taken: &mut Vec<(usize, i64)>,
    ) -> Result<(), Errno> {
        let mut found = vec![Done::default(); count];
        let until = Timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: most.subsec_nanos().into(),
        };
        // SAFETY: the caller's promise.
        let came = unsafe { Self::results(number, &mut found, &raw const until) }?;
        let each = found[..came].iter();
        taken.extend(each.map(|one| (one.data as usize, one.result)));
        Ok(())
    }

    /// Waits for at least one call of a context; null: as long as it takes. Answers how many were
    /// found.
    ///
    /// # Safety
    ///
    /// It is a context of this process.
    unsafe fn results(
        number: u64,
        found: &mut [Done],
        until: *const Timespec,
    ) -> Result<usize, Errno> {
        const LEAST: usize = 1;
        let (most, place) = (found.len(), found.as_mut_ptr());
        // SAFETY: the kernel stores at most as many results as there is room for.
        answer(unsafe { syscall(libc::SYS_io_getevents, number, LEAST, most, place, until) })
    }

    /// Waits for calls that were begun, and tells the number of each and what it gave. After an
    /// error the kernel may still be at them.
    pub fn wait(&self, mut begun: usize, mut done: impl FnMut(usize, i64)) -> Result<(), Errno> {
        let mut found = [Done::default(); MOST];
        while begun > 0 {
            let room = &mut found[..begun.min(MOST)];
            // SAFETY: whoever has begun calls has a context of this process.
            let came = match unsafe { Self::results(self.number, room, null()) } {
                Err(Errno::INTR) => continue,
                came => came?,
            };
            for one in &found[..came] {
                done(one.data as usize, one.result);
            }
            begun -= came;
        }
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: the call takes a number, and returns when the kernel is done with its calls.
            unsafe { syscall(libc::SYS_io_destroy, self.number) };
        }
    }
}

fn answer(result: c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last_errno())
}
