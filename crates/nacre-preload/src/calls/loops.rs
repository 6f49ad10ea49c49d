//! Loop devices: the kernel itself reads and writes the file, where it shows the pool.

use std::os::fd::AsRawFd;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::program::by_kernel;

/// Requests with a file descriptor as their argument.
pub const SET_FD: u32 = 0x4c00;
pub const CHANGE_FD: u32 = 0x4c06;
/// The request with a [`Config`].
pub const CONFIGURE: u32 = 0x4c0a;

/// `struct loop_config`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Config {
    fd: i32,
    rest: [u8; 300],
}

/// `LOOP_SET_FD` and `LOOP_CHANGE_FD`.
pub fn set_file(c: &mut Call<'_>) -> Verdict {
    let fd = c.int(2);
    attach(c, fd, |c, fd| c.native_with_number(2, fd as usize))
}

/// `LOOP_CONFIGURE`.
pub fn configure(c: &mut Call<'_>) -> Verdict {
    let config: Config = c.read(2)?;
    attach(c, config.fd, |c, fd| {
        let config = Config { fd, ..config };
        c.native_with(&[(2, config.as_bytes())])
    })
}

/// Asks the kernel with its own descriptor of the file in the place of ours. The device keeps it.
fn attach(c: &mut Call<'_>, fd: i32, ask: impl FnOnce(&mut Call<'_>, i32) -> isize) -> Verdict {
    if !c.vfs().ours(fd) {
        return Err(Stop::Native);
    }
    let file = by_kernel::opened(c, fd)?;
    Ok(ask(c, file.as_raw_fd()))
}
