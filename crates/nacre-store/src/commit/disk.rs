//! Commits: the disk behind an image gets what memory held at one moment.
//!
//! One commit serves all who wait, of all processes: who finds another one under way waits for it
//! and then looks whether a version that was begun after the call is durable.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use nacre_session::{DeadOwner, SlotRef, StoreGate};
use nacre_types::{UNIT_SIZE, UnitNo};
use nacre_volume::{Access, Committer, MediaFailed, Numbers, Pace};
use rustix::time::{ClockId, clock_gettime};

use crate::alloc::Allocator;
use crate::error::Result;
use crate::store::{Attachment, Store};

/// The disk gets what was stored so long ago, unless the pool says how long.
const COMMIT_EVERY: Duration = Duration::from_secs(5);

/// From so many bytes on, what is new goes home before a version is taken, so that nobody waits
/// while it is copied.
const SOME_NEWS: u64 = if cfg!(feature = "explore") {
    4 << 10
} else {
    256 << 10
};
/// As [`SOME_NEWS`], where contents and record are waited for together: it saves a wait.
const SOME_NEWS_BESIDE: u64 = if cfg!(feature = "explore") {
    4 << 10
} else {
    4 << 20
};
/// Where others store meanwhile, so many bytes of it are copied while nobody does.
const NEWS: u64 = if cfg!(feature = "explore") {
    4 << 10
} else {
    8 << 20
};

/// What media asks for.
struct Commits {
    /// When this process looks whether anybody has committed of late, in seconds; 0: not known.
    due: AtomicU64,
    gate: StoreGate,
    /// The slot of this process, and those of children in its memory.
    slots: Numbers,
    attachment: OnceLock<Weak<Attachment>>,
}

impl Committer for Commits {
    fn enter(&self) {
        if now(ClockId::MonotonicCoarse) >= self.due.load(Relaxed) {
            self.commit_if_nobody_does();
        }
        while !self.gate.enter(self.slots.get()) {
            if let Some(attachment) = self.attachment() {
                attachment.session.wait_at_gate();
            }
        }
    }

    fn leave(&self) {
        self.gate.leave(self.slots.get());
    }

    fn commit(&self) -> std::result::Result<(), MediaFailed> {
        let Some((attachment, me)) = self.user() else {
            return Ok(());
        };
        attachment.commit(me).map_err(|_| MediaFailed)
    }

    fn make_room(&self) -> std::result::Result<bool, MediaFailed> {
        let Some((attachment, me)) = self.user() else {
            return Err(MediaFailed);
        };
        attachment.make_room(me).map_err(|_| MediaFailed)
    }

    fn wake_who_rests(&self) {
        if let Some(attachment) = self.attachment() {
            attachment.session.commit_group().wake();
        }
    }

    fn now(&self) -> u64 {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
    }

    fn set_share(&self, number: u64) {
        self.slots.set(number as u16);
    }

    fn end_share(&self, number: u64) {
        self.slots.remove(number as u16);
    }

    fn owner(&self) -> u64 {
        u64::from(self.slots.own())
    }

    fn while_nobody_stores(&self, work: &mut dyn FnMut()) {
        if let Some((attachment, me)) = self.user() {
            let session = &attachment.session;
            attachment.with_commit_lock(me, || session.while_nobody_stores(me, work));
        }
    }

    fn while_nobody_commits(&self, work: &mut dyn FnMut()) {
        if let Some((attachment, me)) = self.user() {
            attachment.with_commit_lock(me, work);
        }
    }

    fn bring_home(&self) -> std::result::Result<(), MediaFailed> {
        let Some((attachment, me)) = self.user() else {
            return Ok(());
        };
        attachment.bring_home(me).map_err(|_| MediaFailed)
    }
}

impl Commits {
    /// Where no supervisor is, who stores sees to it that the disk gets it.
    #[cold]
    fn commit_if_nobody_does(&self) {
        let (now_here, due) = (now(ClockId::MonotonicCoarse), self.due.load(Relaxed));
        let Some(attachment) = self.attachment() else {
            return;
        };
        let every = attachment.commit_every().as_secs().max(1);
        // Supervisors come first, who do it in time.
        let next = now_here + every + 1;
        let taken = self.due.compare_exchange(due, next, Relaxed, Relaxed);
        // The explorer plays by its own order, not by a clock.
        if taken.is_err() || due == 0 || cfg!(feature = "explore") {
            return;
        }
        let last = attachment.volume.committed_at();
        if now(ClockId::RealtimeCoarse).abs_diff(last) >= every {
            // What the disk does not take stays noted; who syncs is told.
            let _ = self.commit();
        }
    }

    fn attachment(&self) -> Option<Arc<Attachment>> {
        self.attachment.get()?.upgrade()
    }

    /// This process, while it is attached.
    fn user(&self) -> Option<(Arc<Attachment>, SlotRef)> {
        let attachment = self.attachment()?;
        let me = attachment.session.user_of(self.slots.get());
        Some((attachment, me))
    }
}

impl Attachment {
    /// Media keeps stores and versions apart from now on.
    pub(crate) fn keep_versions_apart(self: &Arc<Attachment>, me: SlotRef) {
        if self.volume.has_image() {
            let commits = Commits {
                due: AtomicU64::new(0),
                gate: self.session.store_gate(),
                slots: Numbers::new(me.slot),
                attachment: OnceLock::from(Arc::downgrade(self)),
            };
            self.volume.set_committer(Arc::new(commits));
        }
    }

    fn commit_every(&self) -> Duration {
        self.volume.saved_every().unwrap_or(COMMIT_EVERY)
    }

    /// The disk has all that was stored before, on return.
    fn commit(&self, me: SlotRef) -> Result<()> {
        if !self.volume.has_image() || self.volume.access() != Access::ReadWrite {
            return Ok(());
        }
        self.volume.leave_calls_to_others();
        let wanted = self.volume.next_version();
        let (lock, group) = (
            &self.session.shared().commit_lock,
            self.session.commit_group(),
        );
        let mut seen = group.ask();
        while self.volume.durable_version() < wanted {
            if lock.try_lock(&self.session, me) {
                let done = self.commit_for_all(me, wanted);
                lock.unlock(me);
                group.over();
                return done;
            }
            if !group.wait(seen) {
                return self.with_commit_lock(me, || self.commit_locked(me, wanted));
            }
            seen = group.seen();
        }
        Ok(())
    }

    /// The disk has all that was stored before, where it belongs, and its journal is empty.
    fn bring_home(&self, me: SlotRef) -> Result<()> {
        let wanted = self.volume.next_version();
        self.with_commit_lock(me, || {
            self.commit_locked(me, wanted)?;
            Ok(self.volume.checkpoint()?)
        })
    }

    /// As `commit_locked`, for all who are about to ask, too.
    fn commit_for_all(&self, me: SlotRef, wanted: u64) -> Result<()> {
        if self.volume.durable_version() < wanted {
            self.session.commit_group().gather();
        }
        self.commit_locked(me, wanted)
    }

    fn with_commit_lock<T>(&self, me: SlotRef, work: impl FnOnce() -> T) -> T {
        let lock = &self.session.shared().commit_lock;
        // Of a version that a dead process began the next one holds everything.
        while let Err(DeadOwner(dead)) = lock.lock(&self.session, me) {
            if lock.steal(dead, me) {
                break;
            }
        }
        let done = work();
        lock.unlock(me);
        self.session.commit_group().over();
        done
    }

    /// Somebody who stores waits until less of what is new is not at home. `false`: nothing is new.
    fn make_room(&self, me: SlotRef) -> Result<bool> {
        self.volume.leave_calls_to_others();
        let (lock, group) = (
            &self.session.shared().commit_lock,
            self.session.commit_group(),
        );
        let seen = group.seen();
        if lock.try_lock(&self.session, me) {
            let done = self.bring_news(me, Pace::All);
            lock.unlock(me);
            group.over();
            return done.map(|bytes| bytes > 0);
        }
        match group.wait(seen) {
            true => Ok(true),
            false => self
                .with_commit_lock(me, || self.bring_news(me, Pace::All))
                .map(|bytes| bytes > 0),
        }
    }

    /// Brings some of what is new home; answers how many bytes.
    fn bring_news(&self, me: SlotRef, pace: Pace) -> Result<u64> {
        let room = self.volume.room_for_news();
        let take = || self.volume.take_news(pace, room);
        match self.session.while_nobody_stores(me, take) {
            Some(news) => Ok(self.volume.write_news(news)?),
            None => Ok(0),
        }
    }

    /// Before a version is taken: brings home what is new, so that little is copied while nobody
    /// stores. First what there is, at the disk's pace; then what came meanwhile, and who stores is
    /// slowed down until that is over.
    fn bring_most_news(&self, me: SlotRef) -> Result<()> {
        let done = self.bring_news_until_few_are_left(me);
        self.volume.end_press();
        done
    }

    fn bring_news_until_few_are_left(&self, me: SlotRef) -> Result<()> {
        let some = match self.volume.writes_beside() {
            true => SOME_NEWS_BESIDE,
            false => SOME_NEWS,
        };
        let (mut left, mut most) = (self.volume.new_bytes(), some);
        while self.volume.new_bytes() >= most {
            let pace = match left {
                0 => Pace::Presses,
                _ => Pace::All,
            };
            let gone = self.bring_news(me, pace)?;
            (left, most) = (left.saturating_sub(gone), NEWS);
            // Whoever waits for room may go on.
            self.session.commit_group().over();
            if gone == 0 {
                break;
            }
        }
        Ok(())
    }

    fn commit_locked(&self, me: SlotRef, wanted: u64) -> Result<()> {
        if self.volume.durable_version() >= wanted {
            return Ok(());
        }
        self.bring_most_news(me)?;
        let group = self.session.commit_group();
        let mut room = self.volume.room_for_version();
        let take = || {
            group.taken();
            self.volume.take_version_in(&mut room)
        };
        let Some(version) = self.session.while_nobody_stores(me, take) else {
            return Ok(());
        };
        let begin = Instant::now();
        let done = self.volume.write_version(version);
        group.written(begin);
        done?;
        let allocator = Allocator::new(&self.session, &self.volume);
        let regained = |start: UnitNo, count| allocator.use_first(start.0, start.0 + count);
        self.volume.each_regained(regained);
        Ok(())
    }
}

fn now(clock: ClockId) -> u64 {
    clock_gettime(clock).tv_sec.cast_unsigned()
}

impl Store {
    /// What a program asks for that syncs. Where the pool is a disk behind an image, the disk has
    /// all that was stored before, on return. Elsewhere it has already; and where a pool in memory
    /// is saved to a disk, nobody waits for that.
    #[inline]
    pub fn commit(&self) -> Result<()> {
        match self.volume().has_image() {
            true => self.commit_image(),
            false => Ok(()),
        }
    }

    #[cold]
    fn commit_image(&self) -> Result<()> {
        match self.volume().saved_every() {
            Some(_) => Ok(()),
            None => {
                self.volume().note_asked();
                self.commit_now()
            }
        }
    }

    /// The disk has all that was stored before, where it belongs, and its journal is empty.
    pub(crate) fn bring_home(&self) -> Result<()> {
        self.attachment().bring_home(self.slot())
    }

    /// Works while nobody takes a version of the disk, nor writes one.
    pub(crate) fn while_nobody_commits<T>(&self, work: impl FnOnce() -> T) -> T {
        self.attachment().with_commit_lock(self.slot(), work)
    }

    /// Whether whoever stays beside the programs should bring what is new home. Who commits does so
    /// itself, and must not wait for others.
    pub fn news_fill(&self) -> bool {
        let group = self.attachment().session.commit_group();
        self.volume().news_fill() && !group.is_asked()
    }

    /// Brings some of what is new home, wherever there is a disk. Answers how many bytes.
    pub fn bring_news(&self) -> Result<u64> {
        let (attachment, me) = (self.attachment(), self.slot());
        attachment.with_commit_lock(me, || attachment.bring_news(me, Pace::Once))
    }

    /// For [`Store::rest`], before one looks whether there is anything to do.
    pub fn wakings(&self) -> u32 {
        self.attachment().session.commit_group().wakings()
    }

    /// Rests until what is new should go home, somebody has called [`Store::wake_who_rests`]
    /// since `seen` was told, or the time is over.
    pub fn rest(&self, seen: u32, time: Duration) {
        self.volume().set_rests(true);
        if !time.is_zero() && !self.news_fill() {
            self.attachment().session.commit_group().rest(seen, time);
        }
        self.volume().set_rests(false);
    }

    /// Whoever rests looks again.
    pub fn wake_who_rests(&self) {
        self.attachment().session.commit_group().wake();
    }

    /// As [`Store::commit`], wherever there is a disk.
    pub fn commit_now(&self) -> Result<()> {
        match self.volume().has_image() {
            true => {
                let done = self.attachment().commit(self.slot());
                self.leave_lost();
                done
            }
            false => Ok(()),
        }
    }

    /// Of disks that were lost nobody gets units any more, and what memory still has of them goes:
    /// what is stored there would be lost, too (D80).
    pub(crate) fn leave_lost(&self) {
        if self.volume().common_units() == 0 {
            return;
        }
        let closing = self.volume().closing_units().into_iter();
        let open = closing.filter(|units| self.is_writable() && !self.is_closed(units));
        open.for_each(|units| self.close_device(units));
        for units in self.volume().lost_units() {
            let len = (units.end - units.start) * UNIT_SIZE;
            self.volume().drop_range(UnitNo(units.start).offset(), len);
        }
    }

    /// Whether nobody gets any of these units, nor will once they are free.
    fn is_closed(&self, units: &Range<u64>) -> bool {
        let closed = self.leaving_units();
        let stays = closed.start <= units.start && units.end <= closed.end;
        stays && self.allocator().count_free_among(units.clone()) == 0
    }

    /// How often somebody should call [`Store::commit_now`].
    pub fn commit_every(&self) -> Duration {
        self.attachment().commit_every()
    }

    /// Whether the calling process commits every few seconds from now on, so that others need not.
    pub fn set_commits_for_all(&self, commits: bool) {
        self.session().set_commits_for_all(self.slot(), commits);
    }
}
