//! Omaps that are read from their end.

use nacre_objects::{Pool, Transaction};
use nacre_testkit::pool::memory_pool;
use nacre_testkit::random::Random;

const C: &[u8] = b"c";
const O: &[u8] = b"o";

/// Keys of many leaves, long ones that begin alike, and such as are the beginning of others.
fn keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (0..3000u32)
        .map(|n| (n * 3).to_be_bytes().to_vec())
        .collect();
    for len in [999, 1000, 1001, 1002, 2000, 2001, 2500, 60_000] {
        for last in [0, 1, 2, 255] {
            keys.push([&vec![b'l'; len][..], &[last]].concat());
        }
        keys.push(vec![b'l'; len]);
        keys.push(vec![0; len]);
    }
    keys.sort();
    keys.dedup();
    keys
}

fn filled(keys: &[Vec<u8>]) -> Pool {
    let pool = Pool::of(memory_pool(64 << 20));
    let mut t = Transaction::new();
    t.create_collection(C).touch(C, O);
    for (number, key) in keys.iter().enumerate() {
        // Some lie elsewhere.
        let len = if number % 100 == 7 { 40_000 } else { 20 };
        t.set_omap(C, O, key, vec![number as u8; len]);
    }
    pool.commit(&t).unwrap();
    pool
}

#[test]
fn they_are_what_a_list_is_backwards() {
    let keys = keys();
    let pool = filled(&keys);
    let mut forwards = pool.omap_range(C, O, &[], usize::MAX).unwrap();
    forwards.reverse();
    assert!(pool.omap_back(C, O, &[], usize::MAX).unwrap() == forwards);
    assert_eq!(forwards.len(), keys.len());
    // From each key on, from what is just before and behind it, with limits.
    let mut random = Random::new(1, 0);
    for key in keys
        .iter()
        .rev()
        .step_by(7)
        .chain(keys.iter().filter(|key| key.len() > 500))
    {
        let behind = [&key[..], &[0]].concat();
        for end in [
            &key[..],
            &behind,
            &key[..key.len() - 1],
            &key[..key.len().min(1000)],
        ] {
            let limit = random.below(5) as usize;
            let found = pool.omap_back(C, O, end, limit).unwrap();
            let before = forwards
                .iter()
                .filter(|(key, _)| end.is_empty() || &key[..] < end);
            let wanted: Vec<_> = before.take(limit).cloned().collect();
            assert!(found == wanted, "{} bytes, {limit}", end.len());
        }
    }
}

#[test]
fn all_come_by_pieces_while_others_come_and_go() {
    let keys = keys();
    let pool = filled(&keys);
    let (first, rest) = (&keys[0], &keys[1..]);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..20 {
                let mut t = Transaction::new();
                for key in rest.iter().step_by(2) {
                    match round % 2 {
                        0 => t.remove_omap(C, O, key),
                        _ => t.set_omap(C, O, key, vec![round; 200]),
                    };
                }
                pool.commit(&t).unwrap();
            }
        });
        while !writer.is_finished() {
            let (mut end, mut found) = (Vec::new(), Vec::new());
            loop {
                let piece = pool.omap_back(C, O, &end, 97).unwrap();
                let Some((last, _)) = piece.last() else { break };
                end = last.clone();
                found.extend(piece.into_iter().map(|(key, _)| key));
            }
            assert!(found.is_sorted_by(|one, next| one > next));
            let stay = rest.iter().skip(1).step_by(2).chain([first]);
            let all = stay.filter(|key| found.binary_search_by(|f| key[..].cmp(f)).is_err());
            assert_eq!(all.count(), 0);
        }
    });
    let empty = Transaction::new();
    pool.commit(&empty).unwrap();
    pool.close().unwrap();
}

#[test]
fn nothing_is_nothing() {
    let pool = filled(&[]);
    assert_eq!(pool.omap_back(C, O, &[], 9).unwrap(), []);
    assert_eq!(pool.omap_back(C, O, b"x", 9).unwrap(), []);
    assert!(pool.omap_back(C, b"nobody", &[], 9).is_err());
    assert!(pool.omap_back(C, O, &[1; 70_000], 9).is_err());
}
