//! Whoever stays beside the programs that use a pool with copies scrubs it now and then.

use super::End;
use crate::commands::scrub::sentences;
use crate::size;
use nacre_fs::Fs;
use nacre_store::scrub::{
    Damage, Doubtful, Progress, Report, repaired_by_readers, scrub, scrub_spans,
};
use nacre_volume::VolumeError;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// From one scrub to the next, if not told.
const PAUSE: Duration = Duration::from_secs(600);
/// How often it is looked whether one is due.
const LOOKS: Duration = Duration::from_secs(1);
/// Of so many moments one is spent on it.
const SHARE: u32 = 10;
/// Most places that are told at once: somebody may work in this terminal.
const MOST_TOLD: usize = 10;

/// Scrubs a pool when `pause` is over since its last time, and what a reader found damaged at once,
/// until the end comes. Tells what readers repaired.
pub fn now_and_then(path: &Path, fs: &Fs, pause: Option<Duration>, end: &End) {
    let pause = pause.unwrap_or(PAUSE);
    let volume = fs.store().volume();
    let mut known = HashSet::new();
    while !end.within(LOOKS.min(pause)) {
        tell_repaired(path, fs, &mut known);
        while let Some(span) = volume.take_suspect() {
            let go_on = &mut |_| ControlFlow::Continue(());
            let report = scrub_spans(fs.store(), span..span + 1, &Doubtful::Told, go_on);
            tell(path, fs, report, &mut known);
        }
        if volume.take_scrub(pause) {
            let report = once(fs, pause, end);
            tell(path, fs, report, &mut known);
        }
    }
    tell_repaired(path, fs, &mut known);
}

fn tell_repaired(path: &Path, fs: &Fs, known: &mut HashSet<u64>) {
    tell(path, fs, Ok(repaired_by_readers(fs.store())), known);
}

fn once(fs: &Fs, pause: Duration, end: &End) -> Result<Report, VolumeError> {
    // A copy that was overwritten is given up before more of it is read.
    let _told = fs.store().volume().check_copies();
    let mut begun = Instant::now();
    let mut rest = |_: Progress| {
        fs.store().volume().keep_scrub(pause);
        let ended = end.within(begun.elapsed() * (SHARE - 1));
        begun = Instant::now();
        match ended {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    scrub(fs.store(), 1, &Doubtful::Told, &mut rest)
}

/// Tells what was repaired, and once what was not.
fn tell(path: &Path, fs: &Fs, report: Result<Report, VolumeError>, known: &mut HashSet<u64>) {
    match report {
        Ok(report) => {
            let is_new = |damage: &&Damage| {
                let difference = &damage.difference;
                difference.evidence.is_some() || known.insert(difference.range.start.0)
            };
            let news: Vec<&Damage> = report.damages.iter().filter(is_new).collect();
            let told = &news[..news.len().min(MOST_TOLD)];
            for sentence in sentences(fs, told) {
                eprintln!("nacre: {}: {sentence}", path.display());
            }
            let more = (news.len() - told.len()) as u64 + report.more;
            if more > 0 && !told.is_empty() {
                let size = size::human(report.repaired + report.left);
                eprintln!(
                    "nacre: {}: {more} places more, {size} in all",
                    path.display()
                );
            }
        }
        // The fence of who stores tells as well, and the next round tries again.
        Err(error) => eprintln!("nacre: {}: scrub: {error}", path.display()),
    }
}
