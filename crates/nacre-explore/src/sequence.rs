//! One sequence of operations: recorded on one volume, all its crashes tried on another.

use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nacre_store::WriteMode;

use crate::bench::Bench;
use crate::judge::{Contract, examine};
use crate::medium::{Choices, Depth, Difference, Medium, combinations, image};
use crate::plan::{Kind, Plan};
use crate::random::{Random, mix};
use crate::record::{Recording, record};
use crate::recorder::{Event, Place, What};
use crate::sabotage::Sabotage;
use crate::violation::{Violation, stores};
use crate::visible::{Visible, fingerprint};
use crate::work_on::work_on;
use crate::workload::{HOMES, Worlds};

/// Images of each point of a recovery.
const NESTED: Depth = Depth {
    all_up_to: 8,
    samples: 4,
};
/// One recovered pool in so many is written to and checked again.
const USED_EVERY: u64 = 16;

/// What was explored.
#[derive(Default)]
pub struct Tally {
    /// Sequences of each [`Kind`].
    pub sequences: [u64; 5],
    /// Sequences side by side that were dropped, as programs had to wait for each other.
    pub dropped: u64,
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
    /// Where flushes and fences were seen.
    pub places: BTreeSet<(bool, Place)>,
    /// What was wrong; one per sequence at most.
    pub violations: Vec<Violation>,
}

/// Two volumes with the same contents for each world.
pub struct Rig {
    alone: [Bench; 2],
    beside: [Bench; 2],
}

impl Rig {
    /// Volumes with these contents.
    pub fn new(worlds: &Worlds) -> Result<Rig, String> {
        let bench = |base: &Arc<[u8]>| Bench::new(Arc::clone(base));
        Ok(Rig {
            alone: [bench(&worlds.alone)?, bench(&worlds.alone)?],
            beside: [bench(&worlds.beside)?, bench(&worlds.beside)?],
        })
    }

    /// Explores a sequence up to its first violation.
    pub fn explore(&mut self, plan: &Plan, sabotage: Sabotage, tally: &mut Tally) {
        tally.sequences[plan.kind as usize] += 1;
        sabotage.switch();
        let [stage, bench] = match plan.lanes.len() {
            1 => &mut self.alone,
            _ => &mut self.beside,
        };
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
    pub fn tell(&mut self, plan: &Plan) -> Result<(), String> {
        let stage = match plan.lanes.len() {
            1 => &mut self.alone[0],
            _ => &mut self.beside[0],
        };
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
    plan: &'e Plan,
    recording: &'e Recording,
    bench: &'e mut Bench,
    sabotage: Sabotage,
    tally: &'e mut Tally,
    random: Random,
    tried: HashSet<u64>,
    /// How many operations of each program have returned.
    done: Vec<usize>,
}

impl<'e> Exploration<'e> {
    fn new(
        plan: &'e Plan,
        recording: &'e Recording,
        bench: &'e mut Bench,
        sabotage: Sabotage,
        tally: &'e mut Tally,
    ) -> Exploration<'e> {
        Exploration {
            random: Random::new(plan.seed, plan.lanes.len() as u64),
            tried: HashSet::new(),
            done: vec![0; plan.lanes.len()],
            plan,
            recording,
            bench,
            sabotage,
            tally,
        }
    }

    fn run(&mut self) -> Result<(), Box<Violation>> {
        let mut medium = Medium::default();
        let recording = self.recording;
        for event in &recording.lead {
            medium.apply(event, &|line| self.bench.line(line));
        }
        for (number, event) in recording.events.iter().enumerate() {
            let before_it = self.skips();
            if matches!(event.what, What::Done) {
                self.done[event.lane] += 1;
                self.tally.operations += u64::from(!before_it);
            }
            if matches!(event.what, What::Done | What::Fence) && !before_it {
                self.point(&medium, number)?;
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
        matches!(self.plan.kind, Kind::Pair | Kind::Longer) && self.done[0] == 0
    }

    fn contracts(&self) -> Vec<Contract<'e>> {
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
            }
        };
        (0..plan.lanes.len()).map(contract).collect()
    }

    /// Tries the images of one crash point.
    fn point(&mut self, medium: &Medium, event: usize) -> Result<(), Box<Violation>> {
        self.tally.points += 1;
        let contracts = self.contracts();
        let choices = medium.choices(&|line| self.bench.line(line));
        let mut random = self.random.clone();
        let mut found = Ok(());
        combinations(
            &choices,
            medium.clock(),
            self.plan.depth,
            &mut random,
            &mut |picked| {
                let image = image(&medium.settled, &choices, picked);
                found = self.image(&image, &contracts);
                found.is_ok()
            },
        );
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
        let (seen, events, replayed) = self.recover(image).map_err(broken)?;
        judge(contracts, &seen).map_err(broken)?;
        self.tally.states.insert(fingerprint(&seen));
        if self
            .random
            .below(self.plan.nested_every[usize::from(replayed)])
            == 0
        {
            self.crash_recovery(image, events, &seen).map_err(broken)?;
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
        mut events: Vec<Event>,
        seen: &Visible,
    ) -> Result<(), String> {
        note_places(&events, self.tally);
        self.sabotage.plant(&mut events);
        let mut medium = Medium::default();
        medium.settled.clone_from(start);
        let last = events.len();
        for number in 0..=last {
            if events
                .get(number)
                .is_none_or(|event| matches!(event.what, What::Fence))
            {
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
            if let Some(event) = events.get(number) {
                medium.apply(event, &|line| self.bench.line(line));
            }
        }
        Ok(())
    }

    fn recover_again(&mut self, image: &Difference, expected: &Visible) -> Result<(), String> {
        self.tally.nested += 1;
        let seen = self.recover(image)?.0;
        let same = Contract {
            home: "",
            before: expected,
            after: expected,
            torn: None,
        };
        same.judge(&seen)
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
            let judged = self.recover(&image);
            match judged.and_then(|(seen, ..)| judge(contracts, &seen)) {
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

struct Broken {
    image: Difference,
    why: String,
}
