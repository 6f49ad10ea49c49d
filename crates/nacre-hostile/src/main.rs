//! `nacre-hostile`: canaries, then as many damaged pools as the time allows.
#![forbid(unsafe_code)]

use std::alloc::System;
use std::process::ExitCode;
use std::time::Duration;

use cap::Cap;
use nacre_hostile::Setup;
use nacre_hostile::canary::{PLANTED, Trust};
use nacre_hostile::watch::{self, Limits, Outcome};
use nacre_hostile::worker;

/// Whoever allocates as much as a damaged pool says is ended here.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);
/// What one process may have allocated; the prepared pools take 5 MiB.
const MEMORY: usize = 160 << 20;

const USAGE: &str = "usage: cargo xtask hostile [--minutes M | --cases N] [--seed S] [--case C]\n\
    \n\
    --minutes M   stop after so many minutes (default: 10)\n\
    --cases N     stop after so many damaged pools\n\
    --seed S      choose other damage (default: 1)\n\
    --case C      run this case alone, in this process\n";

struct Options {
    limits: Limits,
    seed: u64,
    only: Option<u64>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--work") {
        return finish(work(&arguments[1..]).map(|()| true));
    }
    let Some(options) = parse(&arguments) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    finish(match options.only {
        Some(case) => one(options.seed, case),
        None => all(&options),
    })
}

fn finish(done: Result<bool, String>) -> ExitCode {
    match done {
        Ok(fine) => ExitCode::from(u8::from(!fine)),
        Err(why) => {
            eprintln!("hostile: {why}");
            ExitCode::from(2)
        }
    }
}

fn work(arguments: &[String]) -> Result<(), String> {
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(seed), Some(from), Some(to)) = (number(0), number(1), number(2)) else {
        return Err("--work wants three numbers".into());
    };
    let planted = arguments.get(3).map_or("", String::as_str);
    let trust = PLANTED.into_iter().find(|(_, name)| *name == planted);
    let trust = trust.map_or(Trust::Nobody, |(trust, _)| trust);
    let limited = ALLOCATOR.set_limit(MEMORY);
    limited.map_err(|_| "more memory in use than allowed")?;
    worker::work(&Setup { seed, from, to }, trust)
}

fn one(seed: u64, case: u64) -> Result<bool, String> {
    let setup = Setup {
        seed,
        from: case,
        to: case + 1,
    };
    worker::work(&setup, Trust::Nobody).map(|()| true)
}

fn parse(arguments: &[String]) -> Option<Options> {
    let mut options = Options {
        limits: Limits::default(),
        seed: 1,
        only: None,
    };
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        let value = rest.next()?;
        match name.as_str() {
            "--minutes" => {
                let minutes: f64 = value.parse().ok()?;
                options.limits.time = Duration::try_from_secs_f64(minutes * 60.0).ok()?;
            }
            "--cases" => options.limits.cases = value.parse().ok()?,
            "--seed" => options.seed = value.parse().ok()?,
            "--case" => options.only = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    Some(options)
}

fn all(options: &Options) -> Result<bool, String> {
    let setup = Setup {
        seed: options.seed,
        from: 0,
        to: u64::MAX,
    };
    for (_, name) in PLANTED {
        let limits = Limits {
            cases: 20_000,
            findings: 1,
            hang: Duration::from_secs(2),
            ..options.limits
        };
        let outcome = watch::run(&setup, &[name], limits)?;
        let found = outcome.findings.first();
        let (case, _) = found.ok_or(format!("the planted reader {name:?} was not found"))?;
        println!("canary {name}: found at case {case}");
    }
    let outcome = watch::run(&setup, &[], options.limits)?;
    report(&outcome, options.seed);
    Ok(outcome.findings.is_empty())
}

fn report(outcome: &Outcome, seed: u64) {
    let tally = outcome.tally;
    for (case, why) in &outcome.findings {
        println!("FINDING at case {case} of seed {seed}\n    {why}");
    }
    println!("seed                         {seed}");
    println!("damaged pools                {}", tally.cases);
    println!("  refused as a whole         {}", tally.refused);
    println!("  served read-only           {}", tally.quarantined);
    println!("  in which nothing was found {}", tally.unnoticed);
    println!("problems that check reported {}", tally.problems);
    println!("errors of operations         {}", tally.errors);
    println!("undamaged files compared     {}", tally.compared);
    println!("pools repaired               {}", tally.repaired);
    println!("  changes made               {}", tally.fixes);
    println!("  that cannot be repaired    {}", tally.hopeless);
    println!("images of crashed repairs    {}", tally.images);
    println!("findings                     {}", outcome.findings.len());
    println!(
        "seconds                      {:.1}",
        outcome.time.as_secs_f64()
    );
}
