//! Stores of several threads at the same time.
//!
//! What finds a module's queue full waits outside, and enters in no order. So parts of a line come
//! apart: other lines enter in between, and one of them may take the line's place in the buffer.
//! The cells then write the line more than once. This is what the model of `crate::model` simulates
//! store by store; here it is the mean.

use std::sync::atomic::Ordering::Relaxed;

use rustix::thread::gettid;

use nacre_types::LINE_SIZE;

use crate::shared::{Header, WRITERS};

/// How often the mean is looked for again with what it was before.
const ROUNDS: usize = 6;
/// So often a small power is squared.
const SQUARES: u32 = 10;
/// Longer lines do not combine; and more stores no thread has under way.
const MOST_PARTS: u64 = 16;
const MOST_HALVES: u64 = 128;
/// No core has all the turns: thousandths.
const MOST_PRECEDENCE: u64 = 900;

/// Lines that the cells write for one that is stored whole, by 64-byte `parts`, while so many
/// stores wait `outside` of a module's queue, with so many `places` in its buffer, and a core has
/// so large a share of the turns before all others.
///
/// The next of `left` parts enters after `outside / left` stores of the others on average. Each
/// brings a line of its own in `written / parts` cases, which takes any place. The core that comes
/// first stores whole lines in between.
fn lines_written(outside: f64, parts: u64, places: u64, precedence: f64) -> f64 {
    let whole = precedence / (1.0 - precedence);
    let mut written = 1.0;
    for _ in 0..ROUNDS {
        let lines = outside * (written + whole) / parts as f64;
        let lost = |left: u64| 1.0 - decay(lines / (left as f64 * places as f64));
        written = 1.0 + (1..parts).map(lost).sum::<f64>();
    }
    precedence + (1.0 - precedence) * written
}

/// e to the power of `-x`, to a thousandth for what is met here. The mathematical library would
/// come into each program with the one that is preloaded.
fn decay(x: f64) -> f64 {
    let part = (1.0 - x / f64::from(1 << SQUARES)).max(0.0);
    (0..SQUARES).fold(part, |power, _| power * power)
}

/// How many stores of 64 bytes of a request a thread has under way on average, in halves: a window
/// of them, until there are no more; then it waits for the last. So a piece has half of its own
/// under way, and a request that is not cut the whole window.
fn halves(len: u64, window: u64) -> u64 {
    let (all, window) = ((len / LINE_SIZE).max(1), window.min(MOST_HALVES / 2));
    let window = window.min(all);
    (2 * window * (all - window) + window * (window + 1)) / all
}

impl Header {
    /// Lines that the cells of a device write for one that a store of `len` bytes has whole, now.
    pub(crate) fn crowded(&self, me: usize, device: u16, len: u64, now: u64) -> f64 {
        let model = self.model(device);
        let crowding = &self.crowding[usize::from(device) % self.crowding.len()];
        let parts = (model.line.load(Relaxed) / LINE_SIZE).min(MOST_PARTS);
        let all = halves(len, crowding.of_one.load(Relaxed)) + self.others(me, device, now);
        let waiting = all as f64 / 2.0 / model.modules.load(Relaxed) as f64;
        let outside = waiting - crowding.queue.load(Relaxed) as f64;
        if outside <= 0.0 || parts < 2 {
            return 1.0;
        }
        let precedence = &self.precedence[usize::from(device) % self.precedence.len()];
        let precedence = precedence.load(Relaxed).min(MOST_PRECEDENCE) as f64 / 1000.0;
        lines_written(outside, parts, model.lines.load(Relaxed), precedence)
    }

    /// Stores that other threads have under way to a device, in halves.
    fn others(&self, me: usize, device: u16, now: u64) -> u64 {
        let others = self.writers.iter().enumerate().filter(|(place, writer)| {
            *place != me
                && writer.until.load(Relaxed) > now
                && writer.device.load(Relaxed) == u64::from(device)
        });
        let stores = others.map(|(_, writer)| writer.halves.load(Relaxed).min(MOST_HALVES));
        stores.sum()
    }

    /// The calling thread stores so many bytes until `until`.
    pub(crate) fn stores_until(&self, me: usize, device: u16, len: u64, until: u64) {
        let crowding = &self.crowding[usize::from(device) % self.crowding.len()];
        let writer = &self.writers[me % WRITERS];
        let halves = halves(len, crowding.of_one.load(Relaxed));
        writer.halves.store(halves, Relaxed);
        writer.device.store(u64::from(device), Relaxed);
        writer.until.store(until, Relaxed);
    }
}

/// The calling thread's place among those that store, the same for no two threads that began one
/// after the other. It takes a call of the system, as forked processes share all else.
pub(crate) fn place() -> usize {
    gettid().as_raw_nonzero().get() as usize % WRITERS
}

#[cfg(test)]
mod tests {
    use super::{decay, halves, lines_written};
    use crate::model::{Operation, Pattern, Workload, simulate};
    use crate::profile::Profile;

    /// Lines written for a whole one by threads that store so many bytes at a time.
    fn expected(profile: &Profile, threads: u32, len: u64) -> f64 {
        let controller = &profile.controller;
        let waiting = u64::from(threads) * halves(len, controller.stores_waiting.into()) / 2;
        let outside = waiting.saturating_sub(controller.queue.into());
        let lines = profile.buffer.lines.into();
        lines_written(outside as f64, 4, lines, controller.precedence)
    }

    #[test]
    fn the_mean_is_that_of_the_simulation_whole_and_cut() {
        let profile = Profile::load("optane-100").unwrap();
        for (threads, fence, len) in [1, 2, 4, 8, 12, 16, 24]
            .into_iter()
            .flat_map(|threads| [(threads, 0, 1 << 18), (threads, 256, 256)])
        {
            let mut workload = Workload::new(Operation::NtStore, Pattern::Random, 1 << 18, threads);
            workload.fence = fence;
            let simulated = simulate(&profile, &workload).write_amplification();
            let mean = expected(&profile, threads, len);
            let ratio = mean / simulated;
            assert!(
                (0.8..1.2).contains(&ratio),
                "{threads} {len}: {mean} {simulated}"
            );
        }
    }

    #[test]
    fn canary_pieces_cost_less_the_more_threads_store() {
        let profile = Profile::load("optane-100").unwrap();
        let gain =
            |threads| expected(&profile, threads, 1 << 18) / expected(&profile, threads, 256);
        assert_eq!(gain(2), 1.0);
        assert!(gain(8) > 1.2 && gain(20) > 1.5, "{} {}", gain(8), gain(20));
    }

    #[test]
    fn the_power_is_near_that_of_the_library() {
        for step in 0..40 {
            let x = f64::from(step) / 20.0;
            assert!((decay(x) - (-x).exp()).abs() < 1e-3, "{x}");
        }
        assert_eq!(decay(1e9), 0.0);
    }

    #[test]
    fn a_window_is_full_until_the_end_comes() {
        assert_eq!(
            [64, 128, 256, 1 << 20].map(|len| halves(len, 7)),
            [2, 3, 5, 13]
        );
        assert_eq!(halves(256, 0), 0);
    }
}
