//! Damage that no crash makes: bits that flip in metadata. It must never be taken for truth.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nacre_store::WriteMode;
use nacre_store::check::check;
use nacre_store::layout::SUPERBLOCK_AT;

use crate::bench::Bench;
use crate::judge::examine;
use crate::medium::{Difference, LINE, Line};
use crate::random::mix;
use crate::visible::{Visible, look};
use crate::workload::Worlds;

const LINES_PER_UNIT: u64 = 4096 / LINE as u64;

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
    /// Not attached, or attached with problems.
    Refused,
    /// Some of it cannot be seen.
    Failed,
    /// All of it can be seen.
    Seen(Visible),
}

/// Flips a bit in every word of every metadata line in use; the first that is taken for truth is an error.
pub fn run(worlds: &Worlds, damage: &mut Damage) -> Result<(), String> {
    flip_metadata(worlds, damage)?;
    flip_saved(worlds, damage)
}

fn flip_metadata(worlds: &Worlds, damage: &mut Damage) -> Result<(), String> {
    let mut bench = Bench::new(Arc::clone(&worlds.alone))?;
    let (Fate::Seen(expected), _) = fate(&mut bench, &Difference::new())? else {
        return Err("the sound pool is refused".into());
    };
    let units = worlds.metadata.iter();
    for number in units.flat_map(|unit| unit * LINES_PER_UNIT..(unit + 1) * LINES_PER_UNIT) {
        for image in flips(&bench, number) {
            damage.bits += 1;
            let (fate, found) = fate(&mut bench, &image)?;
            damage.noticed += u64::from(found);
            let at = number * LINE as u64;
            let superblock = SUPERBLOCK_AT.iter().any(|copy| copy.0 / 4096 == at / 4096);
            match &fate {
                Fate::Seen(seen) if *seen != expected => {
                    return Err(format!("a flipped bit in line {at:#x} is taken for truth"));
                }
                Fate::Failed | Fate::Refused if superblock => {
                    return Err(format!(
                        "a flipped bit in line {at:#x}: the other copy is no help"
                    ));
                }
                _ if !found && (superblock || !matches!(fate, Fate::Seen(_))) => {
                    return Err(format!("check does not find a flipped bit in line {at:#x}"));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// In the saved allocation state: the pool must come up as if it had not been saved.
fn flip_saved(worlds: &Worlds, damage: &mut Damage) -> Result<(), String> {
    let mut bench = Bench::new(Arc::clone(&worlds.clean))?;
    let lines = worlds.clean.chunks(LINE).zip(worlds.alone.chunks(LINE));
    let saved: Vec<u64> = (0..)
        .zip(lines)
        .filter(|(_, (clean, before))| clean != before)
        .map(|(number, _)| number)
        .collect();
    for number in saved {
        for image in flips(&bench, number) {
            damage.bits += 1;
            let fs = bench.attach(&image, WriteMode::Direct)?.fs;
            damage.noticed += u64::from(fs.store().report().rebuilt);
            let sound = examine(&fs);
            bench.take_back(fs, &[]);
            let at = number * LINE as u64;
            sound.map_err(|why| format!("a flipped bit in line {at:#x} is trusted: {why}"))?;
        }
    }
    Ok(())
}

/// Images of a line with one bit of one word flipped, any bit and two low ones, which leave a plausible number; none of
/// an empty line.
fn flips(bench: &Bench, number: u64) -> Vec<Difference> {
    let line = bench.line(number);
    let words = if line == [0; LINE] { 0 } else { LINE / 8 };
    let flips = (0..words).flat_map(|word| {
        let any = mix(number * 8 + word as u64);
        [(word, any % 64), (word, any % 3), (word, 3 + any % 8)]
    });
    flips
        .map(|(word, bit)| {
            let mut flipped: Line = line;
            flipped[word * 8 + bit as usize / 8] ^= 1 << (bit % 8);
            Difference::from([(number, flipped)])
        })
        .collect()
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
        _ if problems => (Fate::Refused, found > 0),
        Ok(seen) => (Fate::Seen(seen), found > 0),
        Err(_) => (Fate::Failed, found > 0),
    })
}
