//! Processes die while they give a metadata block back, and while it comes again: at each step, and
//! at random.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nacre_media::Observer;
use nacre_session::step::{self, Fault};
use nacre_store::check::check;
use nacre_store::layout::ONODES_PER_BLOCK;
use nacre_store::{Store, StoreError, WriteMode};
use nacre_testkit::names::{create, find, remove};
use nacre_testkit::pool::{PoolFiles, attach};
use nacre_testkit::random::Random;
use nacre_types::{DeviceOffset, FileOffset, ObjectId, StoreKind, UNIT_SIZE};
use nacre_volume::Access;
use rustix::process::Signal;

const POOL: u64 = 32 << 20;
/// What the child is told: its pool, what it does, and at which step it dies.
const CHILD_POOL: &str = "NACRE_TEST_CHILD_POOL";
const CHILD_TASK: &str = "NACRE_TEST_CHILD_TASK";
const CHILD_DIES_AT: &str = "NACRE_TEST_CHILD_DIES_AT";
/// How many processes are killed at random.
const KILLS: &str = "NACRE_KILLS";
/// Beside the pool: how many steps the child made, one line for each part of its work.
const STEPS: &str = "steps";
/// Steps that are all tried, around where something is decided.
const NEAR: u64 = 12;

/// Each store and fence on the medium is a step, too.
struct Steps;

impl Observer for Steps {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {
        step::point();
    }
    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}
    fn fence(&self, _: u16) {
        step::point();
    }
}

/// Not a test by itself: what the process does that dies.
#[test]
fn child_process() {
    let (Ok(path), Ok(task)) = (std::env::var(CHILD_POOL), std::env::var(CHILD_TASK)) else {
        return;
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let store = attach(Path::new(&path), Access::ReadWrite).unwrap();
    match task.as_str() {
        "steps" => give_back_in_steps(store, Path::new(&path)),
        "steps, freed early" => {
            let _planted = step::plant(Fault::FreedBeforeGone);
            give_back_in_steps(store, Path::new(&path));
        }
        name => give_back_for_ever(&store, name),
    }
}

fn give_back_in_steps(store: Store, pool: &Path) {
    let observer: Arc<dyn Observer> = Arc::new(Steps);
    store.volume().set_observer(&observer);
    let dies_at = std::env::var(CHILD_DIES_AT).unwrap();
    step::arm(dies_at.parse().unwrap());
    store.give_blocks_back().unwrap();
    let given = step::passed();
    create_in_second_block(&store, "second life");
    let steps = format!("{given}\n{}\n", step::passed());
    std::fs::write(pool.with_file_name(STEPS), steps).unwrap();
    store.detach().unwrap();
}

/// Where all numbers of the first block are taken: a file is made in the second one and removed,
/// the block given back, and its units used for something else, until it is killed.
fn give_back_for_ever(store: &Store, name: &str) {
    clean_up(store, name);
    loop {
        match create(store, name) {
            Err(StoreError::NoSpace | StoreError::NoObjects) => continue,
            made => fill(store, made.unwrap(), 1500),
        }
        remove(store, name);
        store.give_blocks_back().unwrap();
    }
}

/// What one that was killed has left would keep the block from going.
fn clean_up(store: &Store, name: &str) {
    if find(store, name).is_some() {
        remove(store, name);
    }
}

/// Writes to a file what shows whose it is, until there is no room or it has so many pages.
fn fill(store: &Store, file: ObjectId, most: u64) {
    let page = [file.0.to_le_bytes(); UNIT_SIZE as usize / 8];
    let guard = store.lock(file).unwrap();
    let written = (0..most).take_while(|page_no| {
        let at = FileOffset(page_no * UNIT_SIZE);
        let page = page.as_flattened();
        match store.write(&guard, at, page.into(), WriteMode::Direct) {
            Err(StoreError::NoSpace) => false,
            result => result.is_ok(),
        }
    });
    written.count();
}

/// Creates a file while all numbers of the first metadata block are in use.
fn create_in_second_block(store: &Store, name: &str) -> ObjectId {
    let words = &store.session().object_bits()[..(ONODES_PER_BLOCK / 64) as usize];
    let before: Vec<u64> = words
        .iter()
        .map(|word| word.swap(!0, Ordering::SeqCst))
        .collect();
    let made = create(store, name).unwrap();
    for (word, before) in words.iter().zip(before) {
        word.fetch_and(before, Ordering::SeqCst);
    }
    assert!(made.0 >= ONODES_PER_BLOCK);
    made
}

fn child(pool: &Path, task: &str, dies_at: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child_process", "--test-threads=1", "-q"])
        .env(CHILD_POOL, pool)
        .env(CHILD_TASK, task)
        .env(CHILD_DIES_AT, dies_at.to_string())
        .stdout(Stdio::null());
    command.spawn().unwrap()
}

/// What became of a process that gave a block back.
struct Death {
    /// It was killed at its step.
    died: bool,
    /// Steps until the block was given back, and until the end of its work.
    steps: Option<(u64, u64)>,
    /// The pool says that the block is gone.
    is_gone: bool,
    /// What was wrong afterwards.
    complaint: Option<String>,
}

fn numbers(text: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines().map(|line| line.parse().ok());
    Some((lines.next()??, lines.next()??))
}

/// A process gives a block back and dies at a step, or not; another one goes on, also with the
/// units that it finds free.
fn die_at(task: &str, dies_at: u64) -> Death {
    let pool = PoolFiles::new(POOL);
    let store = pool.attach(Access::ReadWrite).unwrap();
    let old = create_in_second_block(&store, "first life");
    let generation = store.generation(old).unwrap();
    remove(&store, "first life");
    let status = child(&pool.path(), task, dies_at).wait().unwrap();
    let died = status.signal() == Some(9);
    assert!(died || status.success(), "{status}");
    let is_gone = store.info().gone_blocks > 0;
    let steps = std::fs::read_to_string(pool.file(STEPS));
    let complaint = go_on(&pool, store, old, generation).err();
    Death {
        died,
        steps: steps.ok().and_then(|text| numbers(&text)),
        is_gone,
        complaint,
    }
}

/// What a survivor does, and what the pool says then and after the next attach.
fn go_on(pool: &PoolFiles, store: Store, old: ObjectId, generation: u32) -> Result<(), String> {
    store.reap(&mut |_| Ok(())).unwrap();
    // Whoever knew the block goes on to ask it.
    store.set_atime_lazy(old, 7).unwrap();
    let known = store.attrs(old);
    let second_life = find(&store, "second life");
    if known.is_ok() != (second_life == Some(old)) {
        return Err(format!("{known:?} of what is gone"));
    }
    let filler = create(&store, "filler").unwrap();
    fill(&store, filler, u64::MAX);
    sound(&store)?;
    remove(&store, "filler");
    let made = create_in_second_block(&store, "survivor");
    if made == old && store.generation(made).unwrap() <= generation {
        return Err("a generation came twice".to_owned());
    }
    sound(&store)?;
    store.detach().unwrap();
    let store = pool.attach(Access::ReadWrite).unwrap();
    if store.report().problems != 0 || find(&store, "survivor") != Some(made) {
        return Err(format!("the next attach: {:?}", store.report()));
    }
    create(&store, "later").unwrap();
    let report = check(&store, &mut |_| {});
    store.detach().unwrap();
    match report.counts.leaked_units {
        0 => sound_report(&report.problems),
        units => Err(format!("{units} units are leaked after an attach")),
    }
}

fn sound(store: &Store) -> Result<(), String> {
    sound_report(&check(store, &mut |_| {}).problems)
}

fn sound_report(problems: &[impl std::fmt::Debug]) -> Result<(), String> {
    match problems.is_empty() {
        true => Ok(()),
        false => Err(format!("{problems:?}")),
    }
}

/// The first step, of so many, at which a process that dies leaves the block as gone.
fn first_gone(task: &str, most: u64) -> u64 {
    let (mut before, mut gone) = (0, most);
    while gone - before > 1 {
        let middle = before.midpoint(gone);
        match die_at(task, middle).is_gone {
            true => gone = middle,
            false => before = middle,
        }
    }
    gone
}

/// All steps near those where something is decided, and some of each long part between them.
fn chosen_steps(task: &str) -> Vec<u64> {
    let whole = die_at(task, u64::MAX);
    let (given, end) = whole.steps.expect("it came to its end");
    let decided = first_gone(task, given);
    let near = |step: u64| step.saturating_sub(NEAR).max(1)..=(step + NEAR).min(end);
    let few = |from: u64, to: u64| (from..to).step_by(((to - from) as usize / 8).max(1));
    let mut chosen: Vec<u64> = [1, decided, given, end]
        .into_iter()
        .flat_map(near)
        .collect();
    chosen.extend(
        few(1, decided)
            .chain(few(decided, given))
            .chain(few(given, end)),
    );
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

#[test]
fn a_survivor_goes_on_at_each_step_of_giving_a_block_back() {
    let chosen = chosen_steps("steps");
    for &dies_at in &chosen {
        let death = die_at("steps", dies_at);
        assert!(death.died, "there is no step {dies_at}");
        assert_eq!(death.complaint, None, "died at {dies_at}");
    }
    assert!(chosen.len() > 70, "only {} places to die at", chosen.len());
}

#[test]
fn canary_units_that_are_free_before_the_block_is_gone_are_noticed() {
    let task = "steps, freed early";
    let (given, _) = die_at(task, u64::MAX).steps.expect("it came to its end");
    let decided = first_gone(task, given);
    let noticed = (1..=NEAR).any(|back| die_at(task, decided - back).complaint.is_some());
    assert!(noticed);
}

/// Asks of objects of the second block until `done`, whatever becomes of the block, and says when a
/// block was gone.
fn look_at(store: &Store, done: &AtomicBool, was_gone: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        was_gone.fetch_or(store.info().gone_blocks > 0, Ordering::Relaxed);
        for number in 0..8 {
            let id = ObjectId(ONODES_PER_BLOCK + number);
            match store.attrs(id) {
                Ok(attrs) => assert_eq!(attrs.mode, nacre_testkit::names::NEW_FILE.mode),
                Err(error) => assert!(matches!(error, StoreError::NoSuchObject(_)), "{error}"),
            }
        }
    }
}

const WORKERS: [&str; 2] = ["one worker", "another worker"];

/// Kills one of two processes at a random time, again and again, once they have given blocks back.
fn kill_some(pool: &PoolFiles, random: &mut Random, kills: usize, was_gone: &AtomicBool) {
    let start = |name: &str| child(&pool.path(), name, 0);
    let mut workers = WORKERS.map(start);
    while !was_gone.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(20 + random.below(60)));
        let chosen = random.below(WORKERS.len() as u64) as usize;
        workers[chosen].kill().unwrap();
        let status = workers[chosen].wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it failed before: {status}");
        workers[chosen] = start(WORKERS[chosen]);
    }
    for mut worker in workers {
        worker.kill().unwrap();
        let status = worker.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it failed before: {status}");
    }
}

/// Gives the numbers of the first block to files, and says to how many.
fn take_first_block(store: &Store) -> u64 {
    let words = &store.session().object_bits()[..(ONODES_PER_BLOCK / 64) as usize];
    let has_room = || words.iter().any(|word| word.load(Ordering::SeqCst) != !0);
    let mut base = 0;
    while has_room() {
        let name = format!("base-{base}");
        match create(store, &name).unwrap().0 {
            ..ONODES_PER_BLOCK => base += 1,
            _ => panic!("the first block has numbers that are not given out"),
        }
    }
    base
}

/// So many may die before the next scan: each may leave a block that nobody has.
const DEAD_PER_SESSION: usize = 4;

#[test]
fn processes_that_give_blocks_back_are_killed_at_random() {
    let kills: usize = std::env::var(KILLS).map_or(8, |text| text.parse().unwrap());
    let mut random = Random::new(15, 0);
    let pool = PoolFiles::new(2 * POOL);
    let store = pool.attach(Access::ReadWrite).unwrap();
    let base = take_first_block(&store);
    store.detach().unwrap();
    for _ in 0..kills.div_ceil(DEAD_PER_SESSION) {
        let store = pool.attach(Access::ReadWrite).unwrap();
        assert_eq!(store.report().problems, 0);
        let (done, was_gone) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| look_at(&store, &done, &was_gone));
            kill_some(&pool, &mut random, DEAD_PER_SESSION, &was_gone);
            done.store(true, Ordering::Relaxed);
        });
        store.reap(&mut |_| Ok(())).unwrap();
        sound(&store).unwrap();
        WORKERS.iter().for_each(|name| clean_up(&store, name));
        assert!(find(&store, &format!("base-{}", random.below(base))).is_some());
        store.detach().unwrap();
    }
    let store = pool.attach(Access::ReadWrite).unwrap();
    let report = check(&store, &mut |_| {});
    assert_eq!((report.problems.len(), report.counts.leaked_units), (0, 0));
    store.detach().unwrap();
}
