//! The kernel fds of open files: taken, cached and closed. What they are and why some stay open is
//! said in fd/placeholder.rs.

use crate::error::{ErrorKind, VfsError};
use crate::fd::placeholder::{FIRST, FORKS_BITS, NUMBERS, Note};
use crate::fd::table::{FdEntry, FileId};
use crate::kernel::KernelError;
use crate::state::Vfs;
use std::sync::atomic::Ordering;

impl Vfs {
    /// Enters a description at the number of a placeholder that was taken for it, which is given
    /// back where that fails.
    #[inline]
    pub(crate) fn enter_placeholder(&self, fd: i32, id: FileId) -> Result<(), VfsError> {
        if self.placeholders.valid_note(fd).is_none()
            && let Err(error) = self.kernel().set_identity(fd, id.ofd.identity())
        {
            self.give_number_back(fd)?;
            return Err(error.into());
        }
        self.enter(fd, id);
        Ok(())
    }

    /// A placeholder at the lowest number that is free for the program. Nothing is entered there
    /// yet.
    #[inline]
    pub(crate) fn take_placeholder(&self, pool: usize, cloexec: bool) -> Result<i32, VfsError> {
        while let Some(lowest) = self.placeholders.lowest_cached() {
            if !self.placeholders.is_floor_above(lowest)
                && let Some(lower) = self.look_below(lowest, pool, cloexec)?
            {
                return Ok(lower);
            }
            if !self.placeholders.claim(lowest, self.alone()) {
                continue;
            }
            match self.placeholders.valid_note(lowest) {
                Some(note) if note.pool == pool => {
                    if note.cloexec != cloexec {
                        self.kernel().set_cloexec(lowest, cloexec)?;
                        self.placeholders.set_cloexec(lowest, cloexec);
                    }
                    return Ok(lowest);
                }
                _ => self.end_parking(lowest),
            }
        }
        self.new_placeholder(pool, cloexec)
    }

    /// Asks the kernel for its lowest free number; `None` if that is above a cached one.
    #[cold]
    fn look_below(&self, cached: i32, pool: usize, cloexec: bool) -> Result<Option<i32>, VfsError> {
        match self.new_placeholder(pool, cloexec) {
            Ok(fd) if fd < cached => Ok(Some(fd)),
            Ok(fd) => {
                self.give_number_back(fd)?;
                Ok(None)
            }
            // No number is free in the kernel, so none below either.
            Err(VfsError::Kernel(error)) if error.0 == crate::abi::EMFILE => Ok(None),
            Err(error) => Err(error),
        }
    }

    #[cold]
    fn new_placeholder(&self, pool: usize, cloexec: bool) -> Result<i32, VfsError> {
        let epoch = self.placeholders.epoch();
        let before = self.placeholders.floor.load(Ordering::SeqCst);
        let fd = self.kernel().open_placeholder(pool, cloexec)?;
        self.placeholders.opened(before, fd);
        let note = Note {
            epoch,
            pool,
            cloexec,
        };
        let parkable = fd >= FIRST && epoch.trailing_zeros() >= FORKS_BITS;
        self.placeholders.set_note(fd, parkable.then_some(note));
        Ok(fd)
    }

    /// Ends the use of a placeholder that was taken, where nothing is entered.
    #[cold]
    pub(crate) fn give_number_back(&self, fd: i32) -> Result<(), VfsError> {
        if self.placeholders.valid_note(fd).is_some() {
            self.table.set(fd, FdEntry::Cached, self.alone());
        }
        self.retire_placeholder(fd)
    }

    /// Ends the program's use of an fd of a pool: parks its placeholder or closes it.
    #[inline]
    pub(crate) fn let_placeholder_go(&self, fd: i32, id: FileId) -> Result<(), VfsError> {
        let parks = self.placeholders.valid_note(fd).is_some();
        let next = if parks {
            FdEntry::Cached
        } else {
            FdEntry::Unknown
        };
        if !self
            .table
            .exchange(fd, FdEntry::Pool(id), next, self.alone())
        {
            return Err(ErrorKind::BadFd.into());
        }
        // In this order: a thread that an exec kills leaves no number that names nothing.
        let retired = self.retire_placeholder(fd);
        self.release(id);
        retired
    }

    /// Parks the placeholder of a number whose entry says so already, or closes it in the kernel.
    #[inline]
    fn retire_placeholder(&self, fd: i32) -> Result<(), VfsError> {
        if self.table.get(fd) == Some(FdEntry::Cached) {
            if self.placeholders.valid_note(fd).is_some() {
                self.placeholders.park(fd, self.alone());
                return Ok(());
            }
            self.table.set(fd, FdEntry::Unknown, self.alone());
        }
        self.close_placeholder(fd)
    }

    /// Closes a placeholder in the kernel.
    pub(crate) fn close_placeholder(&self, fd: i32) -> Result<(), VfsError> {
        let note = self.placeholders.valid_note(fd);
        self.placeholders.share(fd);
        let closed = match note {
            Some(note) => {
                let is_alone = || self.placeholders.epoch() == note.epoch;
                self.kernel().close_placeholder(note.pool, fd, &is_alone)
            }
            None => self.kernel().close(fd),
        };
        self.placeholders.closed(fd);
        Ok(closed?)
    }

    /// Closes a cached placeholder that the caller has claimed.
    fn end_parking(&self, fd: i32) {
        self.table.set(fd, FdEntry::Unknown, self.alone());
        // The kernel takes the number back whatever it answers.
        let _ = self.close_placeholder(fd);
    }

    /// Before other numbers or processes get a placeholder's kernel file: what they may see of it.
    pub(crate) fn show_placeholder(&self, fd: i32, id: FileId) -> Result<(), VfsError> {
        if self.placeholders.has_note(fd) {
            self.kernel().set_identity(fd, id.ofd.identity())?;
            self.placeholders.share(fd);
        }
        Ok(())
    }

    /// As [`Vfs::show_placeholder`] of all, after [`Placeholders::begin_fork`]. The kernel is asked
    /// about each, as other threads may close it meanwhile and open something else there.
    pub(crate) fn show_placeholders(&self) -> Result<(), VfsError> {
        for (fd, id) in self.table.files() {
            let note = self.placeholders.note_word(fd);
            let Some((word, before)) = note.map(|word| (word, word.load(Ordering::Acquire))) else {
                continue;
            };
            if before == 0 {
                continue;
            }
            match self.alone() {
                true => self.show_number(fd, fd, id)?,
                false => self.show_held(fd, id)?,
            }
            // If it has changed, another placeholder is there, which has its identity.
            let _ = word.compare_exchange(before, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Under a number that other threads do not know.
    fn show_held(&self, fd: i32, id: FileId) -> Result<(), VfsError> {
        let held = match self.kernel().dup(fd, 0, true) {
            Ok(held) => held,
            // No number is free.
            Err(KernelError(crate::abi::EMFILE)) => return self.show_number(fd, fd, id),
            Err(_) => return Ok(()),
        };
        let shown = self.show_number(fd, held, id);
        // The kernel takes the number back whatever it answers.
        let _ = self.kernel().close(held);
        self.placeholders.closed(held);
        shown
    }

    /// Writes the identity of `id`, which `fd` has in the table, if `number` is its placeholder.
    fn show_number(&self, fd: i32, number: i32, id: FileId) -> Result<(), VfsError> {
        let found = self.kernel().identity(number);
        let same = matches!(found, Ok(Some((pool, _))) if pool == id.pool);
        if same && self.table.get(fd) == Some(FdEntry::Pool(id)) {
            self.kernel().set_identity(number, id.ofd.identity())?;
        }
        Ok(())
    }

    /// Makes a number free in the kernel if it is cached.
    pub(crate) fn unpark(&self, fd: i32) {
        if fd >= 0 && self.placeholders.claim(fd, self.alone()) {
            self.end_parking(fd);
        }
    }

    /// To be called before the kernel hands out one fd: it is to get the lowest number.
    pub fn make_room(&self) {
        match self.placeholders.lowest_cached() {
            None => {}
            Some(lowest) if self.placeholders.is_floor_above(lowest) => self.unpark(lowest),
            Some(_) => self.unpark_all(),
        }
    }

    /// To be called before the kernel hands out several fds, looks at numbers that the program
    /// gives it, lists them or hands them on.
    pub fn unpark_all(&self) {
        while let Some(fd) = self.placeholders.lowest_cached() {
            self.unpark(fd);
        }
    }

    /// The kernel has closed an fd of the host; all from `fd` on may be closed.
    pub fn closed_in_kernel(&self, fd: i32) {
        self.placeholders.closed(fd);
    }

    /// In a fork child: closes what other threads of the parent were about to park or take.
    pub(crate) fn unpark_inherited(&self) {
        self.unpark_all();
        for fd in FIRST..NUMBERS as i32 {
            if self.table.get(fd) == Some(FdEntry::Cached) {
                self.end_parking(fd);
            }
        }
    }
}
