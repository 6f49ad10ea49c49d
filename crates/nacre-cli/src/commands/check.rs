//! `nacre check`.

use crate::attached::Attached;
use crate::commands::default_pool;
use crate::commands::scrub::sentences;
use crate::failure::{Failure, Result, store_failure};
use crate::users::refuse_if_open;
use crate::{output, parallel};
use clap::Args;
use nacre_fs::Fs;
use nacre_store::check::{Lost, Report as Checked, check};
use nacre_store::repair::{Outcome, repair};
use nacre_store::scrub::{Doubtful, scrub};
use nacre_types::UNIT_SIZE;
use nacre_volume::{Access, Volume};
use serde::Serialize;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  nacre check my.pool                     nobody may use the pool meanwhile
  nacre check                             the default pool of `nacre run`
  nacre check --json my.pool              for programs
  nacre check --repair my.pool            put right what can be put right
  nacre check --repair --dry-run my.pool  say what that would do, and do nothing

What a cut-off run left unfinished is recovered first, as with any attach; labels that are damaged on one end of a
device only are rewritten. A repair takes what another copy has right from there, as `nacre scrub` does. Then it cuts off
what cannot be read and puts what lost its name into lost+found. It may be interrupted and started again.
Exit status: 0 all is well (now); 1 problems were found (or are left), or the pool cannot be attached.";

/// Check all structures of a pool and report what is damaged; repair it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool; without it, the default pool of `nacre run`
    #[arg(value_name = "POOL")]
    pool: Option<PathBuf>,
    /// Put right what can be put right, and say what was done
    #[arg(long)]
    repair: bool,
    /// With --repair: only say what would be done
    #[arg(long, requires = "repair")]
    dry_run: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    clean: bool,
    recovered: bool,
    labels_restored: bool,
    fixes: Vec<String>,
    more_fixes: u64,
    objects: u64,
    directories: u64,
    entries: u64,
    data_bytes: u64,
    metadata_bytes: u64,
    leaked_bytes: u64,
    problems: Vec<String>,
    /// Contents that were on devices which are lost.
    lost: Vec<LostBytes>,
    more_problems: u64,
    seconds: f64,
    objects_per_second: f64,
}

#[derive(Serialize)]
struct LostBytes {
    /// A path of the file in the pool, or the number of the object.
    what: String,
    /// Which bytes: from the first one to the one behind the last.
    from: u64,
    to: u64,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pool = &default_pool::unless(arguments.pool.as_ref())?;
    let label = Volume::inspect(pool)?;
    refuse_if_open(pool)?;
    let start = Instant::now();
    let from_copies = match arguments.repair && !arguments.dry_run {
        true => take_from_copies(pool)?,
        false => Vec::new(),
    };
    let (examined, left) = match arguments.repair {
        false => examine(pool)?,
        true => (repair_pool(pool, arguments.dry_run)?, Ok(())),
    };
    let foreseen = arguments.dry_run && (!examined.outcome.fixes.is_empty() || !label.intact);
    let summary = summarise(examined, start.elapsed().as_secs_f64());
    let report = Report {
        labels_restored: !label.intact,
        clean: summary.clean && !foreseen,
        fixes: [from_copies, summary.fixes].concat(),
        ..summary
    };
    if arguments.json {
        output::json(&report)?;
        left?;
        return Ok(ExitCode::from(u8::from(!report.clean)));
    }
    output::write(describe(pool, arguments, &report).as_bytes())?;
    // What the disk did not take is no damage: memory has it.
    if report.clean {
        return left.map(|()| ExitCode::SUCCESS);
    }
    if report.problems.is_empty() && !report.lost.is_empty() && !foreseen {
        return Err(device_is_lost(pool));
    }
    Err(damaged(pool, arguments, &report))
}

fn damaged(pool: &Path, arguments: &Arguments, report: &Report) -> Failure {
    let count = match arguments.dry_run {
        true => report.fixes.len() as u64 + report.more_fixes,
        false => (report.problems.len() + report.lost.len()) as u64 + report.more_problems,
    };
    Failure::Damaged {
        pool: pool.to_owned(),
        problems: format!("{count} problem{}", if count == 1 { "" } else { "s" }),
        repaired: arguments.repair && !arguments.dry_run,
    }
}

/// Nothing else is wrong, and nothing is to be repaired.
fn device_is_lost(pool: &Path) -> Failure {
    let pool = pool.display();
    Failure::Refused(format!(
        "{pool}: what is named above lay on a device that is lost. If it is there again, take it back \
         with `nacre device rebuild {pool}`. Else take a new one (`nacre device replace`), and write what \
         is named again, or remove it"
    ))
}

/// What was found in a pool.
struct Examined {
    checked: Checked,
    lost: Vec<LostBytes>,
    /// What a session left unfinished was recovered first.
    recovered: bool,
    /// What was repaired.
    outcome: Outcome,
}

/// What is in the pool, and how it was left.
fn examine(pool: &Path) -> Result<(Examined, Result<()>)> {
    let attached = Attached::open_to_read(pool, None)?;
    let recovered = attached.fs.store().report();
    let bar = output::bar(0, "checking", output::Counted::Steps);
    let checked = check(attached.fs.store(), &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    let lost = named(&attached.fs, &checked);
    let left = attached.detach();
    let examined = Examined {
        checked,
        lost,
        recovered: recovered.rebuilt || recovered.replayed > 0,
        outcome: Outcome::default(),
    };
    Ok((examined, left))
}

/// What is lost, with the names of files.
fn named(fs: &Fs, checked: &Checked) -> Vec<LostBytes> {
    if checked.lost.is_empty() {
        return Vec::new();
    }
    let paths = fs.paths_of(&checked.lost.iter().map(|it| it.object).collect());
    let named = |lost: &Lost| {
        let path = paths.get(&lost.object);
        LostBytes {
            what: path.map_or_else(
                || format!("object {}", lost.object),
                |path| output::harmless(&String::from_utf8_lossy(path)),
            ),
            from: lost.bytes.start,
            to: lost.bytes.end,
        }
    };
    checked.lost.iter().map(named).collect()
}

/// What is damaged and right on another copy is taken from there, rather than cut off. What keeps
/// everybody out of the pool is repaired without. Answers what was done.
fn take_from_copies(pool: &Path) -> Result<Vec<String>> {
    if !Volume::open(pool, Access::ReadOnly).is_ok_and(|volume| volume.has_copies()) {
        return Ok(Vec::new());
    }
    let Ok(attached) = Attached::open(pool, Access::ReadWrite, None) else {
        return Ok(Vec::new());
    };
    let threads = parallel::processors();
    let report = scrub(attached.fs.store(), threads, &Doubtful::Told, &mut |_| {
        ControlFlow::Continue(())
    })?;
    let repaired = report.damages.iter();
    let repaired = repaired.filter(|damage| damage.difference.evidence.is_some());
    let done = sentences(&attached.fs, &repaired.collect::<Vec<_>>());
    attached.detach()?;
    Ok(done)
}

fn repair_pool(pool: &Path, dry_run: bool) -> Result<Examined> {
    let access = match dry_run {
        true => Access::ReadOnly,
        false => Access::ReadWrite,
    };
    let volume = Volume::open(pool, access)?;
    let spinner = output::Spinner::new("repairing".to_owned());
    let done = repair(volume, dry_run, &mut |step| {
        spinner.say(format!(
            "repairing: {}, round {}, {} changes",
            step.stage, step.round, step.fixes
        ));
    });
    drop(spinner);
    let (mut outcome, _volume) = done.map_err(|error| store_failure(pool, error))?;
    let checked = std::mem::take(&mut outcome.left);
    let lost = checked.lost.iter().map(|it| LostBytes {
        what: format!("object {}", it.object),
        from: it.bytes.start,
        to: it.bytes.end,
    });
    Ok(Examined {
        lost: lost.collect(),
        checked,
        recovered: true,
        outcome,
    })
}

fn summarise(examined: Examined, seconds: f64) -> Report {
    let Examined {
        checked,
        lost,
        recovered,
        outcome,
    } = examined;
    let counts = checked.counts;
    let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
    Report {
        clean: checked.problems.is_empty() && lost.is_empty() && checked.more_problems == 0,
        recovered,
        labels_restored: false,
        fixes: outcome.fixes.iter().map(ToString::to_string).collect(),
        more_fixes: outcome.more_fixes,
        objects: counts.objects,
        directories: counts.directories,
        entries: counts.entries,
        data_bytes: counts.data_units * UNIT_SIZE,
        metadata_bytes: counts.metadata_units * UNIT_SIZE,
        leaked_bytes: counts.leaked_units * UNIT_SIZE,
        problems: checked.problems.iter().map(ToString::to_string).collect(),
        lost,
        more_problems: checked.more_problems,
        seconds,
        objects_per_second: per_second(counts.objects as f64),
    }
}

fn describe(pool: &Path, arguments: &Arguments, report: &Report) -> String {
    let pool = pool.display();
    let mut text = String::new();
    let done = if arguments.dry_run {
        "would do"
    } else {
        "done"
    };
    if report.labels_restored {
        let done = if arguments.dry_run { "would do: " } else { "" };
        let _ = writeln!(text, "{pool}: {done}label rewritten");
    }
    for fix in &report.fixes {
        let _ = writeln!(text, "{pool}: {done}: {fix}");
    }
    if report.more_fixes > 0 {
        let _ = writeln!(text, "{pool}: {done}: {} changes more", report.more_fixes);
    }
    for problem in &report.problems {
        let _ = writeln!(text, "{pool}: {problem}");
    }
    for lost in &report.lost {
        let (what, from, last) = (&lost.what, lost.from, lost.to - 1);
        let _ = writeln!(
            text,
            "{pool}: {what}: bytes {from} to {last} were on a device that is lost"
        );
    }
    let _ = writeln!(
        text,
        "{pool}: {} objects, {} directories, {} entries, {} of data, {} of metadata: {}{}",
        report.objects,
        report.directories,
        report.entries,
        crate::size::human(report.data_bytes),
        crate::size::human(report.metadata_bytes),
        if report.clean { "clean" } else { "DAMAGED" },
        if report.recovered {
            " (what was unfinished was recovered first)"
        } else {
            ""
        },
    );
    let _ = writeln!(
        text,
        "{pool}: {:.3} s, {:.0} objects/s",
        report.seconds, report.objects_per_second
    );
    text
}
