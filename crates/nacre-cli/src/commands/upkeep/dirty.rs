//! Whoever stays beside the programs gives a disk what they have stored, before they must.

use std::io::{Write, stderr};
use std::path::Path;
use std::time::Duration;

use nacre_fs::Fs;
use nacre_store::StoreError;

use super::End;

/// How often it is looked while something is stored that goes through the journal, which fills half
/// of what may be dirty in some milliseconds at the quickest.
const BUSY: Duration = Duration::from_millis(10);
/// The same while nothing was stored since the last commit.
const IDLE: Duration = Duration::from_millis(100);
/// Once a disk takes nothing, until it is tried again.
const FAILED: Duration = Duration::from_secs(1);

/// Says that a disk did not take what it should, if anybody hears it.
pub fn tell_unwritten(pool: &Path, error: &StoreError) {
    let pool = pool.display();
    let _nobody_hears = writeln!(
        stderr(),
        "nacre: {pool}: what is in memory cannot be written to the disk: {error}"
    );
}

/// What comes before the next look.
#[derive(Clone, Copy)]
enum Pause {
    /// A rest, which ends early if much that is new has gathered.
    Rest(Duration),
    /// Nothing but the end of all is looked for.
    Sleep(Duration),
}

/// What is stored again and again waits for the next version.
fn pause_after(gone: u64) -> Pause {
    match gone {
        0 => Pause::Sleep(IDLE),
        _ => Pause::Rest(Duration::ZERO),
    }
}

/// Whether the end came.
fn has_ended(fs: &Fs, end: &End, pause: Pause) -> bool {
    match pause {
        Pause::Sleep(time) => end.within(time),
        Pause::Rest(time) => {
            let seen = fs.store().wakings();
            let ended = end.within(Duration::ZERO);
            if !ended {
                fs.store().rest(seen, time);
            }
            ended
        }
    }
}

/// Brings home what is new, and commits, whenever so much has gathered. Those who store wait only
/// where they are quicker than the disk for a long time.
pub fn keep_small(path: &Path, fs: &Fs, end: &End) {
    let (mut pause, mut told) = (Pause::Rest(IDLE), false);
    while !has_ended(fs, end, pause) {
        let volume = fs.store().volume();
        volume.leave_spare();
        let fills = volume.fills() || volume.has_calls_left();
        let done = match (fills, fs.store().news_fill()) {
            (true, _) => Some(fs.store().commit_now().map(|()| Pause::Rest(BUSY))),
            // As fast as the disk takes it.
            (false, true) => Some(fs.store().bring_news().map(pause_after)),
            (false, false) => None,
        };
        pause = match done {
            Some(Err(error)) => {
                if !told {
                    tell_unwritten(path, &error);
                }
                told = true;
                Pause::Sleep(FAILED)
            }
            Some(Ok(pause)) => pause,
            None if volume.dirty_bytes() > 0 => Pause::Rest(BUSY),
            None => Pause::Rest(IDLE),
        };
    }
}
