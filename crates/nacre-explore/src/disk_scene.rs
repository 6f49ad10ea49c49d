//! Crashes of a disk behind an image in memory: what was written between two syncs reaches it in
//! any subset, each sector in any of its versions; a write that is durable on return may be cut
//! short in the middle.

#[path = "disk_model.rs"]
mod disk_model;
#[path = "failing_disk.rs"]
mod failing_disk;
#[path = "leaving_disk.rs"]
mod leaving_disk;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use nacre_fs::{Cred, Fs, XattrFlags};
use nacre_store::scrub::{Doubtful, scrub};
use nacre_store::{WriteMode, runtime};
use nacre_types::{BLOCK_SIZE, VolumeOffset};
use nacre_volume::tap::{self, DiskEvent, DiskMark, OnDisk};
use nacre_volume::{Access, Caching, Checksums, Common, Stripe, Volume};

use crate::action::Action;
use crate::bench::Bench;
use crate::ground::Ground;
use crate::judge::examine;
use crate::kept_file;
use crate::sabotage::Sabotage;
use crate::visible::Visible;
use crate::workload::{self, ACTIONS, PREPARED};
use disk_model::{Model, SECTOR, Sectors};
use nacre_testkit::pool::{PoolChoice, PoolFiles};
use nacre_testkit::random::Random;
use nacre_testkit::recorder::Event;

const SIZE: u64 = (2 << 20) + 12 * BLOCK_SIZE + 4096;
/// Bytes of each of two disks that hold a part together, and the rest each alone: that, a journal
/// of three blocks, and four. Parts end at multiples of 1 MiB, as those of real sizes do.
const COMMON_SIZE: u64 = (2 << 20) + COMMON + 7 * BLOCK_SIZE + 4096;
const COMMON: u64 = 8 * BLOCK_SIZE;
/// Bytes of each of two disks that hold each a part: eight blocks and the journal.
const PART_SIZE: u64 = (2 << 20) + 11 * BLOCK_SIZE + 4096;
const _: () = assert!(COMMON.is_multiple_of(1 << 20) && (8 * BLOCK_SIZE).is_multiple_of(1 << 20));
/// Operations of a sequence.
const LENGTH: usize = 7;
const SEQUENCES: u64 = 24;
const TWIN_SEQUENCES: u64 = 4;
const PART_SEQUENCES: u64 = 8;
const ALONE_SEQUENCES: u64 = 4;
const KEPT_SEQUENCES: u64 = 2;
/// Random images of each crash, besides nothing and all.
const SAMPLES: u64 = 3;
/// One image in so many is crashed again while it recovers.
const NESTED: u64 = 16;

/// What reached the disk, what was to be seen before the first operation and after each, and the
/// operations.
type Played = (Vec<OnDisk>, Vec<Visible>, Vec<Action>);

/// Operations after which something new is on each of two disks.
const SPREAD: [Action; 2] = [Action::Append("a", 20_000), Action::Append("b", 20_000)];

/// What one version has and nothing refers to is used again before the next (C16).
const AGAIN: [Action; LENGTH] = [
    Action::Truncate("a", 0),
    Action::Fsync("a"),
    Action::Append("a", 3000),
    Action::Truncate("a", 0),
    Action::Chmod("a", 0o600),
    Action::Fsync("a"),
    Action::Append("a", 3000),
];

/// What is new goes home to what was sealed, and the sync between the two fails first. It is so
/// much that no metadata lies beside most of it: a recovery writes to that.
const SEALED: [Action; LENGTH] = [
    Action::Append("a", 100_000),
    Action::Append("b", 100_000),
    Action::Append("a", 100_000),
    Action::Append("b", 100_000),
    Action::Append("a", 100_000),
    Action::Append("b", 100_000),
    Action::Append("a", 100_000),
];

/// What each disk holds.
type Images = Vec<Sectors>;

/// The names of two disks.
const NAMES: [&str; 2] = ["disk", "twin"];

/// What several disks are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Twins,
    Parts,
    /// The same, and one of them leaves.
    Leaving,
    /// They hold metadata together, and contents each alone (D80).
    Alone,
    /// The same, but all contents are to be on both.
    Kept,
}

impl Kind {
    /// Whether either disk has all that counts.
    fn are_alike(self) -> bool {
        matches!(self, Kind::Twins | Kind::Kept)
    }

    /// Whether contents go round both disks.
    fn is_spread(self) -> bool {
        matches!(self, Kind::Parts | Kind::Leaving | Kind::Alone)
    }
}

/// The files of a pool, removed in the end.
struct Disks {
    kind: Kind,
    files: PoolFiles,
    bases: Vec<Arc<[u8]>>,
}

/// How closely an image is looked at.
#[derive(Clone, Copy, Default)]
struct Look {
    /// What recovery does is recorded.
    records: bool,
    /// Disks that hold the same are compared.
    scrubs: bool,
}

/// Which states may be found.
struct Allowed {
    states: BTreeSet<usize>,
    direct: bool,
}

/// Runs sequences of operations on a cached pool and crashes the disk at each write.
pub fn run(sabotage: Sabotage, seed: u64, images: &mut u64) -> Result<Vec<Event>, String> {
    run_on(Disks::new(Kind::One), SEQUENCES, sabotage, seed, images)
}

/// As [`run`], on two disks that hold the same and are cut each for itself: either one alone, and
/// both together, must do.
pub fn run_twins(sabotage: Sabotage, seed: u64, images: &mut u64) -> Result<Vec<Event>, String> {
    failing_disk::run(sabotage, seed, images)?;
    run_on(
        Disks::new(Kind::Twins),
        TWIN_SEQUENCES,
        sabotage,
        seed,
        images,
    )
}

/// As [`run`], on two disks that hold each a part: a power cut takes from each for itself what it
/// had not synced. One of them leaves, too.
pub fn run_parts(sabotage: Sabotage, seed: u64, images: &mut u64) -> Result<Vec<Event>, String> {
    leaving_disk::run(sabotage, seed, images)?;
    run_on(
        Disks::new(Kind::Parts),
        PART_SEQUENCES,
        sabotage,
        seed,
        images,
    )
}

/// As [`run_parts`], on two disks that hold a part together; then with all in that part, where
/// either one must do as in [`run_twins`].
pub fn run_common(sabotage: Sabotage, seed: u64, images: &mut u64) -> Result<Vec<Event>, String> {
    for (kind, sequences) in [(Kind::Alone, ALONE_SEQUENCES), (Kind::Kept, KEPT_SEQUENCES)] {
        failing_disk::run_alone(kind, seed, images)?;
        run_on(Disks::new(kind), sequences, sabotage, seed, images)?;
    }
    Ok(Vec::new())
}

fn run_on(
    mut disk: Disks,
    sequences: u64,
    sabotage: Sabotage,
    seed: u64,
    images: &mut u64,
) -> Result<Vec<Event>, String> {
    disk.prepare()?;
    for number in 0..sequences {
        tap::write_by_calls(is_by_calls(number));
        sabotage.switch();
        let played = disk.play(number, seed);
        Sabotage::Nothing.switch();
        let (mut events, states, done) =
            played.map_err(|why| format!("sequence {number}: {why}"))?;
        plant(sabotage, &mut events);
        // What is compared when a disk is read may be switched off too.
        sabotage.switch();
        let judged = disk.crash(&events, &states, (number, seed), images);
        Sabotage::Nothing.switch();
        judged.map_err(|why| format!("{done:?}, number {number} of seed {seed}: {why}"))?;
    }
    Ok(Vec::new())
}

/// The other disks are memory.
fn is_by_calls(number: u64) -> bool {
    number.is_multiple_of(2)
}

fn is_direct(number: u64) -> bool {
    number % 3 == 2
}

/// Leaves syncs out, or makes writes that are to be durable ordinary ones.
fn plant(sabotage: Sabotage, events: &mut Vec<OnDisk>) {
    let Sabotage::Fences(remainder) = sabotage else {
        return;
    };
    let mut met = 0;
    let mut planted = Vec::new();
    for (disk, event) in events.drain(..) {
        let counts = matches!(
            event,
            DiskEvent::Sync | DiskEvent::Settle(_) | DiskEvent::Through(..)
        );
        met += u64::from(counts);
        match event {
            event if !counts || met % 3 != remainder => planted.push((disk, event)),
            DiskEvent::Through(at, bytes) => planted.push((disk, DiskEvent::Write(at, bytes))),
            _ => {}
        }
    }
    *events = planted;
}

impl Disks {
    fn new(kind: Kind) -> Disks {
        let count = if kind == Kind::One { 1 } else { 2 };
        let has_common = matches!(kind, Kind::Alone | Kind::Kept);
        let files = PoolFiles::make(&PoolChoice {
            devices: &NAMES[..count],
            bytes: match kind {
                Kind::Parts => PART_SIZE,
                Kind::Leaving => leaving_disk::SIZE,
                Kind::Alone | Kind::Kept => COMMON_SIZE,
                Kind::One | Kind::Twins => SIZE,
            },
            caching: Caching::Always,
            copies: match has_common || kind == Kind::Twins {
                true => count,
                false => 0,
            },
            common: has_common.then_some(Common::Bytes(COMMON)),
            checksums: match kind {
                Kind::One => Checksums::Always,
                _ => Checksums::Never,
            },
            ..PoolChoice::default()
        });
        let bases = vec![Arc::from(Vec::new()); count];
        Disks { kind, files, bases }
    }

    fn path(&self, disk: usize) -> PathBuf {
        self.files.file(NAMES[disk])
    }

    /// A pool with something in it and stale bytes in what is free.
    fn prepare(&mut self) -> Result<(), String> {
        if self.kind.is_spread() {
            // So that little suffices to be on both.
            Volume::store_stripe(&self.path(0), Stripe::Bytes(4096)).map_err(text)?;
        }
        let pool = Bench::attach_clean(self.open(None)?, WriteMode::Cached)?;
        if self.kind == Kind::Kept {
            let (cred, no) = (Cred::root(), XattrFlags::empty());
            let set = pool.set_xattr(&cred, pool.root(), b"user.nacre.copies", b"2", no);
            set.map_err(text)?;
        }
        for (salt, action) in (1000..).zip(PREPARED) {
            action.run(Ground::of(&pool), salt).map_err(text)?;
        }
        workload::spoil_free_units(&pool);
        self.scrub(&pool)?;
        pool.into_store().close().map_err(text)?;
        if self.kind == Kind::Twins {
            self.renew_twin()?;
        }
        self.bases = self.read()?;
        Ok(())
    }

    /// The second disk is one that came later, and holds something else in what was free (D82).
    fn renew_twin(&self) -> Result<(), String> {
        let len = fs::metadata(self.path(1)).map_err(text)?.len();
        fs::remove_file(self.path(1)).map_err(text)?;
        let pool = Bench::attach_clean(self.open(None)?, WriteMode::Cached)?;
        fs::write(self.path(1), vec![0xA5; len as usize]).map_err(text)?;
        let (store, volume) = (pool.store(), pool.store().volume());
        let lost = volume.copies().map_err(text)?[1].uuid;
        volume
            .replace_copy(lost, &self.path(1), true)
            .map_err(text)?;
        let (mut looked, mut total) = (0, 0);
        let rebuilt = store.rebuild_copies(1, |progress| {
            (looked, total) = (progress.looked, progress.total);
            ControlFlow::Continue(())
        });
        let is_less = rebuilt.map_err(text)?.0 == 1 && looked < total;
        pool.into_store().close().map_err(text)?;
        match is_less {
            true => Ok(()),
            false => Err("a rebuild skipped nothing".into()),
        }
    }

    /// What the disks hold.
    fn read(&self) -> Result<Vec<Arc<[u8]>>, String> {
        let disks = 0..self.bases.len();
        let read = disks.map(|disk| Ok(fs::read(self.path(disk)).map_err(text)?.into()));
        read.collect()
    }

    fn open(&self, lost: Option<usize>) -> Result<Volume, String> {
        let left = usize::from(lost == Some(0));
        Volume::open(&self.path(left), Access::ReadWrite).map_err(text)
    }

    /// Does the operations of a sequence.
    fn play(&self, number: u64, seed: u64) -> Result<Played, String> {
        self.lay_out(&self.untouched(), None)?;
        let mut random = Random::new(seed, number);
        let mode = match is_direct(number) {
            true => WriteMode::Direct,
            false => WriteMode::Cached,
        };
        tap::record_disk(true);
        let pool = Bench::attach_clean(self.open(None)?, mode)?;
        pool.store().set_mode(mode);
        let mut states = vec![examine(&pool)?];
        let mut actions = Vec::new();
        let directed = self.directed(number);
        let played = (1..=LENGTH).try_for_each(|index| {
            let action = match (directed, self.kind) {
                (Some(all), _) => all[index - 1],
                (None, kind) if kind.is_spread() && random.below(2) == 0 => {
                    SPREAD[random.below(SPREAD.len() as u64) as usize]
                }
                (None, _) => choose(&mut random, &states[index - 1]),
            };
            actions.push(action);
            step(&pool, (index, action), &mut states)?;
            match (directed, self.kind) {
                (None, _) => self.disturb(&pool, index, &mut random, &states),
                (Some(_), Kind::Twins) => self.fail_to_unseal(&pool, index),
                (Some(_), _) => Ok(()),
            }
        });
        let leaves = random.below(2) == 0;
        mark(DiskMark::Committing(LENGTH));
        let left = match leaves {
            true => pool.into_store().close().map(drop).map_err(text),
            false => {
                let done = pool.commit().map_err(text);
                drop(pool.into_store().abandon());
                done
            }
        };
        mark(DiskMark::Durable(LENGTH));
        let events = tap::record_disk(false);
        played.and(left).map(|()| (events, states, actions))
    }

    /// The operations of a sequence that every seed plays, and nothing else.
    fn directed(&self, number: u64) -> Option<&'static [Action; LENGTH]> {
        match self.kind {
            Kind::One if number.is_multiple_of(8) => Some(&AGAIN),
            Kind::Twins if number == 0 => Some(&SEALED),
            _ => None,
        }
    }

    /// What is new goes home at the second attempt. Then all is sealed.
    fn fail_to_unseal(&self, pool: &Fs, index: usize) -> Result<(), String> {
        let goes = || pool.store().bring_news().map(drop).map_err(text);
        with_syncs(true, goes)?;
        goes()?;
        mark(DiskMark::Committing(index));
        self.scrub(pool)?;
        pool.store().volume().checkpoint().map_err(text)?;
        mark(DiskMark::Durable(index));
        Ok(())
    }

    /// What others do between two operations.
    fn disturb(
        &self,
        pool: &Fs,
        index: usize,
        random: &mut Random,
        states: &[Visible],
    ) -> Result<(), String> {
        self.trim(pool, index, random)?;
        if random.below(2) == 0 {
            // Nothing is to be seen of it (D75).
            let fails = random.below(2) == 0;
            with_syncs(fails, || pool.store().bring_news().map(drop).map_err(text))?;
            if fails {
                // What had gathered of records may be lost, too (C13).
                pool.store().volume().checkpoint().map_err(text)?;
            }
        }
        if random.below(3) == 0 {
            mark(DiskMark::Committing(index));
            let fails = random.below(3) == 0;
            with_syncs(fails, || pool.commit().map_err(text))?;
            pool.commit().map_err(text)?;
            mark(DiskMark::Durable(index));
        }
        if random.below(4) == 0 {
            fail_a_checkpoint(pool, random.below(3) == 0)?;
            if self.kind == Kind::Parts && random.below(2) == 0 {
                fail_one_part(pool, random.below(2) as usize, random.below(4));
            }
            pool.store().volume().checkpoint().map_err(text)?;
        }
        if self.kind.are_alike() && random.below(3) == 0 {
            // It commits.
            mark(DiskMark::Committing(index));
            self.scrub(pool)?;
            // Seals, too.
            pool.store().volume().checkpoint().map_err(text)?;
            mark(DiskMark::Durable(index));
        }
        let volume = pool.store().volume();
        match random.below(6) {
            0 | 1 => _ = volume.drop_memory(),
            // Without a checkpoint.
            2 => volume.drop_range(VolumeOffset(0), volume.len()),
            _ => return Ok(()),
        }
        match states.last() == Some(&examine(pool)?) {
            true => Ok(()),
            false => Err("what went came back as something else".into()),
        }
    }

    /// Tells the disks of some units that are free. What else happens is not to depend on it.
    fn trim(&self, pool: &Fs, index: usize, random: &Random) -> Result<(), String> {
        if random.clone().below(3) != 0 {
            return Ok(());
        }
        // It commits.
        mark(DiskMark::Committing(index));
        let once = &mut |_| ControlFlow::Break(());
        let trimmed = pool.store().trim(false, once).map_err(text)?;
        mark(DiskMark::Durable(index));
        match trimmed.bytes {
            0 => Err("nothing was trimmed".into()),
            _ => Ok(()),
        }
    }

    /// Judges images of the disks at each of their events.
    fn crash(
        &self,
        events: &[OnDisk],
        states: &[Visible],
        (number, seed): (u64, u64),
        images: &mut u64,
    ) -> Result<(), String> {
        let mut random = Random::new(seed, !number);
        let mut models = self.models(self.untouched());
        let mut allowed = Allowed {
            states: BTreeSet::from([0]),
            direct: is_direct(number),
        };
        for (place, (disk, event)) in events.iter().enumerate() {
            if let DiskEvent::Mark(mark) = event {
                allowed.note(*mark);
                continue;
            }
            let under_way = with(&models, (*disk, event));
            for choice in 0..SAMPLES + 2 {
                *images += 1;
                let image = images_of(&under_way, choice, &mut random);
                let lost = match self.directed(number) {
                    Some(_) => None,
                    None => self.choose_lost(&mut random),
                };
                let again = random.below(self.nested()) == 0;
                let look = Look {
                    records: again,
                    // Old seals are there still, if nobody has waited until they are not.
                    scrubs: lost.is_none() && (again || choice == 0),
                };
                let judged = self.judge((&image, lost), states, &allowed, look);
                let seen =
                    judged.map_err(|why| format!("at write {place}, {lost:?} lost: {why}"))?;
                if let Some((seen, recovery)) = seen {
                    self.crash_again((&image, lost), &recovery, &seen, &mut random, images)
                        .map_err(|why| format!("at write {place}, then in recovery: {why}"))?;
                }
            }
            models[*disk].apply(event);
        }
        Ok(())
    }

    fn untouched(&self) -> Images {
        vec![Sectors::new(); self.bases.len()]
    }

    fn models(&self, durable: Images) -> Vec<Model> {
        let model = |(base, durable): (&Arc<[u8]>, Sectors)| Model {
            base: Arc::clone(base),
            durable,
            pending: Vec::new(),
            lost: Vec::new(),
        };
        self.bases.iter().zip(durable).map(model).collect()
    }

    /// One image in so many is looked at more closely.
    fn nested(&self) -> u64 {
        NESTED / self.bases.len() as u64
    }

    /// One of two disks, or none.
    fn choose_lost(&self, random: &mut Random) -> Option<usize> {
        match self.kind {
            Kind::One | Kind::Parts | Kind::Leaving | Kind::Alone => None,
            Kind::Twins | Kind::Kept => {
                Some(random.below(3) as usize).filter(|&lost| lost < self.bases.len())
            }
        }
    }

    /// A recovery that is cut short leads to the same.
    fn crash_again(
        &self,
        (image, lost): (&Images, Option<usize>),
        recovery: &[OnDisk],
        seen: &Visible,
        random: &mut Random,
        images: &mut u64,
    ) -> Result<(), String> {
        let mut models = self.models(image.clone());
        let states = std::slice::from_ref(seen);
        let allowed = Allowed {
            states: BTreeSet::from([0]),
            direct: false,
        };
        for (disk, event) in recovery {
            *images += 1;
            let image = images_of(&with(&models, (*disk, event)), 2, random);
            self.judge((&image, lost), states, &allowed, Look::default())?;
            models[*disk].apply(event);
        }
        Ok(())
    }

    /// Recovers an image, which must show one of the states. If asked for, answers what was seen
    /// and what the recovery did to the disk.
    fn judge(
        &self,
        (image, lost): (&Images, Option<usize>),
        states: &[Visible],
        allowed: &Allowed,
        look: Look,
    ) -> Result<Option<(Visible, Vec<OnDisk>)>, String> {
        self.lay_out(image, lost)?;
        tap::record_disk(look.records);
        let pool = Bench::attach_clean(self.open(lost)?, WriteMode::Cached);
        let recovery = tap::record_disk(false);
        let pool = pool?;
        let seen = examine(&pool);
        let scrubbed = match look.scrubs {
            true => self.scrub(&pool),
            false => Ok(()),
        };
        drop(pool.into_store().abandon());
        let seen = seen?;
        scrubbed?;
        if !allowed.states.iter().any(|&state| states[state] == seen) {
            let found = states.iter().position(|state| *state == seen);
            return Err(format!(
                "the disk shows state {found:?} and not one of {:?}",
                allowed.states
            ));
        }
        // Some of them, as it takes long.
        if look.records && self.kind.are_alike() && lost.is_none() {
            self.judge_each(&seen)?;
        }
        Ok(look.records.then_some((seen, recovery)))
    }

    /// Nothing was damaged, so disks that hold the same differ in what counts for nothing at most.
    fn scrub(&self, pool: &Fs) -> Result<(), String> {
        if !self.kind.are_alike() {
            return Ok(());
        }
        let go_on = &mut |_| ControlFlow::Continue(());
        let report = scrub(pool.store(), 1, &Doubtful::Told, go_on).map_err(text)?;
        match report.damages.is_empty() {
            true => Ok(()),
            false => Err(format!("damage that is none: {:?}", report.damages)),
        }
    }

    /// After a recovery each of two disks alone has what both have.
    fn judge_each(&self, seen: &Visible) -> Result<(), String> {
        let held = self.read()?;
        for lost in 0..held.len() {
            for (disk, bytes) in held.iter().enumerate() {
                self.fill(disk, bytes, &Sectors::new()).map_err(text)?;
            }
            kept_file::take_away(&self.path(lost)).map_err(text)?;
            self.forget(Some(lost))?;
            let pool = Bench::attach_clean(self.open(Some(lost))?, WriteMode::Cached)?;
            let alone = examine(&pool);
            drop(pool.into_store().abandon());
            if alone? != *seen {
                return Err(format!("recovered, and without disk {lost} it is another"));
            }
        }
        Ok(())
    }

    /// Makes the files these images, and forgets what memory held.
    fn lay_out(&self, images: &Images, lost: Option<usize>) -> Result<(), String> {
        for (disk, (base, image)) in self.bases.iter().zip(images).enumerate() {
            self.fill(disk, base, image).map_err(text)?;
        }
        if let Some(lost) = lost {
            kept_file::take_away(&self.path(lost)).map_err(text)?;
        }
        self.forget(lost)
    }

    fn fill(&self, disk: usize, base: &[u8], image: &Sectors) -> io::Result<()> {
        let sectors = image.iter();
        let sectors = sectors.map(|(&sector, now)| (sector as usize * SECTOR, &now[..]));
        kept_file::fill(&self.path(disk), base, sectors)
    }

    fn forget(&self, lost: Option<usize>) -> Result<(), String> {
        let volume = self.open(lost)?;
        if let Some(folder) = runtime::folder(&volume).map_err(text)? {
            folder.clear();
            folder.leave();
        }
        Ok(())
    }
}

/// Models with what is under way on one of the disks.
fn with(models: &[Model], (disk, event): (usize, &DiskEvent)) -> Vec<Model> {
    let mut models = models.to_vec();
    models[disk] = models[disk].with(event);
    models
}

/// What disks hold if a choice of what is pending got there: nothing, all, or any; of several disks
/// each chooses for itself.
fn images_of(models: &[Model], choice: u64, random: &mut Random) -> Images {
    let mut images = Images::new();
    for model in models {
        let own = match choice {
            0 | 1 => choice,
            _ if models.len() > 1 => random.below(3),
            _ => choice,
        };
        images.push(model.image(own, random));
    }
    images
}

/// Does something while syncs may fail, and it with them.
fn with_syncs(fail: bool, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    tap::fail_syncs(fail);
    let done = work();
    tap::fail_syncs(false);
    match fail {
        true => Ok(()),
        false => done,
    }
}

/// The disk fails to sync a checkpoint, if it is one that is synced.
fn fail_a_checkpoint(pool: &Fs, fails: bool) -> Result<(), String> {
    if !fails {
        return Ok(());
    }
    tap::fail_syncs(true);
    let failed = pool.store().volume().checkpoint();
    tap::fail_syncs(false);
    match failed {
        Err(_) => Ok(()),
        Ok(()) => Err("a checkpoint whose sync failed succeeded".into()),
    }
}

/// One of two disks that hold each a part fails from one of its calls in a checkpoint on.
fn fail_one_part(pool: &Fs, disk: usize, after: u64) {
    tap::fail_disk(Some(disk), after);
    // It may have had fewer calls.
    let _ = pool.store().volume().checkpoint();
    tap::fail_disk(None, 0);
}

fn step(
    pool: &Fs,
    (index, action): (usize, Action),
    states: &mut Vec<Visible>,
) -> Result<(), String> {
    mark(DiskMark::Begun(index));
    // One that fails changes nothing.
    let done = action.run(Ground::of(pool), index as u64);
    let syncs = done.is_ok() && matches!(action, Action::Fsync(_));
    mark(match syncs {
        true => DiskMark::Durable(index),
        false => DiskMark::Done(index),
    });
    states.push(examine(pool)?);
    Ok(())
}

/// An operation that leaves nothing half done when a version is taken in the middle of it.
fn choose(random: &mut Random, before: &Visible) -> Action {
    loop {
        let action = ACTIONS[random.below(ACTIONS.len() as u64) as usize];
        if action.torn(before, false).is_none() {
            return action;
        }
    }
}

fn mark(mark: DiskMark) {
    tap::disk(0, || DiskEvent::Mark(mark));
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl Allowed {
    fn note(&mut self, mark: DiskMark) {
        match mark {
            DiskMark::Begun(index) => self.states.extend([index - 1, index]),
            DiskMark::Done(index) if self.direct => self.states = BTreeSet::from([index]),
            DiskMark::Done(_) => {}
            DiskMark::Committing(index) => self.states.extend([index]),
            DiskMark::Durable(index) => self.states = BTreeSet::from([index]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nacre_fs::WriteAt;
    use nacre_store::WriteMode;
    use nacre_volume::tap::{self, DiskEvent, OnDisk};

    use super::{Cred, Disks, Kind, PART_SEQUENCES, run_common, run_parts};
    use crate::bench::Bench;
    use crate::sabotage::Sabotage;

    #[test]
    fn parts_that_are_cut_each_for_itself_show_one_version() {
        run_parts(Sabotage::Nothing, 2, &mut 0).unwrap();
    }

    #[test]
    fn both_parts_are_written_in_all_ways() {
        let mut disks = Disks::new(Kind::Parts);
        disks.prepare().unwrap();
        let mut counts = [[0; 4]; 2];
        for number in 0..PART_SEQUENCES {
            let (events, ..) = disks.play(number, 1).unwrap();
            for (disk, event) in events {
                let way = match event {
                    DiskEvent::Write(..) => 0,
                    DiskEvent::Through(..) => 1,
                    DiskEvent::Sync => 2,
                    DiskEvent::Settle(_) => 3,
                    DiskEvent::SyncFailed | DiskEvent::Mark(_) => continue,
                };
                counts[disk][way] += 1;
            }
        }
        let all = counts.as_flattened();
        assert!(all.iter().all(|count| *count > 2), "{counts:?}");
    }

    #[test]
    fn syncs_of_parts_that_are_left_out_are_found() {
        for of in 0..3 {
            assert!(run_parts(Sabotage::Fences(of), 1, &mut 0).is_err(), "{of}");
        }
    }

    #[test]
    fn disks_with_a_common_part_show_one_version_and_either_has_what_is_kept() {
        run_common(Sabotage::Nothing, 2, &mut 0).unwrap();
    }

    #[test]
    fn syncs_of_disks_with_a_common_part_that_are_left_out_are_found() {
        for of in 0..3 {
            assert!(run_common(Sabotage::Fences(of), 1, &mut 0).is_err(), "{of}");
        }
    }

    const SPAN: u64 = 1 << 20;
    /// Where seals and data are on a disk.
    const SEALS: u64 = 512 << 10;
    const DATA: u64 = 2 << 20;

    /// Where data ends, and what is done to disks between a scrub and a checkpoint.
    fn events() -> (u64, Vec<OnDisk>) {
        tap::write_by_calls(true);
        let disks = Disks::new(Kind::Twins);
        let pool = Bench::attach_clean(disks.open(None).unwrap(), WriteMode::Cached).unwrap();
        disks.scrub(&pool).unwrap();
        let end = DATA + pool.store().volume().len();
        tap::record_disk(true);
        for name in [b"one", b"two"] {
            let (cred, root) = (Cred::root(), pool.root());
            let node = pool.create(&cred, root, name, 0o600).unwrap();
            let bytes = vec![7; 800 << 10];
            let to = WriteAt::Append;
            pool.write(&cred, node, to, bytes[..].into()).unwrap();
            pool.commit().unwrap();
        }
        pool.store().volume().checkpoint().unwrap();
        drop(pool.into_store().abandon());
        (end, tap::record_disk(false))
    }

    /// The spans of a disk that were written before their seals were gone, and all that were.
    fn written_early((end, events): &(u64, Vec<OnDisk>), disk: usize) -> (usize, usize) {
        let (mut removed, mut gone) = (BTreeSet::new(), BTreeSet::new());
        let (mut early, mut written) = (BTreeSet::new(), BTreeSet::new());
        for (_, event) in events.iter().filter(|(on, _)| *on == disk) {
            match event {
                DiskEvent::Sync | DiskEvent::Settle(_) => gone.append(&mut removed),
                DiskEvent::Write(at, bytes) | DiskEvent::Through(at, bytes) => {
                    let range = *at..at + bytes.len() as u64;
                    if (SEALS..2 * SEALS).contains(at) {
                        removed.extend((range.start - SEALS) / 8..(range.end - SEALS) / 8);
                    } else if (DATA..*end).contains(at) {
                        let spans = range.start / SPAN..range.end.div_ceil(SPAN);
                        early.extend(spans.clone().filter(|span| !gone.contains(span)));
                        written.extend(spans);
                    }
                }
                _ => {}
            }
        }
        (early.len(), written.len())
    }

    #[test]
    fn seals_are_gone_before_anything_goes_home() {
        let events = events();
        for disk in 0..2 {
            let (early, written) = written_early(&events, disk);
            assert_eq!(early, 0);
            assert!(written > 2, "{written}");
        }
    }
}
