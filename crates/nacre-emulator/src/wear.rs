//! What the counters say: totals, amplification, inequality, lifetime.

use std::sync::atomic::Ordering::Relaxed;

use nacre_types::StoreKind;
use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, pread};

use crate::emulation::Emulation;
use crate::shared::DEVICES;

/// Counts of one granule that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granule {
    /// Its place: granules of all devices, side by side.
    pub number: u64,
    /// Writes by kind, in the order of [`StoreKind::ALL`].
    pub writes: [u32; 3],
}

impl Granule {
    /// Writes of all kinds.
    pub fn total(&self) -> u64 {
        self.writes.iter().map(|&writes| u64::from(writes)).sum()
    }
}

/// What was counted by kind, in the order of [`StoreKind::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Times that something was persisted.
    pub stores: [u64; 3],
    /// Bytes.
    pub bytes: [u64; 3],
    /// Cache lines of 64 bytes.
    pub lines: [u64; 3],
    /// Bytes that the cells of the modules wrote, by the buffer's model.
    pub cell_bytes: u64,
    /// Reads of more than a word.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
}

impl Totals {
    /// Bytes of lines flushed over bytes that the cells wrote; 1 if nothing was written.
    pub fn ewr(&self) -> f64 {
        let flushed: u64 = self.lines.iter().sum::<u64>() * 64;
        ratio(flushed as f64, self.cell_bytes as f64)
    }
}

/// What the counters of a pool say.
#[derive(Clone, PartialEq, Debug)]
pub struct Wear {
    /// Name of the profile.
    pub profile: String,
    /// Bytes of a granule.
    pub granularity: u64,
    /// Granules of the pool, 0 if they were not counted one by one.
    pub granules: u64,
    /// Those that were written, in order.
    pub written: Vec<Granule>,
    /// Altogether.
    pub totals: Totals,
    /// Seconds of use.
    pub seconds: f64,
    /// Writes that a cell bears, of the device that bears least; 0 for no limit.
    pub endurance: f64,
}

/// How unequally writes are spread over granules that were written.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Spread {
    /// Granules written.
    pub granules: u64,
    /// Their writes.
    pub writes: u64,
    /// Most writes of one.
    pub most: u64,
    /// Mean writes.
    pub mean: f64,
    /// Gini coefficient: 0 for equal, towards 1 for one that takes all.
    pub gini: f64,
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 1.0 }
}

impl Spread {
    /// Of these counts; zeros do not count. `2 * sum(i * x_i) / (n * sum(x)) - (n + 1) / n`, x
    /// ascending, i from 1.
    pub fn of(counts: impl Iterator<Item = u64>) -> Self {
        let mut counts: Vec<u64> = counts.filter(|&count| count > 0).collect();
        counts.sort_unstable();
        let (n, sum) = (counts.len() as f64, counts.iter().sum::<u64>());
        if counts.is_empty() {
            return Self::default();
        }
        let weighted: f64 = (1u64..)
            .zip(&counts)
            .map(|(place, &count)| place as f64 * count as f64)
            .sum();
        Self {
            granules: counts.len() as u64,
            writes: sum,
            most: counts.last().copied().unwrap_or(0),
            mean: sum as f64 / n,
            gini: (2.0 * weighted / (n * sum as f64) - (n + 1.0) / n).max(0.0),
        }
    }
}

impl Wear {
    /// The spread of one kind, or of all together.
    pub fn spread(&self, kind: Option<StoreKind>) -> Spread {
        Spread::of(self.written.iter().map(|granule| {
            kind.map_or_else(
                || granule.total(),
                |kind| u64::from(granule.writes[kind.index()]),
            )
        }))
    }

    /// Seconds until the granule that is written most wears out, if use goes on like this.
    pub fn lifetime(&self) -> Option<f64> {
        let most = self.spread(None).most;
        let known = self.endurance > 0.0 && most > 0 && self.seconds > 0.0;
        known.then(|| self.endurance / most as f64 * self.seconds)
    }
}

impl Emulation {
    /// What was counted so far. Others may go on meanwhile.
    pub fn wear(&self) -> Result<Wear, Errno> {
        let header = self.shared.header();
        let load =
            |of: &[std::sync::atomic::AtomicU64; 3]| of.each_ref().map(|word| word.load(Relaxed));
        let totals = &header.totals;
        let since = header.since_ns.load(Relaxed);
        let running = if since > 0 {
            crate::clock::now_ns().saturating_sub(since)
        } else {
            0
        };
        let name: Vec<u8> = header
            .name
            .iter()
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .take_while(|&byte| byte != 0)
            .collect();
        let devices = (header.devices.load(Relaxed) as usize).min(DEVICES);
        Ok(Wear {
            profile: String::from_utf8_lossy(&name).into_owned(),
            granularity: header.granularity.load(Relaxed),
            granules: header.used[..devices]
                .iter()
                .map(|used| used.load(Relaxed))
                .sum(),
            written: self.granules(devices)?,
            totals: Totals {
                stores: load(&totals.stores),
                bytes: load(&totals.bytes),
                lines: load(&totals.lines),
                cell_bytes: header.cell_bytes(),
                reads: totals.reads.load(Relaxed),
                read_bytes: totals.read_bytes.load(Relaxed),
            },
            seconds: (header.used_ns.load(Relaxed) + running) as f64 / 1e9,
            endurance: f64::from_bits(header.endurance.load(Relaxed)),
        })
    }

    /// The granules that were written, found by what of the file has memory. They are numbered
    /// without gaps between devices.
    fn granules(&self, devices: usize) -> Result<Vec<Granule>, Errno> {
        let header = self.shared.header();
        let mut found = std::collections::BTreeMap::new();
        for kind in StoreKind::ALL {
            let start = self.shared.counters_at(kind);
            let mut before = 0;
            for device in 0..devices {
                let [first, next] = [device, device + 1].map(|n| header.first[n].load(Relaxed));
                let from = start + first * 4;
                let to = start + next.min(self.shared.granules()) * 4;
                self.each_counter(from, to, |place, writes| {
                    let number = before + (place - from) / 4;
                    let granule: &mut [u32; 3] = found.entry(number).or_default();
                    granule[kind.index()] = writes;
                })?;
                before += header.used[device].load(Relaxed);
            }
        }
        let granule = |(number, writes)| Granule { number, writes };
        Ok(found.into_iter().map(granule).collect())
    }

    /// Calls `each` for every counter between two places of the file that is not zero.
    fn each_counter(
        &self,
        start: u64,
        end: u64,
        mut each: impl FnMut(u64, u32),
    ) -> Result<(), Errno> {
        let mut at = start;
        let mut bytes = vec![0; 1 << 16];
        while at < end {
            at = match seek(self.shared.fd(), SeekFrom::Data(at)) {
                // Before the first data there may be less than a counter's bytes of another page.
                Ok(data) => at.max(data & !3),
                Err(Errno::NXIO) => return Ok(()),
                Err(errno) => return Err(errno),
            };
            let want = (end.saturating_sub(at)).min(bytes.len() as u64) as usize;
            let got = pread(self.shared.fd(), &mut bytes[..want], at)? & !3;
            if got == 0 {
                return Ok(());
            }
            for (place, word) in (at..).step_by(4).zip(bytes[..got].as_chunks::<4>().0) {
                let writes = u32::from_le_bytes(*word);
                if writes > 0 {
                    each(place, writes);
                }
            }
            at += got as u64;
        }
        Ok(())
    }
}
