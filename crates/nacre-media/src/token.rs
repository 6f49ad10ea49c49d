//! Durability as types: what is not yet fenced, and what is.

/// Stores that are flushed (or need no flush) but not yet ordered by a fence: after a crash any of
/// them may be missing.
///
/// Pass it to `fence` of the same media or volume, in the same thread. A fence covers every store
/// that the thread made before it, so tokens of several stores are merged with [`Unfenced::and`].
#[must_use = "the stores are not durable before a fence"]
#[derive(Debug)]
pub struct Unfenced(());

/// Proof that all earlier stores of this thread to the media are durable (as far as the device can
/// make them so).
#[derive(Clone, Copy, Debug)]
pub struct Fenced(());

impl Unfenced {
    /// Nothing stored yet; the start value for loops.
    #[inline]
    pub const fn nothing() -> Self {
        Self(())
    }

    /// One token for both.
    #[inline]
    pub const fn and(self, other: Self) -> Self {
        let Self(()) = other;
        self
    }

    /// As [`Unfenced::and`], in place.
    #[inline]
    pub const fn join(&mut self, other: Self) {
        let Self(()) = other;
    }

    #[inline]
    pub(crate) const fn into_fenced(self) -> Fenced {
        let Self(()) = self;
        Fenced(())
    }
}
