//! Work on all processors.

use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, scope};

/// How many processors there are for this process.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Does something with each item on all processors; gives the outcomes in the items' order.
pub fn each<I: Sync, T: Send>(items: &[I], of: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let workers = processors();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(place) else {
                return done;
            };
            done.push((place, of(item)));
        }
    };
    let mut all: Vec<(usize, T)> = scope(|scope| {
        // As many as the system allows.
        let start = |_| Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..workers).map_while(start).collect();
        let mut all = work();
        let outcomes = others.into_iter().map(|other| other.join());
        all.extend(outcomes.flat_map(|done| done.unwrap_or_default()));
        all
    });
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Does all at the same time, each in a thread, which all begin once all are there. Fails, and does
/// nothing, where the system gives fewer threads.
pub fn together<T: Send>(jobs: Vec<impl FnOnce() -> T + Send>) -> io::Result<Vec<T>> {
    let (arrive, arrived) = channel();
    scope(|scope| {
        let start = |job| {
            let (begin, begun) = channel();
            let arrive = arrive.clone();
            let work = move || {
                let _told = arrive.send(());
                is_told(&begun).then(job)
            };
            let thread = Builder::new().spawn_scoped(scope, work)?;
            Ok((begin, thread))
        };
        let threads: io::Result<Vec<_>> = jobs.into_iter().map(start).collect();
        let (begins, threads): (Vec<_>, Vec<_>) = threads?.into_iter().unzip();
        let all_arrived = threads.iter().all(|_| is_told(&arrived));
        for begin in begins.iter().filter(|_| all_arrived) {
            let _told = begin.send(());
        }
        let join = threads.into_iter().map(|thread| thread.join());
        let outcome = |ended: std::thread::Result<Option<T>>| match ended {
            Ok(done) => done.ok_or_else(|| io::Error::other("a thread was not begun")),
            Err(panic) => resume_unwind(panic),
        };
        join.map(outcome).collect()
    })
}

fn is_told(by: &Receiver<()>) -> bool {
    by.recv().is_ok()
}

#[cfg(test)]
mod tests {
    use super::{each, together};

    #[test]
    fn outcomes_are_in_the_items_order() {
        let items: Vec<u64> = (0..1000).collect();
        let doubled: Vec<u64> = items.iter().map(|item| 2 * item).collect();
        assert_eq!(each(&items, |item| 2 * item), doubled);
    }

    #[test]
    fn what_is_done_together_has_all_begun_before_any_ends() {
        let begun = std::sync::Barrier::new(8);
        let job = |number| {
            let begun = &begun;
            move || {
                begun.wait();
                number
            }
        };
        let done = together((0..8).map(job).collect()).expect("threads");
        assert_eq!(done, (0..8).collect::<Vec<_>>());
    }
}
