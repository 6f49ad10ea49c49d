//! What programs say of contents that they will read, or will not, where memory holds only a part
//! of a disk.

use std::ops::Range;
use std::time::Duration;

use nacre_types::{FileOffset, ObjectId, UNIT_SIZE, VolumeOffset};

use super::{File, pages_from};
use crate::block_map::PageRun;
use crate::error::Result;
use crate::store::Store;

/// So much is read at once of what is to come to memory.
const PIECE: usize = 64 << 10;
/// At most this part of the room is filled by one call.
const SHARE: u64 = 2;

impl Store {
    /// Contents of this range will be read soon: brings them to memory, as far as there is room.
    /// Those that are always there stay as they are.
    pub fn will_need(&self, id: ObjectId, range: Range<u64>) -> Result<()> {
        let Some(cache) = self.volume().cache_info() else {
            return Ok(());
        };
        let end = range.end.min(range.start + cache.room_bytes / SHARE);
        let (mut at, mut piece) = (range.start, vec![0; PIECE]);
        while at < end {
            let len = PIECE.min((end - at) as usize);
            match self.read(id, FileOffset(at), piece[..len].as_mut().into())? {
                0 => break,
                read => at += read as u64,
            }
        }
        Ok(())
    }

    /// Contents of this range will not be read soon: lets go of what the disk has, too. Units that
    /// are in it in part stay.
    pub fn will_not_need(&self, id: ObjectId, range: Range<u64>) -> Result<()> {
        let pages = range.start.div_ceil(UNIT_SIZE)..range.end / UNIT_SIZE;
        self.each_place(id, pages, |at, len| {
            self.volume().drop_range(at, len);
            true
        })?;
        Ok(())
    }

    /// Whether the contents of this range are in memory now, so that a read of them would not wait
    /// for a disk.
    pub fn is_in_memory(&self, id: ObjectId, range: Range<u64>) -> Result<bool> {
        let pages = range.start / UNIT_SIZE..range.end.div_ceil(UNIT_SIZE);
        self.each_place(id, pages, |at, len| self.volume().has_range(at, len))
    }

    /// Asks for these contents, none of which are in memory, to be told of by
    /// [`Store::take_loaded`] with this tag. False if nothing will be told: they are in several
    /// places, or too many.
    pub fn begin_load(&self, id: ObjectId, range: Range<u64>, tag: u64) -> Result<bool> {
        let pages = range.start / UNIT_SIZE..range.end.div_ceil(UNIT_SIZE);
        if pages.is_empty() {
            return Ok(false);
        }
        let run = self.run_at(id, pages.clone())?;
        let len = (pages.end - pages.start) * UNIT_SIZE;
        let unit = || run.entry.advance(pages.start - run.page).unit();
        let is_one = run.end() >= pages.end && run.entry.is_written();
        Ok(is_one && self.volume().begin_load(unit().offset(), len, tag))
    }

    /// Waits for some of what was asked for, but not longer than `most`; then tells the tag of each
    /// that has come.
    pub fn take_loaded(&self, most: Duration, tell: impl FnMut(u64)) {
        self.volume().take_loaded(most, tell);
    }

    /// Calls `visit` with place and length of what these pages of an object have on the volume, as
    /// long as it says so; whether it always did. Only of a volume with an image.
    fn each_place(
        &self,
        id: ObjectId,
        pages: Range<u64>,
        visit: impl Fn(VolumeOffset, u64) -> bool,
    ) -> Result<bool> {
        if !self.volume().has_image() {
            return Ok(true);
        }
        let mut page = pages.start;
        while page < pages.end {
            let run = self.run_at(id, page..pages.end)?;
            let behind = run.end().min(pages.end);
            let unit = || run.entry.advance(page - run.page).unit();
            if run.entry.is_written() && !visit(unit().offset(), (behind - page) * UNIT_SIZE) {
                return Ok(false);
            }
            page = behind.max(page + 1);
        }
        Ok(true)
    }

    fn run_at(&self, id: ObjectId, pages: Range<u64>) -> Result<PageRun> {
        let from = FileOffset::of_page(pages.start);
        let len = (pages.end - pages.start) * UNIT_SIZE;
        self.read_stable_in(self.icore(id)?, id, |mapping_epoch| {
            let pages = pages_from(from, len as usize);
            Ok(File::translate(self, id, mapping_epoch, pages)?.run())
        })
    }
}
