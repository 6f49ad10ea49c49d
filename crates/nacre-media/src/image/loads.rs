//! Units that are asked for by somebody who does not wait: one thread of the process takes what has
//! come, and finds whom to tell.
//!
//! As what is read ahead, they come to memory of this process, and count only if they were absent
//! all the time.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nacre_types::{PAGE_SIZE, UNIT_SIZE};
use rustix::io::pwrite;

use super::ahead::zeroed;
use super::{DiskFds, Image, REGION, units};
use crate::aio::{Context, Request};
use crate::own_writes::is_beyond_limit;

/// So many may be on their way at a time.
pub(super) const PLACES: usize = 64;
/// Each is of so many bytes at most.
pub(super) const PLACE: u64 = 128 << 10;

/// Memory that units come to, and what is on its way there.
#[derive(Debug, Default)]
pub(super) struct Loads {
    memory: Vec<u8>,
    context: Context,
    coming: Vec<Option<Coming>>,
}

/// What is on its way to a place.
#[derive(Clone, Debug)]
struct Coming {
    range: Range<u64>,
    /// [`Image::epochs`] when it was asked for.
    epochs: u64,
    /// What the caller knows it by.
    tag: u64,
}

impl Loads {
    /// A place for what is coming, with the kernel's number of the context and the memory. `None`:
    /// it cannot be asked for now.
    fn take_place(&mut self, coming: Coming) -> Option<(u64, usize, *mut u8)> {
        if self.memory.is_empty() {
            self.memory = zeroed(PLACES * PLACE as usize + PAGE_SIZE as usize)?;
        }
        // What was asked for by the process that this one was forked from comes to its memory.
        if !self.context.is_ours() {
            self.context = Context::with_room(PLACES);
            self.coming = vec![None; PLACES];
        }
        let context = self.context.ready()?;
        let place = self.coming.iter().position(Option::is_none)?;
        let to = self.place(place, coming.len()).as_mut_ptr();
        self.coming[place] = Some(coming);
        Some((context, place, to))
    }

    fn place(&mut self, place: usize, len: usize) -> &mut [u8] {
        let skip = self.memory.as_ptr().align_offset(PAGE_SIZE as usize);
        &mut self.memory[skip + place * PLACE as usize..][..len]
    }
}

impl Coming {
    fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        self.context = Context::default();
    }
}

impl Image {
    /// Asks for units of the device that are all absent, to be told of by [`Image::take_loaded`]
    /// with this tag. False if nothing will be told: it takes more than one request.
    pub fn begin_load(&self, range: Range<u64>, tag: u64) -> bool {
        let units = units(range);
        let range = units.start * UNIT_SIZE..units.end * UNIT_SIZE;
        let regions = (range.start / REGION, range.end.saturating_sub(1) / REGION);
        let fits = regions.0 == regions.1 && range.end - range.start <= PLACE;
        let can = fits && self.mapped.is_none() && !is_beyond_limit(range.end);
        can && !self.present.has_any(units) && self.ask_for_load(range, tag)
    }

    fn ask_for_load(&self, range: Range<u64>, tag: u64) -> bool {
        let coming = Coming {
            epochs: self.epochs(&range),
            range: range.clone(),
            tag,
        };
        let len = coming.len();
        // Not waited for: it may have been held when this process was forked.
        let taken = self.loads.try_lock().ok();
        let Some((context, place, to)) = taken.and_then(|mut loads| loads.take_place(coming))
        else {
            return false;
        };
        let mut begun = false;
        // Without the lock: the kernel takes its time.
        let mut ask = |disk: DiskFds<'_>| {
            let request =
                |direct| Request::read(direct, range.start.wrapping_sub(disk.back), to, len);
            let request = disk.direct.map(request);
            // SAFETY: the kernel keeps the file open, and the memory stays until the context is
            // gone, which waits. Nobody else has the place.
            begun = request.is_some_and(|request| unsafe {
                Context::begin_in(context, &mut [request.numbered(place)]) == 1
            });
            Ok(())
        };
        let _asked = match &self.legs {
            Some(legs) => legs.read(range.start, &mut ask),
            None => ask(self.disk_fds()),
        };
        match begun {
            true => self.count_awaited(len as u64 / UNIT_SIZE),
            false => lock(&self.loads).coming[place] = None,
        }
        begun
    }

    /// Waits for some of what was asked for, but not longer than `most`; then tells the tag of each
    /// that has come. Units that came in vain are loaded by whoever reads them. One thread of the
    /// process calls it at a time.
    pub fn take_loaded(&self, most: Duration, mut tell: impl FnMut(u64)) {
        let known = lock(&self.loads).context.number();
        let mut came = Vec::with_capacity(PLACES);
        // SAFETY: the context is this process's, and stays as long as its image.
        if unsafe { Context::take(known, most, PLACES, &mut came) }.is_err() {
            return;
        }
        for (place, result) in came {
            if let Some(tag) = self.store_loaded(place, result) {
                tell(tag);
            }
        }
    }

    /// Puts what has come to its place, and answers its tag.
    fn store_loaded(&self, place: usize, result: i64) -> Option<u64> {
        let mut loads = lock(&self.loads);
        let coming = loads.coming.get(place)?.clone()?;
        let len = coming.len();
        if result == len as i64 {
            let bytes = core::ptr::from_mut(loads.place(place, len));
            drop(loads);
            // SAFETY: the place is taken until this is over, and nothing else comes to it.
            self.put_loaded(&coming, unsafe { &*bytes });
            loads = lock(&self.loads);
        }
        loads.coming[place] = None;
        Some(coming.tag)
    }

    fn put_loaded(&self, coming: &Coming, bytes: &[u8]) {
        let units = units(coming.range.clone());
        self.hold_sums(&units);
        let _coming = self.region(units.start).lock();
        if self.present.has_any(units.clone()) || self.epochs(&coming.range) != coming.epochs {
            return;
        }
        if !self.are_disks_whole() {
            return;
        }
        self.make_room(units.end - units.start);
        let are_put = pwrite(&self.file, bytes, coming.range.start) == Ok(bytes.len());
        if are_put && units.clone().all(|unit| self.is_as_given(unit)) {
            self.count_loaded(units.end - units.start);
            self.came(units);
        }
    }
}

fn lock(loads: &Mutex<Loads>) -> MutexGuard<'_, Loads> {
    loads.lock().unwrap_or_else(PoisonError::into_inner)
}
