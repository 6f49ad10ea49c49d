//! Work on all processors.

use std::num::NonZero;

/// Does the same on a thread for each processor, until all are done or have failed.
pub fn each_processor(work: &(dyn Fn() -> Result<(), String> + Sync)) -> Result<(), String> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            let done = worker.join();
            done.unwrap_or_else(|_| Err("a worker panicked".into()))
        })
    })
}
