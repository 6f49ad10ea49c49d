//! Mutation: everything that orders or checks is switched off, one place at a time, and must be missed.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use nacre_store::WriteMode;
use nacre_types::site::{self, Kind};

use crate::action::Action;
use crate::damage::{self, Damage};
use crate::grow::{self, Grown};
use crate::medium::Depth;
use crate::plan::{Plan, counts, pair, plan};
use crate::recorder::What;
use crate::sabotage::{Sabotage, Work};
use crate::sequence::{Rig, Tally};
use crate::source;
use crate::workload::Worlds;

/// Most plans that are tried for one place.
const PLANS: usize = 80;
/// Most images that are tried for one place.
const IMAGES: u64 = 5_000;
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
    /// Plans that meet it.
    plans: usize,
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

/// Switches everything off that the plans of `seed` meet.
pub fn run(worlds: &Worlds, seed: u64) -> Result<Table, String> {
    let met = discover(worlds, seed)?;
    let places: Vec<_> = met.iter().rev().collect();
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    let work = || -> Result<(), String> {
        let mut rig = Rig::new(worlds)?;
        while let Some(&(&place, plans)) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            let row = hunt(&mut rig, worlds, seed, place, plans);
            eprintln!("{row}");
            rows.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(row);
        }
        Ok(())
    };
    each_processor(&work)?;
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|row| (row.place.1.file(), row.place.1.line(), row.place.0));
    let mut unmet = source::places();
    for row in &rows {
        unmet.remove(&at(row.place.1));
    }
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

fn at(place: &Location<'_>) -> String {
    format!("{}:{}", place.file(), place.line())
}

/// Pairs that only some places are needed for: a record that is not retired and comes back, a map that grows
/// without the size.
const PAIRS: [(Action, Action); 5] = [
    (Action::Create("n"), Action::Append("n", 300)),
    (Action::Write("a", 4090, 12), Action::Store("a", 104, 5000)),
    (Action::Truncate("e", 20000), Action::Write("e", 9000, 100)),
    (Action::Remount, Action::Create("n")),
    (Action::Remount, Action::CreateInNewBlock("n")),
];

fn numbers() -> impl Iterator<Item = u64> {
    let [singles, ..] = counts();
    let modes = [WriteMode::Direct, WriteMode::Atomic];
    let pairs = modes.into_iter().flat_map(|mode| {
        PAIRS
            .into_iter()
            .filter_map(move |(first, second)| pair(first, second, mode))
    });
    pairs.chain(0..singles).chain(singles..singles + MORE)
}

fn glance(seed: u64, number: u64) -> Plan {
    Plan {
        depth: GLANCE,
        nested_every: [64, 12],
        ..plan(seed, number)
    }
}

/// Which plans meet which places.
fn discover(worlds: &Worlds, seed: u64) -> Result<BTreeMap<Place, Vec<u64>>, String> {
    let mut rig = Rig::new(worlds)?;
    let mut met: BTreeMap<Place, Vec<u64>> = BTreeMap::new();
    for number in numbers() {
        let mut tally = Tally::default();
        site::met();
        rig.explore(&glance(seed, number), Sabotage::Nothing, &mut tally);
        if let Some(violation) = tally.violations.first() {
            return Err(format!("a violation without any mutation:\n{violation}"));
        }
        let stores = tally.places.iter().filter_map(|&(fence, place)| {
            let work = if fence { Work::Fence } else { Work::Flush };
            Some((work, place?))
        });
        let decisions = site::met().into_iter().map(|(kind, place)| match kind {
            Kind::Check => (Work::Check, place),
            Kind::Step => (Work::Step, place),
        });
        for place in stores.chain(decisions) {
            met.entry(place).or_default().push(number);
        }
    }
    for event in grow::run(Sabotage::Nothing, seed, &mut Grown::default())? {
        let work = match event.what {
            What::Flush { .. } => Work::Flush,
            What::Fence => Work::Fence,
            What::Store { .. } | What::Done => continue,
        };
        if let Some(place) = event.place {
            met.entry((work, place)).or_default();
        }
    }
    damage::run(worlds, &mut Damage::default())?;
    for (kind, place) in site::met() {
        if kind == Kind::Check {
            met.entry((Work::Check, place)).or_default();
        }
    }
    Ok(met)
}

fn hunt(rig: &mut Rig, worlds: &Worlds, seed: u64, place: Place, plans: &[u64]) -> Row {
    let sabotage = Sabotage::Off(place.0, place.1);
    let mut row = Row {
        place,
        plans: plans.len(),
        images: 0,
        caught: None,
    };
    for depth in ROUNDS {
        for number in spread(seed, plans) {
            let mut tally = Tally::default();
            let plan = Plan {
                depth,
                nested_every: [24, 4],
                ..plan(seed, number)
            };
            rig.explore(&plan, sabotage, &mut tally);
            row.images += tally.images;
            if let Some(violation) = tally.violations.first() {
                row.caught = Some(violation.sequence.clone());
            }
            if row.caught.is_some() || row.images > IMAGES {
                return row;
            }
        }
        if depth.samples == ROUNDS[0].samples && otherwise(worlds, sabotage, seed, &mut row) {
            return row;
        }
    }
    row
}

/// Whether damage or growing shows that something is switched off.
fn otherwise(worlds: &Worlds, sabotage: Sabotage, seed: u64, row: &mut Row) -> bool {
    let (mut damage, mut grown) = (Damage::default(), Grown::default());
    sabotage.switch();
    if row.place.0 == Work::Check {
        row.caught = damage::run(worlds, &mut damage).err();
    }
    if row.caught.is_none() && row.place.1.file().contains("nacre-volume") {
        row.caught = grow::run(sabotage, seed, &mut grown).err();
    }
    Sabotage::Nothing.switch();
    row.images += damage.bits + grown.bits + grown.images;
    row.caught.is_some()
}

/// Some of many plans, of all kinds; those that attach a clean pool first.
fn spread(seed: u64, plans: &[u64]) -> Vec<u64> {
    let directed = plans.iter().take(2 * PAIRS.len());
    let mut some: Vec<u64> = plans
        .iter()
        .copied()
        .step_by(plans.len() / PLANS + 1)
        .collect();
    let clean = |number: u64| plan(seed, number).lanes[0][0] == Action::Remount;
    let more: Vec<u64> = plans
        .iter()
        .copied()
        .filter(|&number| clean(number))
        .collect();
    some.retain(|number| !more.contains(number));
    let few = more.len().min(PLANS / 4);
    some.splice(0..0, more[..few].iter().copied());
    some.splice(0..0, directed.copied());
    some
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (work, place) = self.place;
        let caught = match &self.caught {
            Some(how) => format!("caught: {how}"),
            None => "NOT CAUGHT".into(),
        };
        let (at, plans, images) = (at(place), self.plans, self.images);
        write!(
            f,
            "{work:?} {at} | {plans} plans | {images} images | {caught}"
        )
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        for place in &self.unmet {
            writeln!(f, "not met: {place}")?;
        }
        let caught = self.rows.iter().filter(|row| row.caught.is_some()).count();
        write!(f, "places {}, caught {caught}", self.rows.len())
    }
}
