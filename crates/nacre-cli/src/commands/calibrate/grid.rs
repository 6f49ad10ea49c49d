//! What is measured, and what follows from it.

use crate::failure::Result;
use nacre_volume::{COUNTS, Granularity, LENGTHS, PieceTable, Policy};
use serde::Serialize;
use std::num::NonZero;
use std::thread::available_parallelism;

const STORED_PIECES: [u64; 4] = [0, 256, 512, 1024];
const LOADED_PIECES: [u64; 3] = [0, 64 << 10, 256 << 10];

/// Storing or loading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Write,
    Read,
}

/// One thing to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    pub direction: Direction,
    pub threads: u32,
    /// Bytes of a request.
    pub bytes: u64,
    /// Bytes of its pieces, 0 for whole.
    pub piece: u64,
}

/// One size of pieces for one kind of request.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub piece_bytes: u64,
    /// Of each round.
    pub gb_s: Vec<f64>,
}

/// All sizes of pieces for one kind of request.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub direction: Direction,
    pub threads: u32,
    pub request_bytes: u64,
    pub measured: Vec<Measured>,
    /// What was chosen, 0 for whole.
    pub piece_bytes: u64,
    /// What it gains over whole requests, percent.
    pub gain_percent: f64,
}

/// All that was measured of one device.
#[derive(Clone, Debug, Serialize)]
pub struct Grid {
    pub name: String,
    pub cells: Vec<Cell>,
}

/// What is to be measured.
pub struct GridPlan {
    pub threads: Vec<u32>,
    pub writes: Vec<u64>,
    pub reads: Vec<u64>,
    rounds: u32,
    /// As a factor, above 1.
    margin: f64,
}

impl GridPlan {
    /// For a device: up to as many threads as run at once, as more never count.
    pub fn measured(quick: bool, margin: u32) -> GridPlan {
        let processors = available_parallelism().map_or(1, NonZero::get) as u32;
        let most = processors.next_power_of_two();
        let rounds = if quick { 5 } else { 9 };
        GridPlan::new(most, quick, rounds, margin)
    }

    /// For a model, which says the same each time.
    pub fn modelled(quick: bool, margin: u32) -> GridPlan {
        let mut plan = GridPlan::new(1 << (COUNTS - 1), quick, 1, margin);
        if quick {
            plan.threads
                .retain(|threads| threads.ilog2().is_multiple_of(2));
        }
        plan
    }

    fn new(most: u32, quick: bool, rounds: u32, margin: u32) -> GridPlan {
        let rows = (0..COUNTS).map(PieceTable::threads);
        let step = if quick { 2 } else { 1 };
        let columns = |from: usize| (from..LENGTHS).step_by(step).map(PieceTable::bytes);
        GridPlan {
            threads: rows.filter(|&threads| threads <= most).collect(),
            writes: columns(1).collect(),
            reads: columns(5).collect(),
            rounds,
            margin: 1.0 + f64::from(margin) / 100.0,
        }
    }

    fn kinds(&self) -> impl Iterator<Item = (Direction, u32, u64)> + '_ {
        let both = [
            (Direction::Write, &self.writes),
            (Direction::Read, &self.reads),
        ];
        both.into_iter().flat_map(move |(direction, lengths)| {
            let threads = self.threads.iter();
            threads.flat_map(move |&threads| {
                let lengths = lengths.iter();
                lengths.map(move |&bytes| (direction, threads, bytes))
            })
        })
    }

    /// How many times something is measured.
    pub fn samples(&self) -> u64 {
        let each = self
            .kinds()
            .map(|(direction, _, bytes)| pieces(direction, bytes).count());
        each.sum::<usize>() as u64 * u64::from(self.rounds)
    }

    /// Measures everything, the sizes of pieces in turn, so that what disturbs one disturbs the
    /// others as well.
    pub fn fill(&self, name: String, mut ask: impl FnMut(&Case) -> Result<f64>) -> Result<Grid> {
        let mut cells = Vec::new();
        for (direction, threads, bytes) in self.kinds() {
            let mut measured: Vec<Measured> = pieces(direction, bytes)
                .map(|piece_bytes| Measured {
                    piece_bytes,
                    gb_s: Vec::new(),
                })
                .collect();
            for _ in 0..self.rounds {
                for one in &mut measured {
                    let piece = one.piece_bytes;
                    let case = Case {
                        direction,
                        threads,
                        bytes,
                        piece,
                    };
                    one.gb_s.push(ask(&case)?);
                }
            }
            let (piece_bytes, gain) = choose(&measured, self.margin);
            cells.push(Cell {
                direction,
                threads,
                request_bytes: bytes,
                measured,
                piece_bytes,
                gain_percent: ((gain - 1.0) * 1000.0).round() / 10.0,
            });
        }
        Ok(Grid { name, cells })
    }
}

/// Sizes of pieces for requests of so many bytes.
fn pieces(direction: Direction, bytes: u64) -> impl Iterator<Item = u64> {
    let all: &[u64] = match direction {
        Direction::Write => &STORED_PIECES,
        Direction::Read => &LOADED_PIECES,
    };
    all.iter().copied().filter(move |&piece| piece < bytes)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// The best pieces that beat whole requests clearly, and their gain as a factor: their worst round
/// is better than the best whole one, and their median by the margin.
fn choose(measured: &[Measured], margin: f64) -> (u64, f64) {
    let Some((whole, cut)) = measured.split_first() else {
        return (0, 1.0);
    };
    let best_whole = whole.gb_s.iter().copied().fold(0.0, f64::max);
    let clear = cut.iter().filter(|one| {
        let worst = one.gb_s.iter().copied().fold(f64::MAX, f64::min);
        worst > best_whole && median(&one.gb_s) >= margin * median(&whole.gb_s)
    });
    let best = clear.max_by(|a, b| median(&a.gb_s).total_cmp(&median(&b.gb_s)));
    best.map_or((0, 1.0), |one| {
        (one.piece_bytes, median(&one.gb_s) / median(&whole.gb_s))
    })
}

impl Grid {
    /// The tables that follow, measured at `now`. What was not measured is as the next smaller that
    /// was.
    pub fn granularity(&self, now: u64) -> Granularity {
        let (writes, reads) = (self.table(Direction::Write), self.table(Direction::Read));
        let cuts = writes != PieceTable::default() || reads != PieceTable::default();
        Granularity {
            policy: if cuts {
                Policy::Calibrated
            } else {
                Policy::None
            },
            measured: now,
            writes,
            reads,
            speed: self.speed(),
        }
    }

    /// MB a second at which everything is stored and loaded once, at the best of all sizes and
    /// numbers of threads; 0 if one of both was not measured.
    pub fn speed(&self) -> u32 {
        let of = |direction| {
            let cells = self.cells.iter().filter(|it| it.direction == direction);
            let rates = cells.flat_map(|cell| &cell.measured);
            rates.map(|one| median(&one.gb_s)).fold(0.0, f64::max)
        };
        let (stores, loads) = (of(Direction::Write), of(Direction::Read));
        match stores * loads > 0.0 {
            true => (2000.0 * stores * loads / (stores + loads)).round() as u32,
            false => 0,
        }
    }

    fn table(&self, direction: Direction) -> PieceTable {
        PieceTable(std::array::from_fn(|row| {
            std::array::from_fn(|column| {
                let (threads, bytes) = (PieceTable::threads(row), PieceTable::bytes(column));
                let mut below = self.cells.iter().filter(|cell| {
                    cell.direction == direction
                        && cell.threads <= threads
                        && cell.request_bytes <= bytes
                });
                let first = below.next();
                let nearest = below.fold(first, |best, cell| match best {
                    Some(best)
                        if (best.threads, best.request_bytes)
                            >= (cell.threads, cell.request_bytes) =>
                    {
                        Some(best)
                    }
                    _ => Some(cell),
                });
                let piece = nearest.map_or(0, |cell| cell.piece_bytes);
                piece.checked_ilog2().unwrap_or(0) as u8
            })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::{Direction, GridPlan, Measured, choose};
    use nacre_volume::Policy;

    fn measured(rounds: &[(u64, &[f64])]) -> Vec<Measured> {
        let one = |&(piece_bytes, gb_s): &(u64, &[f64])| Measured {
            piece_bytes,
            gb_s: gb_s.to_vec(),
        };
        rounds.iter().map(one).collect()
    }

    #[test]
    fn only_clear_gains_cut() {
        let of = |cut: &[f64]| choose(&measured(&[(0, &[1.0, 1.1, 0.9]), (256, cut)]), 1.1).0;
        assert_eq!(of(&[1.3, 1.4, 1.2]), 256);
        assert_eq!(of(&[1.3, 1.4, 1.05]), 0, "its worst round is no better");
        assert_eq!(of(&[1.11, 1.11, 1.11]), 256);
        assert_eq!(of(&[0.5, 0.5, 0.5]), 0);
        let two = measured(&[(0, &[1.0]), (256, &[1.5]), (512, &[1.4])]);
        assert_eq!(choose(&two, 1.1), (256, 1.5));
        assert_eq!(choose(&two, 2.0), (0, 1.0), "below the margin");
    }

    #[test]
    fn tables_hold_what_was_chosen_and_fill_up_from_below() {
        let mut plan = GridPlan::modelled(false, 10);
        plan.threads = vec![1, 4];
        plan.writes = vec![4096, 1 << 20];
        plan.reads = Vec::new();
        let gains = |threads: u32, piece: u64| threads == 4 && piece == 512;
        let grid = plan.fill("x".into(), |case| {
            Ok(if gains(case.threads, case.piece) {
                2.0
            } else {
                1.0
            })
        });
        let table = grid.unwrap().granularity(5);
        assert_eq!((table.policy, table.measured), (Policy::Calibrated, 5));
        assert_eq!(table.writes.0[1], [0; 8]);
        assert_eq!(table.writes.0[2], [0, 0, 9, 9, 9, 9, 9, 9]);
        assert_eq!(table.writes.0[5], table.writes.0[2]);
        assert_eq!(table.reads.0, [[0; 8]; 6]);
        assert!(table.writes.is_sound());
    }

    #[test]
    fn everything_is_asked_as_often_as_was_said() {
        let plan = GridPlan::modelled(true, 10);
        let mut asked = 0;
        let grid = plan.fill("x".into(), |case| {
            assert!(case.piece < case.bytes);
            asked += 1;
            Ok(1.0)
        });
        assert_eq!(asked, plan.samples());
        let grid = grid.unwrap();
        assert_eq!(grid.granularity(1).policy, Policy::None);
        assert!(
            grid.cells
                .iter()
                .any(|cell| cell.direction == Direction::Read)
        );
    }
}
