//! Renaming and exchanging.

use crate::Fs;
use crate::create::{LINK_MAX, touch_directory};
use crate::error::{FsError, Result};
use crate::inode::{FileType, Found, InodeRef, ROOT, is_directory};
use crate::live::{LiveEntry, check_linked};
use crate::lookup::Climb;
use crate::name::{check_name, is_dot_or_dot_dot};
use crate::permission::{Access, Cred};
use crate::remove::{check_empty, take_entry};
use crate::watch::{Events, new_cookie};
use bitflags::bitflags;
use nacre_store::layout::{EntryKey, FLAG_SNAPSHOTS};
use nacre_store::{Attrs, ObjectGuard, OwnedGuard, Tree, Tx};
use nacre_types::{ObjectId, Timestamp};

bitflags! {
    /// The kernel's `RENAME_*` flags that Nacre knows.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RenameFlags: u32 {
        /// Fail with `Exists` rather than replace.
        const NOREPLACE = 1;
        /// Swap the two names.
        const EXCHANGE = 2;
        /// Leave a whiteout at the old name: overlay file systems take it for a name that is gone.
        const WHITEOUT = 4;
    }
}

impl RenameFlags {
    /// The flags of a call. Returns `None` if there are unknown ones, or some that exclude others.
    pub fn of_call(bits: u32) -> Option<RenameFlags> {
        RenameFlags::from_bits(bits).filter(|flags| flags.agree())
    }

    fn agree(self) -> bool {
        !self.contains(RenameFlags::EXCHANGE) || self == RenameFlags::EXCHANGE
    }
}

/// A name in a directory, and what a lookup has just told that it stands for.
#[derive(Clone, Copy)]
pub struct NamePlace<'n> {
    /// The directory.
    pub dir: InodeRef,
    /// The name.
    pub name: &'n [u8],
    /// What was found.
    pub found: Option<Found>,
}

/// One end of a rename.
struct End<'n> {
    dir: InodeRef,
    name: &'n [u8],
    key: &'n EntryKey,
}

/// What the two names stand for.
type Ends = (Found, Option<Found>);

/// A rename whose four inodes are locked, with their attributes.
struct Locked<'a> {
    source: InodeRef,
    source_attrs: &'a Attrs,
    target: Option<(InodeRef, &'a Attrs)>,
    from_attrs: &'a Attrs,
    to_attrs: &'a Attrs,
}

impl Locked<'_> {
    fn moves_directory(&self) -> bool {
        is_directory(self.source_attrs)
    }

    fn target_is_directory(&self) -> bool {
        self.target
            .as_ref()
            .is_some_and(|(_, attrs)| is_directory(attrs))
    }
}

impl Fs {
    /// Moves a name, over an existing one if there is one, or swaps two names.
    pub fn rename(
        &self,
        cred: &Cred,
        from_dir: InodeRef,
        from_name: &[u8],
        to_dir: InodeRef,
        to_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let place = |dir, name| NamePlace {
            dir,
            name,
            found: None,
        };
        self.rename_found(
            cred,
            place(from_dir, from_name),
            place(to_dir, to_name),
            flags,
        )
    }

    /// As [`Fs::rename`], for a caller whom lookups with the same credentials have just told what
    /// the names stand for. The new name may have been looked up by [`Fs::recall`].
    pub fn rename_found(
        &self,
        cred: &Cred,
        from: NamePlace<'_>,
        to: NamePlace<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        if !flags.agree() {
            return Err(FsError::Invalid);
        }
        if is_dot_or_dot_dot(from.name) {
            return Err(FsError::Busy);
        }
        if is_dot_or_dot_dot(to.name) {
            let taken = flags.contains(RenameFlags::NOREPLACE);
            return Err(if taken {
                FsError::Exists
            } else {
                FsError::Busy
            });
        }
        check_name(from.name)?;
        check_name(to.name)?;
        let known = from.found.map(|source| (source, to.found));
        let mut rooms = [EntryKey::room(), EntryKey::room()];
        let [from_room, to_room] = &mut rooms;
        let from = End {
            dir: from.dir,
            name: from.name,
            key: from_room.of(self.seed, from.name),
        };
        let to = End {
            dir: to.dir,
            name: to.name,
            key: to_room.of(self.seed, to.name),
        };
        // A target that nobody remembers is presumed to be vacant. That must not decide what error
        // there is.
        let mut done = false;
        if !flags.contains(RenameFlags::EXCHANGE) {
            done = match known
                .map_or_else(|| self.presume_ends(cred, &from, &to), Ok)
                .and_then(|ends| self.try_rename(cred, &from, &to, flags, ends, true))
            {
                Err(FsError::Io) => return Err(FsError::Io),
                presumed => presumed.is_ok_and(|done| done),
            };
        }
        while !done {
            let ends = self.find_ends(cred, &from, &to)?;
            done = self.try_rename(cred, &from, &to, flags, ends, false)?;
        }
        Ok(())
    }

    fn presume_ends(&self, cred: &Cred, from: &End<'_>, to: &End<'_>) -> Result<Ends> {
        let source = self.find(cred, from.dir, from.name)?;
        let target = self.recall(cred, to.dir, to.name)?;
        Ok((source.ok_or(FsError::NotFound)?, target))
    }

    fn find_ends(&self, cred: &Cred, from: &End<'_>, to: &End<'_>) -> Result<Ends> {
        let source = self.find(cred, from.dir, from.name)?;
        let source = source.ok_or(FsError::NotFound)?;
        let target = match self.find(cred, to.dir, to.name) {
            Err(FsError::NotFound) => None,
            found => found?,
        };
        Ok((source, target))
    }

    /// False: the names changed before they were locked. An error of who presumes may only say that
    /// the target is not vacant.
    fn try_rename(
        &self,
        cred: &Cred,
        from: &End<'_>,
        to: &End<'_>,
        flags: RenameFlags,
        (source, target): Ends,
        presume: bool,
    ) -> Result<bool> {
        check_target(target.as_ref(), flags)?;
        let _moving = self.lock_tree_shape(from, to, &source, target.as_ref(), flags)?;
        let mut objects = [from.dir.object(); 4];
        objects[1] = to.dir.object();
        objects[2] = source.node.object();
        objects[3] = target.map_or(objects[2], |target| target.node.object());
        let guards = self.store.lock_many(&objects)?;
        let same = || -> Result<bool> {
            Ok(self.still_found(from.dir, from.name, Some(source))?
                && self.still_found(to.dir, to.name, target)?)
        };
        // A name that goes and one that comes are looked at when they do.
        if target.is_some() && !same()? {
            return Ok(false);
        }
        match self.rename_locked(cred, from, to, flags, (source, target), &guards) {
            // It may have been done.
            Err(FsError::Io) => return Err(FsError::Io),
            Err(error) if presume || same()? => return Err(error),
            Err(_) => return Ok(false),
            Ok(()) => {}
        }
        if self.is_watched() {
            self.tell_renamed(from, to, (source, target), flags);
        }
        Ok(true)
    }

    #[cold]
    #[inline(never)]
    fn tell_renamed(
        &self,
        from: &End<'_>,
        to: &End<'_>,
        (source, target): Ends,
        flags: RenameFlags,
    ) {
        match target {
            // Two names of one inode stay as they are.
            Some(target) if target.node == source.node => {}
            Some(target) if flags.contains(RenameFlags::EXCHANGE) => {
                self.tell_moved(from, to, source);
                self.tell_moved(to, from, target);
            }
            Some(target) => {
                self.tell_moved(from, to, source);
                self.tell_self(target.node, Events::ATTRIB);
                self.tell_if_gone(target.node);
            }
            None => self.tell_moved(from, to, source),
        }
    }

    fn tell_moved(&self, from: &End<'_>, to: &End<'_>, moved: Found) {
        let kind = Events::kind(moved.file_type == FileType::Directory);
        let cookie = new_cookie();
        self.tell_name(from.dir, from.name, Events::MOVED_FROM | kind, cookie);
        self.tell_name(to.dir, to.name, Events::MOVED_TO | kind, cookie);
        self.tell_self(moved.node, Events::MOVE_SELF);
    }

    /// Under the locks of all that takes part. Fails if a name that goes, or one that comes, is not
    /// what it was.
    fn rename_locked(
        &self,
        cred: &Cred,
        from: &End<'_>,
        to: &End<'_>,
        flags: RenameFlags,
        (source, target): Ends,
        guards: &[ObjectGuard<'_>],
    ) -> Result<()> {
        if target.is_some_and(|target| target.node == source.node) {
            return Ok(());
        }
        let target = match target {
            Some(target) => Some((target.node, self.attrs_held(target.node)?)),
            None => None,
        };
        let from_attrs = self.attrs_held(from.dir)?;
        let to_attrs = match from.dir == to.dir {
            true => None,
            false => Some(self.attrs_held(to.dir)?),
        };
        let locked = Locked {
            source: source.node,
            source_attrs: &self.attrs_held(source.node)?,
            target: target.as_ref().map(|(node, attrs)| (*node, attrs)),
            from_attrs: &from_attrs,
            to_attrs: to_attrs.as_ref().unwrap_or(&from_attrs),
        };
        self.check_rename(cred, from, to, &locked, flags)?;
        let _unseen = locked.target.and_then(|(node, _)| {
            let guard = guards.iter().find(|guard| guard.id() == node.object())?;
            Some(guard.begin_change())
        });
        self.commit_rename(cred, from, to, &locked, flags)?;
        self.remember(to.dir, to.name, locked.to_attrs, source)
    }

    /// Keeps the shape of the directory tree while a directory moves to another parent, and
    /// refuses to make a loop.
    fn lock_tree_shape(
        &self,
        from: &End<'_>,
        to: &End<'_>,
        source: &Found,
        target: Option<&Found>,
        flags: RenameFlags,
    ) -> Result<Option<OwnedGuard<'_>>> {
        let is_directory = |found: &Found| found.file_type == FileType::Directory;
        let directories = is_directory(source) || target.is_some_and(is_directory);
        if from.dir == to.dir || !directories {
            return Ok(None);
        }
        let guard = self.store.lock_rename()?;
        if self.is_below(to.dir, source.node)? {
            return Err(FsError::Invalid);
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if let Some(target) = target
            && self.is_below(from.dir, target.node)?
        {
            return Err(if exchange {
                FsError::Invalid
            } else {
                FsError::NotEmpty
            });
        }
        Ok(Some(guard))
    }

    /// Whether `dir` is `ancestor` or lies below it. The rename lock is held.
    fn is_below(&self, dir: InodeRef, ancestor: InodeRef) -> Result<bool> {
        let mut here = dir.object();
        let mut climb = Climb::default();
        loop {
            if here == ancestor.object() {
                return Ok(true);
            }
            if here == ROOT {
                return Ok(false);
            }
            climb.pass(here)?;
            let attrs = self.store.attrs(here)?;
            check_linked(&attrs)?;
            here = ObjectId(attrs.parent);
        }
    }

    fn check_rename(
        &self,
        cred: &Cred,
        from: &End<'_>,
        to: &End<'_>,
        locked: &Locked<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let moves_directory = locked.moves_directory();
        self.check_writable()?;
        let (from_dir, to_dir) = ((from.dir, locked.from_attrs), (to.dir, locked.to_attrs));
        self.check_search(cred, to.dir, locked.to_attrs)?;
        check_linked(locked.to_attrs)?;
        self.check_removable(cred, from_dir, locked.source_attrs, moves_directory)?;
        match &locked.target {
            None => self.check_directory_write(cred, to.dir.object(), locked.to_attrs)?,
            Some((_, attrs)) if exchange => {
                self.check_removable(cred, to_dir, attrs, is_directory(attrs))?;
            }
            Some((_, attrs)) => self.check_removable(cred, to_dir, attrs, moves_directory)?,
        }
        if moves_directory {
            check_movable(locked.source_attrs)?;
        }
        if from.dir != to.dir {
            self.check_new_parent(cred, locked, exchange)?;
        }
        match &locked.target {
            Some((_, attrs)) if exchange => check_movable(attrs),
            Some((_, attrs)) if is_directory(attrs) => check_empty(attrs),
            _ => Ok(()),
        }
    }

    fn commit_rename(
        &self,
        cred: &Cred,
        from: &End<'_>,
        to: &End<'_>,
        locked: &Locked<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let now = self.store.now();
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let mut tx = self.store.begin()?;
        let is_new = put_entry(&mut tx, to, locked.source, locked.source_attrs, now)?;
        if is_new == locked.target.is_some() {
            let what = "a name comes and goes";
            return Err(FsError::corrupt(to.dir.object(), what));
        }
        match &locked.target {
            Some((node, attrs)) if exchange => {
                put_entry(&mut tx, from, *node, attrs, now)?;
            }
            _ => take_entry(&mut tx, from.dir, from.key, locked.source.object())?,
        }
        if flags.contains(RenameFlags::WHITEOUT) {
            self.enter_whiteout(&mut tx, cred, (from.dir, locked.from_attrs), from.key)?;
        }
        if let (Some((node, attrs)), false) = (&locked.target, exchange) {
            self.drop_link(&mut tx, node.object(), attrs, now)?;
        }
        let arrives = u32::from(locked.moves_directory());
        let leaves = u32::from(locked.target_is_directory());
        let returns = if exchange { leaves } else { 0 };
        touch_directory(&mut tx, from.dir, now)?;
        if from.dir == to.dir {
            move_links(&mut tx, to.dir, arrives + returns, arrives + leaves)?;
        } else {
            move_links(&mut tx, from.dir, returns, arrives)?;
            move_links(&mut tx, to.dir, arrives, leaves)?;
            touch_directory(&mut tx, to.dir, now)?;
        }
        Ok(tx.commit()?)
    }
}

/// Adds to a directory's count of links what comes and takes away what goes.
fn move_links(tx: &mut Tx<'_>, dir: InodeRef, come: u32, go: u32) -> Result<()> {
    if come == go {
        return Ok(());
    }
    Ok(tx.set_attrs(dir.object(), |attrs| {
        attrs.nlink = (attrs.nlink + come).saturating_sub(go);
    })?)
}

/// Snapshots are found by the name of their folder.
fn check_movable(attrs: &Attrs) -> Result<()> {
    match attrs.flags & FLAG_SNAPSHOTS {
        0 => Ok(()),
        _ => Err(FsError::Busy),
    }
}

fn check_target(target: Option<&Found>, flags: RenameFlags) -> Result<()> {
    match target {
        Some(_) if flags.contains(RenameFlags::NOREPLACE) => Err(FsError::Exists),
        None if flags.contains(RenameFlags::EXCHANGE) => Err(FsError::NotFound),
        _ => Ok(()),
    }
}

impl Fs {
    /// A directory that changes its parent changes its `..`, which takes write permission.
    fn check_new_parent(&self, cred: &Cred, locked: &Locked<'_>, exchange: bool) -> Result<()> {
        if locked.moves_directory() {
            let source = locked.source.object();
            self.check_access(cred, source, locked.source_attrs, Access::WRITE)?;
            check_room(locked.to_attrs, locked.target_is_directory())?;
        }
        match &locked.target {
            Some((node, attrs)) if exchange && is_directory(attrs) => {
                self.check_access(cred, node.object(), attrs, Access::WRITE)?;
                check_room(locked.from_attrs, locked.moves_directory())
            }
            _ => Ok(()),
        }
    }
}

fn check_room(dir: &Attrs, one_leaves: bool) -> Result<()> {
    if dir.nlink >= LINK_MAX && !one_leaves {
        return Err(FsError::TooManyLinks);
    }
    Ok(())
}

/// Enters an inode at one end, over whatever is there; whether nothing was.
fn put_entry(
    tx: &mut Tx<'_>,
    end: &End<'_>,
    node: InodeRef,
    attrs: &Attrs,
    now: Timestamp,
) -> Result<bool> {
    let entry = LiveEntry::of(node.object(), attrs.mode)?;
    let is_new = tx.tree_insert(
        end.dir.object(),
        Tree::Entries,
        end.key.as_bytes(),
        &entry.encode(),
    )?;
    if is_directory(attrs) {
        tx.set_attrs(node.object(), |attrs| {
            attrs.parent = end.dir.object().0;
            attrs.parent_key = end.key.hash();
        })?;
    }
    tx.touch_times(node.object(), None, now.0)?;
    Ok(is_new)
}
