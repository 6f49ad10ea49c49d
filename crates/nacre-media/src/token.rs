//! Durability as a type: what is not yet fenced.

use std::marker::PhantomData;

/// Stores that are flushed (or need no flush) but not yet ordered by a fence: after a crash any of
/// them may be missing.
///
/// It covers stores of one thread to one media or volume, and so it cannot go to another thread:
/// pass it to `fence` or `order` of that media or volume. Tokens of several stores are merged with
/// [`Unfenced::and`]; where there may be none, `Option<Unfenced>` says which. Nobody drops one but
/// on the way out with an error.
#[must_use = "the stores are not durable before a fence"]
#[derive(Debug)]
pub struct Unfenced(PhantomData<*const ()>);

impl Unfenced {
    /// Nothing stored yet; the start value for loops.
    #[inline]
    pub const fn nothing() -> Self {
        Self(PhantomData)
    }

    /// One token for both.
    #[inline]
    pub const fn and(self, other: Self) -> Self {
        let Self(_) = other;
        self
    }

    /// What was gathered, to be fenced now.
    #[inline]
    pub const fn take(&mut self) -> Self {
        std::mem::replace(self, Self::nothing())
    }

    /// As [`Unfenced::and`], in place.
    #[inline]
    pub const fn join(&mut self, other: Self) {
        let Self(_) = other;
    }
}
