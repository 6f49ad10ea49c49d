//! Shared mappings: which units stand behind which pages.

use super::check_regular;
use crate::Fs;
use crate::error::Result;
use crate::inode::InodeRef;
use nacre_session::{OFD_MAPPED, OFD_STORED, Ofd, STORING};
use nacre_store::{Holes, MappedRun, ShownPage, StoreError};
use nacre_types::{DeviceOffset, Ino, UNIT_SIZE, UnitNo, VolumeOffset};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// `count` pages of a file from `page` on lie in as many units from `unit` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRun {
    /// First page, in units of 4 KiB from the start of the file.
    pub page: u64,
    /// First unit.
    pub unit: UnitNo,
    /// Pages.
    pub count: u64,
}

/// A range of pages of a mapped file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedPages {
    /// Where they are.
    pub runs: Vec<MapRun>,
    /// The page behind the last one of the range that lies before the end of the file.
    pub end: u64,
}

/// A range of pages of a file that is mapped privately.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrivatePages {
    /// Where the pages are that can be mapped.
    pub runs: Vec<MapRun>,
    /// First page and count of those whose bytes are to be copied. All others are holes.
    pub copies: Vec<(u64, u64)>,
    /// The page behind the last one of the range that lies before the end of the file.
    pub end: u64,
}

fn map_run(run: &MappedRun) -> MapRun {
    MapRun {
        page: run.page,
        unit: run.unit,
        count: run.count,
    }
}

/// What programs do through a shared mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapAccess {
    /// They only read.
    Load,
    /// They may store.
    Store,
}

impl MapAccess {
    fn count(self) -> u32 {
        match self {
            MapAccess::Load => 1,
            MapAccess::Store => 1 + STORING,
        }
    }
}

impl Fs {
    /// The kernel fd and device offset of some of the `len` bytes of units at `at`, and how many
    /// lie contiguously there. `None` for memory without a device.
    pub fn locate(
        &self,
        at: VolumeOffset,
        len: u64,
    ) -> Option<(BorrowedFd<'_>, DeviceOffset, u64)> {
        self.store.volume().locate(at, len)
    }

    /// As [`Fs::locate`], for a window: the bytes come when that begins.
    pub fn place_of(
        &self,
        at: VolumeOffset,
        len: u64,
    ) -> Option<(BorrowedFd<'_>, DeviceOffset, u64)> {
        self.store.volume().place_of(at, len)
    }

    /// As [`nacre_volume::Volume::maps_by_windows`].
    pub fn maps_by_windows(&self, len: u64) -> bool {
        self.store.volume().maps_by_windows(len)
    }

    /// As [`nacre_volume::Volume::may_stay`].
    pub fn may_stay(&self, len: u64) -> bool {
        self.store.volume().may_stay(len)
    }

    /// How many bytes of windows this process should have at most.
    pub fn window_share(&self) -> u64 {
        self.store.volume().window_share()
    }

    /// A range of the device is about to be mapped by this process, which may then `store` there.
    /// `false`: for good.
    pub fn begin_window(&self, range: Range<u64>, store: bool) -> Result<bool> {
        let begun = self.store.volume().begin_window(range, store);
        Ok(begun.map_err(StoreError::from)?)
    }

    /// The program may store to a window from now on.
    pub fn store_through_window(&self, range: Range<u64>) {
        self.store.volume().store_through_window(range);
    }

    /// A window ends. `stays`: it is mapped for good from now on.
    pub fn end_window(&self, range: Range<u64>, stays: bool) -> Result<()> {
        let ended = self.store.volume().end_window(range, stays);
        Ok(ended.map_err(StoreError::from)?)
    }

    /// From now on no unit of the file moves or is freed. Pair with `map_end`; the caller also
    /// keeps a pin.
    pub fn map_begin(&self, node: InodeRef, access: MapAccess) -> Result<()> {
        let (_guard, attrs) = self.lock(node)?;
        check_regular(&attrs)?;
        let mapped = &self.store.icore(node.object())?.mapped;
        mapped.fetch_add(access.count(), Ordering::SeqCst);
        Ok(())
    }

    /// The units of a range of pages, without those wholly behind the end of the file. The range
    /// begins and ends at multiples of [`Fs::map_granule`], and so do the runs; where that is more
    /// than a page they may reach beyond the end of the file, and holes are always filled.
    pub fn map_pages(
        &self,
        node: InodeRef,
        first_page: u64,
        count: u64,
        holes: Holes,
    ) -> Result<MappedPages> {
        self.with_room(|| self.map_pages_once(node, (first_page, count), holes))
    }

    fn map_pages_once(
        &self,
        node: InodeRef,
        (first_page, count): (u64, u64),
        holes: Holes,
    ) -> Result<MappedPages> {
        let (guard, attrs) = self.lock(node)?;
        check_regular(&attrs)?;
        let range = if self.map_granule() == UNIT_SIZE {
            self.store
                .map_for_sharing(&guard, first_page, count, holes)?
        } else {
            let store = &self.store;
            store.map_chunks_for_sharing(&guard, first_page, count)?
        };
        Ok(MappedPages {
            runs: range.runs.iter().map(map_run).collect(),
            end: range.end,
        })
    }

    /// Whether units may be mapped privately. Those of an image would stay in memory for good, and
    /// large pages are copied whole by the first store.
    pub fn maps_privately(&self) -> bool {
        self.map_granule() == UNIT_SIZE && !self.store.volume().has_image()
    }

    /// The units of a range of pages for a private mapping, between `map_begin` and `map_end`.
    pub fn private_pages(
        &self,
        node: InodeRef,
        first_page: u64,
        count: u64,
    ) -> Result<PrivatePages> {
        let (guard, attrs) = self.lock(node)?;
        check_regular(&attrs)?;
        let range = self.store.map_for_loading(&guard, first_page, count)?;
        Ok(PrivatePages {
            runs: range.runs.iter().map(map_run).collect(),
            copies: range.copies,
            end: range.end,
        })
    }

    /// What a mapped page shows; zeros are for at most `count` pages from there on.
    pub fn show_page(&self, node: InodeRef, page: u64, count: u64) -> Result<ShownPage> {
        let (guard, attrs) = self.lock(node)?;
        check_regular(&attrs)?;
        Ok(self.store.show_page(&guard, page, count)?)
    }

    /// A description of a mapping with [`MapAccess::Load`]: from now on the program may store, too.
    pub fn map_stores(&self, ofd: &Ofd) -> Result<()> {
        let flags = ofd.flags.load(Ordering::SeqCst);
        if flags & OFD_MAPPED == 0 || flags & OFD_STORED != 0 {
            return Ok(());
        }
        let mapped = &self.store.icore(ofd.ino().object())?.mapped;
        // First: a file whose mapper dies in between is flushed too often, not too seldom.
        mapped.fetch_add(STORING, Ordering::SeqCst);
        if ofd.flags.fetch_or(OFD_STORED, Ordering::SeqCst) & OFD_STORED != 0 {
            mapped.fetch_sub(STORING, Ordering::SeqCst);
        }
        Ok(())
    }

    /// A mapping is gone. What was stored through it is durable then, as no `fsync` looks for it
    /// any more. After the last one, units kept behind the end of the file are freed.
    pub fn map_end(&self, ino: Ino, access: MapAccess) -> Result<()> {
        let object = ino.object();
        let synced = match access {
            MapAccess::Load => Ok(()),
            MapAccess::Store => self.store.sync_all(object),
        };
        let mapped = &self.store.icore(object)?.mapped;
        let before = mapped.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
            count.checked_sub(access.count())
        });
        if before == Ok(access.count()) {
            let guard = self.store.lock(object)?;
            if mapped.load(Ordering::SeqCst) == 0 {
                self.store.after_unmap(&guard)?;
            }
        }
        Ok(synced?)
    }

    /// As [`Fs::sync_mapped`], of all files of the pool: `sync`.
    pub fn sync_all_mapped(&self) -> Result<()> {
        if !self.store.volume().has_to_flush() {
            return Ok(());
        }
        let session = self.store.session();
        let can_store = |ofd: &&Ofd| ofd.flags.load(Ordering::Relaxed) & OFD_STORED != 0;
        for id in session.ofds() {
            let Some(ofd) = session.ofd(id).filter(can_store) else {
                continue;
            };
            let synced = self.store.sync_all(ofd.ino().object());
            // One that has ended meanwhile has seen to that itself.
            if session.ofd(id).is_some() {
                synced?;
            }
        }
        self.commit()
    }

    /// Makes durable what programs stored through shared mappings of `len` bytes from `start` on.
    pub fn sync_mapped(&self, node: InodeRef, start: u64, len: u64) -> Result<()> {
        check_regular(&self.attrs(node)?)?;
        self.store.sync_range(node.object(), start, len)?;
        self.commit()
    }
}
