//! A state that must not be, and how to come to it again.

use std::fmt;

use crate::plan::SequencePlan;
use nacre_testkit::medium::Choices;
use nacre_testkit::recorder::SourcePlace;

/// Most stores that a message names.
const SHOWN: usize = 12;

/// A state that must not be.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Seed and number of the plan: `--replay` takes them.
    pub name: (u64, u64),
    /// Write mode and operations.
    pub sequence: String,
    /// Event of the recording before which the power failed.
    pub event: usize,
    /// Operations of each program that had returned.
    pub done: Vec<usize>,
    /// Stores that had to be durable early to show it.
    pub early: Vec<LineStores>,
    /// Stores that may all be lost.
    pub lost: Vec<LineStores>,
    /// What is wrong.
    pub why: String,
}

/// The stores to one line that were not fenced.
#[derive(Clone, Debug)]
pub struct LineStores {
    /// Volume offset.
    pub at: u64,
    /// Where in the source, in order.
    pub places: Vec<SourcePlace>,
}

impl Violation {
    /// Not even the operations themselves went well.
    pub fn of_recording(plan: &SequencePlan, why: String) -> Violation {
        Violation {
            name: plan.name,
            sequence: plan.to_string(),
            event: 0,
            done: Vec::new(),
            early: Vec::new(),
            lost: Vec::new(),
            why,
        }
    }
}

/// The stores that the states of lines came from.
pub fn stores<'c>(choices: impl Iterator<Item = &'c Choices>) -> Vec<LineStores> {
    choices
        .map(|choice| {
            let mut places = choice.places.clone();
            places.dedup();
            LineStores {
                at: choice.line * 64,
                places,
            }
        })
        .collect()
}

fn list(f: &mut fmt::Formatter<'_>, name: &str, lines: &[LineStores]) -> fmt::Result {
    for line in lines.iter().take(SHOWN) {
        write!(f, "    {name} {:#x}:", line.at)?;
        for place in line.places.iter().flatten() {
            write!(f, " {place}")?;
        }
        writeln!(f)?;
    }
    match lines.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(f, "    and {more} lines more"),
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, number) = self.name;
        writeln!(f, "  {}   (--replay {seed}:{number})", self.sequence)?;
        writeln!(
            f,
            "    crash before event {}, operations returned: {:?}",
            self.event, self.done
        )?;
        list(f, "durable early", &self.early)?;
        list(f, "lost", &self.lost)?;
        write!(f, "    {}", self.why)
    }
}
