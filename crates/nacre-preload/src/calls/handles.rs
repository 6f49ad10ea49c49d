//! Files by handles: name_to_handle_at and open_by_handle_at.

use libc::{SYS_name_to_handle_at, SYS_open_by_handle_at};
use nacre_vfs::{FileHandle, Reply};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::entry::call::{Call, Verdict, path_at};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, entry, unmark};
use crate::entry::user;

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    entry(
        SYS_name_to_handle_at,
        "name_to_handle_at",
        name_to_handle_at,
    ),
    entry(
        SYS_open_by_handle_at,
        "open_by_handle_at",
        open_by_handle_at,
    ),
];

/// No type of the kernel's.
const TYPE: i32 = 0x4e;
/// `MAX_HANDLE_SZ`.
const MOST: u32 = 128;

/// The head of `struct file_handle`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Head {
    len: u32,
    kind: i32,
}

/// What follows it in ours.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Body {
    pool: [u32; 2],
    ino: [u32; 2],
    generation: u32,
}

const LEN: u32 = size_of::<Body>() as u32;

fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

fn whole([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn name_to_handle_at(c: &mut Call<'_>) -> Verdict {
    const KNOWN: i32 = libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH | libc::AT_HANDLE_FID;
    let (handle_at, mount_at, flags) = (c.arg(2), c.arg(3), c.int(4));
    if flags & !KNOWN != 0 {
        return Err(Stop::Native);
    }
    let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
    let place = path_at(0).followed_if(follow);
    let told = core::cell::Cell::new(Ok(()));
    let result = c.on_path(place, &|vfs, dir, path| {
        let reply = vfs.name_to_handle(dir, path, follow, flags)?;
        let Reply::Done((handle, mount)) = reply else {
            return Ok(reply.without_value());
        };
        told.set(tell(handle, mount, handle_at, mount_at));
        Ok(Reply::Done(0))
    })?;
    told.get().map(|()| result)
}

fn tell(handle: FileHandle, mount: i32, handle_at: usize, mount_at: usize) -> Result<(), Stop> {
    let room: Head = user::read(handle_at)?;
    if room.len > MOST {
        return Err(Stop::Errno(libc::EINVAL));
    }
    let head = Head {
        len: LEN,
        kind: TYPE,
    };
    user::write(mount_at, &mount)?;
    user::write(handle_at, &head)?;
    if room.len < LEN {
        return Err(Stop::Errno(libc::EOVERFLOW));
    }
    let body = Body {
        pool: halves(handle.pool),
        ino: halves(handle.ino),
        generation: handle.generation,
    };
    Ok(user::write(handle_at + size_of::<Head>(), &body)?)
}

fn open_by_handle_at(c: &mut Call<'_>) -> Verdict {
    let (fd, at, flags) = (c.int(0), c.arg(1), c.int(2));
    if fd != libc::AT_FDCWD && !c.vfs().ours(fd) {
        c.vfs().make_room();
        return Err(Stop::Native);
    }
    let head: Head = user::read(at)?;
    if head.len == 0 || head.len > MOST {
        return Err(Stop::Errno(libc::EINVAL));
    }
    if (head.len, head.kind) != (LEN, TYPE) {
        return match fd {
            libc::AT_FDCWD => Err(Stop::Native),
            _ => Err(Stop::Errno(libc::ESTALE)),
        };
    }
    let body: Body = user::read(at + size_of::<Head>())?;
    let handle = FileHandle {
        pool: whole(body.pool),
        ino: whole(body.ino),
        generation: body.generation,
    };
    match c.vfs().open_by_handle(fd, handle, flags)? {
        Reply::Done(fd) => {
            unmark(fd as i32);
            Ok(fd as isize)
        }
        Reply::KernelNode(node) => Ok(c.open_node(&node)),
        _ => Err(Stop::Native),
    }
}
