//! Operations of programs, as data.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use nacre_fs::{
    AllocateMode, Cred, FileType, Found, Fs, FsError, Holes, InodeRef, MapAccess, RenameFlags,
    Result, SetTime, WriteAt, XattrFlags,
};
use nacre_store::Store;
use nacre_store::layout::{LANE_LIST_AT, ONODES_PER_BLOCK};
use nacre_types::{FileOffset, ObjectId, StoreKind, Timestamp, UNIT_SIZE, UNITS_PER_BLOCK};

use crate::ground::Ground;
use crate::visible::Visible;

/// Pages of a file that are mapped: all of any.
const MAPPED_PAGES: u64 = 1 << 20;

/// Bits of a checked word that are not its check.
const PAYLOAD: u64 = (1 << 48) - 1;

/// After so many records a log moves; tree nodes move at every other change then, so that short
/// sequences meet it.
pub const LEVELLING: u32 = 512;

/// A path from the root, without a leading slash.
pub type Path = &'static str;

/// One operation. A failing one (a name that is gone, for instance) must change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Creates a file, closes it.
    Create(Path),
    /// Makes a directory.
    Mkdir(Path),
    /// Makes a symbolic link with a target of so many bytes.
    Symlink(Path, usize),
    /// Makes a fifo.
    Mknod(Path),
    /// Removes a name.
    Unlink(Path),
    /// Opens, removes the name, writes, closes.
    UnlinkOpen(Path),
    /// Removes a directory.
    Rmdir(Path),
    /// Adds a name.
    Link(Path, Path),
    /// Makes a file without a name, writes to it, gives it a name.
    Temporary(Path),
    /// Renames; with the kernel's flags.
    Rename(Path, Path, u32),
    /// Writes at an offset so many bytes.
    Write(Path, u64, u64),
    /// Writes at the end.
    Append(Path, u64),
    /// Sets the size.
    Truncate(Path, u64),
    /// Reserves, punches, zeroes.
    Allocate(Path, AllocateMode, u64, u64),
    /// Sets an attribute to so many bytes.
    SetXattr(Path, Path, usize),
    /// Removes an attribute.
    RemoveXattr(Path, Path),
    /// Changes permissions.
    Chmod(Path, u32),
    /// Changes the owner.
    Chown(Path, u32),
    /// Sets the times.
    Utimens(Path),
    /// Shares units: source, its offset, target, its offset, length.
    Clone(Path, u64, Path, u64, u64),
    /// Copies: source, its offset, target, its offset, length.
    Copy(Path, u64, Path, u64, u64),
    /// Clones a folder with all that is in it, or a file.
    CloneTree(Path, Path),
    /// Makes a snapshot of a folder.
    Snapshot(Path, Path),
    /// Removes one.
    DeleteSnapshot(Path, Path),
    /// Makes a folder what it was.
    Restore(Path, Path),
    /// Flushes lazy words.
    Fsync(Path),
    /// Maps a file, stores to the mapping so many bytes from an offset on, syncs, unmaps.
    Store(Path, u64, u64),
    /// Maps a file, does something else with it, unmaps.
    Mapped(Path, &'static Action),
    /// Reserves all units that are free for a file.
    Devour(Path),
    /// Takes all units that are free, as somebody who dies before using them: what is freed next is
    /// taken next.
    Hoard,
    /// Maps a file, and keeps it mapped.
    Map(Path),
    /// Maps a file as on a device with 2 MiB pages, unmaps.
    Chunk(Path),
    /// Changes permissions; the log of who does it moves to another block behind that, and back the
    /// next time.
    MoveLog(Path, u32),
    /// Creates a file after all object numbers so far were used up.
    CreateInNewBlock(Path),
    /// Creates a file in the second metadata block, which nothing is in and which moves for it.
    CreateInMovedBlock(Path),
    /// Sees to it that there is a second metadata block, in which nothing is.
    EmptyBlock,
    /// Gives metadata blocks back that nothing is in.
    GiveBlocksBack,
    /// What is cold moves to the device behind: everything that can.
    MoveCold,
    /// Contents move until all devices have their share.
    Rebalance,
    /// The last process leaves, the next one comes.
    Remount,
}

/// Which bytes of a file may be a mixture after a crash in the middle of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Inode number of the file.
    pub ino: u64,
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// Zeros are allowed besides old and new bytes.
    pub zeros: bool,
}

impl Action {
    /// Does it. `salt` makes what it writes differ from what other operations write.
    pub fn run(&self, ground: Ground<'_>, salt: u64) -> Result<()> {
        let (cred, fs) = (&Cred::root(), ground.fs);
        match *self {
            Action::Create(path) => create(ground, path),
            Action::CreateInNewBlock(path) => {
                use_all_numbers(fs);
                create(ground, path)
            }
            Action::CreateInMovedBlock(path) => create_in_moved_block(ground, path),
            Action::Mkdir(path) => {
                let (dir, name) = parent(ground, path)?;
                fs.mkdir(cred, dir, name, 0o755).map(drop)
            }
            Action::Symlink(path, len) => {
                let (dir, name) = parent(ground, path)?;
                fs.symlink(cred, dir, name, &vec![b't'; len]).map(drop)
            }
            Action::Mknod(path) => {
                let (dir, name) = parent(ground, path)?;
                fs.mknod(cred, dir, name, 0o010_600, 0).map(drop)
            }
            Action::Unlink(path) => {
                let (dir, name) = parent(ground, path)?;
                fs.unlink(cred, dir, name)
            }
            Action::Rmdir(path) => {
                let (dir, name) = parent(ground, path)?;
                fs.rmdir(cred, dir, name)
            }
            Action::Link(from, to) => {
                let (dir, name) = parent(ground, to)?;
                fs.link(cred, find(ground, from)?, dir, name)
            }
            Action::Rename(from, to, flags) => {
                let ((dir, name), (to_dir, to_name)) = (parent(ground, from)?, parent(ground, to)?);
                let flags = RenameFlags::from_bits_truncate(flags);
                fs.rename(cred, dir, name, to_dir, to_name, flags)
            }
            Action::UnlinkOpen(path) => unlink_open(ground, path, salt),
            Action::Temporary(path) => temporary(ground, path, salt),
            // Whoever records it attaches the pool again.
            Action::Remount => Ok(()),
            Action::EmptyBlock => empty_block(ground, ground.root),
            Action::GiveBlocksBack => Ok(fs.store().give_blocks_back()?),
            Action::MoveCold => match fs.store().move_cold(u64::MAX)? {
                0 => Err(FsError::NoSpace),
                _ => Ok(()),
            },
            Action::Rebalance => {
                let done = fs.store().rebalance(&mut |_| ControlFlow::Continue(()))?;
                match done.is_some_and(|done| done.moved > 0) {
                    true => Ok(()),
                    false => Err(FsError::NoSpace),
                }
            }
            Action::Hoard => {
                hoard(fs.store());
                Ok(())
            }
            _ => self.run_on_inode(ground, salt),
        }
    }

    fn run_on_inode(&self, ground: Ground<'_>, salt: u64) -> Result<()> {
        let (cred, fs, node) = (&Cred::root(), ground.fs, find(ground, self.path())?);
        match *self {
            Action::Write(_, at, len) => open(fs, node, || write(fs, node, offset(at), len, salt)),
            Action::Append(_, len) => {
                open(fs, node, || write(fs, node, WriteAt::Append, len, salt))
            }
            Action::Truncate(_, size) => open(fs, node, || fs.set_size(cred, node, size)),
            Action::Allocate(_, mode, at, len) => {
                open(fs, node, || fs.allocate(cred, node, mode, at, len))
            }
            Action::SetXattr(_, name, len) => {
                let value = pattern(salt, len as u64);
                fs.set_xattr(cred, node, name.as_bytes(), &value, XattrFlags::empty())
            }
            Action::RemoveXattr(_, name) => fs.remove_xattr(cred, node, name.as_bytes()),
            Action::Chmod(_, mode) => fs.chmod(cred, node, mode),
            Action::Chown(_, uid) => fs.chown(cred, node, Some(uid), None),
            Action::Utimens(_) => {
                let time = SetTime::At(Timestamp(5));
                fs.utimens(cred, node, time, time)
            }
            Action::Clone(_, at, to, to_at, len) => {
                let to = find(ground, to)?;
                open(fs, to, || {
                    fs.clone_range(cred, (node, at), (to, to_at), len)
                })
            }
            Action::Copy(_, at, to, to_at, len) => {
                let to = find(ground, to)?;
                open(fs, to, || {
                    fs.copy_range(cred, (node, at), (to, to_at), len).map(drop)
                })
            }
            Action::Store(_, at, len) => {
                let store = || store_to_mapping(fs, node, at, len, salt);
                match (salt + len) % 3 {
                    0 => mapped(fs, node, || {
                        store()?;
                        fs.sync_mapped(node, at, len)
                    }),
                    // It stays mapped.
                    1 => {
                        fs.pin(node)?;
                        fs.map_begin(node, MapAccess::Store)?;
                        store()?;
                        fs.fsync(node)
                    }
                    _ => mapped(fs, node, store).and_then(|()| fs.fsync(node)),
                }
            }
            Action::Mapped(_, inner) => mapped(fs, node, || {
                fs.map_pages(node, 0, MAPPED_PAGES, Holes::Fill)?;
                inner.run(ground, salt)
            }),
            Action::MoveLog(_, mode) => move_log(fs, || fs.chmod(cred, node, mode)),
            Action::Map(_) => {
                fs.pin(node)?;
                fs.map_begin(node, MapAccess::Store)?;
                fs.map_pages(node, 0, MAPPED_PAGES, Holes::Fill).map(drop)
            }
            Action::Devour(_) => open(fs, node, || devour(fs, node)),
            Action::Chunk(_) => mapped(fs, node, || {
                let guard = fs.store().lock(ObjectId(node.ino.0))?;
                fs.store().map_chunks_for_sharing(&guard, 0, 1)?;
                Ok(())
            }),
            Action::Fsync(_) => fs.fsync(node),
            _ => self.run_on_tree(ground, node),
        }
    }

    fn run_on_tree(&self, ground: Ground<'_>, node: InodeRef) -> Result<()> {
        let (cred, fs) = (&Cred::root(), ground.fs);
        match *self {
            Action::CloneTree(_, to) => {
                let ((dir, name), file_type) = (parent(ground, to)?, type_of(fs, node)?);
                let found = Found { node, file_type };
                fs.clone_tree(cred, found, dir, name).map(drop)
            }
            Action::Snapshot(_, name) => fs.snapshot(cred, node, name.as_bytes()).map(drop),
            Action::DeleteSnapshot(_, name) => fs.delete_snapshot(cred, node, name.as_bytes()),
            Action::Restore(_, name) => fs.restore_snapshot(cred, node, name.as_bytes()).map(drop),
            _ => Err(FsError::Invalid),
        }
    }

    /// The first path that it names.
    pub const fn path(&self) -> Path {
        match self {
            Action::Remount
            | Action::Hoard
            | Action::MoveCold
            | Action::Rebalance
            | Action::EmptyBlock
            | Action::GiveBlocksBack => "",
            Action::Create(path)
            | Action::CreateInNewBlock(path)
            | Action::CreateInMovedBlock(path)
            | Action::Store(path, ..)
            | Action::Mapped(path, _)
            | Action::Map(path)
            | Action::MoveLog(path, _)
            | Action::Devour(path)
            | Action::Chunk(path)
            | Action::Mkdir(path)
            | Action::Symlink(path, _)
            | Action::Mknod(path)
            | Action::Unlink(path)
            | Action::UnlinkOpen(path)
            | Action::Rmdir(path)
            | Action::Link(path, _)
            | Action::Temporary(path)
            | Action::Rename(path, _, _)
            | Action::Write(path, _, _)
            | Action::Append(path, _)
            | Action::Truncate(path, _)
            | Action::Allocate(path, _, _, _)
            | Action::SetXattr(path, _, _)
            | Action::RemoveXattr(path, _)
            | Action::Chmod(path, _)
            | Action::Chown(path, _)
            | Action::Utimens(path)
            | Action::Clone(path, ..)
            | Action::Copy(path, ..)
            | Action::CloneTree(path, _)
            | Action::Snapshot(path, _)
            | Action::DeleteSnapshot(path, _)
            | Action::Restore(path, _)
            | Action::Fsync(path) => path,
        }
    }

    /// What it may tear when it starts in this state. `atomic` tells that writes are all or
    /// nothing.
    pub fn torn(&self, before: &Visible, atomic: bool) -> Option<Torn> {
        let (path, start, len, zeros) = match *self {
            Action::Write(path, start, len) if !atomic => (path, start, len, false),
            Action::Append(path, len) if !atomic => (path, u64::MAX, len, false),
            Action::Allocate(path, mode, start, len)
                if !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize) =>
            {
                (path, start, len, true)
            }
            Action::Store(path, start, len) => (path, start, len, false),
            Action::Mapped(_, inner) => return inner.torn(before, atomic),
            Action::Clone(_, _, path, start, len) => (path, start, len, true),
            Action::Copy(_, _, path, start, len) => (path, start, len, true),
            _ => return None,
        };
        let seen = before.get(path.as_bytes())?;
        let start = if start == u64::MAX { seen.size } else { start };
        let len = if len == 0 { 1 << 40 } else { len };
        Some(Torn {
            ino: seen.ino,
            start,
            end: start + len,
            zeros,
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Inode behind a path.
pub fn find(ground: Ground<'_>, path: &str) -> Result<InodeRef> {
    let mut node = ground.root;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        node = ground.fs.lookup(&Cred::root(), node, name.as_bytes())?.node;
    }
    Ok(node)
}

fn parent<'p>(ground: Ground<'_>, path: &'p str) -> Result<(InodeRef, &'p [u8])> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((find(ground, dir)?, name.as_bytes()))
}

fn type_of(fs: &Fs, node: InodeRef) -> Result<FileType> {
    let known = fs.getattr(node)?.file_type();
    known.ok_or(FsError::Invalid)
}

fn create(ground: Ground<'_>, path: &str) -> Result<()> {
    let (dir, name) = parent(ground, path)?;
    let made = ground.fs.create(&Cred::root(), dir, name, 0o640)?;
    ground.fs.unpin(made.ino)
}

/// Marks all object numbers so far as used; gives back what was marked before.
fn use_all_numbers(fs: &Fs) -> Vec<u64> {
    let numbers = fs.store().session().object_bits();
    let used = (fs.store().info().metadata_blocks * ONODES_PER_BLOCK / 64) as usize;
    let words = numbers[..used].iter();
    words.map(|word| word.swap(u64::MAX, Relaxed)).collect()
}

/// Sees to it that there is a second metadata block, in which nothing is.
fn empty_block(ground: Ground<'_>, dir: InodeRef) -> Result<()> {
    let store = ground.fs.store();
    if store.info().metadata_blocks < 2 {
        let before = use_all_numbers(ground.fs);
        // Nobody sees a file without a name, whatever a crash leaves of it.
        let made = ground.fs.tmpfile(&Cred::root(), dir, 0o600, true)?;
        for (word, before) in store.session().object_bits().iter().zip(before) {
            word.store(before, Relaxed);
        }
        ground.fs.unpin(made.ino)?;
    }
    Ok(())
}

fn create_in_moved_block(ground: Ground<'_>, path: &str) -> Result<()> {
    let (store, (dir, _)) = (ground.fs.store(), parent(ground, path)?);
    empty_block(ground, dir)?;
    // All its numbers had their turn.
    let shared = store.session().shared();
    shared.object_round.store(1 << 1, Relaxed);
    let len = ONODES_PER_BLOCK / shared.object_hints.len() as u64;
    let ends = (ONODES_PER_BLOCK..).step_by(len as usize).skip(1);
    for (hint, end) in shared.object_hints.iter().zip(ends) {
        hint.store(end, Relaxed);
    }
    create(ground, path)
}

/// Does something while the file is mapped.
fn mapped(fs: &Fs, node: InodeRef, what: impl FnOnce() -> Result<()>) -> Result<()> {
    open(fs, node, || {
        fs.map_begin(node, MapAccess::Store)?;
        let done = what();
        fs.map_end(node.ino, MapAccess::Store)?;
        done
    })
}

/// What a program does that stores to a shared mapping. Nobody flushes before `msync`, `fsync` or
/// the mapping's end.
fn store_to_mapping(fs: &Fs, node: InodeRef, start: u64, len: u64, salt: u64) -> Result<()> {
    let end = start + len;
    let (first, pages) = (
        start / UNIT_SIZE,
        end.div_ceil(UNIT_SIZE) - start / UNIT_SIZE,
    );
    let bytes = pattern(salt, len);
    let volume = fs.store().volume();
    for run in fs.map_pages(node, first, pages, Holes::Fill)?.runs {
        let (from, to) = (run.page * UNIT_SIZE, (run.page + run.count) * UNIT_SIZE);
        for at in (start.max(from)..end.min(to)).step_by(8) {
            let place = run.unit.offset().add(at - from);
            let word = &bytes[(at - start) as usize..][..8];
            let word = word.try_into().map_or(0, u64::from_le_bytes);
            volume.store_u64_lazy(place, word, StoreKind::Data);
        }
    }
    Ok(())
}

fn open(fs: &Fs, node: InodeRef, what: impl FnOnce() -> Result<()>) -> Result<()> {
    fs.pin(node)?;
    let done = what();
    fs.unpin(node.ino)?;
    done
}

const fn offset(at: u64) -> WriteAt {
    WriteAt::Offset(FileOffset(at))
}

/// Unit after unit, as what is free lies in many places.
fn devour(fs: &Fs, node: InodeRef) -> Result<()> {
    let take = |page: u64| {
        let (cred, at) = (&Cred::root(), page * UNIT_SIZE);
        fs.allocate(cred, node, AllocateMode::KeepSize, at, UNIT_SIZE)
    };
    let mut pages = 0..;
    while pages.next().is_some_and(|page| take(page).is_ok()) {}
    Ok(())
}

/// Does something that writes a record, behind which its log moves. The next one moves to where
/// this one was.
fn move_log(fs: &Fs, what: impl FnOnce() -> Result<()>) -> Result<()> {
    let store = fs.store();
    let word = |index: u64| store.volume().load_u64(LANE_LIST_AT.add(8 * index));
    let words = || (0..store.info().lanes as u64).map(word);
    let before: Vec<u64> = words().collect();
    store.set_levelling(1);
    let done = what();
    store.set_levelling(LEVELLING);
    let mut moved = before.iter().zip(words()).filter(|(old, new)| *old != new);
    if let Some((old, _)) = moved.next() {
        let (unit, hint) = (old & PAYLOAD, &store.session().shared().unit_hints.block);
        hint.store(unit / UNITS_PER_BLOCK + 1, Relaxed);
    }
    done
}

pub(crate) fn hoard(store: &Store) {
    let session = store.session();
    session.shared().free_units.store(0, Relaxed);
    let front = store.volume().front_units() as usize / 64;
    let bits = session.unit_bits()[..front].iter();
    bits.for_each(|word| word.store(u64::MAX, Relaxed));
}

fn write(fs: &Fs, node: InodeRef, at: WriteAt, len: u64, salt: u64) -> Result<()> {
    let bytes = pattern(salt, len);
    // As a program's write: at once where that is possible.
    let at_once = match at {
        WriteAt::Offset(offset) => fs.try_overwrite_fast(node, offset, bytes[..].into()),
        WriteAt::Append => None,
    };
    let written = match at_once {
        Some(len) => len?,
        None => fs.write(&Cred::root(), node, at, bytes[..].into())?.len,
    };
    match written == bytes.len() {
        true => Ok(()),
        false => Err(FsError::NoSpace),
    }
}

fn unlink_open(ground: Ground<'_>, path: &str, salt: u64) -> Result<()> {
    let (node, (dir, name)) = (find(ground, path)?, parent(ground, path)?);
    let fs = ground.fs;
    open(fs, node, || {
        fs.unlink(&Cred::root(), dir, name)?;
        write(fs, node, WriteAt::Append, 5000, salt)
    })
}

fn temporary(ground: Ground<'_>, path: &str, salt: u64) -> Result<()> {
    let (cred, (dir, name)) = (&Cred::root(), parent(ground, path)?);
    let fs = ground.fs;
    let node = fs.tmpfile(cred, dir, 0o600, true)?;
    let done =
        write(fs, node, WriteAt::Append, 5000, salt).and_then(|()| fs.link(cred, node, dir, name));
    fs.unpin(node.ino)?;
    done
}

/// Bytes that tell the operation that wrote them; never 0 and never 0xEE, which free units are full
/// of.
pub fn pattern(salt: u64, len: u64) -> Vec<u8> {
    let byte = |at: u64| 1 + ((salt * 41 + at / 8 * 7 + at / 4096) % 200) as u8;
    (0..len).map(byte).collect()
}
