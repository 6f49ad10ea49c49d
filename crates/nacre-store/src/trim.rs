//! Telling disks which of their bytes mean nothing: what `fstrim` does for file systems.
//!
//! Units are held, so that nobody takes them, and a version is brought home. From then on nothing
//! that a crash could bring back refers to them, and the journal has nothing of them. Then the disk
//! is told, and they are let go. Of a disk behind memory nothing is ever brought home: what is free
//! there is so durably.

use std::ops::ControlFlow;

use nacre_types::{UNIT_SHIFT, UNIT_SIZE, UnitNo, site};

use crate::alloc::{Allocator, Run};
use crate::error::Result;
use crate::store::Store;

/// The explorer looks closely at few units.
const EXPLORES: bool = cfg!(feature = "explore");
/// Fewer units than these side by side are not worth a call.
const LEAST: u64 = if EXPLORES { 1 } else { 16 };
/// So many are told of in one call, as nobody commits meanwhile.
const TOGETHER: u64 = if EXPLORES { 4 } else { 64 << 20 >> UNIT_SHIFT };
/// So many are held at once, and at most this share of what is free: programs want room, too.
const HELD: u64 = if EXPLORES { 12 } else { 1 << 30 >> UNIT_SHIFT };
const SHARE: u64 = 8;

/// How far [`Store::trim`] is.
#[derive(Clone, Copy, Debug)]
pub struct TrimProgress {
    /// Bytes of the volume that were looked at.
    pub done: u64,
    /// Bytes of the volume.
    pub total: u64,
}

/// What [`Store::trim`] did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Trimmed {
    /// Bytes of devices that need not keep what they hold.
    pub bytes: u64,
    /// Free bytes whose devices cannot be told.
    pub left: u64,
}

/// Units that nobody takes while it lives.
struct Held<'s> {
    allocator: Allocator<'s>,
    runs: Vec<Run>,
}

impl<'s> Held<'s> {
    /// Some that are free from a unit on, on the same side; and where to go on.
    fn from(store: &'s Store, mut at: UnitNo) -> (Self, UnitNo) {
        let (allocator, mut runs) = (store.allocator(), Vec::new());
        let is_behind = allocator.is_behind(at);
        let free = match is_behind {
            true => allocator.free_behind(),
            false => allocator.free_units(),
        };
        let hold = |at, most| match is_behind {
            true => allocator.hold_behind(at, LEAST, most),
            false => allocator.hold(at, LEAST, most),
        };
        let mut room = HELD.min(free / SHARE);
        while room >= LEAST
            && let Some(run) = hold(at, room.min(TOGETHER))
        {
            (at, room) = (run.end(), room - run.count);
            runs.push(run);
        }
        (Self { allocator, runs }, at)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.runs.iter().for_each(|&run| self.allocator.let_go(run));
    }
}

impl Store {
    /// Tells the disk behind an image what is free, and disks behind memory, while others use the
    /// pool. Devices that are files keep their room unless `files` is set. `told` hears how far it
    /// is, and may break off. Where no device can be told nothing is done.
    pub fn trim(
        &self,
        files: bool,
        told: &mut dyn FnMut(TrimProgress) -> ControlFlow<()>,
    ) -> Result<Trimmed> {
        let (volume, mut done) = (self.volume(), Trimmed::default());
        if !volume.has_disk_to_tell(files) {
            done.left = self.free_on_disks() * UNIT_SIZE;
            return Ok(done);
        }
        let sides = [
            (volume.has_image(), 0),
            (volume.has_behind(), volume.front_units()),
        ];
        for (_, first) in sides.into_iter().filter(|(is_there, _)| *is_there) {
            if self
                .trim_from(UnitNo(first), files, &mut done, told)?
                .is_break()
            {
                break;
            }
        }
        Ok(done)
    }

    fn free_on_disks(&self) -> u64 {
        let free = self.allocator().free_units();
        let imaged = free * u64::from(self.volume().has_image());
        imaged + self.allocator().free_behind()
    }

    /// What is free from a unit on, on its side.
    fn trim_from(
        &self,
        mut at: UnitNo,
        files: bool,
        done: &mut Trimmed,
        told: &mut dyn FnMut(TrimProgress) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        loop {
            let (held, next) = Held::from(self, at);
            if held.runs.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            self.discard(&held.runs, files, done)?;
            at = next;
            let progress = TrimProgress {
                done: at.0 * UNIT_SIZE,
                total: self.volume().units() * UNIT_SIZE,
            };
            if told(progress).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }

    fn discard(&self, held: &[Run], files: bool, done: &mut Trimmed) -> Result<()> {
        if self.volume().has_image() && site::step() {
            self.bring_home()?;
        }
        for run in held {
            let (at, len) = (run.start.offset(), run.count * UNIT_SIZE);
            let bytes = self.while_nobody_commits(|| self.volume().discard(at, len, files))?;
            self.volume().drop_range(at, len);
            match bytes {
                0 => done.left += len,
                bytes => done.bytes += bytes,
            }
        }
        Ok(())
    }
}
