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
    /// A third one comes for one of them that is there, which goes then.
    Exchanged(usize),
    /// A third one comes, and while it gets what it lacks something else is written over the first
    /// one, which is read.
    WrittenOver,
    /// They are sealed, and stored to afterwards.
    Sealed,
}

/// What a device has to be by itself after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alone {
    /// It is not looked at.
    Anything,
    /// If it opens, it holds what is expected.
    MayHold,
    Holds,
    /// It is no device of the pool any more.
    Refuses,
}

impl Story {
    /// A device that is there from the beginning to the end.
    pub fn stays(self) -> usize {
        match self {
            Story::Exchanged(0) | Story::WrittenOver => 1,
            _ => 0,
        }
    }

    /// The device beside it, in the end.
    pub fn second(self) -> usize {
        match self {
            Story::Replaced | Story::Exchanged(_) | Story::WrittenOver => 2,
            _ => 1,
        }
    }

    /// Whether that one comes in the middle.
    pub fn is_joined(self) -> bool {
        matches!(
            self,
            Story::Back | Story::Replaced | Story::Exchanged(_) | Story::WrittenOver
        )
    }
}
