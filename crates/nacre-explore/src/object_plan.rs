//! Transactions on objects made at random, for the long run.

use nacre_objects::Transaction;
use nacre_testkit::random::Random;

/// Another stream of random numbers than those of sequences.
const STREAM: u64 = 0x0b1ec7;
const OPERATIONS: u64 = 7;
const NAMES: [&[u8]; 7] = [b"a", b"b", b"small", b"kaaa", b"twin", b"new", b"newer"];
const KEYS: [&[u8]; 5] = [b"key", b"big", b"info", b"log.7", &[b'k'; 1300]];
/// Where writes begin, and how long they are: around the ends of pages and of the log's limit.
const PLACES: [u64; 7] = [0, 100, 1024, 4000, 4096, 8191, 600_000];
const LENGTHS: [usize; 7] = [1, 96, 1024, 1025, 4096, 5000, 20_000];
const VALUES: [usize; 5] = [0, 35, 293, 2000, 33_000];

/// The transaction of this number: it changes something, whatever the others are.
pub fn plan(seed: u64, number: u64) -> Transaction<'static> {
    let mut dice = Random::new(seed ^ STREAM, number);
    let mut t = Transaction::new();
    for step in 0..1 + dice.below(OPERATIONS) {
        let o = pick(&mut dice, &NAMES);
        t.touch(b"c", o);
        match dice.below(3) {
            0 => bytes(&mut t, o, &mut dice),
            1 => entries(&mut t, o, &mut dice),
            _ => object(&mut t, o, step, &mut dice),
        }
    }
    t.touch(b"c", b"b");
    t.set_omap(b"c", b"b", b"number", number.to_be_bytes().to_vec());
    t
}

fn pick<T: Copy>(dice: &mut Random, from: &[T]) -> T {
    from[dice.below(from.len() as u64) as usize]
}

fn filled(dice: &mut Random, lengths: &[usize]) -> Vec<u8> {
    vec![dice.below(256) as u8; pick(dice, lengths)]
}

fn bytes(t: &mut Transaction<'static>, o: &[u8], dice: &mut Random) {
    let at = pick(dice, &PLACES);
    match dice.below(4) {
        0 => t.truncate(b"c", o, at),
        1 => t.zero(b"c", o, at, pick(dice, &LENGTHS) as u64),
        _ => t.write(b"c", o, at, filled(dice, &LENGTHS)),
    };
}

fn entries(t: &mut Transaction<'static>, o: &[u8], dice: &mut Random) {
    let key = pick(dice, &KEYS);
    match dice.below(8) {
        0 => t.remove_omap(b"c", o, key),
        1 => t.clear_omap(b"c", o),
        2 => t.remove_omap_range(b"c", o, b"i", b"l"),
        3 => t.set_omap_header(b"c", o, filled(dice, &VALUES)),
        4 | 5 => t.set_attribute(b"c", o, b"_", filled(dice, &VALUES)),
        _ => t.set_omap(b"c", o, key, filled(dice, &VALUES)),
    };
}

/// `step` makes names that nothing has.
fn object(t: &mut Transaction<'static>, o: &[u8], step: u64, dice: &mut Random) {
    let fresh = [b"fresh", &step.to_be_bytes()[..]].concat();
    match dice.below(4) {
        0 => t.remove(b"c", o),
        1 => t.clone_object(b"c", o, &fresh),
        2 => t.rename((b"c", o), (b"empty", &fresh)),
        _ => {
            let to = PLACES[dice.below(3) as usize];
            let from = pick(dice, &PLACES);
            t.truncate(b"c", o, 30_000)
                .clone_range(b"c", o, from.min(8192)..20_000, &fresh, to)
        }
    };
}
