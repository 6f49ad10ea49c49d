//! Changes of an object's bytes by a transaction: gathered page by page, committed by its record.
//!
//! Whole pages and new bytes go to fresh units, which nobody reaches before the commit; short
//! overwrites go through the log. The words of the block map change with the record.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use nacre_types::{CheckedWord, ObjectId, StoreKind, UNIT_SIZE, UnitNo, VolumeOffset};
use nacre_volume::Unfenced;

use super::{File, MAX_FILE_SIZE, page_start, pages_of, range_end};
use crate::alloc::Run;
use crate::block_map::layout::{FANOUT, MAX_HEIGHT, MapWord, Root, entry_salt};
use crate::block_map::{Leaf, PageRun};
use crate::data::map::{Map, pages_below};
use crate::error::{Result, StoreError};
use crate::layout::{ONODE_MAPPED_AT, ONODE_ROOT_AT, ONODE_SIZE_AT, root_salt, size_salt};
use crate::thread::staged::{Page, Staged};
use crate::tx::Tx;

const PAGE: usize = UNIT_SIZE as usize;
/// Overwrites of a part of a page up to this size go through the log.
const LOGGED_MAX: usize = 1024;
/// Bytes copied at once where units cannot be shared.
const COPY: u64 = 1 << 20;

impl Tx<'_> {
    /// The size of an object as the transaction sees it, in bytes.
    pub fn data_size(&mut self, id: ObjectId) -> Result<u64> {
        let staged = self.stage(id)?;
        Ok(self.scratch.staged[staged].size)
    }

    /// Writes bytes; all or nothing with the rest of the transaction.
    pub fn data_write(&mut self, id: ObjectId, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = range_end(offset, bytes.len() as u64)?;
        let staged = self.stage(id)?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (page, skip) = (at / UNIT_SIZE, (at % UNIT_SIZE) as usize);
            let rest = &bytes[done..];
            done += if skip == 0 && rest.len() >= PAGE {
                let whole = rest.len() / PAGE * PAGE;
                self.write_pages(staged, page, &rest[..whole])?;
                whole
            } else {
                let len = rest.len().min(PAGE - skip);
                self.write_part(staged, page, skip, &rest[..len])?;
                len
            };
        }
        let size = &mut self.scratch.staged[staged].size;
        if !bytes.is_empty() {
            *size = (*size).max(end);
        }
        Ok(())
    }

    /// Makes bytes read as zeros, as if zeros had been written; whole units become holes.
    pub fn data_zero(&mut self, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        let end = range_end(offset, len)?;
        let staged = self.stage(id)?;
        let known = pages_of(self.scratch.staged[staged].size);
        let (mut at, stop) = (offset, end.min(page_start(known)));
        while at < stop {
            let (page, skip) = (at / UNIT_SIZE, (at % UNIT_SIZE) as usize);
            let part = (stop - at).min(UNIT_SIZE - skip as u64) as usize;
            at += part as u64;
            if self.is_hole(staged, page)? {
                continue;
            }
            match part == PAGE {
                true => self.set_page(staged, page, Page::Hole),
                false => self.write_part(staged, page, skip, &[0; PAGE][..part])?,
            }
        }
        let size = &mut self.scratch.staged[staged].size;
        if len > 0 {
            *size = (*size).max(end);
        }
        Ok(())
    }

    /// Sets the size; new bytes are zeros.
    pub fn data_truncate(&mut self, id: ObjectId, size: u64) -> Result<()> {
        if size > MAX_FILE_SIZE {
            return Err(StoreError::FileTooBig);
        }
        let staged = self.stage(id)?;
        let known = &mut self.scratch.staged[staged];
        let before = std::mem::replace(&mut known.size, size);
        if size >= before {
            return Ok(());
        }
        known.kept = known.kept.min(size);
        let beyond = known.pages.split_off(&pages_of(size));
        beyond.into_values().for_each(|page| self.let_go(page));
        let (page, skip) = (size / UNIT_SIZE, (size % UNIT_SIZE) as usize);
        let cut = self.scratch.staged[staged].pages.get(&page);
        if skip > 0 && matches!(cut, Some(Page::Own(_) | Page::Shared(_))) {
            self.write_part(staged, page, skip, &[0; PAGE][skip..])?;
        }
        Ok(())
    }

    /// Reads bytes as the transaction sees them; returns how many lie below the end.
    pub fn data_read(&mut self, id: ObjectId, offset: u64, to: &mut [u8]) -> Result<usize> {
        let staged = self.stage(id)?;
        let below = self.scratch.staged[staged].size.saturating_sub(offset);
        let len = below.min(to.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let skip = (at % UNIT_SIZE) as usize;
            let part = (len - done).min(PAGE - skip);
            let bytes = self.page_bytes(staged, at / UNIT_SIZE)?;
            to[done..done + part].copy_from_slice(&bytes[skip..skip + part]);
            done += part;
        }
        Ok(len)
    }

    /// Copies up to `len` bytes of an object to another one or to another place of it; whole units
    /// are shared where the offsets allow it. Returns how many there were.
    pub fn data_clone(
        &mut self,
        from: (ObjectId, u64),
        len: u64,
        to: (ObjectId, u64),
    ) -> Result<u64> {
        let source = self.stage(from.0)?;
        let target = self.stage(to.0)?;
        let len = len.min(self.scratch.staged[source].size.saturating_sub(from.1));
        let end = range_end(to.1, len)?;
        let overlap = from.0 == to.0 && from.1 < end && to.1 < from.1 + len;
        if overlap {
            let mut bytes = vec![0; len as usize];
            self.data_read(from.0, from.1, &mut bytes)?;
            self.data_write(to.0, to.1, &bytes)?;
            return Ok(len);
        }
        let alike = from.1 % UNIT_SIZE == to.1 % UNIT_SIZE;
        let mut done = 0;
        while done < len {
            let (at, there) = (from.1 + done, to.1 + done);
            if alike && at.is_multiple_of(UNIT_SIZE) && len - done >= UNIT_SIZE {
                self.share_page((source, at / UNIT_SIZE), (target, there / UNIT_SIZE))?;
                done += UNIT_SIZE;
                continue;
            }
            let most = if alike {
                UNIT_SIZE - at % UNIT_SIZE
            } else {
                COPY
            };
            let mut bytes = vec![0; (len - done).min(most) as usize];
            self.data_read(from.0, at, &mut bytes)?;
            self.data_write(to.0, there, &bytes)?;
            done += bytes.len() as u64;
        }
        let size = &mut self.scratch.staged[target].size;
        if len > 0 {
            *size = (*size).max(end);
        }
        Ok(len)
    }

    /// Forgets what was done to the bytes of an object that is removed.
    pub(crate) fn unstage(&mut self, id: ObjectId) {
        if let Some(place) = self.scratch.staged_index(id) {
            let scratch = &mut *self.scratch;
            let staged = scratch.staged.swap_remove(place);
            let (places, list) = (&mut scratch.staged_places, &scratch.staged);
            places.swap_removed(list, place, id, |s| s.id);
            staged
                .pages
                .into_values()
                .for_each(|page| self.let_go(page));
        }
    }

    /// Number of what is gathered for an object whose lock is held, or that the transaction
    /// creates.
    fn stage(&mut self, id: ObjectId) -> Result<usize> {
        if let Some(staged) = self.scratch.staged_index(id) {
            return Ok(staged);
        }
        let onode = self.change_data_of(id)?;
        let fresh = self.is_created(id);
        let size = match fresh {
            true => 0,
            false => File::open(self.store, id)?.size()?,
        };
        let staged = Staged {
            id,
            onode,
            fresh,
            kept: size,
            size,
            old_size: size,
            pages: BTreeMap::new(),
        };
        Ok(self.scratch.add_staged(staged))
    }

    /// Writes whole pages into fresh units.
    fn write_pages(&mut self, staged: usize, first: u64, bytes: &[u8]) -> Result<()> {
        let mut page = first;
        let mut rest = bytes;
        while !rest.is_empty() {
            let run = self.take_data((rest.len() / PAGE) as u64)?;
            let (part, tail) = rest.split_at(run.count as usize * PAGE);
            let volume = &self.store.volume;
            let stored = volume.write(run.start.offset(), part, StoreKind::Data);
            self.fresh_bytes(run.start.offset(), part, stored);
            for step in 0..run.count {
                self.set_page(staged, page + step, Page::Own(run.start.add(step)));
            }
            page += run.count;
            rest = tail;
        }
        Ok(())
    }

    /// Writes a part of a page: into the transaction's own unit, through the log, or with the rest
    /// into a fresh unit.
    fn write_part(&mut self, staged: usize, page: u64, skip: usize, bytes: &[u8]) -> Result<()> {
        let state = self.scratch.staged[staged].pages.get(&page).copied();
        if let Some(Page::Own(unit)) = state {
            let at = unit.offset().add(skip as u64);
            let stored = self.store.volume.write(at, bytes, StoreKind::Data);
            self.fresh(stored);
            return Ok(());
        }
        if let Some(unit) = self.unit_to_log(staged, page, skip + bytes.len(), bytes.len())? {
            self.put_bytes(unit.offset().add(skip as u64), bytes, StoreKind::Data);
            let pages = &mut self.scratch.staged[staged].pages;
            pages.insert(page, Page::Logged(unit));
            return Ok(());
        }
        let mut whole = self.page_bytes(staged, page)?;
        whole[skip..skip + bytes.len()].copy_from_slice(bytes);
        self.write_pages(staged, page, &whole[..])
    }

    /// The unit of a page that only this object has, if `len` bytes up to `end` in it may go
    /// through the log.
    fn unit_to_log(
        &self,
        staged: usize,
        page: u64,
        end: usize,
        len: usize,
    ) -> Result<Option<UnitNo>> {
        let known = &self.scratch.staged[staged];
        if len > LOGGED_MAX || page_start(page) + end as u64 > known.kept {
            return Ok(None);
        }
        match known.pages.get(&page) {
            Some(&Page::Logged(unit)) => return Ok(Some(unit)),
            Some(_) => return Ok(None),
            None => {}
        }
        let entry = self.old_entry(staged, page)?;
        let alloc = self.store.allocator();
        let shared = entry.may_be_shared() && alloc.must_be_left(entry.unit());
        Ok((entry.is_written() && !shared).then_some(entry.unit()))
    }

    /// What the medium says of a page whose bytes still count.
    fn old_entry(&self, staged: usize, page: u64) -> Result<MapWord> {
        let known = &self.scratch.staged[staged];
        if page_start(page) >= known.kept {
            return Ok(MapWord::HOLE);
        }
        let entry = known.map(self).run_at(page, page + 1)?.entry;
        Ok(if entry.is_written() {
            entry
        } else {
            MapWord::HOLE
        })
    }

    fn is_hole(&self, staged: usize, page: u64) -> Result<bool> {
        match self.scratch.staged[staged].pages.get(&page) {
            Some(state) => Ok(*state == Page::Hole),
            None => Ok(self.old_entry(staged, page)?.is_hole()),
        }
    }

    /// A page as the transaction sees it.
    fn page_bytes(&self, staged: usize, page: u64) -> Result<Box<[u8; PAGE]>> {
        let mut bytes = Box::new([0; PAGE]);
        let known = &self.scratch.staged[staged];
        let volume = &self.store.volume;
        let unit = match known.pages.get(&page) {
            Some(Page::Hole) => return Ok(bytes),
            Some(Page::Own(unit) | Page::Shared(unit)) => {
                volume.read(unit.offset(), &mut bytes[..]);
                return Ok(bytes);
            }
            Some(Page::Kept(unit) | Page::Logged(unit)) => *unit,
            None => match self.old_entry(staged, page)? {
                entry if entry.is_hole() => return Ok(bytes),
                entry => entry.unit(),
            },
        };
        volume.read(unit.offset(), &mut bytes[..]);
        let start = unit.offset().0;
        for (at, part, _) in self.scratch.writes.iter() {
            if (start..start + UNIT_SIZE).contains(&at.0) {
                let skip = (at.0 - start) as usize;
                bytes[skip..skip + part.len()].copy_from_slice(part);
            }
        }
        let kept = known.kept.saturating_sub(page_start(page));
        if let Some(beyond) = bytes.get_mut(kept as usize..) {
            beyond.fill(0);
        }
        Ok(bytes)
    }

    fn set_page(&mut self, staged: usize, page: u64, state: Page) {
        if let Some(before) = self.scratch.staged[staged].pages.insert(page, state) {
            self.let_go(before);
        }
    }

    /// What a page was is not needed any more.
    fn let_go(&mut self, page: Page) {
        match page {
            Page::Own(start) | Page::Shared(start) => {
                self.free_after_commit(Run { start, count: 1 });
            }
            Page::Logged(unit) => {
                let of_unit = unit.offset().0..unit.offset().0 + UNIT_SIZE;
                let writes = &mut self.scratch.writes;
                writes.retain(|(at, ..)| !of_unit.contains(&at.0));
            }
            Page::Hole | Page::Kept(_) => {}
        }
    }

    /// Gives a whole page of the source to the target, too.
    fn share_page(&mut self, source: (usize, u64), target: (usize, u64)) -> Result<()> {
        let state = self.scratch.staged[source.0].pages.get(&source.1).copied();
        let inside = page_start(source.1 + 1) <= self.scratch.staged[source.0].kept;
        let (unit, after) = match state {
            Some(Page::Hole) => (None, None),
            Some(Page::Own(unit) | Page::Shared(unit)) => (Some(unit), Some(Page::Shared(unit))),
            Some(Page::Kept(unit)) if inside => (Some(unit), Some(Page::Kept(unit))),
            Some(_) => return self.copy_page(source, target),
            None => match self.old_entry(source.0, source.1)? {
                entry if entry.is_hole() => (None, None),
                _ if !inside => return self.copy_page(source, target),
                entry if entry.may_be_shared() => (Some(entry.unit()), None),
                entry => (Some(entry.unit()), Some(Page::Kept(entry.unit()))),
            },
        };
        let Some(unit) = unit else {
            if !self.is_hole(target.0, target.1)? {
                self.set_page(target.0, target.1, Page::Hole);
            }
            return Ok(());
        };
        if !self.store.allocator().share(unit, 1) {
            return self.copy_page(source, target);
        }
        self.adopt(Run {
            start: unit,
            count: 1,
        });
        if let Some(after) = after {
            let pages = &mut self.scratch.staged[source.0].pages;
            pages.insert(source.1, after);
        }
        self.set_page(target.0, target.1, Page::Shared(unit));
        Ok(())
    }

    fn copy_page(&mut self, source: (usize, u64), target: (usize, u64)) -> Result<()> {
        let bytes = self.page_bytes(source.0, source.1)?;
        self.write_pages(target.0, target.1, &bytes[..])
    }

    /// Takes up to `want` units, which an abort gives back.
    fn take_data(&mut self, want: u64) -> Result<Run> {
        let run = self.store.take_space(|alloc| alloc.take(None, want))?;
        self.adopt(run);
        let volume = &self.store.volume;
        volume.expect_stores(run.start.offset(), run.count * UNIT_SIZE);
        Ok(run)
    }

    /// Turns what was gathered into changes of words.
    pub(crate) fn finish_data(&mut self) -> Result<()> {
        for staged in 0..self.scratch.staged.len() {
            self.clear_tail(staged)?;
            let known = &self.scratch.staged[staged];
            if known.fresh || known.kept == 0 {
                self.replace_map(staged)?;
            } else {
                self.change_map(staged)?;
            }
            self.finish_size(staged);
        }
        Ok(())
    }

    /// Bytes behind the end become the object's again: they are zeros.
    fn clear_tail(&mut self, staged: usize) -> Result<()> {
        let known = &self.scratch.staged[staged];
        let (page, skip) = (known.kept / UNIT_SIZE, (known.kept % UNIT_SIZE) as usize);
        if known.size <= known.kept || skip == 0 || known.fresh {
            return Ok(());
        }
        match known.pages.get(&page).copied() {
            Some(Page::Hole | Page::Own(_) | Page::Shared(_)) => Ok(()),
            Some(Page::Logged(unit)) => {
                let at = unit.offset().add(skip as u64);
                self.put_bytes(at, &[0; PAGE][skip..], StoreKind::Data);
                Ok(())
            }
            state @ (Some(Page::Kept(_)) | None) => {
                if state.is_some() || !self.old_entry(staged, page)?.is_hole() {
                    let bytes = self.page_bytes(staged, page)?;
                    self.write_pages(staged, page, &bytes[..])?;
                }
                Ok(())
            }
        }
    }

    /// A map of its own for an object of which nothing is kept.
    fn replace_map(&mut self, staged: usize) -> Result<()> {
        let known = &self.scratch.staged[staged];
        let (id, onode, fresh) = (known.id, known.onode, known.fresh);
        let pages: Vec<(u64, MapWord)> = known.entries().collect();
        let mapped = pages.len() as u64;
        let word = self.build_map(id, pages)?;
        if fresh {
            self.set_fresh_map(id, word, mapped);
            return Ok(());
        }
        let at = onode.add(ONODE_ROOT_AT);
        let before = self.store.volume.load_u64(at);
        if before != word {
            self.put_word(at, word);
            self.scratch.maps.push((id, before));
            self.count_mapped(onode, mapped);
        }
        Ok(())
    }

    /// Writes nodes that map these pages, which ascend; the root word that leads to them.
    fn build_map(&mut self, id: ObjectId, pages: Vec<(u64, MapWord)>) -> Result<u64> {
        let Some(&(last, entry)) = pages.last() else {
            return Ok(0);
        };
        let salt = root_salt(id);
        if last == 0 {
            return Ok(Root { height: 0, entry }.encode(salt));
        }
        let height = (1..=MAX_HEIGHT).find(|&height| last < pages_below(height));
        let height = height.ok_or(StoreError::FileTooBig)?;
        let mut below = pages;
        for level in 1..=height {
            let mut nodes = Vec::new();
            for group in below.chunk_by(|a, b| a.0 / FANOUT == b.0 / FANOUT) {
                nodes.push((group[0].0 / FANOUT, self.build_node(id, level, group)?));
            }
            below = nodes;
        }
        let entry = below[0].1;
        Ok(Root { height, entry }.encode(salt))
    }

    fn build_node(
        &mut self,
        id: ObjectId,
        level: u32,
        words: &[(u64, MapWord)],
    ) -> Result<MapWord> {
        let unit = self.take_unit()?;
        let mut bytes = [0; PAGE];
        for &(index, entry) in words {
            let at = (index % FANOUT) as usize * 8;
            let word = entry.encode(entry_salt(id, level, index));
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let volume = &self.store.volume;
        let stored = volume.write(unit.offset(), &bytes, StoreKind::Metadata);
        self.fresh_bytes(unit.offset(), &bytes, stored);
        Ok(MapWord::written(unit))
    }

    /// Changes words of the map that there is.
    fn change_map(&mut self, staged: usize) -> Result<()> {
        self.drop_beyond(staged)?;
        let known = &self.scratch.staged[staged];
        let (map, onode) = (known.map(self), known.onode);
        let pages: Vec<_> = known.pages.iter().map(|(&page, &s)| (page, s)).collect();
        // What goes through the log alone needs no other fence than that of the record.
        if pages.iter().all(|(_, state)| state.entry().is_none()) {
            return Ok(());
        }
        // First of all, as growing moves the words of a lone page.
        let mut linked = Unfenced::nothing();
        let mut grown = false;
        if let Some((last, _)) = known.entries().last() {
            grown = map.reach()? <= last;
            map.grow_to(last, &mut linked)?;
        }
        let mut words = Words::default();
        let mut mapped = self.store.volume.load_u64(onode.add(ONODE_MAPPED_AT));
        for (page, state) in pages {
            let Some(entry) = state.entry() else { continue };
            let old = map.run_at(page, page + 1)?.entry;
            if old.is_hole() && entry.is_hole() {
                continue;
            }
            if !old.is_hole() && !matches!(state, Page::Kept(_)) {
                self.free_after_commit(Run {
                    start: old.unit(),
                    count: 1,
                });
            }
            mapped = mapped.wrapping_add(u64::from(old.is_hole()));
            mapped = mapped.saturating_sub(u64::from(entry.is_hole()));
            let leaf = match words.leaf.filter(|leaf| leaf.holds(page)) {
                Some(leaf) => leaf,
                None => {
                    grown |= old.is_hole();
                    map.make_leaf(page, &mut linked)?
                }
            };
            let run = PageRun {
                page,
                count: 1,
                entry,
            };
            let word = map.encode_run(leaf, run).next().unwrap_or_default();
            words.add(self, leaf, page, word);
        }
        words.put(self);
        self.count_mapped(onode, mapped);
        // Nodes that were linked on the way must be durable before the record is.
        match grown {
            true => self.fresh(linked),
            false => self.named.join(linked),
        }
        Ok(())
    }

    /// Pages that the medium maps behind what is kept become holes, unless they are written again.
    /// What is behind the end before and after means nothing (I11).
    fn drop_beyond(&mut self, staged: usize) -> Result<()> {
        let known = &self.scratch.staged[staged];
        let map = known.map(self);
        let last = pages_of(known.size.max(known.old_size));
        let (mut page, end) = (pages_of(known.kept), map.reach()?.min(last));
        while page < end {
            let run = map.run_at(page, end)?;
            if !run.entry.is_hole() {
                for page in run.page..run.end() {
                    let pages = &mut self.scratch.staged[staged].pages;
                    if let Slot::Vacant(place) = pages.entry(page) {
                        place.insert(Page::Hole);
                    }
                }
            }
            page = run.end();
        }
        Ok(())
    }

    fn finish_size(&mut self, staged: usize) {
        let known = &self.scratch.staged[staged];
        if known.size == known.old_size {
            return;
        }
        let word = CheckedWord::seal(known.size, size_salt(known.id)).0;
        let (id, at) = (known.id, known.onode.add(ONODE_SIZE_AT));
        match known.fresh {
            true => self.set_fresh_size(id, word),
            false => self.put_word(at, word),
        }
    }

    /// Corrects the lazy count of mapped units.
    fn count_mapped(&self, onode: VolumeOffset, mapped: u64) {
        let at = onode.add(ONODE_MAPPED_AT);
        let volume = &self.store.volume;
        volume.store_u64_lazy(at, mapped, StoreKind::Metadata);
    }
}

impl Staged {
    fn map<'s>(&self, tx: &Tx<'s>) -> Map<'s> {
        Map::new(tx.store, self.id, self.onode)
    }

    fn entries(&self) -> impl Iterator<Item = (u64, MapWord)> + '_ {
        let known = self.pages.iter();
        let known = known.filter_map(|(&page, state)| Some((page, state.entry()?)));
        known.filter(|(_, entry)| !entry.is_hole())
    }
}

impl Page {
    /// What the map shall say; `None`: what it says already.
    fn entry(self) -> Option<MapWord> {
        match self {
            Page::Hole => Some(MapWord::HOLE),
            Page::Own(unit) => Some(MapWord::written(unit)),
            Page::Shared(unit) | Page::Kept(unit) => Some(MapWord::shared(unit)),
            Page::Logged(_) => None,
        }
    }
}

/// Neighbouring words of a map that change.
#[derive(Default)]
struct Words {
    leaf: Option<Leaf>,
    first: u64,
    words: Vec<u64>,
}

impl Words {
    fn add(&mut self, tx: &mut Tx<'_>, leaf: Leaf, page: u64, word: u64) {
        let next = self.first + self.words.len() as u64;
        let goes_on = self.leaf.is_some_and(|leaf| leaf.holds(page)) && page == next;
        if !goes_on {
            self.put(tx);
            (self.leaf, self.first) = (Some(leaf), page);
        }
        self.words.push(word);
    }

    fn put(&mut self, tx: &mut Tx<'_>) {
        let Some(leaf) = self.leaf else { return };
        let at = leaf.word_at(self.first);
        match self.words[..] {
            [] => {}
            [word] => tx.put_word(at, word),
            _ => {
                let bytes: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
                tx.put_bytes(at, &bytes, StoreKind::Metadata);
            }
        }
        self.words.clear();
    }
}
