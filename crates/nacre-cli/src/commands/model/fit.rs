//! `nacre model --fit`: a profile from a table of measurements.
//!
//! Parameters of the start profile are moved one after the other, by ever smaller steps, as long as
//! the mean error of the fitted cells falls. Every second size of access is fitted to; the others
//! tell how good the profile is at what it has not seen.

use super::cells::{self, Cell};
use super::compare;
use crate::failure::{Failure, Result};
use crate::output;
use crate::parallel::each;
use nacre_emulator::Profile;
use nacre_emulator::model::simulate_for;
use std::path::Path;
use std::process::ExitCode;

/// What is fitted if nothing else is asked for.
pub const PARAMETERS: &str = "buffer.writes_waiting,buffer.reads_waiting,controller.queue,\
    controller.stores_waiting,controller.stores_ahead,controller.loads_ahead,\
    controller.precedence,controller.transfer_ns,processor.flush_issue_ns";
/// Steps of a parameter, as shares of its value.
const STEPS: [f64; 2] = [0.25, 0.08];
/// Nanoseconds that are simulated of each cell.
const DURATION: f64 = 100_000.0;
/// An error counts at most so much (as a logarithm): tables have cells that nothing explains.
const CAP: f64 = 0.4;

/// Prints a profile that is fitted to a table; says on standard error how good it is.
pub fn fit(start: &str, table: &Path, parameters: &[String]) -> Result<ExitCode> {
    let (cells, _) = cells::load(table)?;
    let mut text = text_of(start)?;
    let sizes = fitted_sizes(&cells);
    text = with_sizes(&text, &sizes);
    let (seen, _): (Vec<Cell>, Vec<Cell>) = cells
        .into_iter()
        .partition(|cell| sizes.contains(&cell.workload.access));
    for name in parameters {
        value(&text, name).ok_or_else(|| {
            Failure::Usage(format!("--parameters {name}: {start} has no such figure"))
        })?;
    }
    let text = improve(text, parameters, &|profile| error(profile, &seen));
    let profile = parse(&text)?;
    let (cells, left_out) = cells::load(table)?;
    eprint!("{}", compare::summary(&profile, &cells, left_out));
    output::write(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Every second size, from the largest on: large accesses show what small ones do, and pages too.
fn fitted_sizes(cells: &[Cell]) -> Vec<u64> {
    cells::sizes(cells).into_iter().rev().step_by(2).collect()
}

fn text_of(start: &str) -> Result<String> {
    match Profile::text(start) {
        Some(text) => Ok(text.to_owned()),
        None => std::fs::read_to_string(start).map_err(|error| Failure::io(start, error)),
    }
}

fn parse(text: &str) -> Result<Profile> {
    Ok(Profile::parse("fitted", text)?)
}

/// Mean error of the cells, as a logarithm.
fn error(profile: &Profile, cells: &[Cell]) -> f64 {
    let errors = each(cells, |cell| {
        let mut profile = profile.clone();
        profile.layout.modules = cell.modules;
        let model = simulate_for(&profile, &cell.workload, DURATION).bandwidth;
        (model.max(1e-9) / cell.gb_s).ln().abs().min(CAP)
    });
    errors.iter().sum::<f64>() / cells.len().max(1) as f64
}

/// Moves parameters while that lowers the error.
fn improve(mut text: String, parameters: &[String], error: &dyn Fn(&Profile) -> f64) -> String {
    let judge = |text: &str| parse(text).map_or(f64::INFINITY, |profile| error(&profile));
    let mut best = judge(&text);
    for step in STEPS {
        let mut moved = true;
        while moved {
            moved = false;
            for name in parameters {
                for factor in [1.0 + step, 1.0 / (1.0 + step)] {
                    let other = scaled(&text, name, factor);
                    let found = judge(&other);
                    if found < best - 1e-4 {
                        let value = value(&other, name).unwrap_or_default();
                        eprintln!("{:.2} %: {name} = {value}", 100.0 * found);
                        (best, text, moved) = (found, other, true);
                        break;
                    }
                }
            }
        }
    }
    text
}

/// Place of a figure like `controller.queue` in a profile's text.
fn place(text: &str, name: &str) -> Option<std::ops::Range<usize>> {
    let (section, key) = name.split_once('.')?;
    let section = text.find(&format!("\n[{section}]\n"))? + 1;
    let end = text[section..]
        .find("\n[")
        .map_or(text.len(), |at| section + at);
    let from = section + text[section..end].find(&format!("\n{key} = "))? + key.len() + 4;
    let length = text[from..].find([' ', '\n'])?;
    Some(from..from + length)
}

fn value(text: &str, name: &str) -> Option<f64> {
    text[place(text, name)?].parse().ok()
}

/// The text with a figure multiplied; whole numbers stay whole, and change.
fn scaled(text: &str, name: &str, factor: f64) -> String {
    let Some(range) = place(text, name) else {
        return text.to_owned();
    };
    let old = &text[range.clone()];
    let number: f64 = old.parse().unwrap_or_default();
    let new = if old.contains('.') {
        format!("{:?}", (number * factor * 1000.0).round() / 1000.0)
    } else {
        let moved = (number * factor).round();
        let least = if factor > 1.0 {
            number + 1.0
        } else {
            number - 1.0
        };
        let moved = if factor > 1.0 {
            moved.max(least)
        } else {
            moved.min(least)
        };
        format!("{}", moved.max(1.0))
    };
    let mut changed = text.to_owned();
    changed.replace_range(range, &new);
    changed
}

/// The text with the sizes that it is fitted to.
fn with_sizes(text: &str, sizes: &[u64]) -> String {
    let known = text.find("\n[fit]\n").map_or(text.len(), |at| at);
    format!("{}\n\n[fit]\nsizes = {sizes:?}\n", text[..known].trim_end())
}

#[cfg(test)]
mod tests {
    use super::{improve, parse, scaled, value, with_sizes};
    use nacre_emulator::Profile;

    fn optane() -> &'static str {
        Profile::text("optane-100").expect("a profile")
    }

    #[test]
    fn figures_are_changed_in_their_section_and_comments_stay() {
        let text = scaled(optane(), "media.read_ns", 2.0);
        let (old, new) = (parse(optane()), parse(&text));
        let (old, new) = (old.expect("old"), new.expect("new"));
        assert!((new.media.read_ns - 2.0 * old.media.read_ns).abs() < 0.01);
        assert_eq!(new.latency, old.latency);
        assert!(text.contains("FAST 2020 figure 4"));
        let text = scaled(optane(), "controller.loads_ahead", 1.01);
        let new = parse(&text).expect("new").controller.loads_ahead;
        assert_eq!(new, old.controller.loads_ahead + 1);
        assert!(value(optane(), "media.nonsense").is_none());
    }

    #[test]
    fn sizes_are_told_once() {
        let text = with_sizes(&with_sizes(optane(), &[64]), &[64, 1024]);
        assert_eq!(parse(&text).expect("a profile").fit.sizes, [64, 1024]);
        assert_eq!(text.matches("[fit]").count(), 1);
    }

    #[test]
    fn a_parameter_is_moved_to_where_the_error_is_least() {
        let names = ["media.read_ns".to_owned()];
        let error = |profile: &Profile| (profile.media.read_ns - 80.0).abs();
        let text = improve(optane().to_owned(), &names, &error);
        let found = value(&text, "media.read_ns").expect("a figure");
        assert!((found - 80.0).abs() < 4.0, "{found}");
    }
}
