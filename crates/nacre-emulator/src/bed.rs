//! Memory in which exchanges are timed, with an observer that waits and without.

use std::sync::Arc;

use nacre_media::{Media, Observer};
use nacre_types::{DeviceOffset, StoreKind};

use crate::clock::ticks;
use crate::error::EmulationError;

/// What is delayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exchange {
    /// Bytes that become durable.
    Persist,
    /// Bytes that are loaded.
    Read,
}

/// Memory, and what is persisted there or read.
pub(crate) struct Bed {
    exchange: Exchange,
    media: Media,
    bytes: Vec<u8>,
}

impl Bed {
    pub fn new(
        exchange: Exchange,
        observer: Option<&Arc<dyn Observer>>,
        len: u64,
    ) -> Result<Self, EmulationError> {
        let media = Media::memory(len).map_err(|_| EmulationError::NoMemory(len))?;
        if let Some(observer) = observer {
            media.set_observer(0, Arc::clone(observer));
        }
        let bytes = vec![7; len as usize];
        let mut bed = Self {
            exchange,
            media,
            bytes,
        };
        // The first rounds make the pages.
        bed.exchange(2);
        Ok(bed)
    }

    /// Ticks of `batch` exchanges.
    pub fn exchange(&mut self, batch: usize) -> u64 {
        let start = ticks();
        for _ in 0..batch {
            match self.exchange {
                Exchange::Persist => self.persist(),
                Exchange::Read => self.media.read(DeviceOffset(0), &mut self.bytes),
            }
        }
        ticks() - start
    }

    fn persist(&self) {
        let kind = StoreKind::Data;
        let stored = self.media.write(DeviceOffset(0), &self.bytes, kind);
        self.media.fence(stored).expect("memory does not fail");
    }
}

/// Ticks of each of `rounds` exchanges in either bed, in turn, so that what slows the machine down
/// slows both down.
pub(crate) fn in_turn(beds: &mut [Bed; 2], rounds: usize) -> [Vec<u64>; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (bed, times) in beds.iter_mut().zip(&mut times) {
            times.push(bed.exchange(1));
        }
    }
    times
}

/// Ticks, the mean of the middle half: single waits end up to one look at the counter early or
/// late.
pub(crate) fn middle(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    let half = &times[times.len() / 4..times.len() - times.len() / 4];
    half.iter().sum::<u64>() as f64 / half.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::middle;

    #[test]
    fn what_was_interrupted_does_not_count() {
        assert_eq!(middle(vec![10, 900, 12, 14, 1, 16, 0, 5000]), 13.0);
        assert_eq!(middle(vec![7]), 7.0);
        assert_eq!(middle(vec![]), 0.0);
    }
}
