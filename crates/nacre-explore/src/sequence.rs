//! One sequence of operations: recorded on one volume, all its crashes tried on another.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nacre_fs::{Cred, Fs, WriteAt};
use nacre_store::WriteMode;

use crate::action::{Action, pattern};
use crate::bench::Bench;
use crate::judge::{Contract, examine};
use crate::medium::{Choices, Depth, Difference, Medium, combinations, image};
use crate::random::{Random, mix};
use crate::recorder::Event;
use crate::visible::{Visible, fingerprint, look};

/// Of how many images the recovery is crashed too: one in so many, more often if a record is replayed.
const NESTED_EVERY: [u64; 2] = [256, 24];
/// Images of each point of a recovery.
const NESTED: Depth = Depth {
    all_up_to: 8,
    samples: 4,
};
/// One recovered pool in so many is written to and checked again.
const USED_EVERY: u64 = 16;

/// Which sequences a plan belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One operation.
    Single,
    /// One operation, as many images as there are.
    Deep,
    /// Two operations.
    Pair,
    /// More operations.
    Longer,
}

/// What to explore.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How writes behave.
    pub mode: WriteMode,
    /// Which sequences it belongs to.
    pub kind: Kind,
    /// The operations. If there are several, the first is not crashed: others crash it alone.
    pub actions: Vec<Action>,
    /// How many images.
    pub depth: Depth,
    /// Decides the samples.
    pub seed: u64,
}

/// A bug planted into a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// None.
    Nothing,
    /// No store of this kind is flushed.
    Flushes(nacre_types::StoreKind),
    /// Every fence whose number leaves this remainder when divided by 3 is left out.
    Fences(u64),
}

/// A state that must not be.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Write mode and operations.
    pub sequence: String,
    /// Event of the recording before which the power failed, and the operation that it belongs to.
    pub point: (usize, usize),
    /// Lines that had to be durable early to show it (volume offset / 64).
    pub lines: Vec<u64>,
    /// Seed of the samples.
    pub seed: u64,
    /// What is wrong.
    pub why: String,
}

/// What was explored.
#[derive(Default)]
pub struct Tally {
    /// Sequences of each [`Kind`].
    pub sequences: [u64; 4],
    /// Operations recorded whose crashes were tried.
    pub operations: u64,
    /// Crash points.
    pub points: u64,
    /// Different images recovered, including those below.
    pub images: u64,
    /// Images of crashes of the recovery.
    pub nested: u64,
    /// Images met again, not tried again.
    pub repeated: u64,
    /// Hashes of what was seen.
    pub states: HashSet<u64>,
    /// What was wrong; one per sequence at most.
    pub violations: Vec<Violation>,
}

/// Two volumes with the same contents.
pub struct Rig {
    stage: Bench,
    bench: Bench,
}

struct Recording {
    lead: Vec<Event>,
    events: Vec<Event>,
    seen: Vec<Visible>,
}

impl Rig {
    /// Volumes with these contents.
    pub fn new(base: &Arc<[u8]>) -> Result<Rig, String> {
        Ok(Rig {
            stage: Bench::new(Arc::clone(base))?,
            bench: Bench::new(Arc::clone(base))?,
        })
    }

    /// Explores a sequence up to its first violation.
    pub fn explore(&mut self, plan: &Plan, sabotage: Sabotage, tally: &mut Tally) {
        tally.sequences[plan.kind as usize] += 1;
        let found = match self.record(plan) {
            Ok(mut recording) => {
                plant(sabotage, &mut recording.events);
                let found = Exploration::new(plan, &recording, &mut self.bench, tally).run();
                self.bench.lower();
                found
            }
            Err(why) => Err(Violation {
                sequence: plan.to_string(),
                point: (0, 0),
                lines: Vec::new(),
                seed: plan.seed,
                why,
            }),
        };
        tally.violations.extend(found.err());
    }

    fn record(&mut self, plan: &Plan) -> Result<Recording, String> {
        let attached = self.stage.attach(&Difference::new(), plan.mode)?;
        let recorder = self.stage.recorder();
        recorder.start();
        let fs = attached.fs;
        let run = || -> Result<Vec<Visible>, String> {
            let mut seen = vec![look(&fs)?];
            for (salt, action) in (1..).zip(&plan.actions) {
                // An operation that cannot be done is one that changes nothing.
                let _ = action.run(&fs, salt);
                recorder.mark_done();
                seen.push(look(&fs)?);
            }
            Ok(seen)
        };
        let seen = catch_unwind(AssertUnwindSafe(run));
        let events = recorder.stop();
        self.stage.take_back(fs, &events);
        Ok(Recording {
            lead: attached.events,
            events,
            seen: seen.unwrap_or_else(|_| Err("an operation panics".into()))?,
        })
    }
}

fn plant(sabotage: Sabotage, events: &mut Vec<Event>) {
    let mut fences = 0;
    events.retain(|event| match (sabotage, event) {
        (Sabotage::Flushes(kind), Event::Flush { kind: of, .. }) => *of != Some(kind),
        (Sabotage::Fences(remainder), Event::Fence) => {
            fences += 1;
            fences % 3 != remainder
        }
        _ => true,
    });
}

struct Exploration<'e> {
    plan: &'e Plan,
    recording: &'e Recording,
    bench: &'e mut Bench,
    tally: &'e mut Tally,
    random: Random,
    tried: HashSet<u64>,
}

impl<'e> Exploration<'e> {
    fn new(
        plan: &'e Plan,
        recording: &'e Recording,
        bench: &'e mut Bench,
        tally: &'e mut Tally,
    ) -> Exploration<'e> {
        Exploration {
            random: Random::new(plan.seed, plan.actions.len() as u64),
            tried: HashSet::new(),
            plan,
            recording,
            bench,
            tally,
        }
    }

    fn run(&mut self) -> Result<(), Violation> {
        let mut medium = Medium::default();
        let mut step = 0;
        let from = usize::from(self.plan.actions.len() > 1);
        let recording = self.recording;
        for event in &recording.lead {
            medium.apply(event, &|line| self.bench.line(line));
        }
        for (number, event) in (0..).zip(&recording.events) {
            let done = matches!(event, Event::Done);
            if (done || matches!(event, Event::Fence)) && step >= from {
                self.point(&medium, (number, step), done)?;
            }
            medium.apply(event, &|line| self.bench.line(line));
            if matches!(event, Event::Fence) {
                self.bench.raise(&std::mem::take(&mut medium.settled));
            }
            if done {
                self.tally.operations += u64::from(step >= from);
                step += 1;
            }
            if step == self.plan.actions.len() {
                break;
            }
        }
        Ok(())
    }

    /// Tries the images of one crash point.
    fn point(&mut self, medium: &Medium, at: (usize, usize), done: bool) -> Result<(), Violation> {
        self.tally.points += 1;
        let (plan, seen) = (self.plan, &self.recording.seen);
        let (before, after) = (&seen[at.1], &seen[at.1 + 1]);
        let contract = Contract {
            before,
            after,
            torn: plan.actions[at.1].torn(before, plan.mode == WriteMode::Atomic),
        };
        let choices = medium.choices(&|line| self.bench.line(line));
        let mut random = self.random.clone();
        let mut found = Ok(());
        combinations(
            &choices,
            medium.clock(),
            plan.depth,
            &mut random,
            &mut |picked| {
                let image = image(&medium.settled, &choices, picked);
                found = self.image(&image, &contract, at.1, done);
                found.is_ok()
            },
        );
        self.random = random;
        found.map_err(|why| self.violation(medium, &choices, &contract, (at, done), why))
    }

    fn image(
        &mut self,
        image: &Difference,
        contract: &Contract<'_>,
        step: usize,
        done: bool,
    ) -> Result<(), Broken> {
        let key = mix(self.bench.hash(image) ^ mix(step as u64 * 2 + u64::from(done)));
        if !self.tried.insert(key) {
            self.tally.repeated += 1;
            return Ok(());
        }
        let broken = |why| Broken {
            image: image.clone(),
            why,
        };
        let (seen, events, replayed) = self.recover(image).map_err(broken)?;
        contract.judge(&seen, done).map_err(broken)?;
        self.tally.states.insert(fingerprint(&seen));
        if self.random.below(NESTED_EVERY[usize::from(replayed)]) == 0 {
            self.crash_recovery(image, &events, &seen).map_err(broken)?;
        }
        Ok(())
    }

    /// What is seen after recovery, what the recovery did, and whether it replayed a record.
    fn recover(&mut self, image: &Difference) -> Result<(Visible, Vec<Event>, bool), String> {
        self.tally.images += 1;
        let attached = self.bench.attach(image, self.plan.mode)?;
        let fs = attached.fs;
        let replayed = fs.store().report().replayed > 0;
        let used = self.random.below(USED_EVERY) == 0;
        let recorder = self.bench.recorder();
        recorder.start();
        let seen = catch_unwind(AssertUnwindSafe(|| -> Result<Visible, String> {
            let seen = examine(&fs)?;
            match used {
                true => work_on(&fs, &seen).map(|()| seen),
                false => Ok(seen),
            }
        }));
        self.bench.take_back(fs, &recorder.stop());
        let seen = seen.unwrap_or_else(|_| Err("check or a look at the pool panics".into()))?;
        Ok((seen, attached.events, replayed))
    }

    /// A recovery that is cut short must come to the same end the next time.
    fn crash_recovery(
        &mut self,
        start: &Difference,
        events: &[Event],
        seen: &Visible,
    ) -> Result<(), String> {
        let mut medium = Medium::default();
        medium.settled.clone_from(start);
        for event in events {
            if matches!(event, Event::Fence) {
                let choices = medium.choices(&|line| self.bench.line(line));
                let mut random = self.random.clone();
                let mut found = Ok(());
                combinations(
                    &choices,
                    medium.clock(),
                    NESTED,
                    &mut random,
                    &mut |picked| {
                        let image = image(&medium.settled, &choices, picked);
                        found = self.recover_again(&image, seen);
                        found.is_ok()
                    },
                );
                self.random = random;
                found.map_err(|why| format!("after a crash of the recovery: {why}"))?;
            }
            medium.apply(event, &|line| self.bench.line(line));
        }
        Ok(())
    }

    fn recover_again(&mut self, image: &Difference, expected: &Visible) -> Result<(), String> {
        self.tally.nested += 1;
        let seen = self.recover(image)?.0;
        let same = Contract {
            before: expected,
            after: expected,
            torn: None,
        };
        same.judge(&seen, true)
    }

    /// Leaves out what is not needed to show the violation.
    fn violation(
        &mut self,
        medium: &Medium,
        choices: &[Choices],
        contract: &Contract<'_>,
        (point, done): ((usize, usize), bool),
        broken: Broken,
    ) -> Violation {
        let Broken { mut image, mut why } = broken;
        let mut lines = Vec::new();
        for choice in choices {
            let Some(line) = image.remove(&choice.line) else {
                continue;
            };
            if let Some(settled) = medium.settled.get(&choice.line) {
                image.insert(choice.line, *settled);
            }
            let judged = self.recover(&image);
            match judged.and_then(|(seen, ..)| contract.judge(&seen, done)) {
                Err(still) => why = still,
                Ok(()) => {
                    image.insert(choice.line, line);
                    lines.push(choice.line);
                }
            }
        }
        Violation {
            sequence: self.plan.to_string(),
            point,
            lines,
            seed: self.plan.seed,
            why,
        }
    }
}

struct Broken {
    image: Difference,
    why: String,
}

/// A recovered pool must be good for more than looking at it.
fn work_on(fs: &Fs, seen: &Visible) -> Result<(), String> {
    let (cred, root) = (Cred::root(), fs.root());
    let work = || {
        let node = fs.create(&cred, root, b"probe", 0o600)?;
        fs.write(&cred, node, WriteAt::Append, pattern(99, 9000)[..].into())?;
        fs.set_xattr(
            &cred,
            node,
            b"user.p",
            &[7; 2000],
            nacre_fs::XattrFlags::empty(),
        )?;
        fs.rename(
            &cred,
            root,
            b"probe",
            root,
            b"probed",
            nacre_fs::RenameFlags::empty(),
        )?;
        Ok(node)
    };
    let node = work().map_err(|error: nacre_fs::FsError| format!("use: {error}"))?;
    examine(fs).map_err(|why| format!("in use: {why}"))?;
    let gone = fs
        .unlink(&cred, root, b"probed")
        .and_then(|()| fs.unpin(node.ino));
    gone.map_err(|error| format!("use: {error}"))?;
    let mut now = examine(fs).map_err(|why| format!("after use: {why}"))?;
    if now.remove(&b""[..]).is_some() && now.iter().all(|(path, node)| seen.get(path) == Some(node))
    {
        return Ok(());
    }
    Err("use of the recovered pool changed what it did not touch".into())
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:", self.mode)?;
        self.actions
            .iter()
            .try_for_each(|action| write!(f, " {action}"))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {} (seed {})", self.sequence, self.seed)?;
        writeln!(
            f,
            "    crash in operation {} before event {}",
            self.point.1, self.point.0
        )?;
        writeln!(f, "    lines durable early: {:x?}", self.lines)?;
        write!(f, "    {}", self.why)
    }
}
