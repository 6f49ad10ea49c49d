//! Lets the crash explorer see how labels and disks are written.

use std::cell::{Cell, RefCell};
use std::ops::Range;
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
    /// All writes before are durable in these ranges.
    Settle(Vec<Range<u64>>),
    /// Of the writes before any may be durable, and no later sync changes that.
    SyncFailed,
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
    static BY_CALLS: RefCell<bool> = const { RefCell::new(false) };
}

/// From now on this thread opens disks as such even where they are memory.
pub fn write_by_calls(on: bool) {
    BY_CALLS.set(on);
}

pub(crate) fn writes_by_calls() -> bool {
    BY_CALLS.with_borrow(|on| *on)
}

thread_local! {
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

/// Whether syncs of this thread fail from now on, those of a part of a disk too.
pub fn fail_syncs(on: bool) {
    FAILS.set(on);
}

pub(crate) fn sync_fails() -> bool {
    FAILS.get()
}

thread_local! {
    static FAILED: Cell<Option<usize>> = const { Cell::new(None) };
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// From now on a disk of several fails all that this thread asks of it, after so many calls.
pub fn fail_disk(failing: Option<usize>, after: u64) {
    FAILED.set(failing);
    LEFT.set(after);
}

pub(crate) fn disk_fails(number: usize) -> bool {
    if FAILED.get() != Some(number) {
        return false;
    }
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    left == 0
}

/// What was done to which disk.
pub type OnDisk = (usize, DiskEvent);

thread_local! {
    static DISK: RefCell<Option<Vec<OnDisk>>> = const { RefCell::new(None) };
}

/// Records from now on what this thread does to disks; answers what was recorded so far.
pub fn record_disk(on: bool) -> Vec<OnDisk> {
    DISK.replace(on.then(Vec::new)).unwrap_or_default()
}

/// Records one event, on the disk with that number.
pub fn disk(number: usize, event: impl FnOnce() -> DiskEvent) {
    DISK.with_borrow_mut(|events| {
        if let Some(events) = events {
            events.push((number, event()));
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
