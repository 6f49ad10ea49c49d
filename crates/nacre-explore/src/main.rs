//! `nacre-explore`: canaries, then as many crashes as the time allows.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use nacre_explore::campaign::{self, Limits, Outcome};
use nacre_explore::{canary, workload};

const USAGE: &str = "usage: cargo xtask explore [--minutes M | --images N | --pairs] [--seed S]\n\
    \n\
    --minutes M   stop after so many minutes (default: 10)\n\
    --images N    stop after so many crash images\n\
    --pairs       stop after all sequences of one and of two operations\n\
    --seed S      choose other samples (default: 1)\n";

struct Options {
    limits: Limits,
    seed: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(options) = parse(&arguments) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match explore(&options) {
        Ok(outcome) => ExitCode::from(u8::from(!outcome.tally.violations.is_empty())),
        Err(why) => {
            eprintln!("explore: {why}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Option<Options> {
    let ten_minutes = Limits {
        time: Some(Duration::from_secs(600)),
        images: None,
    };
    let mut options = Options {
        limits: ten_minutes,
        seed: 1,
    };
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        match name.as_str() {
            "--pairs" => options.limits = Limits::default(),
            "--minutes" => {
                let minutes: f64 = rest.next()?.parse().ok()?;
                options.limits = Limits {
                    time: Duration::try_from_secs_f64(minutes * 60.0).ok(),
                    images: None,
                };
            }
            "--images" => {
                options.limits = Limits {
                    time: None,
                    images: Some(rest.next()?.parse().ok()?),
                };
            }
            "--seed" => options.seed = rest.next()?.parse().ok()?,
            _ => return None,
        }
    }
    Some(options)
}

fn explore(options: &Options) -> Result<Outcome, String> {
    let base = workload::prepare()?;
    for (bug, images) in canary::run(&base, options.seed)? {
        println!("canary {bug:?}: found after {images} images");
    }
    let outcome = campaign::run(&base, options.limits, options.seed)?;
    report(&outcome, options.seed);
    Ok(outcome)
}

fn report(outcome: &Outcome, seed: u64) {
    let tally = &outcome.tally;
    for violation in &tally.violations {
        println!("VIOLATION\n{violation}");
    }
    println!("seed                      {seed}");
    let names = ["1 operation", "1, in depth", "2 operations", "3 to 8"];
    let counts = campaign::counts().map(|count| format!(" of {count}"));
    for (index, (name, done)) in names.iter().zip(tally.sequences).enumerate() {
        let of = counts.get(index).map_or("", String::as_str);
        println!("sequences of {name:12} {done}{of}");
    }
    println!("operations crashed        {}", tally.operations);
    println!("crash points              {}", tally.points);
    println!("images recovered          {}", tally.images);
    println!("  of crashed recoveries   {}", tally.nested);
    println!("images met again          {}", tally.repeated);
    println!("distinct states seen      {}", tally.states.len());
    println!("violations                {}", tally.violations.len());
    println!(
        "seconds                   {:.1}",
        outcome.time.as_secs_f64()
    );
}
