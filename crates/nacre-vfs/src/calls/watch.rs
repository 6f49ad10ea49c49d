//! inotify on files of pools: watches, and telling of what calls do to open files and attributes
//! (D49). What changes names is told by the file system.

use crate::error::{ErrorKind, VfsError};
use crate::reply::{Answer, done};
use crate::resolve::subject::Subject;
use crate::state::{OpenFile, Vfs};
use nacre_fs::{Access, Events, FileType, Watcher};
use nacre_session::{Message, OFD_WATCHED};

/// Flags that the kernel takes of a watch that stands for one of a pool.
const KERNELS: Events = Events::ONESHOT;

/// What a name that an inotify instance has been told stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// `IN_*`.
    pub events: u32,
    /// Of the two halves of a rename.
    pub cookie: u32,
    /// The name in the watched directory; empty for what is watched itself.
    pub name: Vec<u8>,
}

impl Vfs {
    /// `inotify_add_watch` of the instance behind `fd`, which this process numbers `instance`.
    pub fn add_watch(
        &self,
        (fd, instance): (i32, u64),
        dirfd: i32,
        path: &[u8],
        mask: u32,
    ) -> Answer {
        let mask = Events::from_bits_retain(mask);
        let follow = !mask.contains(Events::DONT_FOLLOW);
        self.on_path(dirfd, path, follow, 0, |subject| {
            check_mask(mask)?;
            self.check_watchable(&subject, mask)?;
            let fs = &subject.mount.fs;
            match fs.change_watch(instance, subject.node, mask)? {
                Some(wd) => done(wd.into()),
                None => self.watch_subject((fd, instance), &subject, mask),
            }
        })
    }

    fn check_watchable(&self, subject: &Subject<'_>, mask: Events) -> Result<(), VfsError> {
        let fs = &subject.mount.fs;
        fs.access(self.cred(), subject.node, Access::READ)?;
        let file_type = fs.getattr(subject.node)?.file_type();
        if mask.contains(Events::ONLYDIR) && file_type != Some(FileType::Directory) {
            return Err(ErrorKind::NotDirectory.into());
        }
        Ok(())
    }

    fn watch_subject(
        &self,
        (fd, instance): (i32, u64),
        subject: &Subject<'_>,
        mask: Events,
    ) -> Answer {
        let (fs, index) = (&subject.mount.fs, subject.mount.index);
        let (new, shadow) = fs.begin_watch(subject.node, mask)?;
        let flags = Events::CREATE | Events::ONLYDIR | mask & KERNELS;
        let watched = self
            .kernel()
            .watch_shadow(fd, index, shadow.as_bytes(), flags.bits());
        let (wd, shadow) = watched.inspect_err(|_| fs.abandon_watch(&new))?;
        let by = Watcher {
            instance,
            pid: self.kernel().pid() as u32,
            wd,
            shadow,
        };
        fs.finish_watch(&new, &by)?;
        done(wd.into())
    }

    /// `inotify_rm_watch`, when the kernel has done it.
    pub fn watch_removed(&self, instance: u64, wd: i32) {
        for mount in self.attached() {
            mount.fs.remove_watch(instance, wd);
        }
    }

    /// Puts a message that says nothing into the queue of an instance.
    pub fn remind(&self, instance: u64) {
        // If all its watches have ended, nothing can be put there.
        let _ = self.attached().any(|mount| mount.fs.remind(instance));
    }

    /// The process has closed the instance, and other processes may have it open still.
    pub fn instance_closed(&self, instance: u64) {
        for mount in self.attached() {
            mount.fs.sweep_watches(instance);
        }
    }

    /// The number of the instance behind an fd that is new to this program.
    pub fn instance_behind(&self, fd: i32) -> Option<u64> {
        self.attached()
            .find_map(|mount| mount.fs.instance_behind(fd))
    }

    /// What the name in an event says if it comes from a pool.
    pub fn told_by(&self, name: &[u8]) -> Option<Told> {
        self.attached().find_map(|mount| {
            let said = Message::decode(mount.fs.message_key(), name)?;
            let name = match said.linked {
                false => said.name.to_vec(),
                // Gone: another process has read the same event.
                true => mount.fs.linked_name(said.watch, name).unwrap_or_default(),
            };
            Some(Told {
                events: said.events,
                cookie: said.cookie,
                name,
            })
        })
    }

    /// `fanotify_mark`: not possible on files of pools.
    pub fn mark(&self, dirfd: i32, path: &[u8]) -> Answer {
        self.on_path(dirfd, path, true, 0, |_| Err(ErrorKind::Unsupported.into()))
    }

    /// Tells of a change of attributes.
    #[inline]
    pub(crate) fn tell_of(&self, subject: &Subject<'_>, events: Events) {
        if subject.mount.fs.is_watched() {
            subject.tell(events);
        }
    }
}

impl OpenFile<'_> {
    /// Tells of what was done through the file, if somebody may listen.
    #[inline]
    pub(crate) fn tell(&self, events: Events) {
        if self.flags() & OFD_WATCHED != 0 {
            self.mount.fs.tell_of_description(self.ofd, events);
        }
    }
}

fn check_mask(mask: Events) -> Result<(), VfsError> {
    let both = Events::MASK_ADD | Events::MASK_CREATE;
    if !mask.intersects(Events::ALL) || mask.contains(both) {
        return Err(ErrorKind::Invalid.into());
    }
    Ok(())
}
