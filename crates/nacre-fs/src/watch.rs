//! Telling who watches an inode (inotify) what is done to it and to the names in it.
//!
//! Whoever changes something looks at one word of the session, which says that nobody watches, and
//! comes here else. What happens to an inode is also told to those who watch the directory that it
//! is in: by the name that the caller knows, or by one that is looked for in watched directories.

use crate::Fs;
use crate::attributes::SetTime;
use crate::error::{FsError, Result};
use crate::inode::{InodeRef, is_directory};
use bitflags::bitflags;
use nacre_session::{MessageKey, Session, Watch, WatchId};
use nacre_store::layout::EntryKey;
use nacre_types::Ino;
use std::sync::atomic::{AtomicU32, Ordering};

bitflags! {
    /// `IN_*`: what happened, and how a watch is to be.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Events: u32 {
        /// Was read.
        const ACCESS = 1;
        /// Its contents changed.
        const MODIFY = 2;
        /// Mode, owner, times, attributes or links changed.
        const ATTRIB = 4;
        /// What was open for writing was closed.
        const CLOSE_WRITE = 8;
        /// What was open for reading was closed.
        const CLOSE_NOWRITE = 0x10;
        /// Was opened.
        const OPEN = 0x20;
        /// A name went to another place.
        const MOVED_FROM = 0x40;
        /// A name came from another place.
        const MOVED_TO = 0x80;
        /// A name was made.
        const CREATE = 0x100;
        /// A name was removed.
        const DELETE = 0x200;
        /// The watched inode is gone.
        const DELETE_SELF = 0x400;
        /// The watched inode got another name.
        const MOVE_SELF = 0x800;
        /// It is a directory.
        const ISDIR = 0x4000_0000;
        /// Only directories are watched.
        const ONLYDIR = 0x0100_0000;
        /// A symbolic link is watched itself.
        const DONT_FOLLOW = 0x0200_0000;
        /// Nothing of what has lost its name.
        const EXCL_UNLINK = 0x0400_0000;
        /// Only a new watch.
        const MASK_CREATE = 0x1000_0000;
        /// In addition to what is watched already.
        const MASK_ADD = 0x2000_0000;
        /// The first event ends the watch.
        const ONESHOT = 0x8000_0000;
    }
}

impl Events {
    /// All that can happen.
    pub const ALL: Events = Events::from_bits_retain(0xfff);
    /// What stays with a watch.
    const KEPT: Events = Events::ALL
        .union(Events::EXCL_UNLINK)
        .union(Events::ONESHOT);

    /// What is told of all names of directories.
    pub(crate) fn kind(is_directory: bool) -> Events {
        match is_directory {
            true => Events::ISDIR,
            false => Events::empty(),
        }
    }

    /// How new times are told.
    pub fn of_times(atime: &SetTime, mtime: &SetTime) -> Events {
        match (atime, mtime) {
            (SetTime::Omit, SetTime::Omit) => Events::empty(),
            (_, SetTime::Omit) => Events::ACCESS,
            (SetTime::Omit, _) => Events::MODIFY,
            _ => Events::ATTRIB,
        }
    }
}

/// A name, by the directory it is in.
pub type NameIn<'n> = (Ino, &'n [u8]);

impl Fs {
    /// Whether anybody watches anything of the pool: what happens is to be told.
    #[inline(always)]
    pub fn is_watched(&self) -> bool {
        self.store.session().is_watched()
    }

    /// Something happened to an inode that is, or was, to be found under a name.
    #[cold]
    #[inline(never)]
    pub fn tell(&self, node: InodeRef, name: Option<NameIn<'_>>, events: Events) {
        let attrs = self.attrs(node).ok();
        let events = match &attrs {
            Some(attrs) if is_directory(attrs) => events | Events::ISDIR,
            _ => events,
        };
        if self.wanting(events).any(|watch| watch.ino != node.ino) {
            self.tell_folder(
                node,
                name,
                attrs.is_none_or(|attrs| attrs.nlink == 0),
                events,
            );
        }
        self.tell_self(node, events);
    }

    /// Tells those who watch the directory, or where the inode is by now.
    fn tell_folder(&self, node: InodeRef, name: Option<NameIn<'_>>, lost: bool, events: Events) {
        match name {
            Some((dir, name)) if self.is_named(node, dir, name) => {
                self.tell_watches(dir, events, 0, name, Events::empty());
            }
            Some((dir, name)) if lost => {
                self.tell_watches(dir, events, 0, name, Events::EXCL_UNLINK);
            }
            _ => self.tell_folders(node, events),
        }
    }

    /// Something happened to a name of a directory.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell_name(&self, dir: InodeRef, name: &[u8], events: Events, cookie: u32) {
        self.tell_watches(dir.ino, events, cookie, name, Events::empty());
    }

    /// Something happened to the watched inode itself.
    #[cold]
    pub(crate) fn tell_self(&self, node: InodeRef, events: Events) {
        for watch in self.wanting(events).filter(|watch| is_of(watch, node)) {
            self.ring(&watch, events, 0, b"");
        }
    }

    /// An inode lost a name; it may be gone with it.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell_removed(&self, dir: InodeRef, name: &[u8], node: InodeRef, events: Events) {
        if !events.contains(Events::ISDIR) {
            self.tell_self(node, Events::ATTRIB);
        }
        self.tell_name(dir, name, Events::DELETE | events, 0);
        self.tell_if_gone(node);
    }

    /// An inode that is gone is watched no more.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell_if_gone(&self, node: InodeRef) {
        if self.attrs(node).is_ok() {
            return;
        }
        let session = self.store.session();
        for watch in session.watches().filter(|watch| is_of(watch, node)) {
            self.ring(&watch, Events::DELETE_SELF, 0, b"");
            session.remove_watch(watch.id);
        }
    }

    fn wanting(&self, events: Events) -> impl Iterator<Item = Watch> + '_ {
        let bits = (events & Events::ALL).bits();
        let watches = self.store.session().watches();
        watches.filter(move |watch| watch.mask & bits != 0)
    }

    fn tell_watches(&self, dir: Ino, events: Events, cookie: u32, name: &[u8], not: Events) {
        let theirs = |watch: &Watch| watch.ino == dir && watch.mask & not.bits() == 0;
        for watch in self.wanting(events).filter(theirs) {
            self.ring(&watch, events, cookie, name);
        }
    }

    /// Looks for the inode in all directories that are watched so.
    fn tell_folders(&self, node: InodeRef, events: Events) {
        let folders = self.wanting(events).filter(|watch| watch.ino != node.ino);
        let mut folders: Vec<(Ino, u32)> =
            folders.map(|watch| (watch.ino, watch.generation)).collect();
        folders.sort_unstable_by_key(|folder| folder.0.0);
        folders.dedup();
        for (ino, generation) in folders {
            let dir = InodeRef { ino, generation };
            if let Some(name) = self.name_in(dir, node) {
                self.tell_watches(ino, events, 0, &name, Events::empty());
            }
        }
    }

    fn name_in(&self, dir: InodeRef, node: InodeRef) -> Option<Vec<u8>> {
        let mut found = None;
        // What cannot be listed is no directory, or gone.
        let _ = self.readdir(dir, PAST_DOTS, &mut |entries| {
            let entry = entries.iter().find(|entry| entry.ino == node.ino);
            found = entry.map(|entry| entry.name.to_vec());
            found.is_none()
        });
        found
    }

    fn is_named(&self, node: InodeRef, dir: Ino, name: &[u8]) -> bool {
        let mut room = EntryKey::room();
        let key = room.of(self.seed, name);
        let dir = dir.object();
        let entry = self.store.read_stable(dir, || Ok(self.entry(dir, key)));
        matches!(entry, Ok(Ok(Some(entry))) if entry.object == node.object())
    }

    fn ring(&self, watch: &Watch, events: Events, cookie: u32, name: &[u8]) {
        let wanted = events.bits() & (watch.mask & Events::ALL.bits() | Events::ISDIR.bits());
        let session = self.store.session();
        session.ring(&nacre_session::Message {
            watch: watch.id,
            events: wanted,
            cookie,
            name,
            linked: false,
        });
        if watch.mask & Events::ONESHOT.bits() != 0 {
            session.remove_watch(watch.id);
        }
    }
}

/// Cookie of the first name that is not `.` or `..`.
const PAST_DOTS: u64 = 2;

fn is_of(watch: &Watch, node: InodeRef) -> bool {
    watch.ino == node.ino && watch.generation == node.generation
}

/// A number for the two halves of a rename, never 0.
pub(crate) fn new_cookie() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id().rotate_left(16);
    own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))
        .max(1)
}

/// A watch that is being made: its shadow is there.
#[derive(Clone, Copy)]
pub struct NewWatch {
    /// Its name.
    pub id: WatchId,
    /// What is watched.
    pub node: InodeRef,
    /// What is wanted.
    pub mask: Events,
}

/// A watcher, and what the kernel knows its watch by.
#[derive(Clone, Copy)]
pub struct Watcher {
    /// The inotify instance, as its process numbers it.
    pub instance: u64,
    /// The process.
    pub pid: u32,
    /// The watch descriptor.
    pub wd: i32,
    /// The inode number of the shadow.
    pub shadow: u64,
}

impl Fs {
    /// Changes what an instance watches of an inode that it watches already, by the rules of
    /// `inotify_add_watch`. Returns its descriptor; `None` if there is no such watch.
    pub fn change_watch(&self, instance: u64, node: InodeRef, mask: Events) -> Result<Option<i32>> {
        let session = self.store.session();
        let mut watches = session.watches();
        let Some(known) = watches.find(|one| one.instance == instance && is_of(one, node)) else {
            return Ok(None);
        };
        if mask.contains(Events::MASK_CREATE) {
            return Err(FsError::Exists);
        }
        let before = match mask.contains(Events::MASK_ADD) {
            true => known.mask,
            false => 0,
        };
        session.change_watch(known.id, before | (mask & Events::KEPT).bits());
        Ok(Some(known.wd))
    }

    /// Makes the shadow of a new watch; its name is that of the folder.
    pub fn begin_watch(&self, node: InodeRef, mask: Events) -> Result<(NewWatch, String)> {
        let session = self.store.session();
        let id = session.new_watch_id();
        // Whatever is lacking: inotify(7) has no other error for it.
        session.make_shadow(id).map_err(|_| FsError::NoSpace)?;
        Ok((NewWatch { id, node, mask }, Session::shadow_name(id)))
    }

    /// From now on the watcher is told.
    pub fn finish_watch(&self, new: &NewWatch, by: &Watcher) -> Result<()> {
        let session = self.store.session();
        let watch = Watch {
            id: new.id,
            ino: new.node.ino,
            generation: new.node.generation,
            mask: (new.mask & Events::KEPT).bits(),
            instance: by.instance,
            wd: by.wd,
            shadow: by.shadow,
            owner: by.pid,
        };
        let added = session.add_watch(&watch);
        added.map_err(|_| {
            session.remove_shadow(new.id);
            FsError::NoSpace
        })?;
        // It may have gone before it was watched.
        self.tell_if_gone(new.node);
        Ok(())
    }

    /// Gives a watch up that the kernel has refused.
    pub fn abandon_watch(&self, new: &NewWatch) {
        self.store.session().remove_shadow(new.id);
    }

    /// The program has removed a watch of an instance.
    pub fn remove_watch(&self, instance: u64, wd: i32) {
        let session = self.store.session();
        let theirs = |one: &Watch| one.instance == instance && one.wd == wd;
        if let Some(watch) = session.watches().find(theirs) {
            session.remove_watch(watch.id);
        }
    }

    /// Puts a message that says nothing into the queue of an instance; false if it has no watch
    /// here that goes on.
    pub fn remind(&self, instance: u64) -> bool {
        let session = self.store.session();
        let goes_on =
            |one: &Watch| one.instance == instance && one.mask & Events::ONESHOT.bits() == 0;
        let watch = session.watches().find(goes_on);
        watch
            .inspect(|watch| self.ring(watch, Events::empty(), 0, b""))
            .is_some()
    }

    /// A process has closed an instance, or ends: what nobody else has open is watched no more.
    pub fn sweep_watches(&self, instance: u64) {
        let session = self.store.session();
        session.sweep_watches(|watch| watch.instance == instance);
    }

    /// As [`Fs::sweep_watches`], of processes that are dead.
    pub fn sweep_watches_of_the_dead(&self) {
        if self.is_watched() {
            self.store.session().sweep_watches_of_the_dead();
        }
    }

    /// The number of the instance behind a descriptor of this process, if it watches anything here.
    pub fn instance_behind(&self, fd: i32) -> Option<u64> {
        self.store.session().instance_behind(fd)
    }

    /// By what messages to watchers are known.
    pub fn message_key(&self) -> MessageKey {
        self.store.session().message_key()
    }

    /// The name that stands in the link of a message.
    pub fn linked_name(&self, watch: WatchId, text: &[u8]) -> Option<Vec<u8>> {
        self.store.session().linked_name(watch, text)
    }
}
