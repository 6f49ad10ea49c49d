//! Owners as words, and whether an owner still exists.

use crate::slot_ref::{Liveness, SlotRef};
use crate::tables::ofd::{OfdId, OfdState};
use crate::{MAX_SLOTS, Session};

use super::LockOwner;

const PROCESS: u64 = 1 << 62;

impl LockOwner {
    pub(super) fn pack(self) -> u64 {
        match self {
            LockOwner::Process(slot) => {
                PROCESS | u64::from(slot.generation) << 16 | u64::from(slot.slot)
            }
            LockOwner::Description(id) => id.identity(),
        }
    }

    pub(super) fn unpack(word: u64) -> LockOwner {
        let (generation, index) = ((word >> 16) as u32, word as u16);
        if word & PROCESS != 0 {
            LockOwner::Process(SlotRef {
                slot: index % MAX_SLOTS as u16,
                generation,
            })
        } else {
            LockOwner::Description(OfdId {
                index: u32::from(index),
                generation,
            })
        }
    }
}

impl Session {
    /// Whether the locks of `owner` are void: its process is dead, or its description is closed or
    /// held by dead processes only.
    pub(super) fn is_owner_gone(&self, me: SlotRef, owner: LockOwner) -> bool {
        match owner {
            LockOwner::Process(slot) => slot != me && !self.is_process_running(slot),
            LockOwner::Description(id) => self.is_description_gone(me, id),
        }
    }

    fn is_description_gone(&self, me: SlotRef, id: OfdId) -> bool {
        let Some(ofd) = self.ofd(id) else { return true };
        if ofd.load().state == OfdState::Closing {
            return true;
        }
        let mut holders = self.holders_of(ofd, id);
        !ofd.is_passed()
            && !holders.any(|index| {
                index == me.slot
                    || self
                        .current_slot_at(index)
                        .is_some_and(|slot| self.is_process_running(slot))
            })
    }

    /// Locks are the process's, whichever program it runs. While they go from one to the next, some
    /// name the next already.
    fn is_process_running(&self, slot: SlotRef) -> bool {
        let user = self.current_slot_at(slot.slot);
        let user = user.filter(|&user| slot == user || slot == user.successor());
        user.is_some_and(|user| self.liveness(user) != Liveness::Dead)
    }

    /// Remembers that the owner has locks, so that its end looks for them.
    pub(super) fn mark_lock_owner(&self, owner: LockOwner) {
        match owner {
            LockOwner::Process(slot) => self.slot(slot).mark_locks(),
            LockOwner::Description(id) => {
                if let Some(ofd) = self.ofd(id) {
                    ofd.mark_locked();
                }
            }
        }
    }

    pub(super) fn has_locks(&self, owner: LockOwner) -> bool {
        match owner {
            LockOwner::Process(slot) => self.slot(slot).uses_locks(),
            LockOwner::Description(id) => self.ofd(id).is_none_or(|ofd| ofd.uses_locks()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{LockOwner, OfdId, SlotRef};

    #[test]
    fn owners_survive_packing() {
        let process = LockOwner::Process(SlotRef {
            slot: 8191,
            generation: u32::MAX,
        });
        let description = LockOwner::Description(OfdId {
            index: 65535,
            generation: u32::MAX,
        });
        assert_eq!(LockOwner::unpack(process.pack()), process);
        assert_eq!(LockOwner::unpack(description.pack()), description);
    }
}
