//! `nacre-explore`: canaries, then as many crashes as the time allows.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use nacre_explore::campaign::{self, Limits, Outcome};
use nacre_explore::plan::{counts, plan};
use nacre_explore::sabotage::Sabotage;
use nacre_explore::sequence::{Rig, Tally};
use nacre_explore::workload::Worlds;
use nacre_explore::{canary, object_plan, objects_scene, scenes, workload};

const USAGE: &str = "usage: cargo xtask explore [--pairs] [--minutes M | --images N] [--seed S]\n       \
    cargo xtask explore --mutate [PLACE] [--seed S]\n       \
    cargo xtask explore --replay SEED:NUMBER|SEED:oNUMBER\n       \
    cargo xtask explore --scene NAME [--seed S] [--seeds N]\n\
    \n\
    --pairs       all sequences of one and of two operations and no others, to the end\n\
    --minutes M   stop after so many minutes (default: 10)\n\
    --images N    stop after so many crash images\n\
    --seed S      choose other samples (default: 1)\n\
    --scene NAME  play one scene, as twins or disk, and nothing else\n\
    --seeds N     with so many seeds, from S on (default: 1)\n\
    --mutate      switch every flush, fence, check and step off in turn (where its name, as `Fence crates/...:LINE`, holds PLACE, or one of several with commas between): each must be missed\n\
    --replay      explore one sequence again, telling all that happened to the medium; one transaction on objects, if its number follows an o\n";

enum Task {
    Explore(Limits),
    Mutate(String),
    Replay(u64),
    ReplayObjects(u64),
    Scene(String),
}

struct Options {
    task: Task,
    seed: u64,
    seeds: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(options) = parse(&arguments) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let done = workload::prepare().and_then(|worlds| match options.task {
        Task::Explore(limits) => explore(&worlds, limits, options.seed),
        Task::Mutate(only) => mutate(&worlds, options.seed, &only),
        Task::Replay(number) => replay(&worlds, options.seed, number),
        Task::ReplayObjects(number) => replay_objects(&worlds, options.seed, number),
        Task::Scene(name) => {
            let seeds = options.seed..options.seed + options.seeds;
            scenes::run_one(&worlds, &name, seeds, |seen| println!("{seen}")).map(|()| true)
        }
    });
    match done {
        Ok(sound) => ExitCode::from(u8::from(!sound)),
        Err(why) => {
            eprintln!("explore: {why}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Option<Options> {
    let ten_minutes = Limits {
        time: Some(Duration::from_secs(600)),
        ..Limits::default()
    };
    let mut limits = None;
    let mut options = Options {
        task: Task::Explore(ten_minutes),
        seed: 1,
        seeds: 1,
    };
    let mut rest = arguments.iter().peekable();
    while let Some(name) = rest.next() {
        match name.as_str() {
            "--pairs" => limits.get_or_insert_with(Limits::default).pairs = true,
            "--minutes" => {
                let minutes: f64 = rest.next()?.parse().ok()?;
                let time = Duration::try_from_secs_f64(minutes * 60.0).ok();
                limits.get_or_insert_with(Limits::default).time = time;
            }
            "--images" => {
                let images = rest.next()?.parse().ok()?;
                limits.get_or_insert_with(Limits::default).images = Some(images);
            }
            "--mutate" => {
                let only = rest.next_if(|word| !word.starts_with("--"));
                options.task = Task::Mutate(only.cloned().unwrap_or_default());
            }
            "--replay" => {
                let (seed, number) = rest.next()?.split_once(':')?;
                options.seed = seed.parse().ok()?;
                options.task = match number.strip_prefix('o') {
                    Some(number) => Task::ReplayObjects(number.parse().ok()?),
                    None => Task::Replay(number.parse().ok()?),
                };
            }
            "--scene" => options.task = Task::Scene(rest.next()?.clone()),
            "--seeds" => options.seeds = rest.next()?.parse().ok()?,
            "--seed" => options.seed = rest.next()?.parse().ok()?,
            _ => return None,
        }
    }
    if let Some(limits) = limits {
        options.task = Task::Explore(limits);
    }
    Some(options)
}

fn explore(worlds: &Worlds, limits: Limits, seed: u64) -> Result<bool, String> {
    for (bug, images) in canary::run(worlds, seed)? {
        println!("canary {bug:?}: found after {images} images");
    }
    scenes::run(worlds, seed, |seen| println!("{seen}"))?;
    let outcome = campaign::run(worlds, limits, seed)?;
    report(&outcome, seed);
    Ok(outcome.tally.violations.is_empty())
}

fn report(outcome: &Outcome, seed: u64) {
    let tally = &outcome.tally;
    for violation in &tally.violations {
        println!("VIOLATION\n{violation}");
    }
    println!("seed                      {seed}");
    let names = [
        "1 operation",
        "1, in depth",
        "2 operations",
        "3 to 8",
        "2-3 programs",
        "directed",
    ];
    let counts = counts().map(|count| format!(" of {count}"));
    for (index, (name, done)) in names.iter().zip(tally.sequences).enumerate() {
        let of = counts.get(index).map_or("", String::as_str);
        println!("sequences of {name:12} {done}{of}");
    }
    println!("  programs waited: dropped {}", tally.dropped);
    println!("operations crashed        {}", tally.operations);
    println!("crash points              {}", tally.points);
    println!(
        "images made               {}",
        tally.images + tally.repeated
    );
    println!("distinct images recovered {}", tally.images);
    println!("  of crashed recoveries   {}", tally.nested);
    println!("transactions on objects   {}", tally.transactions);
    println!("  images of them          {}", tally.object_images);
    println!("distinct states seen      {}", tally.states.len());
    println!("violations                {}", tally.violations.len());
    println!(
        "seconds                   {:.1}",
        outcome.time.as_secs_f64()
    );
    println!("processor seconds         {}", processor_seconds());
}

/// What this program has used since it began, on all processors: on a busy machine it says more
/// than the time does.
fn processor_seconds() -> u64 {
    const TICKS_PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks = fields.split(' ').skip(11).take(2);
    ticks
        .filter_map(|field| field.parse::<u64>().ok())
        .sum::<u64>()
        / TICKS_PER_SECOND
}

fn replay(worlds: &Worlds, seed: u64, number: u64) -> Result<bool, String> {
    let plan = plan(seed, number);
    println!("{plan}");
    let mut rig = Rig::new(worlds)?;
    rig.tell(&plan)?;
    let mut tally = Tally::default();
    rig.explore(&plan, Sabotage::Nothing, &mut tally);
    println!("distinct images recovered {}", tally.images);
    for violation in &tally.violations {
        println!("VIOLATION\n{violation}");
    }
    Ok(tally.violations.is_empty())
}

fn replay_objects(worlds: &Worlds, seed: u64, number: u64) -> Result<bool, String> {
    let mut images = 0;
    for operation in object_plan::plan(seed, number).operations() {
        println!("{operation:?}");
    }
    let prepared = objects_scene::Prepared::new(worlds)?;
    prepared.explore(seed, number, Sabotage::Nothing, &mut images)?;
    println!("images                    {images}");
    Ok(true)
}

#[cfg(feature = "explore")]
fn mutate(worlds: &Worlds, seed: u64, only: &str) -> Result<bool, String> {
    println!("{}", nacre_explore::mutate::run(worlds, seed, only)?);
    Ok(true)
}

#[cfg(not(feature = "explore"))]
fn mutate(_: &Worlds, _: u64, _: &str) -> Result<bool, String> {
    Err("built without the feature `explore`".into())
}
