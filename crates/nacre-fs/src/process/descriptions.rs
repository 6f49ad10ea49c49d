//! Open file descriptions, which all processes of a pool share.

use crate::Fs;
use crate::error::Result;
use crate::inode::InodeRef;
use crate::watch::Events;
use nacre_session::{
    LockOwner, MAX_OFD_NAME, OFD_MAPPED, OFD_STORED, OFD_WATCHED, Ofd, OfdId, OfdInit, ReservedOfd,
    SlotRef,
};
use nacre_store::OwnedGuard;
use std::sync::atomic::Ordering;

use crate::file::MapAccess;

/// `O_LARGEFILE`: every open file shows it that may be read or written.
const OPENED: u32 = 0o100_000;
/// `O_ACCMODE`.
const ACCESS_MODE: u32 = 3;

impl Fs {
    /// A description that is in use; `None` when the identity is out of date.
    #[inline(always)]
    pub fn description(&self, id: OfdId) -> Option<&Ofd> {
        self.store.session().ofd(id)
    }

    /// The entry of the table with this index. Whoever reads it asks afterwards whether it
    /// [`Ofd::is_of`] the wanted generation.
    #[inline(always)]
    pub fn description_at(&self, index: u32) -> Option<&Ofd> {
        self.store.session().ofd_at(index)
    }

    /// A new description, held by this process, of a file that it has pinned: the description keeps
    /// the pin. `None` if there is no room for one, after what the dead held was given back.
    #[inline]
    pub fn describe(&self, init: &OfdInit<'_>) -> Result<Option<OfdId>> {
        let room = self.reserve_description()?;
        Ok(room.map(|room| self.describe_in(room, init)))
    }

    /// Room for a description of a file that is still to be made. `None` as [`Fs::describe`].
    #[inline]
    pub fn reserve_description(&self) -> Result<Option<ReservedOfd>> {
        let (session, me) = (self.store.session(), self.store.slot());
        let mut room = session.ofd_reserve(me);
        if room.is_err() && self.reap_dead()? > 0 {
            room = session.ofd_reserve(me);
        }
        Ok(room.ok())
    }

    /// As [`Fs::describe`], in room that was reserved.
    #[inline]
    pub fn describe_in(&self, room: ReservedOfd, init: &OfdInit<'_>) -> OfdId {
        let session = self.store.session();
        let made = session.ofd_fill(room, self.store.slot(), init);
        if session.is_watched() {
            self.mark_watched(made);
        }
        made
    }

    /// Gives room back in which nothing was described.
    pub fn unreserve_description(&self, room: ReservedOfd) {
        self.store.session().ofd_unreserve(room);
    }

    /// Calls on the description find that they are to tell.
    #[cold]
    #[inline(never)]
    fn mark_watched(&self, id: OfdId) {
        if let Some(ofd) = self.description(id) {
            ofd.flags.fetch_or(OFD_WATCHED, Ordering::SeqCst);
        }
    }

    /// Something was done through an open file.
    #[cold]
    #[inline(never)]
    pub fn tell_of_description(&self, ofd: &Ofd, events: Events) {
        if !self.is_watched() {
            ofd.flags.fetch_and(!OFD_WATCHED, Ordering::SeqCst);
            // Whoever has just watched marked it before.
            if !self.is_watched() {
                return;
            }
            ofd.flags.fetch_or(OFD_WATCHED, Ordering::SeqCst);
        }
        let node = InodeRef {
            ino: ofd.ino(),
            generation: ofd.ino_generation(),
        };
        let mut room = [0; MAX_OFD_NAME];
        let len = ofd.name(&mut room);
        let name = (len > 0).then_some((ofd.parent(), &room[..len]));
        self.tell(node, name, events);
    }

    /// An open file ends. What else descriptions stand for was opened by nobody.
    #[cold]
    #[inline(never)]
    fn tell_closed(&self, ofd: &Ofd, flags: u32) {
        if flags & OFD_MAPPED != 0 || flags & OPENED == 0 {
            return;
        }
        let closed = match flags & ACCESS_MODE {
            0 => Events::CLOSE_NOWRITE,
            _ => Events::CLOSE_WRITE,
        };
        self.tell_of_description(ofd, closed);
    }

    /// Lets `who` hold the description too. False: it is gone.
    pub fn hold(&self, id: OfdId, who: SlotRef) -> bool {
        self.store.session().hold(id, who)
    }

    /// Whether `who` holds the description.
    pub fn is_held_by(&self, id: OfdId, who: SlotRef) -> bool {
        self.store.session().is_held_by(id, who)
    }

    /// The descriptions that `who` holds.
    pub fn held_by(&self, who: SlotRef) -> impl Iterator<Item = OfdId> + '_ {
        self.store.session().ofds_held_by(who)
    }

    /// Lets go of a description for `who`. When nobody holds it any more it ends, and with it its
    /// advisory locks, its mapping and its pin.
    #[inline]
    pub fn let_go(&self, id: OfdId, who: SlotRef) -> Result<()> {
        match self.store.session().unhold(id, who) {
            true => self.end_description(id),
            false => Ok(()),
        }
    }

    /// Keeps the description's position still for all processes.
    #[inline]
    pub fn lock_position<'s>(&'s self, ofd: &'s Ofd) -> Result<OwnedGuard<'s>> {
        Ok(self.store.lock_owned(&ofd.pos_lock)?)
    }

    #[inline]
    fn end_description(&self, id: OfdId) -> Result<()> {
        let session = self.store.session();
        let released = self.release_pins(id);
        session.advisory_clear_owner(self.store.slot(), LockOwner::Description(id));
        session.ofd_free(id);
        released
    }

    /// Gives back what a description keeps of its file.
    #[inline]
    pub(crate) fn release_pins(&self, id: OfdId) -> Result<()> {
        let Some(ofd) = self.store.session().ofd(id) else {
            return Ok(());
        };
        let flags = ofd.flags.load(Ordering::Relaxed);
        if flags & OFD_WATCHED != 0 {
            self.tell_closed(ofd, flags);
        }
        let unmapped = match (flags & OFD_MAPPED != 0, flags & OFD_STORED != 0) {
            (false, _) => Ok(()),
            (true, false) => self.map_end(ofd.ino(), MapAccess::Load),
            (true, true) => self.map_end(ofd.ino(), MapAccess::Store),
        };
        let unpinned = self.unpin(ofd.ino());
        unmapped.and(unpinned)
    }
}
