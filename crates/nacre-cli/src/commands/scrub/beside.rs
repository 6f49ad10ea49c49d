//! Whoever stays beside the programs that use a pool with copies scrubs it now and then.

use super::sentences;
use nacre_fs::Fs;
use nacre_store::scrub::{Damage, Doubtful, scrub};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// From one scrub to the next, if not told.
const PAUSE: Duration = Duration::from_secs(600);
/// How often it is looked whether one is due.
const LOOKS: Duration = Duration::from_secs(1);
/// Of so many moments one is spent on it.
const SHARE: u32 = 10;

/// The end of the work beside which is scrubbed.
#[derive(Default)]
struct End {
    came: Mutex<bool>,
    told: Condvar,
}

/// Tells the end, also if the work failed.
struct Tell<'e>(&'e End);

impl End {
    fn came(&self) -> MutexGuard<'_, bool> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it comes within a time.
    fn within(&self, time: Duration) -> bool {
        let waited = self
            .told
            .wait_timeout_while(self.came(), time, |came| !*came);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Tell<'_> {
    fn drop(&mut self) {
        *self.0.came() = true;
        self.0.told.notify_all();
    }
}

/// Works, and scrubs pools meanwhile, each when `pause` is over since its last time.
pub fn beside<'p, T>(
    pools: impl Iterator<Item = (&'p Path, &'p Fs)>,
    pause: Option<Duration>,
    work: impl FnOnce() -> T,
) -> T {
    let pause = pause.unwrap_or(PAUSE);
    let end = End::default();
    thread::scope(|scope| {
        for (path, fs) in pools.filter(|(_, fs)| fs.store().volume().has_copies()) {
            let job = || now_and_then(path, fs, pause, &end);
            // Who may start no thread does without.
            let _started = thread::Builder::new().spawn_scoped(scope, job);
        }
        let _told = Tell(&end);
        work()
    })
}

fn now_and_then(path: &Path, fs: &Fs, pause: Duration, end: &End) {
    let volume = fs.store().volume();
    let mut known = HashSet::new();
    while !end.within(LOOKS.min(pause)) {
        if volume.take_scrub(pause) {
            once(path, fs, pause, end, &mut known);
        }
    }
}

/// Tells what was repaired, and once what was not.
fn once(path: &Path, fs: &Fs, pause: Duration, end: &End, known: &mut HashSet<u64>) {
    // A copy that was overwritten is given up before more of it is read.
    let _told = fs.store().volume().check_copies();
    let mut begun = Instant::now();
    let report = scrub(fs.store(), &Doubtful::Told, &mut |_| {
        fs.store().volume().keep_scrub(pause);
        let ended = end.within(begun.elapsed() * (SHARE - 1));
        begun = Instant::now();
        match ended {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    match report {
        Ok(report) => {
            let is_new = |damage: &&Damage| {
                let difference = &damage.difference;
                difference.evidence.is_some() || known.insert(difference.range.start.0)
            };
            let news: Vec<&Damage> = report.damages.iter().filter(is_new).collect();
            for sentence in sentences(fs, &news) {
                eprintln!("nacre: {}: {sentence}", path.display());
            }
        }
        // The fence of who stores tells as well, and the next round tries again.
        Err(error) => eprintln!("nacre: {}: scrub: {error}", path.display()),
    }
}
