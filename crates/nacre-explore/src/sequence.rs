//! One sequence of operations: recorded on one volume, all its crashes tried on another.

use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nacre_store::WriteMode;

use crate::action::Action;
use crate::bench::{Attached, Bench};
use crate::ground::Ground;
use crate::judge::{Contract, examine};
use crate::plan::SequencePlan;
use crate::record::{Recording, record};
use crate::sabotage::Sabotage;
use crate::violation::{Violation, stores};
use crate::visible::{Visible, fingerprint, look};
use crate::work_on::work_on;
use crate::workload::{ACTIONS, ADDED, BEHIND, HOMES, Worlds};
use nacre_testkit::medium::{Choices, Depth, Difference, Medium};
use nacre_testkit::random::{Random, mix};
use nacre_testkit::recorder::{Event, SourcePlace, What};

/// Images of each point of a recovery.
const NESTED: Depth = Depth {
    all_up_to: 8,
    samples: 4,
    aimed: false,
};
/// What an operation after a recovery writes differs from what others write.
const NEXT_SALT: u64 = 77;
/// One recovered pool in so many is written to and checked again.
const USED_EVERY: u64 = 16;
/// Free units that this needs.
const USED_ROOM: u64 = 32;

/// What was explored.
#[derive(Default)]
pub struct Tally {
    /// Sequences of each [`Kind`].
    pub sequences: [u64; 6],
    /// Sequences side by side that were dropped, as programs had to wait for each other.
    pub dropped: u64,
    /// Operations recorded whose crashes were tried.
    pub operations: u64,
    /// Crash points.
    pub points: u64,
    /// Different images recovered, including those below.
    pub images: u64,
    /// Transactions on objects, made at random.
    pub transactions: u64,
    /// Images of their crashes, besides `images`.
    pub object_images: u64,
    /// Images of crashes of the recovery.
    pub nested: u64,
    /// Images met again, not tried again.
    pub repeated: u64,
    /// Hashes of what was seen.
    pub states: HashSet<u64>,
    /// Where flushes and fences were seen.
    pub places: BTreeSet<(bool, SourcePlace)>,
    /// What was wrong; one per sequence at most.
    pub violations: Vec<Violation>,
}

/// Two volumes with the same contents for each world.
pub struct Rig {
    alone: [Bench; 2],
    beside: [Bench; 2],
    behind: [Bench; 2],
    added: [Bench; 2],
}

impl Rig {
    /// Volumes with these contents.
    pub fn new(worlds: &Worlds) -> Result<Rig, String> {
        let bench = |base: &Arc<[u8]>| Bench::new(Arc::clone(base));
        let behind = || Bench::with_behind(Arc::clone(&worlds.behind), BEHIND);
        let added = || Bench::with_added(Arc::clone(&worlds.behind), ADDED);
        Ok(Rig {
            alone: [bench(&worlds.alone)?, bench(&worlds.alone)?],
            beside: [bench(&worlds.beside)?, bench(&worlds.beside)?],
            behind: [behind()?, behind()?],
            added: [added()?, added()?],
        })
    }

    /// The volumes on which a plan is played and crashed.
    fn of(&mut self, plan: &SequencePlan) -> &mut [Bench; 2] {
        match &plan.lanes[..] {
            [lane] if lane.contains(&Action::MoveCold) => &mut self.behind,
            [lane] if lane.contains(&Action::Rebalance) => &mut self.added,
            [_] => &mut self.alone,
            _ => &mut self.beside,
        }
    }

    /// Explores a sequence up to its first violation.
    pub fn explore(&mut self, plan: &SequencePlan, sabotage: Sabotage, tally: &mut Tally) {
        tally.sequences[plan.kind as usize] += 1;
        sabotage.switch();
        let [stage, bench] = self.of(plan);
        let found = match record(stage, plan, sabotage) {
            Ok(Some(recording)) => {
                note_places(&recording.lead, tally);
                note_places(&recording.events, tally);
                let found = Exploration::new(plan, &recording, bench, sabotage, tally).run();
                bench.lower();
                found
            }
            Ok(None) => {
                tally.dropped += 1;
                Ok(())
            }
            Err(why) => Err(Box::new(Violation::of_recording(plan, why))),
        };
        Sabotage::Nothing.switch();
        tally
            .violations
            .extend(found.err().map(|violation| *violation));
    }
}

impl Rig {
    /// Prints what happens to the medium while a plan runs.
    pub fn tell(&mut self, plan: &SequencePlan) -> Result<(), String> {
        let [stage, _] = self.of(plan);
        let recording = record(stage, plan, Sabotage::Nothing)?;
        for (number, event) in recording.iter().flat_map(|r| &r.events).enumerate() {
            println!("{number:5} {event}");
        }
        Ok(())
    }
}

fn note_places(events: &[Event], tally: &mut Tally) {
    for event in events {
        match event.what {
            What::Flush { .. } => tally.places.insert((false, event.place)),
            What::Fence => tally.places.insert((true, event.place)),
            _ => false,
        };
    }
}

struct Exploration<'e> {
    plan: &'e SequencePlan,
    recording: &'e Recording,
    bench: &'e mut Bench,
    sabotage: Sabotage,
    tally: &'e mut Tally,
    depth: Depth,
    random: Random,
    tried: HashSet<u64>,
    /// How many operations of each program have returned.
    done: Vec<usize>,
}

impl<'e> Exploration<'e> {
    fn new(
        plan: &'e SequencePlan,
        recording: &'e Recording,
        bench: &'e mut Bench,
        sabotage: Sabotage,
        tally: &'e mut Tally,
    ) -> Exploration<'e> {
        Exploration {
            random: Random::new(plan.seed, plan.lanes.len() as u64),
            tried: HashSet::new(),
            done: vec![0; plan.lanes.len()],
            depth: plan.depth,
            plan,
            recording,
            bench,
            sabotage,
            tally,
        }
    }

    fn run(&mut self) -> Result<(), Box<Violation>> {
        let (mut medium, start) = (Medium::default(), self.tally.images);
        let recording = self.recording;
        // What is switched off in recoveries alone shows when they are crashed, wherever they
        // begin.
        let mut events = recording.lead.iter().chain(&recording.events);
        self.depth.aimed &= events.any(|event| event.off);
        for event in &recording.lead {
            medium.apply(event, &|line| self.bench.line(line));
        }
        for (number, event) in recording.events.iter().enumerate() {
            let before_it = self.skips();
            // Operations of one sequence are made by threads in turn.
            let lane = event.lane.min(self.done.len() - 1);
            if matches!(event.what, What::Done) {
                self.done[lane] += 1;
                self.tally.operations += u64::from(!before_it);
            }
            let enough = self.tally.images - start >= self.plan.most;
            if matches!(event.what, What::Done | What::Fence) && !before_it && !enough {
                let returned = matches!(event.what, What::Done).then_some(lane);
                self.point(&medium, number, returned)?;
            }
            medium.apply(event, &|line| self.bench.line(line));
            if matches!(event.what, What::Fence) {
                self.bench.raise(&std::mem::take(&mut medium.settled));
            }
        }
        Ok(())
    }

    /// Whether this is the first of several operations, which others crash.
    fn skips(&self) -> bool {
        matches!(&self.plan.lanes[..], [lane] if lane.len() > 1) && self.done[0] == 0
    }

    /// `returned` is the program whose operation has just returned.
    fn contracts(&self, returned: Option<usize>) -> Vec<Contract<'e>> {
        let (plan, recording) = (self.plan, self.recording);
        let contract = |lane: usize| {
            let (seen, done) = (&recording.seen[lane], self.done[lane]);
            let action = plan.lanes[lane].get(done);
            Contract {
                home: if plan.lanes.len() > 1 {
                    HOMES[lane]
                } else {
                    ""
                },
                before: &seen[done],
                after: &seen[(done + 1).min(seen.len() - 1)],
                torn: action.and_then(|a| a.torn(&seen[done], plan.mode == WriteMode::Atomic)),
                returned: returned
                    .filter(|&r| r == lane)
                    .and_then(|_| plan.lanes[lane].get(done - 1))
                    .copied(),
                older: done.checked_sub(1).map(|done| &seen[done]),
            }
        };
        (0..plan.lanes.len()).map(contract).collect()
    }

    /// Tries the images of one crash point.
    fn point(
        &mut self,
        medium: &Medium,
        event: usize,
        returned: Option<usize>,
    ) -> Result<(), Box<Violation>> {
        self.tally.points += 1;
        let contracts = self.contracts(returned);
        let choices = medium.choices(&|line| self.bench.line(line));
        let mut random = self.random.clone();
        let found = medium.images(&choices, self.depth, &mut random, |image| {
            self.image(image, &contracts)
        });
        self.random = random;
        found
            .map_err(|broken| Box::new(self.violation(medium, &choices, &contracts, event, broken)))
    }

    fn image(&mut self, image: &Difference, contracts: &[Contract<'_>]) -> Result<(), Broken> {
        let progress = self
            .done
            .iter()
            .fold(0, |sum, &done| sum * 16 + done as u64);
        if !self
            .tried
            .insert(mix(self.bench.hash(image) ^ mix(progress)))
        {
            self.tally.repeated += 1;
            return Ok(());
        }
        let broken = |why| Broken {
            image: image.clone(),
            why,
        };
        let recovered = self.recover(image, true).map_err(broken)?;
        judge(contracts, &recovered.seen).map_err(broken)?;
        self.tally.states.insert(fingerprint(&recovered.seen));
        match recovered.next {
            Some(_) => self.crash_recovery(image, recovered).map_err(broken),
            None => Ok(()),
        }
    }

    /// Recovers an image and looks at it. If `go_on`, one in some is used, and one in some does one
    /// more operation, so that both can be crashed.
    fn recover(&mut self, image: &Difference, go_on: bool) -> Result<Recovered, String> {
        self.tally.images += 1;
        let Attached { fs, events } = self.bench.attach(image, self.plan.mode)?;
        let replayed = usize::from(fs.store().report().replayed > 0);
        let nested = go_on && self.random.below(self.plan.nested_every[replayed]) == 0;
        let room = fs.store().statfs().free_units >= USED_ROOM;
        let used = self.random.below(USED_EVERY) == 0 && !nested && room;
        let next = nested.then(|| self.next_operation());
        let recorder = self.bench.recorder();
        recorder.start();
        let look_on = || -> Result<(Visible, Option<Visible>), String> {
            let seen = examine(&fs)?;
            if used {
                work_on(&fs, &seen)?;
            }
            let Some(next) = next else {
                return Ok((seen, None));
            };
            // One that fails, as its file is gone, changes nothing.
            let _ = next.run(Ground::of(&fs), NEXT_SALT);
            recorder.mark_done();
            let then = look(&fs)?;
            Ok((seen, Some(then)))
        };
        let seen = catch_unwind(AssertUnwindSafe(look_on));
        let more = recorder.stop();
        self.bench.take_back(fs, &more);
        let seen = seen.unwrap_or_else(|_| Err("check or a look at the pool panics".into()));
        let (seen, then) = seen?;
        let next = next.zip(then);
        Ok(Recovered {
            seen,
            next,
            events: events.into_iter().chain(more).collect(),
        })
    }

    /// Any operation, or one that changes what the last one made or changed, without a record.
    fn next_operation(&mut self) -> Action {
        let last = self.plan.lanes[0].last();
        match last.filter(|_| self.random.below(2) == 0) {
            Some(last) => Action::Append(last.path(), 300),
            None => ACTIONS[self.random.below(ACTIONS.len() as u64) as usize],
        }
    }

    /// A recovery that is cut short must come to the same end the next time; and so must the
    /// operation after it.
    fn crash_recovery(&mut self, start: &Difference, recovered: Recovered) -> Result<(), String> {
        let Recovered {
            seen,
            mut events,
            next,
        } = recovered;
        let Some((action, then)) = next else {
            return Ok(());
        };
        note_places(&events, self.tally);
        self.sabotage.plant(&mut events);
        let torn = action.torn(&seen, self.plan.mode == WriteMode::Atomic);
        let contract = |done: bool| Contract {
            home: "",
            before: if done { &then } else { &seen },
            after: &then,
            torn: torn.filter(|_| !done),
            returned: done.then_some(action),
            older: Some(&seen),
        };
        let mut medium = Medium::default();
        medium.settled.clone_from(start);
        for event in &events {
            let done = matches!(event.what, What::Done);
            if done || matches!(event.what, What::Fence) {
                self.crash_again(&medium, &contract(done)).map_err(|why| {
                    format!("after a crash of the recovery, or of {action}: {why}")
                })?;
            }
            medium.apply(event, &|line| self.bench.line(line));
        }
        Ok(())
    }

    fn crash_again(&mut self, medium: &Medium, contract: &Contract<'_>) -> Result<(), String> {
        let choices = medium.choices(&|line| self.bench.line(line));
        let (mut random, depth) = (self.random.clone(), self.sabotage.aim(NESTED));
        let found = medium.images(&choices, depth, &mut random, |image| {
            self.tally.nested += 1;
            contract.judge(&self.recover(image, false)?.seen)
        });
        self.random = random;
        found
    }

    /// Leaves out what is not needed to show the violation.
    fn violation(
        &mut self,
        medium: &Medium,
        choices: &[Choices],
        contracts: &[Contract<'_>],
        event: usize,
        broken: Broken,
    ) -> Violation {
        let Broken { mut image, mut why } = broken;
        let mut early = Vec::new();
        for choice in choices {
            let Some(line) = image.remove(&choice.line) else {
                continue;
            };
            if let Some(settled) = medium.settled.get(&choice.line) {
                image.insert(choice.line, *settled);
            }
            let judged = self.recover(&image, false);
            match judged.and_then(|again| judge(contracts, &again.seen)) {
                Err(still) => why = still,
                Ok(()) => {
                    image.insert(choice.line, line);
                    early.push(choice.line);
                }
            }
        }
        let lost = |choice: &&Choices| !early.contains(&choice.line);
        Violation {
            name: self.plan.name,
            sequence: self.plan.to_string(),
            event,
            done: self.done.clone(),
            early: stores(choices.iter().filter(|choice| !lost(choice))),
            lost: stores(choices.iter().filter(lost)),
            why,
        }
    }
}

fn judge(contracts: &[Contract<'_>], seen: &Visible) -> Result<(), String> {
    contracts
        .iter()
        .try_for_each(|contract| contract.judge(seen))
}

/// A pool after its recovery.
struct Recovered {
    seen: Visible,
    /// What the recovery did, and the operation after it.
    events: Vec<Event>,
    /// The operation after it, and what is seen then.
    next: Option<(Action, Visible)>,
}

struct Broken {
    image: Difference,
    why: String,
}
