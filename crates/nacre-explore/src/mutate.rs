//! Mutation: everything that orders or checks is switched off, one place at a time, and must be
//! missed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use nacre_types::site;

use crate::action::Action;
use crate::damage::{self, Damage};
use crate::format;
use crate::grow::{self, Grown};
use crate::objects_scene;
use crate::plan::{Kind, ORDERS, SequencePlan, counts, directed, order_of, plan};
use crate::processors::each_processor;
use crate::repair_scene;
use crate::sabotage::{Sabotage, Work};
use crate::sequence::{Rig, Tally};
use crate::source;
use crate::workload::Worlds;
use crate::{copies_scene, disk_scene, leave_scene};
use nacre_testkit::medium::Depth;
use nacre_testkit::recorder::{Event, What};

/// Orders of turns of a directed plan that are looked at for places.
const SAMPLED_ORDERS: u64 = 2;
/// From one order of turns to the next that is tried: without a common factor with their number.
const STRIDE: u64 = 37;
/// Most plans of several operations that no place asks for are tried for one place.
const PLANS: usize = 80;
/// Most images that are tried for one place in each round.
const IMAGES: u64 = 5_000;
/// No plan may use more than this share of them.
const SHARES: u64 = 8;
/// Most images that are tried for one place while they are aimed, ...
const AIMED_IMAGES: u64 = 20_000;
/// ... and of one plan, when all are tried for the first time and for the second.
const AIMED_MOST: u64 = 120;
const AIMED_MOST_AGAIN: u64 = 600;
/// What a plan costs besides, in images: it is recorded; much, if programs had to wait for each
/// other.
const RECORDING: u64 = 4;
const WAITING: u64 = 100;
/// So many crash points at which there is nothing to aim at cost as much as an image.
const POINTS: u64 = 4;
const AIMED: [Depth; 2] = [
    Depth {
        all_up_to: 12,
        samples: 10,
        aimed: true,
    },
    Depth {
        all_up_to: 256,
        samples: 60,
        aimed: true,
    },
];
/// Sequences of several operations and programs that are looked at for places, besides the single
/// operations.
const MORE: u64 = 240;
/// Images of each plan that is looked at for places.
const SAMPLED_IMAGES: u64 = 60;
const SAMPLE: Depth = Depth {
    all_up_to: 4,
    samples: 3,
    aimed: false,
};
const ROUNDS: [Depth; 2] = [
    Depth {
        all_up_to: 16,
        samples: 12,
        aimed: false,
    },
    Depth {
        all_up_to: 1024,
        samples: 200,
        aimed: false,
    },
];

type SourcePlace = (Work, &'static Location<'static>);

/// What became of one place.
pub struct Row {
    place: SourcePlace,
    /// Images tried.
    images: u64,
    /// How it was caught.
    caught: Option<String>,
}

/// All places.
pub struct Table {
    /// Those that were met.
    pub rows: Vec<Row>,
    /// Places in the source, as `file:line`, that nothing met.
    pub unmet: Vec<String>,
}

/// What is tried besides sequences of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    Damage,
    Grow,
    Format,
    Repair,
    Objects,
    Disk,
    Twins,
    Parts,
    Common,
    Copies,
    Leave,
}

const SCENES: [Scene; 11] = [
    Scene::Damage,
    Scene::Format,
    Scene::Grow,
    Scene::Repair,
    Scene::Objects,
    Scene::Disk,
    Scene::Twins,
    Scene::Parts,
    Scene::Common,
    Scene::Copies,
    Scene::Leave,
];

impl Scene {
    /// Plays it; the first thing that is wrong is an error.
    fn play(
        self,
        worlds: &Worlds,
        sabotage: Sabotage,
        seed: u64,
        images: &mut u64,
    ) -> Result<Vec<Event>, String> {
        match self {
            Scene::Damage => {
                let mut damage = Damage::default();
                let sound = damage::run(worlds, &mut damage);
                *images += damage.bits;
                sound.map(|()| Vec::new())
            }
            Scene::Grow => {
                let mut grown = Grown::default();
                let done = grow::run(sabotage, seed, &mut grown);
                *images += grown.images + grown.bits;
                done
            }
            Scene::Format => format::run(worlds, sabotage, seed, images),
            Scene::Repair => repair_scene::run(worlds, sabotage, seed, images),
            Scene::Objects => objects_scene::run(worlds, sabotage, seed, images),
            Scene::Copies => copies_scene::run(sabotage, seed, images),
            Scene::Leave => leave_scene::run(sabotage, seed, images),
            Scene::Disk => disk_scene::run(sabotage, seed, images),
            Scene::Twins => disk_scene::run_twins(sabotage, seed, images),
            Scene::Parts => disk_scene::run_parts(sabotage, seed, images),
            Scene::Common => disk_scene::run_common(sabotage, seed, images),
        }
    }
}

/// What meets a place.
#[derive(Default)]
struct Met {
    scenes: Vec<Scene>,
    plans: Vec<u64>,
}

/// Switches everything off that the plans of `seed` meet, or only what holds one of the words of
/// `only` (with commas between) in its name, as `Flush crates/...:LINE`.
pub fn run(worlds: &Worlds, seed: u64, only: &str) -> Result<Table, String> {
    let met = discover(worlds, seed)?;
    let mut unmet = source::places();
    for place in met.keys() {
        unmet.remove(&at(place.1));
    }
    let places: Vec<_> = met.iter().filter(|met| is_named(met.0, only)).collect();
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    let work = || -> Result<(), String> {
        let mut rig = Rig::new(worlds)?;
        while let Some(&(&place, met)) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            let row = hunt(&mut rig, worlds, seed, place, met);
            eprintln!("{row}");
            rows.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(row);
        }
        Ok(())
    };
    each_processor(&work)?;
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|row| (row.place.0, row.place.1.file(), row.place.1.line()));
    let unmet = unmet.into_iter().collect();
    Ok(Table { rows, unmet })
}

fn is_named(place: &SourcePlace, only: &str) -> bool {
    let name = format!("{:?} {}", place.0, at(place.1));
    only.split(',').any(|word| name.contains(word))
}

fn at(place: &Location<'_>) -> String {
    format!("{}:{}", place.file(), place.line())
}

fn numbers() -> impl Iterator<Item = u64> {
    let [singles, ..] = counts();
    directed(0..SAMPLED_ORDERS).chain(0..singles + MORE)
}

fn snapshot(seed: u64, number: u64) -> SequencePlan {
    SequencePlan {
        depth: SAMPLE,
        most: SAMPLED_IMAGES,
        nested_every: [24, 6],
        ..plan(seed, number)
    }
}

/// Which scenes and plans meet which places.
fn discover(worlds: &Worlds, seed: u64) -> Result<BTreeMap<SourcePlace, Met>, String> {
    let mut all: BTreeMap<SourcePlace, Met> = BTreeMap::new();
    site::met();
    for scene in SCENES {
        for event in scene.play(worlds, Sabotage::Nothing, seed, &mut 0)? {
            if let Some(place) = place_of(&event) {
                note_scene(&mut all, place, scene);
            }
        }
        for (kind, place) in site::met() {
            note_scene(&mut all, (work_of(kind), place), scene);
        }
    }
    let numbers: Vec<u64> = numbers().collect();
    let (next, all) = (AtomicUsize::new(0), Mutex::new(all));
    let work = || -> Result<(), String> {
        let mut rig = Rig::new(worlds)?;
        site::met();
        while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let places = places_of(&mut rig, &snapshot(seed, number))?;
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            for place in places {
                all.entry(place).or_default().plans.push(number);
            }
        }
        Ok(())
    };
    each_processor(&work)?;
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.values_mut().for_each(|met| met.plans.sort_unstable());
    Ok(all)
}

/// The places that a plan and recoveries from its crashes meet.
fn places_of(rig: &mut Rig, plan: &SequencePlan) -> Result<BTreeSet<SourcePlace>, String> {
    let mut tally = Tally::default();
    rig.explore(plan, Sabotage::Nothing, &mut tally);
    if let Some(violation) = tally.violations.first() {
        return Err(format!("a violation without any mutation:\n{violation}"));
    }
    let stores = tally.places.iter().filter_map(|&(fence, place)| {
        let work = if fence { Work::Fence } else { Work::Flush };
        Some((work, place?))
    });
    let decisions = site::met()
        .into_iter()
        .map(|(kind, place)| (work_of(kind), place));
    Ok(stores.chain(decisions).collect())
}

fn note_scene(all: &mut BTreeMap<SourcePlace, Met>, place: SourcePlace, scene: Scene) {
    let scenes = &mut all.entry(place).or_default().scenes;
    if !scenes.contains(&scene) {
        scenes.push(scene);
    }
}

fn place_of(event: &Event) -> Option<SourcePlace> {
    let work = match event.what {
        What::Flush { .. } => Work::Flush,
        What::Fence => Work::Fence,
        What::Store { .. } | What::Done => return None,
    };
    Some((work, event.place?))
}

const fn work_of(kind: site::Kind) -> Work {
    match kind {
        site::Kind::Check => Work::Check,
        site::Kind::Step => Work::Step,
    }
}

fn hunt(rig: &mut Rig, worlds: &Worlds, seed: u64, place: SourcePlace, met: &Met) -> Row {
    let mut hunt = Hunt {
        rig,
        worlds,
        seed,
        sabotage: Sabotage::Off(place.0, place.1),
        plans: shortest_first(seed, &met.plans),
        row: Row {
            place,
            images: 0,
            caught: None,
        },
    };
    // What is quick comes first: what damages, or a few images of many plans, aimed if there is
    // something to aim at.
    let first = Round {
        depth: AIMED[0],
        images: AIMED_IMAGES,
        most: AIMED_MOST,
        nested_every: [16, 4],
    };
    let again = Round {
        depth: AIMED[1],
        most: AIMED_MOST_AGAIN,
        nested_every: [4, 1],
        ..first
    };
    let deeper = ROUNDS.map(|depth| Round {
        depth,
        images: IMAGES,
        most: IMAGES / SHARES,
        nested_every: [24, 4],
    });
    let damages = place.0 == Work::Check;
    let _caught = (damages && hunt.scenes(met))
        || hunt.plans(first)
        || hunt.plans(again)
        || (!damages && hunt.scenes(met))
        || deeper.into_iter().any(|round| hunt.plans(round));
    hunt.row
}

/// The search for what shows that a place is switched off.
struct Hunt<'h> {
    rig: &'h mut Rig,
    worlds: &'h Worlds,
    seed: u64,
    sabotage: Sabotage,
    plans: Vec<u64>,
    row: Row,
}

/// How hard plans are tried.
#[derive(Clone, Copy)]
struct Round {
    depth: Depth,
    /// Most images of all plans.
    images: u64,
    /// Most images of one plan.
    most: u64,
    nested_every: [u64; 2],
}

impl Hunt<'_> {
    /// Tries plans; whether one shows it.
    fn plans(&mut self, round: Round) -> bool {
        let plan_of = |number: u64| plan(self.seed, number);
        // Where only costly plans come by, they are what there is to pay for.
        let cheapest = self.plans.iter().map(|&number| cost(&plan_of(number)));
        let unit = cheapest.min().unwrap_or(1);
        let mut spent = 0;
        for &number in &self.plans {
            let mut tally = Tally::default();
            let plan = SequencePlan {
                depth: round.depth,
                most: round.most,
                nested_every: round.nested_every,
                ..plan_of(number)
            };
            self.rig.explore(&plan, self.sabotage, &mut tally);
            self.row.images += tally.images;
            let more = RECORDING + tally.points / POINTS + WAITING * tally.dropped;
            spent += more + tally.images * cost(&plan) / unit;
            if let Some(violation) = tally.violations.first() {
                self.row.caught = Some(violation.sequence.clone());
                return true;
            }
            if spent >= round.images {
                break;
            }
        }
        false
    }

    /// Plays the scenes that meet a place; whether one shows it.
    fn scenes(&mut self, met: &Met) -> bool {
        for &scene in &met.scenes {
            self.sabotage.switch();
            let images = &mut self.row.images;
            let played = scene.play(self.worlds, self.sabotage, self.seed, images);
            Sabotage::Nothing.switch();
            if let Err(why) = played {
                self.row.caught = Some(format!("{scene:?}: {why}"));
                return true;
            }
        }
        false
    }
}

/// What an image of a plan costs, in images: contents that move leave thousands of lines under way.
fn cost(plan: &SequencePlan) -> u64 {
    let moves = |action: &Action| matches!(action, Action::Chunk(_));
    match plan.lanes.iter().flatten().any(moves) {
        true => 64,
        false => 1,
    }
}

/// The plans that meet a place, the shortest first: all that are single or directed, those in all
/// orders of turns, and some of the others. Programs side by side come last, order by order.
fn shortest_first(seed: u64, met: &[u64]) -> Vec<u64> {
    let plan_of = |number: u64| plan(seed, number);
    let kind = |number: u64| plan_of(number).kind;
    let of = |wanted: fn(Kind) -> bool| {
        let numbers = met.iter().copied();
        numbers.filter(move |&number| wanted(kind(number)))
    };
    let lanes: Vec<_> = of(|kind| kind == Kind::Directed)
        .map(|number| plan_of(number).lanes)
        .collect();
    let directed = directed(0..ORDERS).filter(|&number| lanes.contains(&plan_of(number).lanes));
    let others: Vec<u64> = of(|kind| !matches!(kind, Kind::Directed | Kind::Single)).collect();
    let step = others.len() / PLANS + 1;
    let mut plans: Vec<u64> = of(|kind| kind == Kind::Single)
        .chain(directed)
        .chain(others.into_iter().step_by(step))
        .collect();
    plans.sort_by_cached_key(|&number| {
        let plan = plan_of(number);
        let actions: usize = plan.lanes.iter().map(Vec::len).sum();
        let beside = plan.lanes.len() > 1;
        let actions = if beside { 0 } else { actions };
        let other = plan.kind != Kind::Directed;
        // One order of each kind after the other.
        let order = order_of(number) * STRIDE % ORDERS;
        (cost(&plan) > 1, beside, actions, other, order, number)
    });
    plans
}

/// Most characters of how a place was caught.
const SHOWN: usize = 90;

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (work, place) = self.place;
        let caught = self.caught.as_deref().unwrap_or("**not caught**");
        let shown = caught.chars().filter(|c| !c.is_control());
        let caught: String = shown.take(SHOWN).collect();
        let at = at(place).replace("crates/nacre-", "").replace("/src/", "/");
        write!(f, "| {work:?} | {at} | {} | {caught} |", self.images)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        for place in &self.unmet {
            writeln!(f, "not met: {place}")?;
        }
        let caught = self.rows.iter().filter(|row| row.caught.is_some()).count();
        write!(
            f,
            "places {}, caught {caught}, not met {}",
            self.rows.len(),
            self.unmet.len()
        )
    }
}
