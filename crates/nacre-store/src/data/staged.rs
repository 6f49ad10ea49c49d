//! Changes of an object's bytes by a transaction: gathered page by page, committed by its record.
//!
//! Whole pages and new bytes go to fresh units, which nobody reaches before the commit; short
//! overwrites go through the log. The words of the block map change with the record.

use nacre_types::{CheckedWord, ObjectId, StoreKind, UNIT_SIZE, UnitNo, VolumeOffset};
use nacre_volume::Unfenced;
use smallvec::SmallVec;

use super::{File, MAX_FILE_SIZE, page_start, pages_of, range_end};
use crate::alloc::Run;
use crate::block_map::layout::{ALL_PARTS, FANOUT, MAX_HEIGHT, MapWord, PART, Root, entry_salt};
use crate::block_map::{Leaf, PageRun};
use crate::data::map::{Map, PartsMap, pages_below};
use crate::error::{Result, StoreError};
use crate::layout::{
    ONODE_MAPPED_AT, ONODE_PARTS_AT, ONODE_ROOT_AT, ONODE_SIZE_AT, PARTS_HAVE_PLACES, parts_id,
    root_salt, size_salt,
};
use crate::thread::pages::Pages;
use crate::thread::staged::{Page, Parts, Staged};
use crate::tx::Tx;

const PAGE: usize = UNIT_SIZE as usize;
/// Overwrites of a part of a page up to this size go through the log.
const LOGGED_MAX: usize = 1024;
/// Pages get no second unit while less than this share of the pool is free.
const ROOM_SHARE: u64 = 4;

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
            let behind = self.hole_end(staged, page, pages_of(stop))?;
            if behind > page {
                at = page_start(behind);
                continue;
            }
            let part = (stop - at).min(UNIT_SIZE - skip as u64) as usize;
            at += part as u64;
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
        let beyond = known.pages.split_off(pages_of(size));
        beyond.into_iter().for_each(|page| self.let_go(page));
        let (page, skip) = (size / UNIT_SIZE, (size % UNIT_SIZE) as usize);
        let cut = self.scratch.staged[staged].pages.get(page);
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

    /// Forgets what was done to the bytes of an object that is removed.
    pub(crate) fn unstage(&mut self, id: ObjectId) {
        if let Some(place) = self.scratch.staged_index(id) {
            let scratch = &mut *self.scratch;
            let staged = scratch.staged.swap_remove(place);
            let (places, list) = (&mut scratch.staged_places, &scratch.staged);
            places.swap_removed(list, place, id, |s| s.id);
            let pages = staged.pages.iter();
            pages.for_each(|(_, page)| self.let_go(page));
        }
    }

    /// Number of what is gathered for an object whose lock is held, or that the transaction
    /// creates.
    pub(super) fn stage(&mut self, id: ObjectId) -> Result<usize> {
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
            pages: Pages::default(),
        };
        Ok(self.scratch.add_staged(staged))
    }

    /// Writes whole pages into fresh units.
    pub(super) fn write_pages(&mut self, staged: usize, first: u64, bytes: &[u8]) -> Result<()> {
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
        let state = self.scratch.staged[staged].pages.get(page);
        if let Some(Page::Own(unit)) = state {
            let at = unit.offset().add(skip as u64);
            let stored = self.store.volume.write(at, bytes, StoreKind::Data);
            self.fresh(stored);
            return Ok(());
        }
        if let Some(parts) = self.parts_to_write(staged, page, skip, bytes.len())? {
            self.write_parts(staged, page, parts, (skip, bytes));
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
        match known.pages.get(page) {
            Some(Page::Logged(unit)) => return Ok(Some(unit)),
            Some(_) => return Ok(None),
            None => {}
        }
        let entry = self.old_entry(staged, page)?;
        let alloc = self.store.allocator();
        let shared = entry.may_be_shared() && alloc.must_be_left(entry.unit());
        let is_lost = entry.is_written() && alloc.is_lost(entry.unit());
        Ok((entry.is_written() && !shared && !is_lost).then_some(entry.unit()))
    }

    /// What the medium says of a page whose bytes still count.
    pub(super) fn old_entry(&self, staged: usize, page: u64) -> Result<MapWord> {
        let known = &self.scratch.staged[staged];
        if page_start(page) >= known.kept {
            return Ok(MapWord::HOLE);
        }
        let entry = known.map(self).entry(page)?;
        Ok(if entry.is_written() {
            entry
        } else {
            MapWord::HOLE
        })
    }

    pub(super) fn is_hole(&self, staged: usize, page: u64) -> Result<bool> {
        match self.scratch.staged[staged].pages.get(page) {
            Some(state) => Ok(state == Page::Hole),
            None => Ok(self.old_entry(staged, page)?.is_hole()),
        }
    }

    /// Where the holes end that begin with `page`, up to `end`: `page` if it is none.
    pub(super) fn hole_end(&self, staged: usize, page: u64, end: u64) -> Result<u64> {
        if page >= end || !self.is_hole(staged, page)? {
            return Ok(page);
        }
        let known = &self.scratch.staged[staged];
        if known.pages.get(page).is_some() {
            return Ok(page + 1);
        }
        let next = known.pages.next_from(page).unwrap_or(end).min(end);
        let old = next.min(pages_of(known.kept));
        match page < old {
            true => Ok(known.map(self).run_at(page, old)?.end()),
            false => Ok(next),
        }
    }

    /// A page as the transaction sees it.
    pub(super) fn page_bytes(&self, staged: usize, page: u64) -> Result<Box<[u8; PAGE]>> {
        let mut bytes = Box::new([0; PAGE]);
        let known = &self.scratch.staged[staged];
        let unit = match known.pages.get(page) {
            Some(Page::Hole) => return Ok(bytes),
            Some(Page::Own(unit) | Page::Shared(unit)) => {
                self.store.read_contents(unit.offset(), &mut bytes[..])?;
                return Ok(bytes);
            }
            Some(Page::Kept(unit) | Page::Logged(unit)) => Some(unit),
            Some(Page::Parts(_)) => None,
            None => match self.old_entry(staged, page)? {
                entry if entry.is_hole() => return Ok(bytes),
                entry => Some(entry.unit()),
            },
        };
        let parts = self.parts_of(staged, page)?;
        if let Some(unit) = unit {
            self.see(unit, 0, &mut bytes[..])?;
        }
        if let Some(parts) = parts {
            for (part, bytes) in bytes.chunks_exact_mut(PART).enumerate() {
                self.see(parts.unit_of(part), part * PART, bytes)?;
            }
        }
        let kept = known.kept.saturating_sub(page_start(page));
        if let Some(beyond) = bytes.get_mut(kept as usize..) {
            beyond.fill(0);
        }
        Ok(bytes)
    }

    /// Bytes of a unit from `from` on, as the record will leave them.
    fn see(&self, unit: UnitNo, from: usize, to: &mut [u8]) -> Result<()> {
        let start = unit.offset().add(from as u64);
        self.store.read_contents(start, to)?;
        for (at, bytes, _) in self.scratch.writes.of_unit(start) {
            if (start.0..start.0 + to.len() as u64).contains(&at.0) {
                let skip = (at.0 - start.0) as usize;
                to[skip..skip + bytes.len()].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// The second unit of a page on the medium.
    fn old_parts(&self, staged: usize, page: u64) -> Result<MapWord> {
        match self.store.superblock.version >= PARTS_HAVE_PLACES {
            true => self.scratch.staged[staged].parts_map(self).entry(page),
            false => Ok(MapWord::HOLE),
        }
    }

    /// How a page lies in two units, if it does.
    pub(super) fn parts_of(&self, staged: usize, page: u64) -> Result<Option<Parts>> {
        match self.scratch.staged[staged].pages.get(page) {
            Some(Page::Parts(parts)) => return Ok(Some(parts)),
            Some(_) => return Ok(None),
            None => {}
        }
        let old = self.old_parts(staged, page)?;
        if old.is_hole() {
            return Ok(None);
        }
        let entry = self.old_entry(staged, page)?;
        Ok((!entry.is_hole()).then(|| Parts {
            unit: entry.unit(),
            second: old.unit(),
            is_fresh: false,
            there: old.parts_there(),
            written: 0,
        }))
    }

    /// The two units of a page, if bytes of it are to be written there: whole parts, or some bytes
    /// of a part. A page gets its second unit for whole parts.
    fn parts_to_write(
        &mut self,
        staged: usize,
        page: u64,
        skip: usize,
        len: usize,
    ) -> Result<Option<Parts>> {
        let known = &self.scratch.staged[staged];
        let is_whole = skip.is_multiple_of(PART) && len.is_multiple_of(PART);
        let end = page_start(page) + (skip + len) as u64;
        if end > known.kept || !(is_whole || len <= LOGGED_MAX) {
            return Ok(None);
        }
        if let Some(parts) = self.parts_of(staged, page)? {
            return Ok(Some(parts));
        }
        let is_new = known.pages.get(page).is_none();
        if !is_whole || !is_new || !self.has_room_for_parts() {
            return Ok(None);
        }
        let Some(unit) = self.unit_to_log(staged, page, skip + len, PART)? else {
            return Ok(None);
        };
        let second = self.take_unit()?;
        self.takes_second = true;
        Ok(Some(Parts {
            unit,
            second,
            is_fresh: true,
            there: 0,
            written: 0,
        }))
    }

    /// Second units take room that whole pages may need.
    fn has_room_for_parts(&self) -> bool {
        self.store.superblock.version >= PARTS_HAVE_PLACES
            && self.store.allocator().free_units() > self.store.units / ROOM_SHARE
    }

    /// Whole parts go where nobody reads them, other bytes to where they are read.
    pub(super) fn write_parts(
        &mut self,
        staged: usize,
        page: u64,
        parts: Parts,
        (skip, bytes): (usize, &[u8]),
    ) -> Parts {
        let (mut parts, mut at, mut rest) = (parts, skip, bytes);
        while !rest.is_empty() {
            let (part, inside) = (at / PART, at % PART);
            let (piece, tail) = rest.split_at(rest.len().min(PART - inside));
            let is_first = !parts.is_written(part);
            let is_whole = piece.len() == PART;
            if is_whole && is_first {
                parts.there ^= 1 << part;
                parts.written |= 1 << part;
            }
            let place = parts.unit_of(part).offset().add(at as u64);
            match is_whole || !is_first {
                true => {
                    let stored = self.store.volume.write(place, piece, StoreKind::Data);
                    match is_first {
                        true => self.fresh_bytes(place, piece, stored),
                        false => self.fresh(stored),
                    }
                }
                false => self.put_bytes(place, piece, StoreKind::Data),
            }
            (at, rest) = (at + piece.len(), tail);
        }
        let pages = &mut self.scratch.staged[staged].pages;
        pages.insert(page, Page::Parts(parts));
        parts
    }

    pub(super) fn set_page(&mut self, staged: usize, page: u64, state: Page) {
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
            Page::Logged(unit) => self.forget_writes(unit),
            Page::Parts(parts) => {
                self.forget_writes(parts.unit);
                self.forget_writes(parts.second);
                if parts.is_fresh {
                    let start = parts.second;
                    self.free_after_commit(Run { start, count: 1 });
                }
            }
            Page::Hole | Page::Kept(_) => {}
        }
    }

    /// Nobody needs what the record was to write to a unit.
    fn forget_writes(&mut self, unit: UnitNo) {
        self.scratch.writes.forget_unit(unit.offset());
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
        match known.pages.get(page) {
            Some(Page::Hole | Page::Own(_) | Page::Shared(_)) => Ok(()),
            Some(Page::Logged(unit)) => {
                let at = unit.offset().add(skip as u64);
                self.put_bytes(at, &[0; PAGE][skip..], StoreKind::Data);
                Ok(())
            }
            state @ (Some(Page::Kept(_) | Page::Parts(_)) | None) => {
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
        let pages: Vec<(u64, MapWord)> = entries(&known.pages).collect();
        if !fresh {
            self.drop_parts(id, onode);
        }
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

    /// No page has a second unit any more.
    fn drop_parts(&mut self, id: ObjectId, onode: VolumeOffset) {
        let at = onode.add(ONODE_PARTS_AT);
        let before = self.store.volume.load_u64(at);
        if before != 0 && self.store.superblock.version >= PARTS_HAVE_PLACES {
            self.put_word(at, 0);
            self.scratch.maps.push((parts_id(id), before));
        }
    }

    /// Changes words of the map of parts; whether nodes were made.
    fn change_parts(
        &mut self,
        staged: usize,
        pages: &Pages<Page>,
        linked: &mut Unfenced,
    ) -> Result<bool> {
        let known = &self.scratch.staged[staged];
        let map = known.parts_map(self);
        if self.store.superblock.version < PARTS_HAVE_PLACES {
            return Ok(false);
        }
        let is_parts = |(_, state): (u64, Page)| matches!(state, Page::Parts(_));
        if !pages.iter().any(is_parts) && map.known_root()?.entry.is_hole() {
            return Ok(false);
        }
        let (mut words, mut grown) = (Words::default(), false);
        for (page, state) in pages.iter() {
            let (known, old) = words.look(&map, page)?;
            let Some(entry) = state.parts_entry().filter(|entry| *entry != old) else {
                continue;
            };
            let gone = match state {
                // It is the page's only unit from now on.
                Page::Parts(parts) if parts.there == ALL_PARTS => None,
                Page::Parts(parts) => entry.is_hole().then_some(parts.second),
                _ => Some(old.unit()),
            };
            if let Some(start) = gone {
                self.free_after_commit(Run { start, count: 1 });
            }
            if old.is_hole() && entry.is_hole() {
                continue;
            }
            let (leaf, is_made) = match known {
                Some(leaf) => (leaf, false),
                None => map.make_parts_leaf(page, linked)?,
            };
            grown |= is_made;
            words.set(self, &map, leaf, (page, entry));
        }
        words.put(self);
        Ok(grown)
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
        let pages = std::mem::take(&mut self.scratch.staged[staged].pages);
        // What goes through the log alone needs no other fence than that of the record.
        let is_logged = |state: &Page| matches!(state, Page::Logged(_));
        if pages.iter().all(|(_, state)| is_logged(&state)) {
            return Ok(());
        }
        let mut linked = Unfenced::nothing();
        let mut grown = self.change_parts(staged, &pages, &mut linked)?;
        // First of all, as growing moves the words of a lone page.
        if let Some((last, _)) = entries(&pages).next_back() {
            grown |= map.reach()? <= last;
            map.grow_to(last, &mut linked)?;
        }
        let mut words = Words::default();
        let mut mapped = self.store.volume.load_u64(onode.add(ONODE_MAPPED_AT));
        for (page, state) in pages.iter() {
            let Some(entry) = state.entry() else { continue };
            let (known, old) = words.look(&map, page)?;
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
            let leaf = match known {
                Some(leaf) => leaf,
                None => {
                    grown = true;
                    map.make_leaf(page, &mut linked)?
                }
            };
            words.set(self, &map, leaf, (page, entry));
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
                    if pages.get(page).is_none() {
                        pages.insert(page, Page::Hole);
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

    fn parts_map<'s>(&self, tx: &Tx<'s>) -> PartsMap<'s> {
        PartsMap::of_parts(tx.store, self.id, self.onode)
    }
}

/// The pages that the map shall name.
fn entries(pages: &Pages<Page>) -> impl DoubleEndedIterator<Item = (u64, MapWord)> {
    let known = pages.iter();
    let known = known.filter_map(|(page, state)| Some((page, state.entry()?)));
    known.filter(|(_, entry)| !entry.is_hole())
}

impl Page {
    /// What the map shall say; `None`: what it says already.
    fn entry(self) -> Option<MapWord> {
        match self {
            Page::Hole => Some(MapWord::HOLE),
            Page::Own(unit) => Some(MapWord::written(unit)),
            Page::Shared(unit) | Page::Kept(unit) => Some(MapWord::shared(unit)),
            Page::Parts(parts) if parts.there == ALL_PARTS => Some(MapWord::written(parts.second)),
            Page::Logged(_) | Page::Parts(_) => None,
        }
    }

    /// What the map of parts shall say; `None`: what it says already.
    fn parts_entry(self) -> Option<MapWord> {
        match self {
            Page::Parts(parts) => match parts.there {
                0 | ALL_PARTS => Some(MapWord::HOLE),
                there => Some(MapWord::parts(parts.second, there)),
            },
            Page::Logged(_) => None,
            Page::Hole | Page::Own(_) | Page::Shared(_) | Page::Kept(_) => Some(MapWord::HOLE),
        }
    }
}

/// Neighbouring words of a map that change.
#[derive(Default)]
struct Words {
    leaf: Option<Leaf>,
    first: u64,
    words: SmallVec<[u64; 4]>,
}

impl Words {
    /// The node that maps a page, if there is one, and what it says.
    fn look<const PARTS: bool>(
        &self,
        map: &Map<'_, PARTS>,
        page: u64,
    ) -> Result<(Option<Leaf>, MapWord)> {
        let known = match self.leaf.filter(|leaf| leaf.holds(page)) {
            None => map.known_leaf(page)?,
            known => known,
        };
        Ok(match known {
            Some(leaf) => (known, map.run_in(leaf, page, page + 1)?.entry),
            None => (None, MapWord::HOLE),
        })
    }

    /// The entry of a page is to change.
    fn set<const PARTS: bool>(
        &mut self,
        tx: &mut Tx<'_>,
        map: &Map<'_, PARTS>,
        leaf: Leaf,
        (page, entry): (u64, MapWord),
    ) {
        let count = 1;
        let run = PageRun { page, count, entry };
        let word = map.encode_run(leaf, run).next().unwrap_or_default();
        self.add(tx, leaf, page, word);
    }

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
