//! `nacre experiments`: published measurements beside the model, as one report.

mod report;
mod suite;

use crate::commands::model::errors::errors;
use crate::failure::{Failure, Result};
use crate::output;
use crate::parallel::each;
use clap::Args;
use nacre_emulator::Profile;
use report::{Found, Point, Report};
use std::path::PathBuf;
use std::process::ExitCode;
use suite::{Experiment, Trial};

const EXAMPLES: &str = "\
Examples:
  nacre experiments --html report.html         all of them: a page with curves and tables
  nacre experiments threads fences             two of them, as text
  nacre experiments --list                     their names
  nacre experiments --profile mine.toml        what a profile of your own makes of them

Nothing is timed: the model is deterministic and gives the same figures everywhere.";

/// Run published experiments on the model of a device, and report both figures side by side
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Which experiments [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Shipped profile, or path of a TOML file
    #[arg(long, value_name = "PROFILE", default_value = "optane-100")]
    profile: String,
    /// Write a page with curves and tables
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the names of the experiments
    #[arg(long)]
    list: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let chosen = chosen(&arguments.names)?;
    if arguments.list {
        let lines = chosen
            .iter()
            .map(|it| format!("{:<20} {}\n", it.name, it.title));
        output::write(lines.collect::<String>().as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let profile = Profile::load(&arguments.profile)?;
    let report = report(&profile, chosen)?;
    if let Some(path) = &arguments.html {
        let page = report.page();
        output::save(path, page)?;
    }
    if arguments.json {
        output::json(&report)?;
    } else {
        output::write(report.text().as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The experiments of these names; all if there are none.
fn chosen(names: &[String]) -> Result<Vec<Experiment>> {
    let all = suite::all();
    let unknown = names
        .iter()
        .find(|name| all.iter().all(|it| it.name != **name));
    if let Some(name) = unknown {
        return Err(Failure::Usage(format!(
            "{name}: no such experiment; `nacre experiments --list` names them"
        )));
    }
    let wanted = |it: &Experiment| names.is_empty() || names.contains(&it.name);
    Ok(all.into_iter().filter(wanted).collect())
}

fn report(profile: &Profile, experiments: Vec<Experiment>) -> Result<Report> {
    let trials: Vec<&Trial> = experiments.iter().flat_map(|it| &it.trials).collect();
    let bar = output::bar(
        trials.len() as u64,
        "asking the model",
        output::Counted::Steps,
    );
    let figures = each(&trials, |trial| {
        let figure = trial.model(profile);
        bar.inc(1);
        figure
    });
    bar.finish_and_clear();
    let mut figures = figures.into_iter();
    let found = experiments.into_iter().map(|experiment| {
        let count = experiment.trials.len();
        let models: Result<Vec<f64>> = figures.by_ref().take(count).collect();
        Ok(found(experiment, &models?))
    });
    Ok(Report {
        profile: profile.name.clone(),
        experiments: found.collect::<Result<_>>()?,
    })
}

fn found(experiment: Experiment, models: &[f64]) -> Found {
    let digits = |value: f64| (value * 1000.0).round() / 1000.0;
    let point = |(trial, &model): (&Trial, &f64)| Point {
        series: trial.series.clone(),
        x: trial.x,
        published: trial.published,
        model: digits(model),
        error_percent: digits(100.0 * (model - trial.published) / trial.published),
    };
    let points: Vec<Point> = experiment.trials.iter().zip(models).map(point).collect();
    let errors = errors(&experiment.name, points.iter().map(|it| it.error_percent));
    Found {
        experiment,
        points,
        median_error_percent: errors.median,
        p90_error_percent: errors.p90,
        bias_percent: errors.bias,
    }
}

#[cfg(test)]
mod tests {
    use super::{chosen, report};
    use nacre_emulator::Profile;

    fn of(names: &[&str]) -> super::Report {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let profile = Profile::load("optane-100").expect("a profile");
        report(&profile, chosen(&names).expect("experiments")).expect("a report")
    }

    #[test]
    fn the_page_stands_alone_and_holds_every_figure() {
        let report = of(&["fences", "buffer"]);
        let page = report.page();
        let figures: usize = report.experiments.iter().map(|it| it.points.len()).sum();
        assert_eq!(page.matches(" %</tr>").count(), figures);
        assert_eq!(
            page.matches("stroke-dasharray=\"4 4\"").count(),
            5,
            "published series, and on each chart what they are"
        );
        for outside in ["href=\"http", "src=", "url(", "<script", "NaN", "inf"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn errors_are_those_of_the_figures_and_a_wrong_device_is_seen() {
        let optane = of(&["threads"]);
        let found = &optane.experiments[0];
        for point in &found.points {
            let error = 100.0 * (point.model - point.published) / point.published;
            assert!((error - point.error_percent).abs() < 0.2, "{}", point.x);
        }
        let names = ["threads".to_owned()];
        let dram = Profile::load("dram").expect("a profile");
        let other = report(&dram, chosen(&names).expect("one")).expect("a report");
        let median = other.experiments[0].median_error_percent;
        assert!(median > 5.0 * found.median_error_percent, "{median}");
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(chosen(&["nothing".to_owned()]).is_err());
    }
}
