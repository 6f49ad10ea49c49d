//! The loop that measures.

use super::statistics::Figures;
use std::io;
use std::time::{Duration, Instant};

/// A sample lasts about so long, so that the clock does not count: reading it takes time, and waits
/// for what is under way.
const SAMPLE: Duration = Duration::from_micros(10);
const BATCH_MAX: u32 = 256;
const WARM_UP: usize = 64;
const WARM_UP_PIECE: usize = 4;
/// Preparing may take so many times the budget before a row is cut short.
const PATIENCE: u32 = 6;

/// One kind of operation, as often as wanted.
pub trait Work: Send {
    /// Operations that may follow one another after one `prepare`.
    fn chunk(&self) -> usize {
        usize::MAX
    }
    /// Makes ready for a chunk of operations; not measured.
    fn prepare(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Operation number `index` of the chunk.
    fn step(&mut self, index: usize) -> io::Result<()>;
    /// Undoes `prepare` and the first `done` operations; not measured.
    fn clean(&mut self, _done: usize) -> io::Result<()> {
        Ok(())
    }
    /// Into how many parts the time of an operation is divided.
    fn parts(&self) -> f64 {
        1.0
    }
}

#[derive(Default)]
struct Taken {
    samples: Vec<f64>,
    time: Duration,
    operations: u64,
}

/// Measures for `budget`, at least one sample.
pub fn measure(work: &mut dyn Work, budget: Duration) -> io::Result<Figures> {
    let begin = Instant::now();
    let batch = batch_for(warm_up(work)?);
    let mut taken = Taken::default();
    while taken.samples.is_empty() || (taken.time < budget && begin.elapsed() < budget * PATIENCE) {
        chunk(work, batch, budget, &mut taken)?;
    }
    let parts = work.parts();
    taken.samples.iter_mut().for_each(|sample| *sample /= parts);
    let mean = taken.time.as_nanos() as f64 / taken.operations as f64 / parts;
    let batch = batch as u64;
    Ok(Figures::of(
        &mut taken.samples,
        mean,
        taken.operations,
        batch,
    ))
}

/// The time of an operation, about: of the fastest piece, as the first ones find everything cold.
fn warm_up(work: &mut dyn Work) -> io::Result<Duration> {
    work.prepare()?;
    let count = WARM_UP.min(work.chunk());
    let (begin, mut done, mut best) = (Instant::now(), 0, Duration::MAX);
    while done < count && (done == 0 || begin.elapsed() < SAMPLE * BATCH_MAX) {
        let piece = WARM_UP_PIECE.min(count - done);
        let from = Instant::now();
        for index in done..done + piece {
            work.step(index)?;
        }
        best = best.min(from.elapsed() / piece as u32);
        done += piece;
    }
    work.clean(done)?;
    Ok(best)
}

/// How many operations to time together.
fn batch_for(operation: Duration) -> usize {
    let fit = SAMPLE.as_nanos() / operation.as_nanos().max(1);
    fit.clamp(1, u128::from(BATCH_MAX)) as usize
}

fn chunk(work: &mut dyn Work, batch: usize, budget: Duration, taken: &mut Taken) -> io::Result<()> {
    work.prepare()?;
    let mut done = 0;
    while done < work.chunk() && (taken.samples.is_empty() || taken.time < budget) {
        let next = work.chunk().min(done + batch);
        let begin = Instant::now();
        for index in done..next {
            work.step(index)?;
        }
        let took = begin.elapsed();
        let count = (next - done) as u64;
        taken.samples.push(took.as_nanos() as f64 / count as f64);
        taken.time += took;
        taken.operations += count;
        done = next;
    }
    work.clean(done)
}

#[cfg(test)]
mod tests {
    use super::{Work, batch_for, measure};
    use std::io;
    use std::time::Duration;

    #[derive(Default)]
    struct Counted {
        prepared: bool,
        chunks: usize,
        steps: u64,
        cleaned: u64,
    }

    impl Work for Counted {
        fn chunk(&self) -> usize {
            5
        }
        fn prepare(&mut self) -> io::Result<()> {
            assert!(!self.prepared);
            (self.prepared, self.chunks) = (true, self.chunks + 1);
            Ok(())
        }
        fn step(&mut self, index: usize) -> io::Result<()> {
            assert!(self.prepared && index < 5);
            self.steps += 1;
            Ok(())
        }
        fn clean(&mut self, done: usize) -> io::Result<()> {
            self.prepared = false;
            self.cleaned += done as u64;
            Ok(())
        }
    }

    #[test]
    fn every_step_lies_in_a_chunk_that_is_cleaned() {
        let mut work = Counted::default();
        let figures = measure(&mut work, Duration::from_micros(50)).expect("measured");
        assert!(work.chunks > 1 && !work.prepared);
        assert_eq!(work.cleaned, work.steps);
        // Those that warm up are not counted.
        assert_eq!(figures.operations, work.steps - 5);
    }

    #[test]
    fn no_budget_gives_one_sample() {
        let figures = measure(&mut Counted::default(), Duration::ZERO).expect("measured");
        assert_eq!(figures.operations, figures.batch.min(5));
    }

    #[test]
    fn errors_come_through() {
        struct Broken;
        impl Work for Broken {
            fn step(&mut self, _: usize) -> io::Result<()> {
                Err(io::ErrorKind::NotFound.into())
            }
        }
        assert!(measure(&mut Broken, Duration::from_micros(1)).is_err());
    }

    #[test]
    fn short_operations_are_timed_together() {
        assert_eq!(batch_for(Duration::from_nanos(1)), 256);
        assert_eq!(batch_for(Duration::from_nanos(3000)), 3);
        assert_eq!(batch_for(Duration::from_millis(1)), 1);
        assert_eq!(batch_for(Duration::ZERO), 256);
    }
}
