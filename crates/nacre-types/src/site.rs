//! Places in the source where a check is made or a step is taken that the crash explorer can switch
//! off.
//!
//! Without the feature `explore` all of it is nothing: checks are what they are, steps are taken.

#[cfg(not(feature = "explore"))]
pub use inert::{check, step};
#[cfg(feature = "explore")]
pub use live::{Kind, Site, check, last, met, note, step, switch_off};

#[cfg(not(feature = "explore"))]
mod inert {
    /// A check that must hold, or else something is damaged, incomplete or old.
    #[inline(always)]
    pub const fn check(holds: bool) -> bool {
        holds
    }

    /// Whether to take a step that the contract of durability needs: always.
    #[inline(always)]
    pub const fn step() -> bool {
        true
    }
}

#[cfg(feature = "explore")]
mod live {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeSet;
    use std::panic::Location;

    /// A place in the source.
    pub type Site = &'static Location<'static>;

    /// What is done at a place.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Kind {
        /// A checksum, number or magic is compared.
        Check,
        /// Something is done, or not.
        Step,
    }

    thread_local! {
        static OFF: Cell<Option<(Kind, Site)>> = const { Cell::new(None) };
        static LAST: Cell<Option<Site>> = const { Cell::new(None) };
        static MET: RefCell<BTreeSet<(Kind, Site)>> = const { RefCell::new(BTreeSet::new()) };
    }

    /// Switches one place off for this thread, and all others on.
    pub fn switch_off(place: Option<(Kind, Site)>) {
        OFF.set(place);
    }

    /// The places that this thread has met since it last asked.
    pub fn met() -> BTreeSet<(Kind, Site)> {
        MET.take()
    }

    /// The place of this thread's last store, flush or fence.
    pub fn last() -> Option<Site> {
        LAST.get()
    }

    /// Remembers the caller as the place of a store, flush or fence that is about to be reported.
    #[track_caller]
    pub fn note() {
        LAST.set(Some(Location::caller()));
    }

    /// A check that must hold, or else something is damaged, incomplete or old. True where it is
    /// switched off.
    #[track_caller]
    pub fn check(holds: bool) -> bool {
        holds || is_off(Kind::Check)
    }

    /// Whether to take a step that the contract of durability needs.
    #[track_caller]
    pub fn step() -> bool {
        !is_off(Kind::Step)
    }

    #[track_caller]
    fn is_off(kind: Kind) -> bool {
        let place = (kind, Location::caller());
        MET.with_borrow_mut(|met| met.insert(place));
        OFF.get() == Some(place)
    }
}
