//! getdents and getdents64: directory entries in the kernel's two encodings.

use crate::error::{ErrorKind, VfsError};
use crate::open::readable;
use crate::reply::{Answer, Reply, done};
use crate::state::Vfs;
use nacre_fs::DirEntry;
use nacre_media::{Fault, UserBytesMut};

/// Bytes before the name: d_ino, d_off, d_reclen and, in `linux_dirent64`, d_type.
const HEAD: usize = 18;
const HEAD_64: usize = 19;
const ALIGN: usize = 8;

#[derive(Clone, Copy)]
enum Encoding {
    /// `linux_dirent`: the type is the record's last byte.
    Old,
    /// `linux_dirent64`.
    Wide,
}

impl Encoding {
    #[inline]
    fn length(self, name: &[u8]) -> usize {
        let bare = match self {
            Encoding::Old => HEAD + name.len() + 2,
            Encoding::Wide => HEAD_64 + name.len() + 1,
        };
        bare.next_multiple_of(ALIGN)
    }

    /// Writes an entry's record, which fills `room`.
    #[inline]
    fn write(self, entry: &DirEntry<'_>, room: &mut UserBytesMut<'_>) -> Result<(), Fault> {
        let len = room.len();
        let mut head = [0; HEAD_64];
        head[0..8].copy_from_slice(&entry.ino.0.to_ne_bytes());
        head[8..16].copy_from_slice(&entry.next_cookie.to_ne_bytes());
        head[16..18].copy_from_slice(&(len as u16).to_ne_bytes());
        let kind = entry.file_type.dirent_type();
        // The last word first: the name covers what is not padding.
        let mut last = [0; ALIGN];
        let head = match self {
            Encoding::Old => {
                last[ALIGN - 1] = kind;
                &head[..HEAD]
            }
            Encoding::Wide => {
                head[HEAD] = kind;
                &head[..]
            }
        };
        room.slice(len - ALIGN..len).copy_from_slice(&last)?;
        room.slice(0..head.len()).copy_from_slice(head)?;
        let end = head.len() + entry.name.len();
        room.slice(head.len()..end).copy_from_slice(entry.name)
    }
}

/// The program's buffer and how far it is filled.
struct Filler<'b> {
    buffer: UserBytesMut<'b>,
    used: usize,
    encoding: Encoding,
    refused: bool,
    fault: Option<Fault>,
}

impl Filler<'_> {
    /// Takes all of a group or nothing.
    fn take(&mut self, group: &[DirEntry<'_>]) -> bool {
        let needed: usize = group
            .iter()
            .map(|entry| self.encoding.length(entry.name))
            .sum();
        if needed > self.buffer.len() - self.used {
            self.refused = true;
            return false;
        }
        for entry in group {
            let end = self.used + self.encoding.length(entry.name);
            let mut room = self.buffer.slice(self.used..end);
            if let Err(fault) = self.encoding.write(entry, &mut room) {
                self.fault = Some(fault);
                return false;
            }
            self.used = end;
        }
        true
    }
}

impl Vfs {
    /// `getdents64`.
    pub fn getdents64(&self, fd: i32, buffer: UserBytesMut<'_>) -> Answer {
        self.list_directory(fd, buffer, Encoding::Wide)
    }

    /// `getdents`.
    pub fn getdents(&self, fd: i32, buffer: UserBytesMut<'_>) -> Answer {
        self.list_directory(fd, buffer, Encoding::Old)
    }

    fn list_directory(&self, fd: i32, buffer: UserBytesMut<'_>, encoding: Encoding) -> Answer {
        let Some(file) = self.io_file(fd)? else {
            return Ok(Reply::Kernel);
        };
        if !file.is_directory() {
            return Err(ErrorKind::NotDirectory.into());
        }
        if !readable(file.flags()) {
            return Err(ErrorKind::BadFd.into());
        }
        let _position = file.lock_position()?;
        let mut filler = Filler {
            buffer,
            used: 0,
            encoding,
            refused: false,
            fault: None,
        };
        let mut next = file.position();
        file.mount.fs.readdir(file.node(), next, &mut |group| {
            let taken = filler.take(group);
            if let (true, Some(last)) = (taken, group.last()) {
                next = last.next_cookie;
            }
            taken
        })?;
        file.set_position(next);
        filler.outcome()
    }
}

impl Filler<'_> {
    fn outcome(&self) -> Answer {
        match (self.used, self.fault, self.refused) {
            (0, Some(fault), _) => Err(VfsError::from(fault)),
            (0, None, true) => Err(ErrorKind::Invalid.into()),
            (used, _, _) => done(used as i64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Encoding, Filler};
    use nacre_fs::{DirEntry, FileType};
    use nacre_types::Ino;

    fn entry(name: &[u8]) -> DirEntry<'_> {
        DirEntry {
            ino: Ino(7),
            file_type: FileType::Symlink,
            name,
            next_cookie: 99,
        }
    }

    #[test]
    fn wide_records_have_the_kernels_layout() {
        let mut bytes = [0xff; 64];
        let mut filler = Filler {
            buffer: (&mut bytes[..]).into(),
            used: 0,
            encoding: Encoding::Wide,
            refused: false,
            fault: None,
        };
        assert!(filler.take(&[entry(b"abcde")]));
        assert_eq!(filler.used, 32);
        assert!(filler.take(&[entry(b"abcd")]));
        assert_eq!(filler.used, 56);
        assert!(!filler.take(&[entry(b"x")]));
        assert!(filler.refused);
        assert_eq!(bytes[0..8], 7u64.to_ne_bytes());
        assert_eq!(bytes[8..16], 99u64.to_ne_bytes());
        assert_eq!(bytes[16..18], 32u16.to_ne_bytes());
        assert_eq!(bytes[18], 10);
        assert_eq!(&bytes[19..25], b"abcde\0");
        assert_eq!(bytes[32 + 16..32 + 18], 24u16.to_ne_bytes());
    }

    #[test]
    fn old_records_have_the_type_at_their_end() {
        let mut record = [0xff; 24];
        assert_eq!(Encoding::Old.length(b"abcd"), 24);
        let mut room = (&mut record[..]).into();
        Encoding::Old.write(&entry(b"abcd"), &mut room).unwrap();
        assert_eq!(&record[18..23], b"abcd\0");
        assert_eq!(record[23], 10);
    }
}
