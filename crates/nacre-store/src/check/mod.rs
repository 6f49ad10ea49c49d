//! Checking a whole pool: every structure for itself and against all others.
//!
//! Nothing is changed. Memory: a bit or two per unit, 5 bytes per object number, some dozens of
//! bytes per directory. Other processes may work on the pool meanwhile, but what they change during
//! the check may be reported wrongly.

mod keyed;
mod links;
mod objects;
mod units;

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use nacre_types::{ObjectId, UNIT_SIZE, UNITS_PER_BLOCK, VolumeOffset, crc32c, site};

use crate::alloc::Run;
use crate::layout::{ONODES_PER_BLOCK, SUPERBLOCK_AT, SUPERBLOCK_MAGIC};
pub use crate::problem::Problem;
use crate::recovery::scan::{MAX_PROBLEMS, for_each_object, listed_blocks};
use crate::store::Store;
use crate::superblock::PoolState;
use links::Links;
pub(crate) use links::kind_of;
pub(crate) use objects::KINDS;
use units::Units;

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Object numbers looked at.
    pub done: u64,
    /// Object numbers to look at.
    pub total: u64,
}

/// What a check counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Objects.
    pub objects: u64,
    /// Directories among them.
    pub directories: u64,
    /// Objects without a link: open, or waiting for removal at the next attach.
    pub unlinked: u64,
    /// Objects of collections among them.
    pub keyed: u64,
    /// Directory entries.
    pub entries: u64,
    /// Units that hold file data; a shared unit counts once for each owner.
    pub data_units: u64,
    /// Units of block-map and tree nodes and of long values.
    pub metadata_units: u64,
    /// References to units beyond each unit's first.
    pub shared: u64,
    /// Units beyond EOF that a cut-off truncation left; the next rebuild frees them.
    pub beyond_eof: u64,
    /// Units that are marked as used and that nothing uses; the next rebuild frees them.
    pub leaked_units: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong, at most 1000 entries.
    pub problems: Vec<Problem>,
    /// Problems that found no place in the list.
    pub more_problems: u64,
    /// Contents that were on disks which are lost, and nowhere else (D80); at most 1000 entries.
    pub lost: Vec<Lost>,
    /// What there is.
    pub counts: Counts,
}

/// Bytes of an object that are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The object.
    pub object: ObjectId,
    /// Which bytes of it.
    pub bytes: Range<u64>,
}

impl Report {
    fn problem(
        &mut self,
        object: Option<ObjectId>,
        place: Option<VolumeOffset>,
        what: impl ToString,
    ) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem {
                object,
                place,
                what: what.to_string(),
            });
        } else {
            self.more_problems += 1;
        }
    }
}

/// State of a check under way.
struct Check<'s> {
    store: &'s Store,
    report: Report,
    units: Units,
    links: Links,
}

/// Checks everything that an attached pool holds. `progress` is called now and then.
pub fn check(store: &Store, progress: &mut dyn FnMut(Progress)) -> Report {
    let total = store.block_count() * ONODES_PER_BLOCK;
    // What was sound when it was first touched may have been damaged since.
    for bits in store.session().verified_bits() {
        bits.store(0, Relaxed);
    }
    let mut check = Check {
        store,
        report: Report::default(),
        units: Units::new(store.units, store.volume().closed_units()),
        links: Links::new(total),
    };
    check.check_front();
    for_each_object(store, &mut |id, _| {
        if check.report.counts.objects.is_multiple_of(1024) {
            progress(Progress { done: id.0, total });
        }
        check.check_object(id);
    });
    check.check_links();
    check.check_units();
    progress(Progress { done: total, total });
    check.report
}

impl Check<'_> {
    fn problem(&mut self, object: ObjectId, place: VolumeOffset, what: impl ToString) {
        self.report.problem(Some(object), Some(place), what);
    }

    /// Superblock copies, state record, lists of blocks.
    fn check_front(&mut self) {
        for at in SUPERBLOCK_AT {
            let bytes: [u8; UNIT_SIZE as usize] = self.store.volume().read_array(at);
            let (magic, rest) = bytes.split_at(8);
            let sound = magic == SUPERBLOCK_MAGIC.to_le_bytes()
                && site::check(rest[..4] == crc32c(&rest[4..]).to_le_bytes());
            if !sound {
                self.report
                    .problem(None, Some(at), "superblock copy is damaged");
            }
        }
        if let Err(error) = PoolState::read(self.store.volume()) {
            self.report.problem(None, None, error);
        }
        for (at, block) in listed_blocks(self.store) {
            let units = |start| Run {
                start,
                count: UNITS_PER_BLOCK,
            };
            match block.map(units) {
                Ok(block) if self.units.claim_run(block) => {}
                Ok(_) => self
                    .report
                    .problem(None, Some(at), "a list names a block twice"),
                Err(error) => self.report.problem(None, Some(at), error),
            }
        }
    }
}
