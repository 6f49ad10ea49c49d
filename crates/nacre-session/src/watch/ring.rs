//! Telling a watcher: a name comes and goes in the shadow of its watch.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FileType, Mode, mkdirat, mknodat, readlinkat, symlinkat, unlinkat};
use rustix::io::Errno;

use crate::watch::message::{Message, MessageKey};
use crate::watch::table::WatchId;
use crate::{NODES, Session};

/// How often a name is made again that another process makes at the same time.
const TRIES: usize = 100;

impl Session {
    /// By what messages of this session are known.
    pub fn message_key(&self) -> MessageKey {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let [one, other] = self.mark();
        // The words themselves stay secret: by them placeholders are known.
        MessageKey(
            (one ^ ODD)
                .wrapping_mul(other | 1)
                .rotate_left(31)
                .wrapping_mul(ODD),
        )
    }

    /// The name of a shadow in the folder of nodes.
    pub fn shadow_name(id: WatchId) -> String {
        format!("watch-{id:x}")
    }

    /// Shadows are reached through this descriptor of the folder of nodes, which the caller keeps
    /// open, also after the process has given up its rights.
    pub fn reach_shadows_by(&self, nodes: i32) {
        self.nodes.store(nodes, Ordering::Relaxed);
    }

    /// Where shadows are: a folder, and what stands before their names.
    fn shadows(&self) -> Option<(BorrowedFd<'_>, String)> {
        let place = self.place()?;
        match self.nodes.load(Ordering::Relaxed) {
            // SAFETY: who gave it keeps it open.
            nodes @ 0.. => Some((unsafe { BorrowedFd::borrow_raw(nodes) }, String::new())),
            _ => Some((place.folder().fd(), format!("{}/", place.beside(NODES)))),
        }
    }

    /// Makes the shadow of a watch. Anybody who may use the session makes names in it.
    pub fn make_shadow(&self, id: WatchId) -> Result<(), Errno> {
        let (folder, before) = self.shadows().ok_or(Errno::OPNOTSUPP)?;
        let name = before + &Session::shadow_name(id);
        mkdirat(folder, &name, Mode::from_raw_mode(0o777))?;
        // Whatever the program's mask is.
        rustix::fs::chmodat(folder, &name, Mode::from_raw_mode(0o777), AtFlags::empty())
    }

    /// Removes the shadow of a watch; what is left in it first.
    pub fn remove_shadow(&self, id: WatchId) {
        let Some((folder, before)) = self.shadows() else {
            return;
        };
        let name = before + &Session::shadow_name(id);
        let removed = unlinkat(folder, &name, AtFlags::REMOVEDIR);
        if removed == Err(Errno::NOTEMPTY) {
            clear(folder, &name);
            // Another user's stays until the session ends.
            let _ = unlinkat(folder, &name, AtFlags::REMOVEDIR);
        }
    }

    /// Tells the watcher. Nobody could be told of a failure: the change itself is done.
    pub fn ring(&self, message: &Message<'_>) {
        let Some((folder, before)) = self.shadows() else {
            return;
        };
        let (text, target) = message.encode(self.message_key());
        let mut path = before.into_bytes();
        path.extend(Session::shadow_name(message.watch).into_bytes());
        path.push(b'/');
        path.extend(text);
        match target {
            None => flash(folder, &path),
            // One that is there says the same and was not read yet.
            Some(target) => drop(symlinkat(target, folder, &path)),
        }
    }

    /// The name that a message with a link stands for.
    pub fn linked_name(&self, watch: WatchId, text: &[u8]) -> Option<Vec<u8>> {
        let (folder, before) = self.shadows()?;
        let mut path = before.into_bytes();
        path.extend(Session::shadow_name(watch).into_bytes());
        path.push(b'/');
        path.extend(text);
        let name = readlinkat(folder, &path[..], Vec::new()).ok()?;
        // Left behind, it goes with its folder.
        let _ = unlinkat(folder, &path[..], AtFlags::empty());
        Some(name.into_bytes())
    }
}

/// Makes a name and removes it. It is made by this very call: a name that another process has just
/// made may have been read before what is to be told was done.
fn flash(folder: BorrowedFd<'_>, path: &[u8]) {
    for _ in 0..TRIES {
        let made = mknodat(folder, path, FileType::RegularFile, Mode::RUSR, 0);
        // Whoever is quicker removes it.
        let _ = unlinkat(folder, path, AtFlags::empty());
        if made != Err(Errno::EXIST) {
            return;
        }
    }
}

fn clear(folder: BorrowedFd<'_>, name: &str) {
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::openat(folder, name, flags, Mode::empty()) else {
        return;
    };
    let Ok(entries) = rustix::fs::Dir::read_from(&fd) else {
        return;
    };
    for entry in entries.flatten() {
        let _ = unlinkat(&fd, entry.file_name(), AtFlags::empty());
    }
}
