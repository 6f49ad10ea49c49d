//! What the front end needs to run programs that are stored in a pool.

use crate::abi::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, O_PATH};
use crate::error::{ErrorKind, VfsError};
use crate::fd::table::FileId;
use crate::reply::{Answer, done};
use crate::resolve::subject::{Subject, follows};
use crate::state::Vfs;
use nacre_fs::{Access, FileType, InodeRef};
use nacre_media::UserBytesMut;
use nacre_types::{FileOffset, reach};
use std::sync::atomic::Ordering;

/// As much of a program as is looked at to find out its format.
const HEAD_LEN: usize = 256;

/// A program in a pool that the caller may execute.
#[derive(Debug)]
pub struct ExecImage {
    /// Bytes.
    pub size: u64,
    /// The first bytes, at most 256.
    pub head: Vec<u8>,
    /// Type and permission bits; set-id bits have no effect.
    pub mode: u32,
    /// Number of the inode.
    pub inode: u64,
    pool: usize,
    node: InodeRef,
}

/// An open file of a pool, as a program finds it that only the kernel serves.
#[derive(Debug)]
pub struct HandedOn {
    /// Its number.
    pub fd: i32,
    /// Absolute path in the kernel's mount of the pool.
    pub path: Vec<u8>,
    /// Access mode and status flags.
    pub flags: u32,
}

impl Vfs {
    /// All open files of pools, as far as the kernel can open them.
    pub fn handed_on(&self) -> Vec<HandedOn> {
        let all = self.table.files();
        all.filter_map(|(fd, id)| self.handed_on_as(fd, id))
            .collect()
    }

    fn handed_on_as(&self, fd: i32, id: FileId) -> Option<HandedOn> {
        let mount = self.mount(id.pool);
        let ofd = mount.fs.description(id.ofd)?;
        let flags = ofd.flags.load(Ordering::Relaxed);
        let inside = match FileType::from_mode(ofd.mode()) {
            Some(FileType::Directory) => mount.fs.path_of(ofd.ino()).ok()?,
            Some(FileType::Regular) if flags & O_PATH == 0 => {
                let name = reach::description_name(id.ofd.identity());
                [b"/", name.as_slice()].concat()
            }
            _ => return None,
        };
        let path = mount.absolute(&inside);
        Some(HandedOn { fd, path, flags })
    }

    /// `execveat`; also `execve`. The image stays good until the call returns or its file is
    /// removed; then `read_image` fails.
    pub fn exec_image(&self, dirfd: i32, path: &[u8], flags: i32) -> Answer<ExecImage> {
        self.on_path(dirfd, path, follows(flags), flags, |subject| {
            if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
                return Err(ErrorKind::Invalid.into());
            }
            if subject.is_symlink {
                return Err(ErrorKind::Loop.into());
            }
            self.image_of(subject)
        })
    }

    fn image_of(&self, subject: Subject<'_>) -> Answer<ExecImage> {
        let fs = &subject.mount.fs;
        let stat = fs.getattr(subject.node)?;
        if stat.file_type() != Some(FileType::Regular) {
            return Err(ErrorKind::Denied.into());
        }
        fs.access(self.cred(), subject.node, Access::EXEC)?;
        let mut head = vec![0; HEAD_LEN.min(usize::try_from(stat.size).unwrap_or(HEAD_LEN))];
        let len = fs.read(subject.node, FileOffset(0), head.as_mut_slice().into())?;
        head.truncate(len);
        done(ExecImage {
            size: stat.size,
            head,
            mode: stat.mode,
            inode: stat.ino.0,
            pool: subject.mount.index,
            node: subject.node,
        })
    }

    /// The processes that use the program's pool. Some may have ended.
    pub fn processes_beside(&self, image: &ExecImage) -> impl Iterator<Item = u32> + '_ {
        self.mount(image.pool).fs.processes()
    }

    /// Reads from a program; answers the bytes read.
    pub fn read_image(
        &self,
        image: &ExecImage,
        offset: u64,
        buffer: UserBytesMut<'_>,
    ) -> Result<usize, VfsError> {
        Ok(self
            .mount(image.pool)
            .fs
            .read(image.node, FileOffset(offset), buffer)?)
    }
}
