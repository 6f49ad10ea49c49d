//! What the scene of copies tells.

/// What happens to the copies while operations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Story {
    /// Nothing.
    Whole,
    /// One of them fails in the middle of an operation.
    Lost(usize),
    /// The second one, which was away, is there again and is rebuilt.
    Back,
    /// A third one takes the place of the second, which is lost.
    Replaced,
    /// They are sealed, and stored to afterwards.
    Sealed,
}

impl Story {
    /// The device beside the first one, in the end.
    pub fn second(self) -> usize {
        match self {
            Story::Replaced => 2,
            _ => 1,
        }
    }
}
