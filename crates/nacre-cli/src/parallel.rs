//! Work on all processors.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Does something with each item on all processors; gives the outcomes in the items' order.
pub fn each<I: Sync, T: Send>(items: &[I], of: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
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
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let outcomes = workers.into_iter().map(|worker| worker.join());
        outcomes.flat_map(|done| done.unwrap_or_default()).collect()
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
