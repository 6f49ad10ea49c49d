//! A request as the system call that does the same.

use crate::entry::call::{Call, Vector, Verdict, sink_for_now};
use crate::mapping::holes;
use crate::runtime::kernel::{Raw, call};

/// Number and arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    number: i64,
    args: [usize; 6],
}

impl Request {
    /// The call with these arguments, followed by zeros.
    pub fn new(number: i64, args: &[usize]) -> Self {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        Request { number, args: all }
    }

    /// The first argument.
    pub fn first(&self) -> usize {
        self.args[0]
    }

    /// Whether it opens a file, which may take as long as somebody else likes.
    pub fn opens(&self) -> bool {
        matches!(self.number, libc::SYS_openat | libc::SYS_openat2)
    }

    /// Whether it makes durable what was written to a file.
    pub fn syncs(&self) -> bool {
        matches!(self.number, libc::SYS_fsync | libc::SYS_fdatasync)
    }

    /// Has the kernel do it at once.
    pub fn by_kernel(self) -> Raw {
        call(self.number, &self.args)
    }

    /// Serves it: `Err(Stop::Native)` if it is the kernel's.
    pub fn serve(self, c: &mut Call<'_>) -> Verdict {
        c.serve_another(self.number, self.args)
    }
}

/// Reads or writes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Descriptor.
    pub fd: i32,
    /// To write, not to read.
    pub write: bool,
    /// Address of the bytes, or of a vector.
    pub at: usize,
    /// Number of bytes, or of parts of the vector.
    pub len: usize,
    /// Whether it has a vector.
    pub vectored: bool,
    /// Where in the file; -1 for the description's own position, where the ring knows that.
    pub offset: i64,
    /// `RWF_...`.
    pub flags: u32,
}

impl Transfer {
    /// Reads bytes that are in memory; `None`: it takes more.
    pub fn read_now(self, c: &Call<'_>) -> Option<usize> {
        if self.write || self.vectored || self.flags != 0 || holes::exist() {
            return None;
        }
        let to = sink_for_now(self.at, self.len)?;
        c.vfs().try_pread_fast(self.fd, to, self.offset)
    }

    /// Serves it.
    pub fn serve(self, c: &mut Call<'_>) -> Verdict {
        self.with_request(|request| request.serve(c))
    }

    /// Has the kernel do it at once.
    pub fn by_kernel(self) -> Raw {
        self.with_request(Request::by_kernel)
    }

    /// The call of the transfer, with a vector for as long as it takes.
    fn with_request<R>(self, act: impl FnOnce(Request) -> R) -> R {
        let fd = self.fd as usize;
        let one = Vector {
            start: self.at,
            len: self.len,
        };
        if !self.vectored && self.flags == 0 {
            let number = match (self.write, self.offset) {
                (false, -1) => libc::SYS_read,
                (true, -1) => libc::SYS_write,
                (false, _) => libc::SYS_pread64,
                (true, _) => libc::SYS_pwrite64,
            };
            return act(Request::new(
                number,
                &[fd, self.at, self.len, self.offset as usize],
            ));
        }
        let (at, len) = match self.vectored {
            true => (self.at, self.len),
            false => (&raw const one as usize, 1),
        };
        let number = match self.write {
            true => libc::SYS_pwritev2,
            false => libc::SYS_preadv2,
        };
        let (offset, flags) = (self.offset as usize, self.flags as usize);
        act(Request::new(number, &[fd, at, len, offset, 0, flags]))
    }
}
