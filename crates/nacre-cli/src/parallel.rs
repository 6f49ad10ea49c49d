//! Work on all processors.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Builder;

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
    let mut all: Vec<(usize, T)> = std::thread::scope(|scope| {
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

#[cfg(test)]
mod tests {
    use super::each;

    #[test]
    fn outcomes_are_in_the_items_order() {
        let items: Vec<u64> = (0..1000).collect();
        let doubled: Vec<u64> = items.iter().map(|item| 2 * item).collect();
        assert_eq!(each(&items, |item| 2 * item), doubled);
    }
}
