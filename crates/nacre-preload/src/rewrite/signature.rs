//! How the arguments and results of calls are shown in the log.

use core::fmt::{self, Write};

use crate::entry::user::StringBuffer;

/// Name of a call, and a letter for each argument: `p` path or name, `d` decimal, `x` hexadecimal
/// or address, `o` octal, `f` the folder that a path starts from. One text, as the dynamic linker
/// writes each address in a table.
const SIGNATURES: &str = "\
open pxo
creat po
openat fpxo
openat2 fpxd
close d
close_range ddx
dup d
dup2 dd
dup3 ddx
fcntl ddx
ioctl dxx
flock dx
read dxd
write dxd
pread64 dxdd
pwrite64 dxdd
readv dxd
writev dxd
preadv dxdd
pwritev dxdd
preadv2 dxdddx
pwritev2 dxdddx
lseek ddd
fsync d
fdatasync d
syncfs d
sync
sync_file_range dddx
ftruncate dd
truncate pd
fallocate dxdd
fadvise64 dddd
readahead ddd
sendfile ddxd
copy_file_range dxdxdx
splice dxdxdx
stat px
lstat px
fstat dx
newfstatat fpxx
statx fpxxx
statfs px
fstatfs dx
access po
faccessat fpo
faccessat2 fpox
chmod po
fchmod do
fchmodat fpo
chown pdd
lchown pdd
fchown ddd
fchownat fpddx
utimensat fpxx
mkdir po
mkdirat fpo
mknod pox
mknodat fpox
rmdir p
unlink p
unlinkat fpx
rename pp
renameat fpfp
renameat2 fpfpx
link pp
linkat fpfpx
symlink pp
symlinkat pfp
readlink pxd
readlinkat fpxd
getdents64 dxd
chdir p
fchdir d
getcwd xd
umask o
mount ppxxx
open_tree fpx
move_mount fpfpx
fsopen px
getxattr ppxd
lgetxattr ppxd
fgetxattr dpxd
setxattr ppxdx
lsetxattr ppxdx
fsetxattr dpxdx
listxattr pxd
llistxattr pxd
flistxattr dxd
removexattr pp
lremovexattr pp
fremovexattr dp
getxattrat fpxpxd
setxattrat fpxpxd
listxattrat fpxxd
removexattrat fpxp
file_getattr fpxxx
file_setattr fpxxx
mmap xdxxdd
munmap xd
mremap xddxx
mprotect xdx
msync xdx
madvise xdd
execve pxx
execveat fpxxx
fork 
vfork 
exit_group d
socket ddd
pipe2 xx
epoll_create1 x
inotify_add_watch dpx
fanotify_mark dxxdp
prctl dxxxx
";

/// The longest part of a path that is shown.
const SHOWN_MAX: usize = 200;

fn signatures() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = SIGNATURES.lines();
    lines.map(|line| line.split_once(' ').unwrap_or((line, "")))
}

/// Writes the arguments of a call.
pub fn arguments(line: &mut String, name: &str, values: &[usize; 6]) -> fmt::Result {
    let known = signatures().find(|(known, _)| *known == name);
    let letters = known.map_or("xxxxxx", |(_, letters)| letters);
    for (i, (letter, &value)) in letters.bytes().zip(values).enumerate() {
        if i > 0 {
            line.push_str(", ");
        }
        argument(line, letter, value)?;
    }
    Ok(())
}

/// Writes the result of a call, an error by its name.
pub fn result(line: &mut String, value: isize) -> fmt::Result {
    let errno = i32::try_from(-value).ok().and_then(errno_name);
    match errno {
        Some(name) => write!(line, ") = {name}"),
        None if value > 0xffff_ffff => write!(line, ") = {value:#x}"),
        None => write!(line, ") = {value}"),
    }
}

fn argument(line: &mut String, letter: u8, value: usize) -> fmt::Result {
    match letter {
        b'p' => path(line, value),
        b'f' if value as i32 == libc::AT_FDCWD => write!(line, "AT_FDCWD"),
        b'f' => write!(line, "{}", value as i32),
        b'd' => write!(line, "{}", value as isize),
        b'o' => write!(line, "0{:o}", value as u32),
        _ => write!(line, "{value:#x}"),
    }
}

fn path(line: &mut String, address: usize) -> fmt::Result {
    match StringBuffer::new().read(address) {
        Ok(bytes) => {
            let shown = &bytes[..bytes.len().min(SHOWN_MAX)];
            let more = if shown.len() < bytes.len() { "..." } else { "" };
            write!(line, "\"{}\"{more}", shown.escape_ascii())
        }
        Err(_) => write!(line, "{address:#x}"),
    }
}

macro_rules! names {
    ($($name:ident)*) => {
        /// The name of an errno, if it is one that file systems give.
        fn errno_name(errno: i32) -> Option<&'static str> {
            match errno {
                $(libc::$name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

names! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG ENOEXEC EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV ENOTDIR
    EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE ERANGE EDEADLK ENAMETOOLONG
    ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA EOVERFLOW EADDRINUSE ECONNREFUSED EOPNOTSUPP ESTALE
}

#[cfg(test)]
mod tests {
    use super::{arguments, result, signatures};
    use crate::entry::table::{CALLS, name, served};

    fn shown(name: &str, values: [usize; 6]) -> String {
        let mut line = String::new();
        arguments(&mut line, name, &values).unwrap();
        line
    }

    #[test]
    fn arguments_are_shown_as_they_are_meant() {
        let path = c"/nacre/new\n".as_ptr() as usize;
        let folder = libc::AT_FDCWD as usize;
        assert_eq!(
            shown("openat", [folder, path, 0x41, 0o644, 9, 9]),
            r#"AT_FDCWD, "/nacre/new\n", 0x41, 0644"#
        );
        assert_eq!(
            shown("pread64", [3, 0x7000, 4096, usize::MAX, 9, 9]),
            "3, 0x7000, 4096, -1"
        );
        let bad = 1 << 47;
        assert_eq!(shown("unlink", [bad, 0, 0, 0, 0, 0]), "0x800000000000");
        assert_eq!(shown("fork", [1, 2, 3, 4, 5, 6]), "");
    }

    #[test]
    fn each_signature_is_of_a_served_call() {
        assert!(signatures().count() > 100);
        for (known, letters) in signatures() {
            let mut numbers = (0..CALLS).filter(|&number| served(number));
            assert!(numbers.any(|number| name(number) == known), "{known}");
            assert!(letters.len() <= 6, "{known}");
        }
    }

    #[test]
    fn results_are_numbers_addresses_or_names_of_errors() {
        let shown = |value| {
            let mut line = String::new();
            result(&mut line, value).unwrap();
            line
        };
        assert_eq!(shown(-libc::ENOENT as isize), ") = ENOENT");
        assert_eq!((shown(7), shown(-600)), (") = 7".into(), ") = -600".into()));
        assert_eq!(shown(0x7000_0000_0000), ") = 0x700000000000");
    }
}
