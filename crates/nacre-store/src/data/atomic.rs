//! Writing in atomic mode: into fresh units or through the log, committed by one record; beyond EOF
//! by the size word.

use nacre_types::{CheckedWord, FileOffset, StoreKind, UNIT_SIZE, UnitNo, VolumeOffset};
use nacre_volume::{Unfenced, UserBytes};

use super::{Change, copy_error, page_start};
use crate::alloc::Run;
use crate::block_map::layout::MapWord;
use crate::block_map::{Leaf, PageRun};
use crate::error::{Result, StoreError};
use crate::layout::{ONODE_SIZE_AT, size_salt};
use crate::tx::Tx;

/// Most bytes that one atomic write takes; a longer one returns short.
pub const ATOMIC_LIMIT: u64 = 16 << 20;
/// Most bytes that one atomic write to a mapped object takes: they go through the log.
pub const ATOMIC_MAPPED_LIMIT: u64 = 512 << 10;
/// Atomic overwrites up to this size go through the log instead of into fresh units.
const LOGGED_MAX: u64 = 1024;
const PAGE: usize = UNIT_SIZE as usize;

impl Change<'_> {
    pub(super) fn write_atomic(
        &self,
        size: u64,
        offset: FileOffset,
        from: UserBytes<'_>,
    ) -> Result<usize> {
        self.forget_place(size);
        let way = way(self, offset.0, from.len() as u64, size);
        let mut linked = Unfenced::nothing();
        let len = self.room_for(offset, (from.len() as u64).min(way.limit()), &mut linked)?;
        let tx = match way {
            Way::Append => None,
            _ => Some(Box::new(self.file.store.begin()?)),
        };
        let mut writer = Writer {
            change: self,
            from: from.slice(0..len as usize),
            offset: offset.0,
            size,
            way,
            tx,
            changed: Changed::default(),
            data: None,
            linked,
        };
        let done = writer.write_all()?;
        writer.finish(done as u64)?;
        Ok(done)
    }
}

/// How bytes reach units that the object already has, and how the write commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// In place beyond EOF; the size word commits alone.
    Append,
    /// In place through the log; one record commits.
    Logged,
    /// Into fresh units; one record commits.
    Replace,
    /// Like `Logged`, for objects whose units must stay.
    LoggedMapped,
}

impl Way {
    #[inline]
    fn limit(self) -> u64 {
        match self {
            Way::Append => u64::MAX,
            Way::Logged | Way::Replace => ATOMIC_LIMIT,
            Way::LoggedMapped => ATOMIC_MAPPED_LIMIT,
        }
    }
}

fn way(change: &Change<'_>, offset: u64, len: u64, size: u64) -> Way {
    if offset >= size {
        Way::Append
    } else if change.is_mapped() {
        Way::LoggedMapped
    } else if len <= LOGGED_MAX {
        Way::Logged
    } else {
        Way::Replace
    }
}

/// A run whose words change when the write commits.
#[derive(Clone, Copy)]
struct ChangedRun {
    leaf: Leaf,
    run: PageRun,
    /// What the words said before.
    old: MapWord,
}

impl ChangedRun {
    /// The units that are no longer used.
    fn unused(&self) -> Option<Run> {
        let replaced = !self.old.is_hole() && self.old.unit() != self.run.entry.unit();
        replaced.then(|| Run {
            start: self.old.unit(),
            count: self.run.count,
        })
    }
}

/// The changed runs; most writes have one at most, which costs no allocation.
#[derive(Default)]
struct Changed {
    first: Option<ChangedRun>,
    more: Vec<ChangedRun>,
}

impl Changed {
    fn push(&mut self, changed: ChangedRun) {
        if self.first.is_none() {
            self.first = Some(changed);
        } else {
            self.more.push(changed);
        }
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = &ChangedRun> {
        self.first.iter().chain(&self.more)
    }
}

/// One write call under way.
struct Writer<'a, 'b> {
    change: &'a Change<'a>,
    from: UserBytes<'b>,
    /// Where in the object `from` begins.
    offset: u64,
    /// EOF before the write.
    size: u64,
    way: Way,
    /// Boxed, as it is big and seldom there.
    tx: Option<Box<Tx<'a>>>,
    changed: Changed,
    /// Bytes that were stored since the last fence, if there are any.
    data: Option<Unfenced>,
    /// Links of fresh nodes of the map.
    linked: Unfenced,
}

/// The bytes of a write that fall into a run of pages.
#[derive(Clone, Copy)]
struct PendingRange {
    /// First byte and byte behind the last one, in the object.
    start: u64,
    end: u64,
    /// The same for the run's pages.
    pages_start: u64,
    pages_end: u64,
}

impl PendingRange {
    #[inline]
    fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Where the first byte lies when the run's pages begin at `unit`.
    #[inline]
    fn at(self, unit: UnitNo) -> VolumeOffset {
        unit.offset().add(self.start - self.pages_start)
    }
}

impl<'a> Writer<'a, '_> {
    /// Writes run after run. An error after some bytes makes the write short.
    #[inline]
    fn write_all(&mut self) -> Result<usize> {
        let mut done = 0;
        while done < self.from.len() {
            match self.write_some(done) {
                Ok(len) => done += len,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes the run that begins `done` bytes into the buffer; returns its length.
    #[inline]
    fn write_some(&mut self, done: usize) -> Result<usize> {
        let page = FileOffset(self.offset + done as u64).page();
        let end = FileOffset(self.offset + self.from.len() as u64 - 1).page() + 1;
        let (leaf, found) = self.change.leaf_run(page, end, &mut self.linked)?;
        let (run, others) = self.change.split_shared(found);
        if run.entry.is_unwritten() && !others {
            let own = Run {
                start: run.entry.unit(),
                count: run.count,
            };
            self.write_units(leaf, run, own, done)
        } else if run.entry.is_hole() || others || self.way == Way::Replace {
            self.write_fresh(leaf, run, done)
        } else if self.tx.is_some() {
            self.log(run, done)
        } else {
            self.overwrite(run, done)
        }
    }

    #[inline]
    fn pending(&self, run: PageRun, done: usize) -> PendingRange {
        let pages_end = page_start(run.end());
        PendingRange {
            start: self.offset + done as u64,
            end: pages_end.min(self.offset + self.from.len() as u64),
            pages_start: page_start(run.page),
            pages_end,
        }
    }

    /// Bytes of the program go to the medium, not yet fenced.
    #[inline]
    fn store_bytes(&mut self, pending: PendingRange, at: VolumeOffset, done: usize) -> Result<()> {
        let bytes = self.from.slice(done..done + pending.len());
        let volume = self.change.file.store.volume();
        let stored = volume
            .write_user(at, bytes, StoreKind::Data)
            .map_err(copy_error)?;
        self.add(stored);
        Ok(())
    }

    #[inline]
    fn add(&mut self, stored: Unfenced) {
        self.data.get_or_insert(Unfenced::nothing()).join(stored);
    }

    #[inline]
    fn overwrite(&mut self, run: PageRun, done: usize) -> Result<usize> {
        let pending = self.pending(run, done);
        self.store_bytes(pending, pending.at(run.entry.unit()), done)?;
        Ok(pending.len())
    }

    /// Puts the bytes into the record; short when the program's memory faults on the way.
    fn log(&mut self, run: PageRun, done: usize) -> Result<usize> {
        let pending = self.pending(run, done);
        let at = pending.at(run.entry.unit());
        let mut buffer = [0; PAGE];
        let mut logged = 0;
        while logged < pending.len() {
            let part = &mut buffer[..(pending.len() - logged).min(PAGE)];
            let from = self.from.slice(done + logged..done + logged + part.len());
            match from.copy_to_slice(part) {
                Ok(()) => {}
                Err(_) if logged > 0 => break,
                Err(_) => return Err(StoreError::UserFault),
            }
            if let Some(tx) = &mut self.tx {
                tx.put_bytes(at.add(logged as u64), part, StoreKind::Data);
            }
            logged += part.len();
        }
        Ok(logged)
    }

    /// Writes into fresh units, for a hole or in the place of others.
    fn write_fresh(&mut self, leaf: Leaf, run: PageRun, done: usize) -> Result<usize> {
        if !run.entry.is_hole() {
            self.change.move_mapping_epoch();
        }
        let units = self.change.take(run.count)?;
        let run = PageRun {
            count: units.count,
            ..run
        };
        let written = self.write_units(leaf, run, units, done);
        match (&written, &mut self.tx) {
            (Err(_), _) => self.change.free(units),
            (Ok(_), Some(tx)) => tx.adopt(units),
            (Ok(_), None) => {}
        }
        written
    }

    /// Writes into units that hold nothing of the object yet; what the write does not cover is
    /// copied or zeroed.
    fn write_units(&mut self, leaf: Leaf, old: PageRun, units: Run, done: usize) -> Result<usize> {
        let pending = self.pending(old, done);
        self.add(
            self.change
                .fill_edge(old, units, (pending.pages_start, pending.start))?,
        );
        if pending.end < self.size || self.change.may_differ_behind(old) {
            let edge = (pending.end, pending.pages_end);
            self.add(self.change.fill_edge(old, units, edge)?);
        }
        self.store_bytes(pending, pending.at(units.start), done)?;
        let run = PageRun {
            entry: MapWord::written(units.start),
            ..old
        };
        self.changed.push(ChangedRun {
            leaf,
            run,
            old: old.entry,
        });
        Ok(pending.len())
    }

    /// Commits the first `done` bytes.
    #[inline]
    fn finish(&mut self, done: u64) -> Result<()> {
        let size = self.size.max(self.offset + done);
        if self.changed.first.is_some() {
            self.change.hide_zeros()?;
        }
        let added: u64 = self
            .changed
            .iter()
            .filter(|c| c.old.is_hole())
            .map(|c| c.run.count)
            .sum();
        if self.tx.is_some() {
            self.commit_record(size)?;
        } else {
            self.commit_words(size)?;
        }
        self.change.count(added, 0);
        Ok(())
    }

    #[inline]
    fn commit_words(&mut self, size: u64) -> Result<()> {
        let grows = size > self.size;
        if self.changed.first.is_some() || grows {
            self.fence_data()?;
        }
        let mut unfenced = self.linked.take();
        if let Some(data) = self.data.take() {
            unfenced.join(data);
        }
        for changed in self.changed.iter() {
            unfenced = unfenced.and(self.change.file.map.set_run(changed.leaf, changed.run));
        }
        if grows && self.changed.first.is_some() {
            self.change.settle(unfenced)?;
            unfenced = Unfenced::nothing();
        }
        self.change.stamp();
        if grows {
            unfenced = unfenced.and(self.change.store_size(size));
        }
        self.change.settle(unfenced)?;
        for unused in self.changed.iter().filter_map(ChangedRun::unused) {
            self.change.free(unused);
        }
        Ok(())
    }

    #[inline]
    fn fence_data(&mut self) -> Result<()> {
        match self.data.take() {
            Some(data) => self.change.settle(data.and(self.linked.take())),
            None => Ok(()),
        }
    }

    fn commit_record(&mut self, size: u64) -> Result<()> {
        let Some(mut tx) = self.tx.take() else {
            return Ok(());
        };
        let file = self.change.file;
        // A record may be durable before its fence: what it exposes must be durable before the
        // record is written.
        self.fence_data()?;
        for changed in self.changed.iter() {
            put_words(&mut tx, self.change, changed);
            if let Some(unused) = changed.unused() {
                tx.free_after_commit(unused);
            }
        }
        if size > self.size {
            let word = CheckedWord::seal(size, size_salt(file.id)).0;
            tx.put_word(file.onode.add(ONODE_SIZE_AT), word);
        }
        tx.commit()?;
        self.change.stamp();
        Ok(())
    }
}

fn put_words(tx: &mut Tx<'_>, change: &Change<'_>, changed: &ChangedRun) {
    let mut words = change.file.map.encode_run(changed.leaf, changed.run);
    let at = changed.leaf.word_at(changed.run.page);
    if changed.run.count == 1 {
        words.by_ref().for_each(|word| tx.put_word(at, word));
        return;
    }
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    tx.put_bytes(at, &bytes, StoreKind::Metadata);
}
