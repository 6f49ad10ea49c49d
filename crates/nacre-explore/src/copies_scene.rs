//! Crashes of a pool with two copies, at every fence: with both devices there, and with either one
//! lost. Devices also fail in the middle of an operation, come back, are replaced, lost or healthy,
//! and are sealed.

use std::cell::Cell;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nacre_fs::Fs;
use nacre_store::WriteMode;
use nacre_types::{DeviceOffset, StoreKind};
use nacre_volume::{Access, Observer, Volume, install_handler, tap};

use crate::action::Action;
use crate::bench::Bench;
use crate::copies_files::{Files, scrub, text};
use crate::copies_judge::{Expected, Judge};
use crate::copies_story::{Alone, Story};
use crate::ground::Ground;
use crate::judge::Contract;
use crate::sabotage::Sabotage;
use crate::visible::{Visible, look};
use crate::workload::{ACTIONS, EXCHANGE};
use nacre_testkit::medium::{Depth, Medium};
use nacre_testkit::random::Random;
use nacre_testkit::recorder::{Event, Recorder, What};

/// Operations of a sequence.
const LENGTH: usize = 3;
/// Sequences of each story.
const SEQUENCES: u64 = 1;
const DEPTH: Depth = Depth {
    all_up_to: 2,
    samples: 2,
    aimed: false,
};
/// A write of whole units, which is made on both devices at once.
const LARGE: Action = Action::Write("a", 0, 20_000);
/// Changes of several names, which the log makes one: whatever is sampled, one is there.
const LOGGED: Action = Action::Rename("d/s", "x", EXCHANGE);
/// A device fails at the latest with so many stores.
const LAST_STORE: u64 = 60;

const STORIES: [Story; 9] = [
    Story::Whole,
    Story::Lost(0),
    Story::Lost(1),
    Story::Back,
    Story::Replaced,
    Story::Exchanged(0),
    Story::Exchanged(1),
    Story::WrittenOver,
    Story::Sealed,
];

/// What happened, what was to be seen before the first operation and after each, and what each
/// operation was.
struct Played {
    events: Vec<Event>,
    states: Vec<Visible>,
    actions: Vec<Option<Action>>,
    /// From how many operations on the second copy is whole.
    whole_from: usize,
    /// From how many operations on the one is gone for which it came.
    gone_from: usize,
}

/// Plays all stories and crashes them.
pub fn run(sabotage: Sabotage, seed: u64, images: &mut u64) -> Result<Vec<Event>, String> {
    // A device that is cut faults.
    install_handler();
    let mut all = Vec::new();
    for story in STORIES {
        let mut files = Files::prepare(story)?;
        for number in 0..SEQUENCES {
            sabotage.switch();
            let played = play(&files, story, (number, seed));
            Sabotage::Nothing.switch();
            let of = || format!("copies, {story:?}, number {number} of seed {seed}");
            let mut played = played.map_err(|why| format!("{}: {why}", of()))?;
            sabotage.plant(&mut played.events);
            // What recovery does may be switched off, too.
            sabotage.switch();
            let judged = crash(&mut files, &played, story, (number, sabotage, seed), images);
            Sabotage::Nothing.switch();
            judged.map_err(|why| format!("{}, {:?}: {why}", of(), played.actions))?;
            all.append(&mut played.events);
        }
    }
    Ok(all)
}

fn mode_of(number: u64) -> WriteMode {
    match number % 2 {
        0 => WriteMode::Direct,
        _ => WriteMode::Atomic,
    }
}

/// Does the operations of a sequence, beginning with the attach.
fn play(files: &Files, story: Story, (number, seed): (u64, u64)) -> Result<Played, String> {
    files.lay_out(&Default::default(), &files.all())?;
    let mut random = Random::new(seed, number);
    let recorder = Arc::new(Recorder::default());
    let failing = Failing {
        recorder: Arc::clone(&recorder),
        device: match story {
            Story::Lost(device) => device as u16,
            _ => u16::MAX,
        },
        left: AtomicU64::new(1 + random.below(LAST_STORE)),
        is_cut: AtomicBool::new(false),
        path: match story {
            Story::Lost(device) => files.path(device),
            _ => PathBuf::new(),
        },
    };
    let observer: Arc<dyn Observer> = Arc::new(failing);
    tap::set(Some((observer, files.paths())));
    recorder.start();
    let player = Player {
        recorder: &recorder,
        states: vec![files.seen.clone()],
        actions: Vec::new(),
        random,
        salt: Cell::new(1),
    };
    let played = player.play(files, story, mode_of(number));
    tap::set(None);
    let events = recorder.stop();
    played.map(|played| Played { events, ..played })
}

struct Player<'r> {
    recorder: &'r Recorder,
    states: Vec<Visible>,
    actions: Vec<Option<Action>>,
    random: Random,
    salt: Cell<u64>,
}

impl Player<'_> {
    fn play(mut self, files: &Files, story: Story, mode: WriteMode) -> Result<Played, String> {
        if story == Story::Sealed {
            scrub(files, 0)?;
            self.changed_nothing();
        }
        let volume = Volume::open(&files.path(0), Access::ReadWrite).map_err(text)?;
        let pool = Bench::attach_clean(volume, mode)?;
        self.changed_nothing();
        if matches!(story, Story::Whole | Story::Lost(_)) {
            self.does(&pool, LARGE)?;
            self.does(&pool, LOGGED)?;
        }
        self.step(&pool)?;
        let (mut whole_from, mut gone_from) = (0, usize::MAX);
        if story.is_joined() {
            self.rebuild(files, story, &pool)?;
            whole_from = self.actions.len();
        }
        if story == Story::Exchanged(1) {
            self.let_go(&pool, files.path(1))?;
            gone_from = self.actions.len();
        }
        (1..LENGTH).try_for_each(|_| self.step(&pool))?;
        match self.random.below(2) {
            0 => drop(pool.into_store().abandon()),
            _ => {
                drop(pool.into_store().close().map_err(text)?);
                self.changed_nothing();
                gone_from = gone_from.min(self.actions.len());
            }
        }
        Ok(Played {
            events: Vec::new(),
            states: self.states,
            actions: self.actions,
            whole_from,
            gone_from,
        })
    }

    /// Something returned that shows nothing.
    fn changed_nothing(&mut self) {
        self.recorder.mark_done();
        self.actions.push(None);
        self.states.extend(self.states.last().cloned());
    }

    fn step(&mut self, pool: &Fs) -> Result<(), String> {
        let action = ACTIONS[self.random.below(ACTIONS.len() as u64) as usize];
        self.does(pool, action)
    }

    fn does(&mut self, pool: &Fs, action: Action) -> Result<(), String> {
        let salt = self.salt.get();
        self.salt.set(salt + 1);
        // One that cannot be done changes nothing.
        let _ = action.run(Ground::of(pool), salt);
        self.recorder.mark_done();
        self.actions.push(Some(action));
        self.states.push(look(pool)?);
        Ok(())
    }

    /// The second copy comes, with operations in between.
    fn rebuild(&mut self, files: &Files, story: Story, pool: &Fs) -> Result<(), String> {
        let volume = pool.store().volume();
        let place = match story {
            Story::Exchanged(old) => old,
            _ => 1,
        };
        let old = volume.copies().map_err(text)?;
        let old = old.get(place).ok_or("there is no second copy")?.uuid;
        let came = match story {
            Story::Back => volume.return_copy(old),
            Story::WrittenOver => volume.add_copy(&files.path(2), None, true).map(|_| true),
            _ => volume.replace_copy(old, &files.path(2), true).map(|_| true),
        };
        if !came.map_err(text)? {
            return Err("the second copy does not come back".into());
        }
        let (mut stepped, mut is_over) = (Ok(()), false);
        let whole = volume.rebuild_copies(|_| {
            if !is_over {
                stepped = self.step(pool);
            }
            // From then on nobody reads it but the rebuild, which finds that out at its end.
            if story == Story::WrittenOver && !is_over && stepped.is_ok() {
                (stepped, is_over) = (files.write_over(0), true);
            }
            ControlFlow::Continue(())
        });
        stepped?;
        match whole.map_err(text)? {
            1 => self.changed_nothing(),
            _ => return Err("the second copy is not whole".into()),
        }
        Ok(())
    }

    fn let_go(&mut self, pool: &Fs, old: PathBuf) -> Result<(), String> {
        let gone = pool.store().volume().let_replaced_go().map_err(text)?;
        self.changed_nothing();
        match gone == [old] {
            true => Ok(()),
            false => Err(format!("{gone:?} went")),
        }
    }
}

/// Crashes what was played at each fence and each return.
fn crash(
    files: &mut Files,
    played: &Played,
    story: Story,
    (number, sabotage, seed): (u64, Sabotage, u64),
    images: &mut u64,
) -> Result<(), String> {
    let depth = sabotage.aim(DEPTH);
    let mut random = Random::new(seed, !number);
    let (mut medium, mut done, mut stored) = (Medium::default(), 0, true);
    let mut judge = Judge::new(files, mode_of(number));
    for (place, event) in played.events.iter().enumerate() {
        let returned = matches!(event.what, What::Done);
        stored |= matches!(event.what, What::Store { .. });
        if returned || (matches!(event.what, What::Fence) && stored) {
            let expected = expected(played, story, mode_of(number), (done, returned));
            let floor = |line: u64| judge.files().line(line);
            let choices = medium.choices(&floor);
            let mut samples = Random::new(seed, place as u64);
            medium
                .images(&choices, depth, &mut samples, |image| {
                    *images += 1;
                    judge.judge(image, &expected, &mut random, images)
                })
                .map_err(|why| format!("a crash before event {place}, {done} returned: {why}"))?;
            stored = false;
        }
        done += usize::from(returned);
        let floor = |line: u64| judge.files().line(line);
        medium.apply(event, &floor);
    }
    Ok(())
}

fn expected(
    played: &Played,
    story: Story,
    mode: WriteMode,
    (done, returned): (usize, bool),
) -> Expected<'_> {
    let last = played.states.len() - 1;
    let (before, after) = (
        &played.states[done.min(last)],
        &played.states[(done + 1).min(last)],
    );
    let action = played.actions.get(done).copied().flatten();
    let torn = action.and_then(|action| action.torn(before, mode == WriteMode::Atomic));
    let over = done + usize::from(returned);
    Expected {
        contract: Contract {
            home: "",
            before: if returned { after } else { before },
            after,
            torn: torn.filter(|_| !returned),
            returned: None,
            older: None,
        },
        story,
        alone: [0, 1, 2].map(|device| alone(played, story, device, over)),
    }
}

/// What a device has to be by itself when so many operations are over.
fn alone(played: &Played, story: Story, device: usize, over: usize) -> Alone {
    let is_whole = played.whole_from > 0 && over >= played.whole_from;
    match story {
        Story::Lost(lost) if device == lost => Alone::Anything,
        Story::Exchanged(old) if device == old => match played.gone_from {
            // The one that is read goes when the last one leaves.
            from if from > over + 1 => Alone::Holds,
            from if from > over => Alone::MayHold,
            _ => Alone::Refuses,
        },
        _ if device == story.stays() => Alone::Holds,
        _ if device != story.second() => Alone::Anything,
        _ if story.is_joined() && !is_whole => Alone::MayHold,
        _ => Alone::Holds,
    }
}

/// Records; one device is cut to nothing behind one of its stores, once that is flushed: nobody can
/// notice it who does not go there again.
struct Failing {
    recorder: Arc<Recorder>,
    device: u16,
    left: AtomicU64,
    is_cut: AtomicBool,
    path: PathBuf,
}

impl Failing {
    fn is_gone(&self, device: u16) -> bool {
        device == self.device && self.is_cut.load(Ordering::Relaxed)
    }
}

impl Observer for Failing {
    fn store(&self, device: u16, at: DeviceOffset, bytes: &[u8], kind: StoreKind, atomic: bool) {
        if self.is_gone(device) {
            return;
        }
        self.recorder.store(device, at, bytes, kind, atomic);
        if device == self.device {
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn flush(&self, device: u16, at: DeviceOffset, len: u64) {
        if self.is_gone(device) {
            return;
        }
        self.recorder.flush(device, at, len);
        if device == self.device && self.left.load(Ordering::Relaxed) == 0 {
            self.is_cut.store(true, Ordering::Relaxed);
            let cut = File::options().write(true).open(&self.path);
            // If it cannot be cut it does not fail, and nothing is lost.
            let _cut = cut.and_then(|file| file.set_len(0));
        }
    }

    fn fence(&self, device: u16) {
        self.recorder.fence(device);
    }
}
