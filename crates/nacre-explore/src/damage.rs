//! Damage that no crash makes: bits that flip in metadata. It must never be taken for truth.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nacre_fs::Fs;
use nacre_store::WriteMode;
use nacre_store::check::check;
use nacre_store::structure_index::{Part, Structure, reseal, survey};
use nacre_types::{StoreKind, VolumeOffset, crc32c_append};

use crate::bench::Bench;
use crate::judge::examine;
use crate::visible::{Visible, look};
use crate::workload::{SEED, Worlds};
use nacre_testkit::medium::{Difference, LINE, Line};
use nacre_testkit::random::mix;

const LINES_PER_UNIT: u64 = 4096 / LINE as u64;
/// Words of an onode that its checksum covers though they check themselves.
const TWICE_CHECKED: [usize; 2] = [128, 136];

/// What was damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Bits flipped, one after the other.
    pub bits: u64,
    /// Of them: refused, or reported as a problem.
    pub noticed: u64,
}

/// What became of a damaged pool.
enum Fate {
    /// Not attached.
    Refused,
    /// Attached with problems.
    Quarantined,
    /// Some of it cannot be seen.
    Failed,
    /// All of it can be seen.
    Seen(Visible),
}

/// One bit of a line.
#[derive(Clone, Copy)]
struct Flip {
    line: u64,
    bit: usize,
}

/// Flips a bit in every word of every metadata line in use; the first that is taken for truth is an
/// error.
pub fn run(worlds: &Worlds, damage: &mut Damage) -> Result<(), String> {
    flip_metadata(worlds, damage)?;
    flip_in_use(worlds, damage)?;
    flip_snapshot(worlds, damage)
}

fn flip_metadata(worlds: &Worlds, damage: &mut Damage) -> Result<(), String> {
    let mut bench = Bench::new(Arc::clone(&worlds.alone))?;
    let (Fate::Seen(expected), _) = fate(&mut bench, &Difference::new())? else {
        return Err("the sound pool is refused".into());
    };
    let parts = parts(&mut bench)?;
    let units = worlds.metadata.iter();
    for line in units.flat_map(|unit| unit * LINES_PER_UNIT..(unit + 1) * LINES_PER_UNIT) {
        for flip in flips(&bench, line) {
            damage.bits += 1;
            let part = part_at(&parts, flip.at());
            let image = flip.image(&bench);
            let (fate, found) = fate(&mut bench, &image)?;
            damage.noticed += u64::from(found);
            let covered = part.is_some_and(|part| is_covered(&bench, part, flip));
            judge(&fate, found, &expected, part, covered)
                .map_err(|why| format!("a flipped bit in line {:#x} {why}", line * LINE as u64))?;
        }
    }
    forge_words(&mut bench, &parts, damage)
}

/// What must be found, and what may be lost.
fn judge(
    fate: &Fate,
    found: bool,
    expected: &Visible,
    part: Option<&Part>,
    covered: bool,
) -> Result<(), &'static str> {
    let of = |what: fn(&Structure) -> bool| part.is_some_and(|part| what(&part.what));
    let superblock = of(|what| matches!(what, Structure::Superblock));
    let own = of(|what| {
        matches!(
            what,
            Structure::Onode
                | Structure::MapNode(..)
                | Structure::PartsNode(..)
                | Structure::TreeNode(..)
                | Structure::Value
        )
    });
    // Of two states the older one is no loss, and a record that is not whole never was.
    let optional = of(|what| matches!(what, Structure::State | Structure::Record(_)));
    match fate {
        Fate::Seen(seen) if seen != expected => Err("is taken for truth"),
        Fate::Failed | Fate::Refused | Fate::Quarantined if superblock => {
            Err("of the superblock: the other copy is no help")
        }
        Fate::Refused if own => Err("of one object keeps the whole pool from being attached"),
        Fate::Failed | Fate::Quarantined if !found => Err("is not found by check"),
        _ if covered && !optional && !found => Err("is not found by check, nor does it matter"),
        _ => Ok(()),
    }
}

/// Words that fail their own check under a checksum that is right.
fn forge_words(bench: &mut Bench, parts: &[Part], damage: &mut Damage) -> Result<(), String> {
    for part in parts.iter().filter(|part| part.what == Structure::Onode) {
        for word in TWICE_CHECKED {
            let mut onode = bench.bytes(part.at.0, part.len).to_vec();
            if onode[word..word + 8] == [0; 8] {
                continue;
            }
            onode[word + 7] ^= 1;
            seal_onode(&mut onode);
            damage.bits += 1;
            let lines = (part.at.0 / LINE as u64..).zip(onode.chunks_exact(LINE));
            let image = lines.filter_map(|(line, bytes)| Some((line, bytes.try_into().ok()?)));
            let (_, found) = fate(bench, &image.collect())?;
            if !found {
                return Err(format!("a forged word at {:#x} is not found", part.at.0));
            }
            damage.noticed += 1;
        }
    }
    Ok(())
}

/// Makes the checksum of an onode right (docs/layout.md).
fn seal_onode(onode: &mut [u8]) {
    let inline = u32::from_le_bytes([onode[164], onode[165], onode[166], onode[167]]);
    let crc = crc32c_append(inline, &onode[64..160]);
    let crc = match inline {
        0 => crc,
        used => crc32c_append(crc, &onode[192..192 + used as usize]),
    };
    onode[160..164].copy_from_slice(&crc.to_le_bytes());
}

/// While the pool is in use, and everything was found sound before: check looks again.
fn flip_in_use(worlds: &Worlds, damage: &mut Damage) -> Result<(), String> {
    let mut bench = Bench::new(Arc::clone(&worlds.alone))?;
    let parts = parts(&mut bench)?;
    let fs = bench.attach(&Difference::new(), WriteMode::Direct)?.fs;
    look(&fs)?;
    let units = worlds.metadata.iter();
    for line in units.flat_map(|unit| unit * LINES_PER_UNIT..(unit + 1) * LINES_PER_UNIT) {
        for flip in flips(&bench, line) {
            let Some(part) = part_at(&parts, flip.at()) else {
                continue;
            };
            let looked_at = matches!(
                part.what,
                Structure::Onode
                    | Structure::MapNode(..)
                    | Structure::PartsNode(..)
                    | Structure::TreeNode(..)
            );
            if !looked_at || !is_covered(&bench, part, flip) {
                continue;
            }
            damage.bits += 1;
            put(&fs, line, &flip.of(&bench.line(line)));
            let found = check(fs.store(), &mut |_| {}).problems.len();
            put(&fs, line, &bench.line(line));
            if found == 0 {
                let (what, at) = (part.what, flip.at());
                return Err(format!(
                    "check does not find a bit that flips in use: {what:?} at {at:#x}"
                ));
            }
            damage.noticed += 1;
        }
    }
    bench.take_back(fs, &[]);
    Ok(())
}

fn put(fs: &Fs, line: u64, bytes: &Line) {
    let volume = fs.store().volume();
    let at = VolumeOffset(line * LINE as u64);
    volume
        .fence(volume.write(at, bytes, StoreKind::Data))
        .expect("a device that does not fail");
}

/// In the saved allocation state: the pool must come up as if it had not been saved.
fn flip_snapshot(worlds: &Worlds, damage: &mut Damage) -> Result<(), String> {
    let mut bench = Bench::new(Arc::clone(&worlds.clean))?;
    let lines = worlds.clean.chunks(LINE).zip(worlds.alone.chunks(LINE));
    let changed: Vec<u64> = (0..)
        .zip(lines)
        .filter(|(_, (clean, before))| clean != before)
        .map(|(number, _)| number)
        .collect();
    let saved = snapshot_area(&mut bench)?;
    for line in changed {
        for flip in flips(&bench, line) {
            damage.bits += 1;
            let image = flip.image(&bench);
            let fs = bench.attach(&image, WriteMode::Direct)?.fs;
            let rebuilt = fs.store().report().rebuilt;
            damage.noticed += u64::from(rebuilt);
            let sound = examine(&fs);
            bench.take_back(fs, &[]);
            let at = flip.at();
            sound.map_err(|why| format!("a flipped bit in line {at:#x} is trusted: {why}"))?;
            if saved.contains(&at) && !rebuilt {
                return Err(format!(
                    "a flipped bit of the allocator snapshot at {at:#x} is trusted"
                ));
            }
        }
    }
    Ok(())
}

/// Where a pool that was left in order has its allocator snapshot.
fn snapshot_area(bench: &mut Bench) -> Result<std::ops::Range<u64>, String> {
    let lines = (
        bench.line(4096 / LINE as u64),
        bench.line(6144 / LINE as u64),
    );
    let word = |line: &Line, at: usize| line[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let newer = match word(&lines.0, 8) > word(&lines.1, 8) {
        true => lines.0,
        false => lines.1,
    };
    let start = word(&newer, 40) * 4096;
    match start {
        0 => Err("no area was saved".into()),
        _ => Ok(start..start + word(&newer, 48)),
    }
}

impl Flip {
    fn at(self) -> u64 {
        self.line * LINE as u64 + self.bit as u64 / 8
    }

    fn of(self, line: &Line) -> Line {
        let mut flipped = *line;
        flipped[self.bit / 8] ^= 1 << (self.bit % 8);
        flipped
    }

    fn image(self, bench: &Bench) -> Difference {
        Difference::from([(self.line, self.of(&bench.line(self.line)))])
    }
}

/// One bit of each word of a line, any bit and two low ones, which leave a plausible number; none
/// of an empty line.
fn flips(bench: &Bench, line: u64) -> Vec<Flip> {
    let empty = bench.line(line) == [0; LINE];
    let words = if empty { 0 } else { LINE / 8 };
    let flips = (0..words).flat_map(|word| {
        let any = mix(line * 8 + word as u64);
        [any % 64, any % 3, 3 + any % 8].map(|bit| word * 64 + bit as usize)
    });
    flips.map(|bit| Flip { line, bit }).collect()
}

/// All structures of the pool, by place.
fn parts(bench: &mut Bench) -> Result<Vec<Part>, String> {
    let fs = bench.attach(&Difference::new(), WriteMode::Direct)?.fs;
    let mut parts = survey(fs.store());
    bench.take_back(fs, &[]);
    parts.sort_by_key(|part| part.at);
    Ok(parts)
}

fn part_at(parts: &[Part], at: u64) -> Option<&Part> {
    let behind = parts.partition_point(|part| part.at.0 <= at);
    let part = parts.get(behind.checked_sub(1)?)?;
    (at < part.at.0 + part.len).then_some(part)
}

/// Whether a check of the structure covers the bit.
fn is_covered(bench: &Bench, part: &Part, flip: Flip) -> bool {
    let mut bytes = bench.bytes(part.at.0, part.len).to_vec();
    bytes[(flip.at() - part.at.0) as usize] ^= 1 << (flip.bit % 8);
    let flipped = bytes.clone();
    reseal(part, &mut bytes, SEED);
    bytes != flipped
}

/// What becomes of an image, and whether the attachment or `check` finds something.
fn fate(bench: &mut Bench, image: &Difference) -> Result<(Fate, bool), String> {
    let fs = match bench.attach(image, WriteMode::Direct) {
        Ok(attached) => attached.fs,
        Err(why) if why.contains("panics") => return Err(why),
        Err(_) => return Ok((Fate::Refused, true)),
    };
    let problems = fs.store().report().problems > 0;
    let looked = catch_unwind(AssertUnwindSafe(|| {
        (look(&fs), check(fs.store(), &mut |_| {}).problems.len())
    }));
    bench.take_back(fs, &[]);
    let Ok((seen, found)) = looked else {
        return Err("check or a look at the pool panics".into());
    };
    Ok(match seen {
        _ if problems => (Fate::Quarantined, found > 0),
        Ok(seen) => (Fate::Seen(seen), found > 0),
        Err(_) => (Fate::Failed, found > 0),
    })
}
