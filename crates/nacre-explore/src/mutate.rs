//! Mutation: everything that orders or checks is switched off, one place at a time, and must be missed.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use nacre_types::site::{self, Kind};

use crate::action::Action;
use crate::damage::{self, Damage};
use crate::format;
use crate::grow::{self, Grown};
use crate::medium::Depth;
use crate::mend;
use crate::plan::{ORDERS, Plan, counts, directed, plan};
use crate::recorder::{Event, What};
use crate::sabotage::{Sabotage, Work};
use crate::sequence::{Rig, Tally};
use crate::source;
use crate::workload::Worlds;

/// Orders of turns of a directed plan that are looked at for places.
const GLANCED_ORDERS: u64 = 2;
/// Most plans that are tried for one place.
const PLANS: usize = 80;
/// Most images that are tried for one place in each round.
const IMAGES: u64 = 5_000;
/// No plan may use more than this share of them.
const SHARES: u64 = 8;
/// Sequences of several operations and programs that are looked at for places, besides the single operations.
const MORE: u64 = 240;
const GLANCE: Depth = Depth {
    all_up_to: 4,
    samples: 3,
};
const ROUNDS: [Depth; 3] = [
    Depth {
        all_up_to: 16,
        samples: 12,
    },
    Depth {
        all_up_to: 256,
        samples: 64,
    },
    Depth {
        all_up_to: 4096,
        samples: 400,
    },
];

type Place = (Work, &'static Location<'static>);

/// What became of one place.
pub struct Row {
    place: Place,
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
    Mend,
}

const SCENES: [Scene; 4] = [Scene::Damage, Scene::Format, Scene::Grow, Scene::Mend];

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
            Scene::Mend => mend::run(worlds, sabotage, seed, images),
        }
    }
}

/// What meets a place.
#[derive(Default)]
struct Met {
    scenes: Vec<Scene>,
    plans: Vec<u64>,
}

/// Switches everything off that the plans of `seed` meet, or only what holds one of the words of `only` (with commas
/// between) in its name, as `Flush crates/...:LINE`.
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

fn each_processor(work: &(dyn Fn() -> Result<(), String> + Sync)) -> Result<(), String> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            let done = worker.join();
            done.unwrap_or_else(|_| Err("a worker panicked".into()))
        })
    })
}

fn is_named(place: &Place, only: &str) -> bool {
    let name = format!("{:?} {}", place.0, at(place.1));
    only.split(',').any(|word| name.contains(word))
}

fn at(place: &Location<'_>) -> String {
    format!("{}:{}", place.file(), place.line())
}

fn numbers() -> impl Iterator<Item = u64> {
    let [singles, ..] = counts();
    directed(0..GLANCED_ORDERS).chain(0..singles + MORE)
}

fn glance(seed: u64, number: u64) -> Plan {
    Plan {
        depth: GLANCE,
        nested_every: [64, 12],
        ..plan(seed, number)
    }
}

/// Which scenes and plans meet which places.
fn discover(worlds: &Worlds, seed: u64) -> Result<BTreeMap<Place, Met>, String> {
    let mut all: BTreeMap<Place, Met> = BTreeMap::new();
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
    let mut rig = Rig::new(worlds)?;
    for number in numbers() {
        let mut tally = Tally::default();
        rig.explore(&glance(seed, number), Sabotage::Nothing, &mut tally);
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
        for place in stores.chain(decisions) {
            all.entry(place).or_default().plans.push(number);
        }
    }
    Ok(all)
}

fn note_scene(all: &mut BTreeMap<Place, Met>, place: Place, scene: Scene) {
    let scenes = &mut all.entry(place).or_default().scenes;
    if !scenes.contains(&scene) {
        scenes.push(scene);
    }
}

fn place_of(event: &Event) -> Option<Place> {
    let work = match event.what {
        What::Flush { .. } => Work::Flush,
        What::Fence => Work::Fence,
        What::Store { .. } | What::Done => return None,
    };
    Some((work, event.place?))
}

const fn work_of(kind: Kind) -> Work {
    match kind {
        Kind::Check => Work::Check,
        Kind::Step => Work::Step,
    }
}

fn hunt(rig: &mut Rig, worlds: &Worlds, seed: u64, place: Place, met: &Met) -> Row {
    let sabotage = Sabotage::Off(place.0, place.1);
    let mut row = Row {
        place,
        images: 0,
        caught: None,
    };
    let plans = spread(seed, &met.plans);
    // Where only costly plans come by, they are what there is to pay for.
    let cheapest = plans.iter().map(|&number| cost(&plan(seed, number))).min();
    let unit = cheapest.unwrap_or(1);
    // What is quick comes first: a glance at plans, or at what damages and formats.
    if place.0 == Work::Check && look(worlds, sabotage, seed, met, &mut row) {
        return row;
    }
    for (round, depth) in ROUNDS.into_iter().enumerate() {
        let mut spent = 0;
        for &number in &plans {
            let mut tally = Tally::default();
            let plan = Plan {
                depth,
                most: IMAGES / SHARES,
                nested_every: [24, 4],
                ..plan(seed, number)
            };
            rig.explore(&plan, sabotage, &mut tally);
            row.images += tally.images;
            spent += tally.images * cost(&plan) / unit;
            if let Some(violation) = tally.violations.first() {
                row.caught = Some(violation.sequence.clone());
                return row;
            }
            if spent >= IMAGES {
                break;
            }
        }
        if round == 0 && place.0 != Work::Check && look(worlds, sabotage, seed, met, &mut row) {
            return row;
        }
    }
    row
}

/// Whether one of the scenes that meet a place shows that something is switched off.
fn look(worlds: &Worlds, sabotage: Sabotage, seed: u64, met: &Met, row: &mut Row) -> bool {
    for &scene in &met.scenes {
        sabotage.switch();
        let played = scene.play(worlds, sabotage, seed, &mut row.images);
        Sabotage::Nothing.switch();
        if let Err(why) = played {
            row.caught = Some(format!("{scene:?}: {why}"));
            return true;
        }
    }
    false
}

/// What an image of a plan costs, in images: contents that move leave thousands of lines under way.
fn cost(plan: &Plan) -> u64 {
    let moves = |action: &Action| matches!(action, Action::Chunk(_));
    match plan.lanes.iter().flatten().any(moves) {
        true => 64,
        false => 1,
    }
}

/// Some of many plans, of all kinds: directed ones, what costs least first, those that attach a clean pool, and others.
fn spread(seed: u64, plans: &[u64]) -> Vec<u64> {
    let kind = |number: u64| {
        let plan = plan(seed, number);
        match plan.kind {
            crate::plan::Kind::Directed => 0,
            _ if plan.lanes[0][0] == Action::Remount => 1,
            _ => 2,
        }
    };
    let of = |wanted: u64| {
        plans
            .iter()
            .copied()
            .filter(move |&number| kind(number) == wanted)
    };
    let [singles, ..] = counts();
    let (alone, others): (Vec<u64>, Vec<u64>) = of(2).partition(|&number| number < singles);
    let step = others.len() / PLANS + 1;
    let clean = of(1).take(PLANS / 4);
    let lanes: Vec<_> = of(0).map(|number| plan(seed, number).lanes).collect();
    let mut directed: Vec<u64> = directed(0..ORDERS)
        .filter(|&number| lanes.contains(&plan(seed, number).lanes))
        .collect();
    directed.sort_by_key(|&number| cost(&plan(seed, number)));
    // From both ends: what is at the end was made for what nothing else finds.
    let ends = directed.iter().zip(directed.iter().rev());
    let mut directed = ends.flat_map(|(&first, &last)| [first, last]);
    let others = others.into_iter().step_by(step);
    let mut others = alone.into_iter().chain(clean).chain(others);
    // In turn, so that neither kind uses up what may be tried.
    let next = || {
        let pair = [directed.next(), others.next()];
        (pair != [None; 2]).then_some(pair)
    };
    std::iter::from_fn(next).flatten().flatten().collect()
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
