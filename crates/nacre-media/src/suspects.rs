//! Spans that somebody who read them found wrong on a device.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// So many are remembered. Without a place for it the next scrub of all finds one.
const MOST: usize = 8;

/// Spans that are to be scrubbed before others. They lie in memory that processes share.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Suspects([AtomicU64; MOST]);

impl Suspects {
    /// Remembers a span.
    pub(crate) fn add(&self, span: u64) {
        let is_known = |word: &AtomicU64| word.load(Relaxed) == span + 1;
        let claim = |word: &AtomicU64| word.compare_exchange(0, span + 1, SeqCst, Relaxed).is_ok();
        let _found = self.0.iter().any(is_known) || self.0.iter().any(claim);
    }

    /// A span that was remembered, and is not any more.
    pub(crate) fn take(&self) -> Option<u64> {
        self.0.iter().find_map(|word| match word.load(Relaxed) {
            0 => None,
            _ => word.swap(0, SeqCst).checked_sub(1),
        })
    }

    /// A span is scrubbed.
    pub(crate) fn clear(&self, span: u64) {
        for word in &self.0 {
            // Another one may have its place by now.
            let _ = word.compare_exchange(span + 1, 0, SeqCst, Relaxed);
        }
    }
}
