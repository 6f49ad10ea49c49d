//! How much may be dirty, and what goes home before a version is taken: new units, which mean
//! nothing yet (D75).

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use nacre_types::UNIT_SIZE;
use rustix::thread::gettid;

use super::{Committer, GRANULE, Image};

/// So much of the room, as a fraction, may be dirty.
const DIRTY_SHARE: u64 = 4;
/// From so much of that on, as a fraction, a version is made in the background.
const FILLS_SHARE: u64 = 2;
/// From so many granules on what is new goes home in the background: 16 MiB.
const NEWS_FILL: u64 = (16 << 20) / GRANULE;
/// Calls that overwrite so much are for fresh units: to write it once costs less than to write it
/// twice, by a wait more.
const LARGE: usize = 64 << 10;
/// So many bytes of what is new may be dirty in any case, or more: as many as take the disk as long
/// as the call does that brings them. So who stores has half of the disk where calls take long.
pub(super) const LEAST: u64 = 512 << 10;
const LEAST_AT_MOST: u64 = 4 << 20;
/// How fast the disk is tell writes of so many bytes and more; how long a call takes tell others.
const RATE_OF: u64 = 4 << 20;
const CALL_OF: u64 = 128 << 10;
/// Who syncs waits for what others have stored since the last sync this part of the time since
/// then, at most.
const WAITS_SHARE: u64 = 16;
/// Milliseconds for which a press counts, if its maker dies.
const PRESSES: u64 = 10_000;
/// Bytes that a disk takes in a millisecond, as long as nobody has seen it.
pub(super) const USUAL_RATE: u64 = 256 << 10;
/// From this part of what may be dirty on contents are overwritten elsewhere. The explorer has
/// small files.
const CROWDED_SHARE: u64 = if cfg!(feature = "explore") { 4096 } else { 4 };
/// Granules of a word of bits are of so many units.
const UNITS_OF_WORD: u64 = u64::BITS as u64 * GRANULE / UNIT_SIZE;
const GRANULES: u64 = UNIT_SIZE / GRANULE;

/// How what is new goes home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Nobody waits: what went already and was stored to again stays.
    Once,
    /// As much as possible.
    All,
    /// Somebody waits for the disk, so who stores may go on half as fast as it takes.
    Presses,
}

/// Memory for words of [`News`].
pub type NewsRoom = Vec<(usize, u64)>;

/// New units that are on their way home. They are noted still.
#[derive(Debug)]
pub struct News {
    /// Words of the set of granules, and what was taken of them.
    words: NewsRoom,
    /// Nothing else is in the set where they are noted.
    alone: bool,
}

impl News {
    /// The ranges of the device, in order, in whole units.
    pub fn homes(&self) -> Vec<Range<u64>> {
        let mut homes: Vec<Range<u64>> = Vec::new();
        for unit in self.words.iter().flat_map(|&word| units_of(word)) {
            let at = unit * UNIT_SIZE;
            match homes.last_mut() {
                Some(last) if last.end == at => last.end += UNIT_SIZE,
                _ => homes.push(at..at + UNIT_SIZE),
            }
        }
        homes
    }

    fn granules(&self) -> u64 {
        let count = |(_, mask): &(usize, u64)| u64::from(mask.count_ones());
        self.words.iter().map(count).sum()
    }
}

fn this_thread() -> u64 {
    gettid().as_raw_nonzero().get().unsigned_abs().into()
}

/// The units that some granules of a word are of.
fn units_of((word, mask): (usize, u64)) -> impl Iterator<Item = u64> {
    let has = move |unit: &u64| mask & of_unit(*unit) != 0;
    let first = word as u64 * UNITS_OF_WORD;
    (0..UNITS_OF_WORD).filter(has).map(move |unit| first + unit)
}

/// The granules of one unit of a word.
const fn of_unit(unit: u64) -> u64 {
    (u64::MAX >> (u64::BITS as u64 - GRANULES)) << (unit * GRANULES)
}

impl Image {
    /// Whether all units of a range mean nothing in the version that the disk has, nor in its
    /// journal (C11).
    pub(super) fn is_new(&self, units: Range<u64>) -> bool {
        self.new.has_all(units.clone()) && !self.away.has_any(units)
    }

    /// After a version that failed, or whose maker died, the disk may have the one before. What was
    /// freed between the two is new behind neither. Nobody stores.
    pub(super) fn settle(&self) {
        let head = self.head();
        if head.settled.load(SeqCst) != 0 {
            return;
        }
        let current = head.current.load(SeqCst) as usize & 1;
        self.freed[1 - current].each_range(|range| {
            self.freed[current].insert(range.clone());
            self.new.clear_all(range);
        });
        head.settled.store(1, SeqCst);
    }

    /// The version that is taken has what went home ahead of it.
    pub(super) fn end_newness_ahead(&self) {
        self.ahead.each_range(|range| _ = self.new.clear_all(range));
        self.ahead.clear();
    }

    /// Takes about `most` bytes of what is new, to be written home from memory as it is by then:
    /// who stores there meanwhile notes it again. Nobody stores now, and nobody else takes anything
    /// before [`Image::went_ahead`] or [`Image::did_not_go`].
    pub fn take_new(&self, most: u64, pace: Pace, mut words: NewsRoom) -> News {
        self.settle();
        let head = self.head();
        let current = head.current.load(SeqCst) as usize & 1;
        let (from, to) = (&self.sets[current], &self.sets[1 - current]);
        let (alone, mut left) = (to.is_empty(), most / UNIT_SIZE);
        from.each_word_while(|word, bits| {
            let mask = bits & self.new_of(word, pace);
            if mask != 0 {
                // Noted in one of the sets all the time.
                to.insert_word(word, mask);
                from.remove_word(word, mask);
                left = left.saturating_sub(units_of((word, mask)).count() as u64);
                words.push((word, mask));
            }
            left > 0
        });
        let news = News { words, alone };
        let dirty = head.dirty.fetch_sub(news.granules(), SeqCst);
        let new = dirty.saturating_sub(head.old.load(Relaxed));
        self.press(new, news.granules(), pace == Pace::Presses);
        news
    }

    /// Of the granules of a word those that are of new units.
    fn new_of(&self, word: usize, pace: Pace) -> u64 {
        let first = word as u64 * UNITS_OF_WORD;
        let new = (0..UNITS_OF_WORD).filter(|unit| {
            let unit = first + unit..first + unit + 1;
            let again = pace == Pace::Once && self.ahead.has_any(unit.clone());
            self.is_new(unit) && !again
        });
        new.fold(0, |all, unit| all | of_unit(unit))
    }

    fn press(&self, new: u64, goes: u64, presses: bool) {
        let head = self.head();
        if presses {
            head.pressed.store(self.now() + PRESSES, Relaxed);
        }
        let next = head.allowed.load(Relaxed).min(new).saturating_sub(goes / 2);
        let next = next.max(self.allowed_by_now());
        head.allowed.store(next, Relaxed);
    }

    /// How many granules of what is new may be dirty by now, as who syncs next would wait for them.
    pub(super) fn allowed_by_now(&self) -> u64 {
        let head = self.head();
        let now = self.now();
        let is_pressed = now < head.pressed.load(Relaxed);
        let since = match is_pressed {
            true => 0,
            false => now.saturating_sub(head.asked.load(Relaxed)),
        };
        let by_time = since.saturating_mul(head.rate.load(Relaxed)) / WAITS_SHARE;
        // Who synced last waits for what it stores itself, now or then.
        let least = match !is_pressed && head.asker.load(Relaxed) == this_thread() {
            true => LEAST_AT_MOST,
            false => head.even.load(Relaxed),
        };
        least.max(by_time) / GRANULE
    }

    /// Nobody presses any more.
    pub fn end_press(&self) {
        self.head().pressed.store(0, Relaxed);
    }

    fn now(&self) -> u64 {
        self.committer.get().map_or(0, |one| one.now())
    }

    /// The disk has what was taken, at home and for good.
    pub fn went_ahead(&self, news: &News) {
        let set = self.taken();
        // Before any of them may go.
        self.sum_ahead(news.words.iter().flat_map(|&word| units_of(word)));
        for &word in &news.words {
            units_of(word).for_each(|unit| _ = self.ahead.insert(unit..unit + 1));
        }
        // C7: home has them as they are here, unless they were noted again.
        match news.alone {
            true => set.clear(),
            false => news
                .words
                .iter()
                .for_each(|&(word, mask)| set.remove_word(word, mask)),
        }
    }

    /// It may lack some of it.
    pub fn did_not_go(&self, news: &News) {
        let head = self.head();
        let current = &self.sets[head.current.load(SeqCst) as usize & 1];
        let back = |&(word, mask): &(usize, u64)| current.insert_word(word, mask);
        let granules = news.words.iter().map(back).sum();
        head.dirty.fetch_add(granules, SeqCst);
        if news.alone {
            self.taken().clear();
        }
    }

    /// A program waits until the disk has what was stored before.
    pub fn note_asked(&self) {
        let (head, me) = (self.head(), this_thread());
        head.asked.store(self.now(), Relaxed);
        if head.asker.swap(me, Relaxed) != me {
            let even = head.even.load(Relaxed) / GRANULE;
            head.allowed.fetch_min(even, Relaxed);
        }
    }

    /// The disk took so many bytes of what is new in this time.
    pub fn note_rate(&self, bytes: u64, time: Duration) {
        let (rate, even) = (&self.head().rate, &self.head().even);
        let next = |known: &AtomicU64, seen: u64| (3 * known.load(Relaxed) + seen) / 4;
        let micros = time.as_micros().max(1) as u64;
        if bytes >= RATE_OF {
            rate.store(next(rate, bytes * 1000 / micros), Relaxed);
        } else if bytes >= CALL_OF {
            let as_fast = micros.saturating_mul(rate.load(Relaxed)) / 1000;
            let seen = as_fast.saturating_sub(bytes);
            even.store(next(even, seen).clamp(LEAST, LEAST_AT_MOST), Relaxed);
        }
    }

    /// How many granules of what is not new may be dirty.
    #[inline]
    fn most_old(&self) -> u64 {
        self.limit.load(Relaxed).min(self.most_in_room())
    }

    /// How many granules may be dirty, as far as memory goes.
    #[inline]
    fn most_in_room(&self) -> u64 {
        let room = self.head().room.load(Relaxed);
        (room / DIRTY_SHARE).saturating_mul(GRANULES)
    }

    /// Whether more is dirty than may be. What is new has a limit of its own where it passes by the
    /// journal.
    #[inline]
    fn is_full(&self) -> bool {
        self.is_over(self.head().allowed.load(Relaxed))
    }

    /// As `is_full`, with so many granules of what is new.
    #[inline]
    fn is_over(&self, allowed: u64) -> bool {
        let head = self.head();
        let dirty = head.dirty.load(Relaxed);
        let has_most = match self.passes.load(Relaxed) {
            true => dirty.saturating_sub(head.old.load(Relaxed)) >= allowed,
            false => dirty >= self.limit.load(Relaxed),
        };
        has_most || dirty >= self.most_in_room()
    }

    /// Whether somebody rests from now on who brings what is new home: whoever stores wakes it in
    /// time.
    pub fn set_rests(&self, rests: bool) {
        let wakes_at = match rests {
            true => self.fill(),
            false => u64::MAX,
        };
        self.head().wakes_at.store(wakes_at, SeqCst);
    }

    /// Wakes who rests, once, if there is so much that is new.
    fn wake(&self, committer: &dyn Committer) {
        let wakes_at = &self.head().wakes_at;
        let is_time = self.is_over(wakes_at.load(Relaxed));
        if is_time && wakes_at.swap(u64::MAX, SeqCst) != u64::MAX {
            committer.wake_who_rests();
        }
    }

    /// Whether so much is dirty that must go through the journal that whoever commits for others
    /// should: those who store have to when it is twice as much.
    pub fn fills(&self) -> bool {
        let head = self.head();
        let dirty = match self.passes.load(Relaxed) {
            true => head.old.load(Relaxed),
            false => head.dirty.load(Relaxed),
        };
        // In memory alone nothing else makes room for who stores.
        let share = match self.passes.load(Relaxed) {
            true => FILLS_SHARE,
            false => 2 * FILLS_SHARE,
        };
        dirty > 0 && dirty >= self.most_old() / share
    }

    /// Bytes of what is new and not at home, if it goes there ahead of versions.
    pub fn new_bytes(&self) -> u64 {
        let head = self.head();
        let dirty = head.dirty.load(Relaxed);
        match self.passes.load(Relaxed) {
            true => dirty.saturating_sub(head.old.load(Relaxed)) * GRANULE,
            false => 0,
        }
    }

    /// Whether so much that is new is dirty that it should go home in the background.
    pub fn news_fill(&self) -> bool {
        self.new_bytes() > 0 && self.new_bytes() / GRANULE >= self.fill()
    }

    /// From so many granules of what is new on it should: soon enough that those who store do not
    /// wait. Where little may be dirty, somebody syncs often: who stores has a part of the disk's
    /// time then, and not all of it.
    fn fill(&self) -> u64 {
        let most = (self.most_in_room() / FILLS_SHARE).min(NEWS_FILL);
        match self.head().allowed.load(Relaxed) {
            allowed if allowed >= NEWS_FILL / FILLS_SHARE => most.min(allowed / FILLS_SHARE),
            _ => most,
        }
    }

    /// Whether so much waits for the journal that contents had better be overwritten elsewhere:
    /// then they are new.
    fn is_crowded(&self) -> bool {
        let old = self.head().old.load(Relaxed);
        old > 0 && old >= self.most_old() / CROWDED_SHARE
    }

    /// Whether contents that a call overwrites, of so many bytes, had better be stored elsewhere.
    pub fn had_better_move(&self, len: usize) -> bool {
        self.passes.load(Relaxed) && (len >= LARGE || self.is_crowded())
    }

    /// How many of the first of `count` units are alike, and whether overwriting them would cost
    /// the journal all of their bytes.
    pub fn first_alike(&self, at: u64, count: u64) -> (u64, bool) {
        let first = at / UNIT_SIZE;
        let set = &self.sets[self.head().current.load(Relaxed) as usize & 1];
        let costs = |unit: u64| {
            let noted = set.has_any(unit * GRANULES..(unit + 1) * GRANULES);
            !noted && !self.is_new(unit..unit + 1)
        };
        let kind = costs(first);
        let other = (1..count).find(|&behind| costs(first + behind) != kind);
        (other.unwrap_or(count), kind)
    }

    /// Gives the disk what it lacks, if that is too much. What it does not take stays noted; who
    /// syncs is told.
    #[inline]
    pub(super) fn slow_down(&self) {
        let head = self.head();
        let allowed = head.allowed.load(Relaxed).min(head.wakes_at.load(Relaxed));
        if self.is_over(allowed) || head.old.load(Relaxed) >= self.most_old() {
            self.wait_for_disk();
        }
    }

    #[cold]
    fn wait_for_disk(&self) {
        let head = self.head();
        let Some(committer) = self.committer.get() else {
            return;
        };
        self.wake(&**committer);
        let has_old = head.old.load(Relaxed) >= self.most_old();
        if has_old || !self.passes.load(Relaxed) {
            // What the disk does not take stays noted; whoever syncs is told.
            let _ = committer.commit();
        }
        let mut goes_on = self.passes.load(Relaxed);
        if goes_on {
            head.allowed.fetch_max(self.allowed_by_now(), Relaxed);
        }
        while goes_on && self.is_full() {
            goes_on = match committer.make_room() {
                // All that is dirty must go through the journal, and is less than that may have.
                Ok(false) => committer.commit().is_ok(),
                other => other.is_ok(),
            };
        }
    }
}
