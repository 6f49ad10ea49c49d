//! Sockets whose name is a path in a pool, and descriptors that travel through sockets.

use core::mem::offset_of;
use libc::{
    SYS_accept, SYS_accept4, SYS_bind, SYS_connect, SYS_getpeername, SYS_getsockname, SYS_recvfrom,
    SYS_recvmmsg, SYS_recvmsg, SYS_sendmmsg, SYS_sendmsg, SYS_sendto,
};
use nacre_vfs::{KernelNode, Reply};

use super::open::new_fd;
use crate::entry::abi::{ManyMessage, Message};
use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry, fd_entry};
use crate::entry::user;
use crate::program::host;
use crate::runtime::kernel;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(SYS_bind, "bind", bind),
    entry(SYS_connect, "connect", |c| to_name(c, 1, 2)),
    entry(SYS_sendto, "sendto", |c| to_name(c, 4, 5)),
    entry(SYS_sendmsg, "sendmsg", sendmsg),
    entry(SYS_sendmmsg, "sendmmsg", sendmmsg),
    fd_entry(SYS_recvfrom, "recvfrom", |c| named(c, 4)),
    entry(SYS_recvmsg, "recvmsg", recvmsg),
    entry(SYS_recvmmsg, "recvmmsg", recvmmsg),
    entry(SYS_getsockname, "getsockname", |c| named(c, 1)),
    entry(SYS_getpeername, "getpeername", |c| named(c, 1)),
    entry(SYS_accept, "accept", accept),
    entry(SYS_accept4, "accept4", accept),
];

const FAMILY: usize = 2;
const PATH: usize = 108;

/// `struct sockaddr_un`.
type Name = [u8; FAMILY + PATH];

/// The path in a socket name, if it is one of a file.
fn path_of(name: &Name, len: usize) -> Option<&[u8]> {
    let family = u16::from_ne_bytes([name[0], name[1]]);
    let path = name.get(FAMILY..len.min(name.len()))?;
    let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
    (i32::from(family) == libc::AF_UNIX && end > 0).then(|| &path[..end])
}

/// A socket name with the path of a shadow node.
fn name_of(path: &[u8]) -> Result<(Name, usize), Stop> {
    let mut name = [0; FAMILY + PATH];
    name[..FAMILY].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    let place = name[FAMILY..FAMILY + PATH - 1].get_mut(..path.len());
    place
        .ok_or(Stop::Errno(libc::ENAMETOOLONG))?
        .copy_from_slice(path);
    Ok((name, FAMILY + path.len() + 1))
}

/// The socket name of the program at `at`; None if it is not that of a file.
fn read_name(at: usize, len: usize) -> Option<(Name, usize)> {
    let mut name = [0; FAMILY + PATH];
    let len = len.min(name.len());
    if at == 0 || len <= FAMILY {
        return None;
    }
    user::read_bytes(at, &mut name[..len]).ok()?;
    path_of(&name, len).is_some().then_some((name, len))
}

fn bind(c: &mut Call<'_>) -> Verdict {
    let (name, len) = read_name(c.arg(1), c.arg(2)).ok_or(Stop::Native)?;
    let path = path_of(&name, len).ok_or(Stop::Native)?;
    // The permissions of the new node come from the socket's own.
    let node = match c.vfs().socket_bind(path, 0o777)? {
        Reply::Done(node) => node,
        Reply::KernelPath(path) => return with_name(c, 1, 2, &path),
        _ => return Err(Stop::Native),
    };
    let result = with_name(c, 1, 2, &node.shadow);
    if !matches!(result, Ok(0)) {
        c.vfs().socket_bind_failed(node);
    }
    result
}

/// connect and sendto: the name is that of a socket somewhere else.
fn to_name(c: &mut Call<'_>, at: usize, len: usize) -> Verdict {
    let (name, len_given) = read_name(c.arg(at), c.arg(len)).ok_or(Stop::Native)?;
    let path = path_of(&name, len_given).ok_or(Stop::Native)?;
    match c.vfs().socket_connect(path)? {
        Reply::KernelPath(path) => with_name(c, at, len, &path),
        Reply::KernelNode(node) => with_node(&node, |path| with_name(c, at, len, path)),
        Reply::Done(value) => Ok(value as isize),
        _ => Err(Stop::Native),
    }
}

/// Makes a call with the name of a pool's socket that was opened and is the one of the pool's
/// record: whatever takes its name meanwhile is not reached.
fn with_node(node: &KernelNode, act: impl FnOnce(&[u8]) -> Verdict) -> Verdict {
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as u32;
    let found = host::here().open_node(node, flags, |folder, name, flags| {
        kernel::call(libc::SYS_openat, &[folder, name, flags, 0])
    });
    match i32::try_from(found) {
        Ok(fd @ 0..) => {
            let result = act(format!("/proc/self/fd/{fd}").as_bytes());
            kernel::call(libc::SYS_close, &[fd as usize]);
            result
        }
        // The socket's process is gone, and all that the kernel knew of it.
        _ => Err(Stop::Errno(libc::ECONNREFUSED)),
    }
}

/// Executes the call with another name.
fn with_name(c: &mut Call<'_>, at: usize, len: usize, path: &[u8]) -> Verdict {
    let (name, name_len) = name_of(path)?;
    let mut args = c.frame().args;
    args[at] = name.as_ptr() as usize;
    args[len] = name_len;
    let number = c.number();
    Ok(c.interruptible(number, args))
}

/// Calls that report the name of a socket: a shadow node's becomes that of the pool again.
fn named(c: &mut Call<'_>, at: usize) -> Verdict {
    let (name_at, len_at) = (c.arg(at), c.arg(at + 1));
    if name_at == 0 || len_at == 0 {
        return Err(Stop::Native);
    }
    // The kernel knows better what is wrong.
    let room: u32 = user::read(len_at).map_err(|_| Stop::Native)?;
    let result = c.native();
    if result < 0 {
        return Ok(result);
    }
    let len: u32 = user::read(len_at)?;
    if let Some(len) = show_name(c, name_at, len, room)? {
        user::write(len_at, &len)?;
    }
    Ok(result)
}

/// Replaces the name of a shadow node that the kernel has given by that of the pool; its length.
fn show_name(c: &Call<'_>, at: usize, len: u32, room: u32) -> Result<Option<u32>, Stop> {
    let shown = read_name(at, len.min(room) as usize).and_then(|(name, len)| {
        let path = c.vfs().socket_name(path_of(&name, len)?)?;
        name_of(&path).ok()
    });
    let Some((name, len)) = shown else {
        return Ok(None);
    };
    user::write_bytes(at, &name[..len.min(room as usize)])?;
    Ok(Some(len as u32))
}

fn accept(c: &mut Call<'_>) -> Verdict {
    c.vfs().make_room();
    new_fd(named(c, 1))
}

fn sendmsg(c: &mut Call<'_>) -> Verdict {
    let message: Message = c.read(1).map_err(|_| Stop::Native)?;
    pass_fds(c, &message);
    let Some((name, len)) = read_name(message.name as usize, message.name_len as u32 as usize)
    else {
        return Err(Stop::Native);
    };
    let path = path_of(&name, len).ok_or(Stop::Native)?;
    match c.vfs().socket_connect(path)? {
        Reply::KernelPath(path) => send_to(c, &message, &path),
        Reply::KernelNode(node) => with_node(&node, |path| send_to(c, &message, path)),
        _ => Err(Stop::Native),
    }
}

/// Sends a message to another name.
fn send_to(c: &mut Call<'_>, message: &Message, path: &[u8]) -> Verdict {
    let (name, len) = name_of(path)?;
    let name = name.as_ptr() as u64;
    let renamed = Message {
        name,
        name_len: len as u64,
        ..*message
    };
    let mut args = c.frame().args;
    args[1] = &raw const renamed as usize;
    let number = c.number();
    Ok(c.interruptible(number, args))
}

fn sendmmsg(c: &mut Call<'_>) -> Verdict {
    for i in 0..c.uint(2).min(1024) as usize {
        let at = c.arg(1) + i * size_of::<ManyMessage>();
        let message: ManyMessage = user::read(at)?;
        pass_fds(c, &message.message);
    }
    Err(Stop::Native)
}

fn recvmsg(c: &mut Call<'_>) -> Verdict {
    let message: Message = c.read(1).map_err(|_| Stop::Native)?;
    if message.control_len == 0 && message.name == 0 {
        return Err(Stop::Native);
    }
    if message.control_len != 0 {
        c.vfs().unpark_all();
    }
    let result = c.native();
    if result >= 0 {
        received(c, c.arg(1), message.name_len as u32)?;
    }
    Ok(result)
}

/// The message at `at` has come; there was so much room for the name of its sender.
fn received(c: &Call<'_>, at: usize, room: u32) -> Result<(), Stop> {
    let message: Message = user::read(at)?;
    receive_fds(c, &message);
    let len = message.name_len as u32;
    if let Some(len) = show_name(c, message.name as usize, len, room)? {
        user::write(at + offset_of!(Message, name_len), &len)?;
    }
    Ok(())
}

fn recvmmsg(c: &mut Call<'_>) -> Verdict {
    c.vfs().unpark_all();
    let result = c.native();
    for i in 0..result.max(0) as usize {
        let message: ManyMessage = user::read(c.arg(1) + i * size_of::<ManyMessage>())?;
        receive_fds(c, &message.message);
    }
    Ok(result)
}

fn pass_fds(c: &Call<'_>, message: &Message) {
    each_fd(message, |fd| {
        if c.vfs().ours(fd) {
            c.vfs().passing_fd(fd);
        }
    });
}

fn receive_fds(c: &Call<'_>, message: &Message) {
    each_fd(message, |fd| {
        c.vfs().received_fd(fd);
        crate::entry::table::unmark(fd);
    });
}

/// Calls `f` with each fd in the SCM_RIGHTS parts of the ancillary data.
fn each_fd(message: &Message, mut f: impl FnMut(i32)) {
    const HEADER: usize = 16;
    const FDS_MAX: usize = 253;
    let (mut at, end) = (
        message.control as usize,
        (message.control + message.control_len) as usize,
    );
    while message.control_len != 0 && at + HEADER <= end {
        let Ok([len, kind]) = user::read::<[u64; 2]>(at) else {
            return;
        };
        let len = (len as usize).min(end - at);
        let rights =
            kind as u32 as i32 == libc::SOL_SOCKET && (kind >> 32) as i32 == libc::SCM_RIGHTS;
        for i in 0..(len.saturating_sub(HEADER) / 4).min(if rights { FDS_MAX } else { 0 }) {
            if let Ok(fd) = user::read(at + HEADER + 4 * i) {
                f(fd);
            }
        }
        if len < HEADER {
            return;
        }
        at += len.next_multiple_of(8);
    }
}
