//! Lets the crash explorer see how labels and disks are written.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_media::{Media, Observer};

type Watched = (Arc<dyn Observer>, Vec<PathBuf>);

thread_local! {
    static WATCHED: RefCell<Option<Watched>> = const { RefCell::new(None) };
}

/// Reports every later store of this thread to a label on one of these devices, which get the
/// numbers 0, 1 and so on.
pub fn set(watched: Option<Watched>) {
    WATCHED.set(watched);
}

/// What was done to a disk.
#[derive(Clone, Debug)]
pub enum DiskEvent {
    /// Bytes that are durable after the next sync.
    Write(u64, Vec<u8>),
    /// Bytes that are durable.
    Through(u64, Vec<u8>),
    /// All writes before are durable.
    Sync,
    /// A note of the explorer's own.
    Mark(DiskMark),
}

/// How far the explorer has got, by the number of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskMark {
    /// The operation begins.
    Begun(usize),
    /// It has returned.
    Done(usize),
    /// All up to it is being committed.
    Committing(usize),
    /// All up to it is durable.
    Durable(usize),
}

thread_local! {
    static DISK: RefCell<Option<Vec<DiskEvent>>> = const { RefCell::new(None) };
}

/// Records from now on what this thread does to disks; answers what was recorded so far.
pub fn record_disk(on: bool) -> Vec<DiskEvent> {
    DISK.replace(on.then(Vec::new)).unwrap_or_default()
}

/// Records one event.
pub fn disk(event: impl FnOnce() -> DiskEvent) {
    DISK.with_borrow_mut(|events| {
        if let Some(events) = events {
            events.push(event());
        }
    });
}

pub(crate) fn watch(path: &Path, window: &Media) {
    WATCHED.with_borrow(|watched| {
        let Some((observer, paths)) = watched else {
            return;
        };
        if let Some(number) = paths.iter().position(|known| known == path) {
            window.set_observer(number as u16, Arc::clone(observer));
        }
    });
}
