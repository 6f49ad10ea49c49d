//! Attach, recovery of dead processes, detach.
use nacre_session::SlotRef;
use nacre_volume::Volume;

use crate::error::Result;
use crate::store::{Store, WriteMode};

/// Which session to work in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SessionChoice {
    /// The session file that all processes share.
    #[default]
    Shared,
    /// Memory of this process (and its children).
    Memory,
}

/// How to attach.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachOptions {
    /// Which session.
    pub session: SessionChoice,
    /// Overrides the pool's write mode.
    pub mode: Option<WriteMode>,
    /// Take over the slot that this process already owns (after exec).
    pub resume: bool,
}

/// What attach had to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachReport {
    /// An existing session was joined.
    pub joined: bool,
    /// The allocation state was rebuilt by a scan.
    pub rebuilt: bool,
    /// Log records replayed.
    pub replayed: usize,
    /// Unlinked objects removed.
    pub orphans: usize,
}

impl Store {
    /// Attaches.
    pub fn attach(_volume: Volume, _options: &AttachOptions) -> Result<Store> {
        unreachable!()
    }
    /// Detaches.
    pub fn detach(self) -> Result<()> {
        unreachable!()
    }
    /// Recovers.
    pub fn recover_slot(&self, _dead: SlotRef) -> Result<()> {
        unreachable!()
    }
    /// Slots of dead processes.
    pub fn dead_slots(&self) -> Vec<SlotRef> {
        unreachable!()
    }
    /// Gives a dead slot back.
    pub fn finish_slot(&self, _dead: SlotRef) {
        unreachable!()
    }
}
