//! The child process: runs cases one after the other and tells the parent which one it is at.

use std::io::{Write, stdout};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nacre_testkit::random::Random;

use crate::Setup;
use crate::canary::Trust;
use crate::devices::Devices;
use crate::drive::Case;
use crate::pool::{POOLS, Prepared};
use crate::tally::Tally;

/// Begins the line of a case.
pub const CASE: char = 'C';
/// Begins a line of a finding.
pub const FINDING: char = 'F';
/// Begins the line of the sums.
pub const TALLY: char = 'T';

/// Of so many cases one is about the devices of a pool.
const DEVICES_EVERY: u64 = 16;

/// Runs cases `setup.from..` until the parent ends it; what each one came to goes to standard
/// output.
pub fn work(setup: &Setup, trust: Trust) -> Result<(), String> {
    let pools = POOLS.map(|(contents, left)| Prepared::new(contents, left));
    let pools = pools.into_iter().collect::<Result<Vec<_>, _>>()?;
    let devices = Devices::new()?;
    for number in setup.from..setup.to {
        say(&format!("{CASE} {number}"));
        let mut tally = Tally::default();
        let prepared = &pools[(number % POOLS.len() as u64) as usize];
        let of_devices = number % DEVICES_EVERY == DEVICES_EVERY - 1 && trust == Trust::Nobody;
        let done = catch_unwind(AssertUnwindSafe(|| match of_devices {
            true => devices.run(&mut Random::new(setup.seed, number), &mut tally),
            false => Case::new(prepared, setup.seed, number, trust, &mut tally).run(),
        }));
        let finding = match done {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(panic) => Some(format!("panic: {}", text_of(panic.as_ref()))),
        };
        if let Some(why) = finding {
            say(&format!("{FINDING} {}", why.replace('\n', "\t")));
        }
        say(&tally.line());
    }
    Ok(())
}

fn say(line: &str) {
    let mut out = stdout().lock();
    // A parent that is gone needs no words.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("?").to_owned()
}

impl Tally {
    /// As a line for the parent.
    fn line(&self) -> String {
        format!(
            "{TALLY} {} {} {} {} {} {} {} {} {} {} {}",
            self.cases,
            self.refused,
            self.quarantined,
            self.unnoticed,
            self.problems,
            self.errors,
            self.compared,
            self.repaired,
            self.fixes,
            self.hopeless,
            self.images
        )
    }

    /// Adds what a line says.
    pub fn add_line(&mut self, line: &str) {
        let mut numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
        for sum in [
            &mut self.cases,
            &mut self.refused,
            &mut self.quarantined,
            &mut self.unnoticed,
            &mut self.problems,
            &mut self.errors,
            &mut self.compared,
            &mut self.repaired,
            &mut self.fixes,
            &mut self.hopeless,
            &mut self.images,
        ] {
            *sum += numbers.next().unwrap_or(0);
        }
    }
}
