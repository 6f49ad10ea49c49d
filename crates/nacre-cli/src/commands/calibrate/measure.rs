//! Measuring a device by threads that store to its reserved bytes, or read its data.

use super::grid::{Case, Direction};
use crate::failure::{Failure, Result};
use crate::parallel;
use nacre_session::{Geometry, Session};
use nacre_types::{DeviceOffset, StoreKind};
use nacre_volume::{
    COUNTS, CopyError, Granularity, LENGTHS, MediaFailed, PieceTable, Policy, ProvingGround,
    UserBytesMut, Volume,
};
use std::time::{Duration, Instant};

/// How long one measurement takes.
const LONG: Duration = Duration::from_millis(4);
const SHORT: Duration = Duration::from_millis(2);
/// Bytes of the data that are read.
const WINDOW: u64 = 64 << 20;
/// Pieces that stores are measured in: powers of two.
const PIECES: [u8; 4] = [0, 8, 9, 10];
const PAGE: u64 = 4096;

/// One device and its mappings, each of which cuts stores in its own way.
pub struct Site<'a> {
    grounds: Vec<(u64, ProvingGround<'a>)>,
    time: Duration,
}

impl<'a> Site<'a> {
    /// Device number `number` of a volume that nobody else uses.
    pub fn new(volume: &'a Volume, number: usize, quick: bool) -> Result<Site<'a>> {
        let mut grounds = Vec::new();
        for power in PIECES {
            let mut all = volume.proving_grounds()?;
            if number >= all.len() {
                return Err(Failure::Usage("anonymous memory cannot be measured".into()));
            }
            let ground = all.swap_remove(number);
            cut(&ground, power)?;
            let piece = if power == 0 { 0 } else { 1 << power };
            grounds.push((piece, ground));
        }
        let time = if quick { SHORT } else { LONG };
        Ok(Site { grounds, time })
    }

    /// Bandwidth in GB/s.
    pub fn measure(&self, case: &Case) -> Result<f64> {
        let piece = match case.direction {
            Direction::Write => case.piece,
            Direction::Read => 0,
        };
        let known = self.grounds.iter().find(|(known, _)| *known == piece);
        let Some((_, ground)) = known else {
            return Err(Failure::Usage(format!("no pieces of {piece} bytes")));
        };
        let one = |thread| move || self.one_thread(ground, case, thread);
        let all = parallel::together((0..u64::from(case.threads)).map(one).collect())
            .map_err(|error| Failure::io("starting threads", error))?;
        let rates: std::result::Result<f64, CopyError> = all.into_iter().sum();
        let failed = |_| Failure::Usage("the device failed while it was measured; check it".into());
        rates.map_err(failed)
    }

    /// GB/s of one thread.
    fn one_thread(
        &self,
        ground: &ProvingGround<'_>,
        case: &Case,
        thread: u64,
    ) -> std::result::Result<f64, CopyError> {
        let mut buffer = vec![thread as u8 | 1; case.bytes as usize];
        let begin = Instant::now();
        let mut bytes = 0;
        while begin.elapsed() < self.time {
            // A look at the clock costs as much as a short request.
            for _ in 0..(16384 / case.bytes).max(1) {
                match case.direction {
                    Direction::Write => store(ground, case, thread, &buffer)?,
                    Direction::Read => load(ground, case, thread, bytes, &mut buffer)?,
                }
                bytes += case.bytes;
            }
        }
        Ok(bytes as f64 / begin.elapsed().as_nanos() as f64)
    }
}

/// Makes stores to a mapping go out in pieces of 2 to the power of `power`, whoever stores.
fn cut(ground: &ProvingGround<'_>, power: u8) -> Result<()> {
    let geometry = Geometry {
        units: 1,
        max_objects: 1,
        lanes: 1,
    };
    let counted = Session::memory(geometry).map_err(|error| Failure::Usage(error.to_string()))?;
    let granularity = Granularity {
        policy: Policy::Calibrated,
        writes: PieceTable([[power; LENGTHS]; COUNTS]),
        ..Granularity::default()
    };
    ground
        .reserved
        .set_granularity(&granularity, counted.traffic(), 0);
    Ok(())
}

/// One request to a thread's own part of the reserved bytes; what is longer goes round in it.
fn store(
    ground: &ProvingGround<'_>,
    case: &Case,
    thread: u64,
    from: &[u8],
) -> std::result::Result<(), MediaFailed> {
    let all = ground.range.end.get() - ground.range.start.get();
    let part = all / u64::from(case.threads) / PAGE * PAGE;
    let at = ground.range.start.add(thread * part);
    let mut left = from;
    while !left.is_empty() {
        let (now, rest) = left.split_at(left.len().min(part as usize));
        let stored = ground.reserved.write(at, now, StoreKind::Data);
        if rest.is_empty() {
            ground.reserved.fence(stored)?;
        }
        left = rest;
    }
    Ok(())
}

/// One request for the data behind the `done` bytes that the thread has read, piece by piece.
fn load(
    ground: &ProvingGround<'_>,
    case: &Case,
    thread: u64,
    done: u64,
    to: &mut [u8],
) -> std::result::Result<(), CopyError> {
    let window = ground.data.len().min(WINDOW);
    let length = case.bytes.min(window);
    let places = window / length;
    let place = (done / length + thread * places / u64::from(case.threads)) % places;
    let start = ground.data.start().get() + place * length;
    let piece = if case.piece == 0 { length } else { case.piece };
    for skip in (0..length).step_by(piece as usize) {
        let end = (skip + piece).min(length);
        let to = UserBytesMut::from(&mut to[skip as usize..end as usize]);
        ground.data.read_user(DeviceOffset(start + skip), to)?;
    }
    Ok(())
}
