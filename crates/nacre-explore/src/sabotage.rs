//! Bugs planted into the store or into a recording.

use std::panic::Location;

use nacre_types::StoreKind;

use nacre_testkit::medium::Depth;
use nacre_testkit::recorder::{Event, What};

/// What is done at a place in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Stored lines are flushed.
    Flush,
    /// Flushed lines are waited for.
    Fence,
    /// A checksum, number or magic is compared.
    Check,
    /// Something is done, or not.
    Step,
}

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// None.
    Nothing,
    /// No store of this kind is flushed.
    Flushes(StoreKind),
    /// Every fence whose number leaves this remainder when divided by 3 is left out.
    Fences(u64),
    /// What is done at this place is not done.
    Off(Work, &'static Location<'static>),
}

impl Sabotage {
    /// Leaves events out that would not have happened, or marks them where images can be
    /// [aimed](Sabotage::aim) at what they would have done.
    pub fn plant(self, events: &mut Vec<Event>) {
        let mut fences = 0;
        if self == Sabotage::Nothing {
            return;
        }
        for event in events.iter_mut() {
            event.off = self.switches_off(event);
        }
        events.retain(|event| match (self, &event.what) {
            (Sabotage::Flushes(kind), What::Flush { kind: of, .. }) => *of != Some(kind),
            (Sabotage::Fences(remainder), What::Fence) => {
                fences += 1;
                fences % 3 != remainder
            }
            _ => true,
        });
    }

    fn switches_off(self, event: &Event) -> bool {
        match (self, &event.what) {
            (Sabotage::Off(Work::Flush, place), What::Flush { .. })
            | (Sabotage::Off(Work::Fence, place), What::Fence) => event.place == Some(place),
            _ => false,
        }
    }

    /// Makes only those images that a flush or fence which is switched off makes possible, if that
    /// is the bug.
    pub const fn aim(self, depth: Depth) -> Depth {
        let aimed = matches!(self, Sabotage::Off(Work::Flush | Work::Fence, _));
        Depth { aimed, ..depth }
    }

    /// Switches off, in this thread, what is decided while the store runs.
    #[cfg(feature = "explore")]
    pub fn switch(self) {
        use nacre_types::site::{Kind, switch_off};
        switch_off(match self {
            Sabotage::Off(Work::Check, place) => Some((Kind::Check, place)),
            Sabotage::Off(Work::Step, place) => Some((Kind::Step, place)),
            _ => None,
        });
    }

    /// Nothing can be switched off in builds without the feature `explore`.
    #[cfg(not(feature = "explore"))]
    pub fn switch(self) {}
}
