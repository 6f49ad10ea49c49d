//! Telling a watcher: a name comes and goes in the shadow of its watch.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, fchmod, mkdirat, mknodat, openat, readlinkat, symlinkat,
    unlinkat,
};
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

    /// Where a descriptor of the folder of nodes is put by who keeps it open, also after the
    /// process has given up its rights: by it shadows are reached then.
    pub fn way_to_nodes(&self) -> Arc<AtomicI32> {
        Arc::clone(&self.nodes)
    }

    /// The folder of nodes, for a call in it. The pool's other users may make names there: none is
    /// followed if it is a link.
    fn in_nodes<T>(&self, make: bool, act: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        let place = self.place()?;
        let name = place.beside(NODES);
        match self.nodes.load(Ordering::Relaxed) {
            // SAFETY: who gave it keeps it open.
            nodes @ 0.. => Some(act(unsafe { BorrowedFd::borrow_raw(nodes) })),
            _ if make => Some(act(place.folder().shared_folder(&name).ok()?.fd())),
            _ => Some(act(place.folder().found_shared_folder(&name).ok()??.fd())),
        }
    }

    /// The shadow of a watch, for a call in it.
    fn in_shadow<T>(&self, id: WatchId, act: impl FnOnce(OwnedFd) -> T) -> Option<T> {
        let opened = self.in_nodes(false, |nodes| open_shadow(nodes, id))?;
        opened.ok().map(act)
    }

    /// Makes the shadow of a watch. Anybody who may use the session makes names in it.
    pub fn make_shadow(&self, id: WatchId) -> Result<(), Errno> {
        let made = self.in_nodes(true, |nodes| {
            mkdirat(nodes, Session::shadow_name(id), Mode::from_raw_mode(0o777))?;
            let shadow = open_shadow(nodes, id)?;
            // One that somebody put into its place may be another folder of ours.
            if names_in(&shadow).next().is_some() {
                return Err(Errno::EXIST);
            }
            // Whatever the program's mask is.
            fchmod(&shadow, Mode::from_raw_mode(0o777))
        });
        made.unwrap_or(Err(Errno::OPNOTSUPP))
    }

    /// Removes the shadow of a watch; what is left in it first.
    pub fn remove_shadow(&self, id: WatchId) {
        self.in_nodes(false, |nodes| {
            let remove = || unlinkat(nodes, Session::shadow_name(id), AtFlags::REMOVEDIR);
            if remove() == Err(Errno::NOTEMPTY)
                && let Ok(shadow) = open_shadow(nodes, id)
            {
                for name in names_in(&shadow) {
                    let _ = unlinkat(&shadow, &name, AtFlags::empty());
                }
                // Another user's stays until the session ends.
                let _ = remove();
            }
        });
    }

    /// Tells the watcher. Nobody could be told of a failure: the change itself is done.
    pub fn ring(&self, message: &Message<'_>) {
        let (text, target) = message.encode(self.message_key());
        self.in_shadow(message.watch, |shadow| match target {
            None => flash(&shadow, &text),
            // One that is there says the same and was not read yet.
            Some(target) => drop(symlinkat(target, &shadow, &text[..])),
        });
    }

    /// The name that a message with a link stands for.
    pub fn linked_name(&self, watch: WatchId, text: &[u8]) -> Option<Vec<u8>> {
        self.in_shadow(watch, |shadow| {
            let name = readlinkat(&shadow, text, Vec::new()).ok()?;
            // Left behind, it goes with its folder.
            let _ = unlinkat(&shadow, text, AtFlags::empty());
            Some(name.into_bytes())
        })?
    }
}

/// Its user may have put anything under the name since it was made.
fn open_shadow(nodes: BorrowedFd<'_>, id: WatchId) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(nodes, Session::shadow_name(id), flags, Mode::empty())
}

/// Makes a name and removes it. It is made by this very call: a name that another process has just
/// made may have been read before what is to be told was done.
fn flash(shadow: &OwnedFd, name: &[u8]) {
    for _ in 0..TRIES {
        let made = mknodat(shadow, name, FileType::RegularFile, Mode::RUSR, 0);
        // Whoever is quicker removes it.
        let _ = unlinkat(shadow, name, AtFlags::empty());
        if made != Err(Errno::EXIST) {
            return;
        }
    }
}

fn names_in(folder: &OwnedFd) -> impl Iterator<Item = CString> {
    let entries = Dir::read_from(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_owned());
    names.filter(|name| ![c".", c".."].contains(&name.as_c_str()))
}
