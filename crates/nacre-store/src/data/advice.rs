//! What programs say of contents that they will read, or will not, where memory holds only a part
//! of a disk.

use std::ops::Range;

use nacre_types::{FileOffset, ObjectId, UNIT_SIZE};

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
        if !self.volume().has_image() {
            return Ok(());
        }
        let mut page = range.start.div_ceil(UNIT_SIZE);
        let end = range.end / UNIT_SIZE;
        while page < end {
            let run = self.run_at(id, page..end)?;
            let behind = run.end().min(end);
            if run.entry.is_written() {
                let unit = run.entry.advance(page - run.page).unit();
                let len = (behind - page) * UNIT_SIZE;
                self.volume().drop_range(unit.offset(), len);
            }
            page = behind.max(page + 1);
        }
        Ok(())
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
