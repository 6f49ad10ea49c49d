//! In which sizes a device is written and read, by how many do it at the moment.
//!
//! A device with a write-combining buffer merges what it gets back into its own lines. Many writers
//! with large writes crowd each other's lines out of it half filled; cut to lines, each waited for,
//! their writes stay whole there. A single writer only loses by waiting. So the size of pieces
//! depends on who else is under way.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::arch;
use crate::traffic::{Counted, Direction, SharedTraffic, Turn};

/// Rows of a [`PieceTable`]: from 1, 2, 4, 8, 16 and 32 threads on.
pub const COUNTS: usize = 6;
/// Columns of a [`PieceTable`]: from 256 bytes, 1 KiB, 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB and 4
/// MiB on.
pub const LENGTHS: usize = 8;
/// From this many threads on it makes no difference.
const MOST: usize = 1 << (COUNTS - 1);
/// The smallest piece: a line of the devices that gain from cutting.
const SMALLEST: u64 = 256;
/// Where the policy `optane` cuts when a module has less than two threads: from so many sixths of a
/// thread for each module on, stores of so many bytes and more.
const LARGE: [(usize, u64); 2] = [(7, 64 << 10), (8, 4 << 10)];
/// What the policy `optane` reads at once.
const READ_PIECE: u64 = 256 << 10;

/// How the size of pieces is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// Nothing is cut.
    #[default]
    None,
    /// As first-generation Optane likes it: 256 bytes from two writers a module on, 512 bytes of
    /// large stores from seven writers for six modules on, else whole.
    Optane {
        /// Modules that one device consists of, 1 or more.
        modules: u16,
    },
    /// By the table that was measured on the device.
    Calibrated,
}

/// Not the name of a policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no such policy: give none, optane, optane:MODULES (1 to 65535 modules in one device) or calibrated"
)]
pub struct ParsePolicyError;

impl FromStr for Policy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, ParsePolicyError> {
        match text {
            "none" => Ok(Self::None),
            "optane" => Ok(Self::Optane { modules: 1 }),
            "calibrated" => Ok(Self::Calibrated),
            _ => {
                let modules = text.strip_prefix("optane:").ok_or(ParsePolicyError)?;
                let modules = modules.parse().ok().filter(|&modules| modules > 0);
                let modules = modules.ok_or(ParsePolicyError)?;
                Ok(Self::Optane { modules })
            }
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Optane { modules } => write!(f, "optane:{modules}"),
            Self::Calibrated => f.pad("calibrated"),
        }
    }
}

/// Sizes of pieces by threads under way and bytes asked for, as powers of two; 0 stands for whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PieceTable(pub [[u8; LENGTHS]; COUNTS]);

impl PieceTable {
    /// Whether all pieces have sizes that make sense.
    pub fn is_sound(&self) -> bool {
        let sound = |&power: &u8| power == 0 || (8..=30).contains(&power);
        self.0.iter().flatten().all(sound)
    }

    /// Threads from which row `row` on counts.
    pub const fn threads(row: usize) -> u32 {
        1 << row
    }

    /// Bytes from which column `column` on counts.
    pub const fn bytes(column: usize) -> u64 {
        SMALLEST << (2 * column)
    }
}

/// What a device knows of its granularity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Granularity {
    /// What is done.
    pub policy: Policy,
    /// When the tables were measured, in seconds since 1970; 0 for never.
    pub measured: u64,
    /// Best sizes of stores.
    pub writes: PieceTable,
    /// Best sizes of loads.
    pub reads: PieceTable,
    /// MB a second at which the device stores and loads what it holds, measured; 0 for not known.
    pub speed: u32,
}

impl Granularity {
    /// Bytes of the pieces that a store of `len` bytes is cut to while so many threads store; 0 for
    /// whole.
    pub fn stored_piece(&self, threads: u32, len: u64) -> u64 {
        let piece = |rules: Rules| rules.piece(Direction::Write, threads, len as usize);
        match Rules::new(self).map_or(usize::MAX, piece) {
            usize::MAX => 0,
            piece => piece as u64,
        }
    }
}

/// A column for lengths, a row for each number of threads from 1 on.
type Rows = [[u8; LENGTHS]; MOST];

/// A policy made ready.
pub(crate) struct Rules {
    rows: [Rows; 2],
    /// Shorter requests are never cut.
    shortest: [usize; 2],
}

impl Rules {
    /// `None` if nothing would ever be cut.
    fn new(granularity: &Granularity) -> Option<Self> {
        let rows = match granularity.policy {
            Policy::None => return None,
            Policy::Optane { modules } => [optane_writes(modules), optane_reads()],
            Policy::Calibrated => [spread(&granularity.writes), spread(&granularity.reads)],
        };
        let shortest = rows.each_ref().map(shortest);
        let some = shortest.iter().any(|&bytes| bytes < usize::MAX);
        some.then_some(Self { rows, shortest })
    }

    #[inline]
    fn piece(&self, direction: Direction, threads: u32, len: usize) -> usize {
        let row = &self.rows[direction as usize][(threads as usize).clamp(1, MOST) - 1];
        match row[column(len)] {
            0 => usize::MAX,
            power => 1 << (power & 63),
        }
    }
}

#[inline]
fn column(len: usize) -> usize {
    let power = (len as u64).max(SMALLEST).ilog2() - SMALLEST.ilog2();
    (power as usize / 2).min(LENGTHS - 1)
}

/// Where the model of the device says that pieces gain: lines once two threads for each module
/// store, and pieces of two lines of large requests a little earlier.
fn optane_writes(modules: u16) -> Rows {
    let modules = usize::from(modules);
    std::array::from_fn(|row| {
        let threads = row + 1;
        if threads >= 2 * modules {
            [SMALLEST.ilog2() as u8; LENGTHS]
        } else {
            let reached = |&&(sixths, _): &&(usize, u64)| 6 * threads >= sixths * modules;
            let large = LARGE.iter().rev().find(reached);
            cut_from(large.map_or(u64::MAX, |&(_, bytes)| bytes), SMALLEST * 2)
        }
    })
}

/// Pieces of so many bytes for requests from so many bytes on.
fn cut_from(bytes: u64, piece: u64) -> [u8; LENGTHS] {
    std::array::from_fn(|column| {
        let cut = PieceTable::bytes(column) >= bytes;
        if cut { piece.ilog2() as u8 } else { 0 }
    })
}

fn optane_reads() -> Rows {
    [cut_from(READ_PIECE, READ_PIECE); MOST]
}

/// Each row counts until the next begins.
fn spread(table: &PieceTable) -> Rows {
    std::array::from_fn(|row| table.0[(row + 1).ilog2() as usize])
}

/// The least length that is longer than its piece, for some number of threads.
fn shortest(rows: &Rows) -> usize {
    let each = rows.iter().flat_map(|row| row.iter().enumerate());
    let longer = each
        .filter(|(_, power)| **power > 0)
        .map(|(column, power)| {
            let piece = 1usize << (power & 63);
            (piece + 1).max(PieceTable::bytes(column) as usize)
        });
    longer.min().unwrap_or(usize::MAX)
}

/// Cuts what goes to and comes from one device.
pub(crate) struct Cutter {
    rules: Rules,
    counted: Counted,
    /// Tells threads of different processes apart that lie at the same address.
    share: AtomicU64,
}

impl Cutter {
    /// `None` if nothing would ever be cut.
    pub fn new(
        granularity: &Granularity,
        memory: Arc<dyn SharedTraffic>,
        device: u16,
    ) -> Option<Self> {
        Some(Self {
            rules: Rules::new(granularity)?,
            counted: Counted::new(memory, device),
            share: AtomicU64::new(0),
        })
    }

    pub fn set_share(&self, number: u64) {
        self.share.store(number << 44, Relaxed);
    }

    /// Whether requests of `len` bytes are cut at some number of threads. Only those are counted.
    #[inline]
    pub fn concerns(&self, direction: Direction, len: usize) -> bool {
        len >= self.rules.shortest[direction as usize]
    }

    /// Counts the calling thread; gives the size of pieces for it.
    #[inline]
    pub fn enter(&self, direction: Direction, len: usize) -> (Turn<'_>, usize) {
        let thread = arch::thread_address() as u64 ^ self.share.load(Relaxed);
        let turn = self.counted.traffic().enter(thread, direction);
        let piece = self.rules.piece(direction, turn.count, len);
        (turn, piece)
    }
}

/// Bytes from `at` up to the next multiple of `piece`, a power of two, at most `left`.
#[inline]
pub(crate) fn first_piece(at: u64, left: usize, piece: usize) -> usize {
    if piece > left {
        // Not worth a second piece for being misaligned.
        return left;
    }
    left.min(piece - (at as usize & (piece - 1)))
}

#[cfg(test)]
mod tests {
    use super::{Direction, Granularity, PieceTable, Policy, Rules};

    const WHOLE: usize = usize::MAX;

    fn rules(policy: Policy) -> Rules {
        let granularity = Granularity {
            policy,
            ..Granularity::default()
        };
        Rules::new(&granularity).unwrap()
    }

    #[test]
    fn optane_is_cut_by_writers_and_modules() {
        let rules = rules(Policy::Optane { modules: 2 });
        let piece = |threads, len| rules.piece(Direction::Write, threads, len);
        assert_eq!((piece(1, 4 << 20), piece(2, 4 << 20)), (WHOLE, WHOLE));
        assert_eq!((piece(3, 4095), piece(3, 4096)), (WHOLE, 512));
        assert_eq!(
            (piece(4, 300), piece(4, 4096), piece(99, 1 << 30)),
            (256, 256, 256)
        );
        let read = |threads, len| rules.piece(Direction::Read, threads, len);
        assert_eq!((read(1, 255 << 10), read(1, 4 << 20)), (WHOLE, 256 << 10));
        assert_eq!(rules.shortest, [257, (256 << 10) + 1]);
    }

    #[test]
    fn the_more_writers_a_module_has_the_smaller_stores_are_cut() {
        let rules = rules(Policy::Optane { modules: 6 });
        let cut = |threads, len| rules.piece(Direction::Write, threads, len) < WHOLE;
        let from = |threads| {
            [1 << 10, 4 << 10, 16 << 10, 64 << 10, 4 << 20]
                .into_iter()
                .find(|&len| cut(threads, len))
        };
        let each = [6, 7, 8, 9, 12].map(from);
        let kib = |kib: usize| Some(kib << 10);
        assert_eq!(each, [None, kib(64), kib(4), kib(4), kib(1)]);
    }

    #[test]
    fn tables_count_from_their_row_and_column_on() {
        let mut granularity = Granularity {
            policy: Policy::Calibrated,
            ..Granularity::default()
        };
        granularity.writes.0[2][3] = 9;
        let rules = Rules::new(&granularity).unwrap();
        let piece = |threads, len| rules.piece(Direction::Write, threads, len);
        assert_eq!(
            (piece(3, 16384), piece(4, 16383), piece(8, 16384)),
            (WHOLE, WHOLE, WHOLE)
        );
        assert_eq!((piece(4, 16384), piece(7, 65535)), (512, 512));
        assert_eq!((PieceTable::threads(2), PieceTable::bytes(3)), (4, 16384));
    }

    #[test]
    fn tables_that_cut_nothing_cost_nothing() {
        for policy in [Policy::None, Policy::Calibrated] {
            let granularity = Granularity {
                policy,
                ..Granularity::default()
            };
            assert!(Rules::new(&granularity).is_none());
        }
    }

    #[test]
    fn policies_are_named() {
        let all = [
            Policy::None,
            Policy::Optane { modules: 6 },
            Policy::Calibrated,
        ];
        for policy in all {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!("optane".parse(), Ok(Policy::Optane { modules: 1 }));
        for wrong in ["", "optane:", "optane:0", "optane:65536", "None"] {
            assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nonsense_in_tables_is_seen() {
        let mut table = PieceTable::default();
        assert!(table.is_sound());
        for (power, sound) in [(7, false), (8, true), (30, true), (31, false), (255, false)] {
            table.0[5][7] = power;
            assert_eq!(table.is_sound(), sound, "{power}");
        }
    }
}
