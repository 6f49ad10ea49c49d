//! getdents and getdents64: directory entries in the kernel's two encodings.

use crate::calls::open::readable;
use crate::error::{ErrorKind, VfsError};
use crate::reply::{Answer, Reply, done};
use crate::state::Vfs;
use nacre_fs::{DirEntry, Events};
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
    fn write(self, entry: &DirEntry<'_>, room: &mut [u8]) {
        let (len, kind) = (room.len(), entry.file_type.dirent_type());
        let (words, _) = room.as_chunks_mut::<ALIGN>();
        // The name covers what is not padding of the last word, and in the old encoding the type in
        // the third.
        words[len / ALIGN - 1] = [0; ALIGN];
        words[0] = entry.ino.0.to_le_bytes();
        words[1] = entry.next_cookie.to_le_bytes();
        words[2] = (len as u64 | u64::from(kind) << 16).to_le_bytes();
        let start = match self {
            Encoding::Old => {
                room[len - 1] = kind;
                HEAD
            }
            Encoding::Wide => HEAD_64,
        };
        room[start..start + entry.name.len()].copy_from_slice(entry.name);
    }
}

/// Bytes of records that are copied to the program at once; no record is longer.
const BATCH: usize = 1024;

/// The program's buffer and how far it is filled.
struct Filler<'b> {
    buffer: UserBytesMut<'b>,
    encoding: Encoding,
    /// Where the next record goes, and where to go on in the directory.
    used: usize,
    next: u64,
    /// Records that are still to be copied.
    batch: [u8; BATCH],
    waiting: usize,
    /// Where to go on behind the records that were copied.
    copied: u64,
    refused: bool,
    fault: Option<Fault>,
}

impl<'b> Filler<'b> {
    fn new(buffer: UserBytesMut<'b>, encoding: Encoding, next: u64) -> Filler<'b> {
        Filler {
            buffer,
            encoding,
            used: 0,
            next,
            batch: [0; BATCH],
            waiting: 0,
            copied: next,
            refused: false,
            fault: None,
        }
    }

    /// Takes all of a group or nothing.
    fn take(&mut self, group: &[DirEntry<'_>]) -> bool {
        let length = |entry: &DirEntry<'_>| self.encoding.length(entry.name);
        let needed = match group {
            [only] => length(only),
            several => several.iter().map(length).sum(),
        };
        if needed > self.buffer.len() - self.used {
            self.refused = true;
            return false;
        }
        for entry in group {
            let len = self.encoding.length(entry.name);
            if self.waiting + len > BATCH && !self.copy() {
                return false;
            }
            let room = &mut self.batch[self.waiting..self.waiting + len];
            self.encoding.write(entry, room);
            self.waiting += len;
            self.used += len;
        }
        self.next = group.last().map_or(self.next, |last| last.next_cookie);
        true
    }

    /// Copies what waits to the program; if that fails, it was never taken.
    fn copy(&mut self) -> bool {
        let start = self.used - self.waiting;
        let records = &self.batch[..self.waiting];
        match self.buffer.slice(start..self.used).copy_from_slice(records) {
            Ok(()) => self.copied = self.next,
            Err(fault) => {
                self.fault = Some(fault);
                (self.used, self.next) = (start, self.copied);
            }
        }
        self.waiting = 0;
        self.fault.is_none()
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
        let from = file.position();
        let mut filler = Filler::new(buffer, encoding, from);
        let mut take = |group: &[DirEntry<'_>]| filler.take(group);
        file.mount.fs.readdir(file.node(), from, &mut take)?;
        filler.copy();
        file.set_position(filler.next);
        file.tell(Events::ACCESS);
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
        let mut filler = Filler::new((&mut bytes[..]).into(), Encoding::Wide, 0);
        assert!(filler.take(&[entry(b"abcde")]));
        assert_eq!(filler.used, 32);
        assert!(filler.take(&[entry(b"abcd")]));
        assert_eq!(filler.used, 56);
        assert!(!filler.take(&[entry(b"x")]));
        assert!(filler.refused && filler.copy() && filler.next == 99);
        assert_eq!(bytes[0..8], 7u64.to_ne_bytes());
        assert_eq!(bytes[8..16], 99u64.to_ne_bytes());
        assert_eq!(bytes[16..18], 32u16.to_ne_bytes());
        assert_eq!(bytes[18], 10);
        assert_eq!(&bytes[19..25], b"abcde\0");
        assert_eq!(bytes[32 + 16..32 + 18], 24u16.to_ne_bytes());
    }

    #[test]
    fn records_of_several_batches_lie_one_behind_the_other() {
        let names: Vec<Vec<u8>> = (1..=255).map(|len| vec![b'n'; len]).collect();
        let mut bytes = vec![0xff; 40_000];
        let mut filler = Filler::new((&mut bytes[..]).into(), Encoding::Wide, 0);
        for pair in names.chunks(2) {
            let group: Vec<_> = pair.iter().map(|name| entry(name)).collect();
            assert!(filler.take(&group));
        }
        assert!(filler.copy());
        let mut at = 0;
        for name in &names {
            let len = Encoding::Wide.length(name);
            let mut record = vec![0xff; len];
            Encoding::Wide.write(&entry(name), &mut record);
            assert_eq!(bytes[at..at + len], record);
            at += len;
        }
        assert_eq!(bytes[at], 0xff);
    }

    #[test]
    fn old_records_have_the_type_at_their_end() {
        let mut record = [0xff; 24];
        assert_eq!(Encoding::Old.length(b"abcd"), 24);
        Encoding::Old.write(&entry(b"abcd"), &mut record);
        assert_eq!(&record[18..23], b"abcd\0");
        assert_eq!(record[23], 10);
    }
}
