//! The words that processes change at the same time: 64 units of the bitmap, references of four.
//!
//! Every change is one atomic operation. What is done here is tested under all schedules of its
//! loads and stores.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release};

use nacre_session::COUNTS_OF_WORD;

/// Units of a word.
pub(super) const WORD: u64 = 64;
/// A word whose units are all used.
pub(super) const FULL: u64 = u64::MAX;
/// Bits of a count of references.
const COUNT_BITS: u64 = 64 / COUNTS_OF_WORD;
/// 1 in each count of a word.
pub(super) const ONES: u64 = u64::MAX / u16::MAX as u64;

/// An atomic integer: the system's, or one whose accesses a test orders.
pub(super) trait Word<V> {
    fn load(&self, order: Ordering) -> V;
    fn store(&self, value: V, order: Ordering);
    fn compare_exchange(&self, old: V, new: V, done: Ordering, not: Ordering) -> Result<V, V>;
    fn compare_exchange_weak(&self, old: V, new: V, done: Ordering, not: Ordering) -> Result<V, V>;
    fn fetch_and(&self, mask: V, order: Ordering) -> V;
}

macro_rules! word {
    ($atomic:ty, $value:ty) => {
        impl Word<$value> for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> $value {
                self.load(order)
            }

            #[inline(always)]
            fn store(&self, value: $value, order: Ordering) {
                self.store(value, order);
            }

            #[inline(always)]
            fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                done: Ordering,
                not: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, done, not)
            }

            #[inline(always)]
            fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                done: Ordering,
                not: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange_weak(old, new, done, not)
            }

            #[inline(always)]
            fn fetch_and(&self, mask: $value, order: Ordering) -> $value {
                self.fetch_and(mask, order)
            }
        }
    };
}

word!(AtomicU64, u64);

/// `len` one bits from `shift` on; `shift + len <= 64`.
pub(super) fn mask(shift: u64, len: u64) -> u64 {
    if len >= WORD {
        FULL
    } else {
        ((1 << len) - 1) << shift
    }
}

/// Claims up to `limit` free bits that begin exactly at `shift`.
pub(super) fn claim(word: &impl Word<u64>, shift: u64, limit: u64) -> u64 {
    let mut old = word.load(Relaxed);
    loop {
        let free = u64::from((old >> shift).trailing_zeros()).min(limit);
        if free == 0 {
            return 0;
        }
        match word.compare_exchange_weak(old, old | mask(shift, free), AcqRel, Relaxed) {
            Ok(_) => return free,
            Err(now) => old = now,
        }
    }
}

/// Claims up to `want` free bits of words that begin exactly at bit `first` of all.
#[inline]
pub(super) fn claim_from(words: &[impl Word<u64>], first: u64, want: u64) -> u64 {
    let mut count = 0;
    while count < want {
        let at = first + count;
        let Some(word) = words.get((at / WORD) as usize) else {
            break;
        };
        let limit = (want - count).min(WORD - at % WORD);
        let got = claim(word, at % WORD, limit);
        count += got;
        if got < limit {
            break;
        }
    }
    count
}

/// Claims words that are wholly free, or nothing.
pub(super) fn claim_all(words: &[impl Word<u64>]) -> bool {
    if words.iter().any(|word| word.load(Relaxed) != 0) {
        return false;
    }
    for (done, word) in words.iter().enumerate() {
        if word.compare_exchange(0, FULL, AcqRel, Relaxed).is_err() {
            words[..done].iter().for_each(|mine| mine.store(0, Release));
            return false;
        }
    }
    true
}

/// Clears bits and returns how many were set.
pub(super) fn clear(word: &impl Word<u64>, mask: u64) -> u64 {
    let before = word.fetch_and(!mask, AcqRel);
    u64::from((before & mask).count_ones())
}

/// 1 in each of `len` counts from number `first` on: a set of counts of a word.
#[inline]
pub(super) fn ones(first: u64, len: u64) -> u64 {
    ONES >> (COUNT_BITS * (COUNTS_OF_WORD - len)) << (COUNT_BITS * first)
}

/// The number of the first count of a set.
pub(super) fn first_of(set: u64) -> u64 {
    u64::from(set.trailing_zeros()) / COUNT_BITS
}

/// Count number `index` of a word.
#[inline]
pub(super) fn count_of(word: u64, index: u64) -> u16 {
    (word >> (COUNT_BITS * index)) as u16
}

/// The set of the counts of a word that are not 0.
#[inline]
fn nonzero(word: u64) -> u64 {
    const LOW: u64 = ONES * 0x7fff;
    (((word & LOW) + LOW) | word) >> (COUNT_BITS - 1) & ONES
}

/// Adds a reference to each count of a set; `false` if one can count no more, and nothing changed.
pub(super) fn add_references(counts: &impl Word<u64>, set: u64) -> bool {
    let mut seen = counts.load(Acquire);
    while nonzero(!seen) & set == set {
        match counts.compare_exchange_weak(seen, seen + set, AcqRel, Acquire) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

/// Takes one extra reference away from each count of a set that has any; returns which had.
pub(super) fn take_references(counts: &impl Word<u64>, set: u64) -> u64 {
    let mut seen = counts.load(Acquire);
    loop {
        let had = nonzero(seen) & set;
        if had == 0 {
            return 0;
        }
        match counts.compare_exchange_weak(seen, seen - had, AcqRel, Acquire) {
            Ok(_) => return had,
            Err(now) => seen = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::BitAnd;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::Ordering;

    use shuttle::sync::Arc;
    use shuttle::sync::atomic::AtomicU64;
    use shuttle::thread;

    use super::{
        FULL, Word, add_references, claim, claim_all, clear, count_of, ones, take_references,
    };

    word!(AtomicU64, u64);

    /// A planted fault: what must be one operation is a load and a store.
    struct Torn<A>(A);

    impl<V: Copy + PartialEq + BitAnd<Output = V>, A: Word<V>> Word<V> for Torn<A> {
        fn load(&self, order: Ordering) -> V {
            self.0.load(order)
        }

        fn store(&self, value: V, order: Ordering) {
            self.0.store(value, order);
        }

        fn compare_exchange(&self, old: V, new: V, _: Ordering, _: Ordering) -> Result<V, V> {
            let seen = self.0.load(Ordering::SeqCst);
            if seen != old {
                return Err(seen);
            }
            self.0.store(new, Ordering::SeqCst);
            Ok(seen)
        }

        fn compare_exchange_weak(
            &self,
            old: V,
            new: V,
            done: Ordering,
            not: Ordering,
        ) -> Result<V, V> {
            self.compare_exchange(old, new, done, not)
        }

        fn fetch_and(&self, mask: V, _: Ordering) -> V {
            let seen = self.0.load(Ordering::SeqCst);
            self.0.store(seen & mask, Ordering::SeqCst);
            seen
        }
    }

    fn whole(value: u64) -> AtomicU64 {
        AtomicU64::new(value)
    }

    fn torn(value: u64) -> Torn<AtomicU64> {
        Torn(AtomicU64::new(value))
    }

    /// Does both at once, under all schedules; what they return goes to `judge` with the words.
    fn side_by_side<W: Send + Sync + 'static, T: Send + 'static>(
        make: impl Fn() -> W + Send + Sync + 'static,
        one: fn(&W) -> T,
        other: fn(&W) -> T,
        judge: fn(&W, T, T),
    ) {
        shuttle::check_dfs(
            move || {
                let words = Arc::new(make());
                let theirs = words.clone();
                let other = thread::spawn(move || other(&theirs));
                let first = one(&words);
                judge(&words, first, other.join().unwrap());
            },
            None,
        );
    }

    fn noticed(play: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(play)).is_err()
    }

    fn claims<W: Word<u64> + Send + Sync + 'static>(make: fn(u64) -> W) {
        let judge = |word: &W, first: u64, second: u64| {
            assert_eq!(first + second, 2, "units were handed out twice, or lost");
            assert_eq!(word.load(Ordering::SeqCst), 0b1111);
        };
        side_by_side(
            move || make(0b1100),
            |word| claim(word, 0, 2),
            |word| claim(word, 0, 1) + claim(word, 1, 1),
            judge,
        );
    }

    fn claims_beside_frees<W: Word<u64> + Send + Sync + 'static>(make: fn(u64) -> W) {
        let judge = |word: &W, claimed: u64, cleared: u64| {
            assert_eq!((claimed, cleared), (1, 2));
            assert_eq!(word.load(Ordering::SeqCst), 0b001, "bits of others changed");
        };
        side_by_side(
            move || make(0b110),
            |word| claim(word, 0, 1),
            |word| clear(word, 0b110),
            judge,
        );
    }

    fn claims_of_blocks<W: Word<u64> + Send + Sync + 'static>(make: fn(u64) -> W) {
        let judge = |words: &[W; 2], first: u64, second: u64| {
            assert!(first + second <= 1, "a block was handed out twice");
            let expected = if first == 1 { FULL } else { second };
            assert_eq!(words[1].load(Ordering::SeqCst), expected);
        };
        side_by_side(
            move || [make(0), make(0)],
            |words| u64::from(claim_all(words)),
            |words| claim(&words[1], 0, 1),
            judge,
        );
    }

    /// Takes a reference of the first count of a word; 1 if there was one.
    fn take_first<W: Word<u64>>(counts: &W) -> u64 {
        take_references(counts, ones(0, 1))
    }

    fn references<W: Word<u64> + Send + Sync + 'static>(make: fn(u64) -> W) {
        let judge = |count: &W, first: u64, second: u64| {
            assert_eq!(
                (first, second),
                (1, 1),
                "one of two references was taken twice"
            );
            assert_eq!(count.load(Ordering::SeqCst), 1);
        };
        side_by_side(
            move || make(2),
            take_first,
            |count| u64::from(add_references(count, ones(0, 1))) * take_first(count),
            judge,
        );
    }

    fn last_reference<W: Word<u64> + Send + Sync + 'static>(make: fn(u64) -> W) {
        side_by_side(
            move || make(1),
            take_first,
            take_first,
            |count, first, second| {
                assert_eq!(
                    first + second,
                    1,
                    "the last reference was taken twice, or by nobody"
                );
                assert_eq!(count.load(Ordering::SeqCst), 0);
            },
        );
    }

    /// Of four units, all get a reference while two others lose one, of which one has none.
    fn references_of_neighbours<W: Word<u64> + Send + Sync + 'static>(make: fn(u64) -> W) {
        side_by_side(
            move || make(0x0003_0001_0000_ffff),
            |counts| u64::from(add_references(counts, ones(1, 3))),
            |counts| take_references(counts, ones(0, 1) | ones(3, 1)),
            |counts, added, taken| {
                assert_eq!((added, taken), (1, ones(0, 1) | ones(3, 1)));
                let now = counts.load(Ordering::SeqCst);
                assert_eq!(
                    now, 0x0003_0002_0001_fffe,
                    "a neighbour's reference is lost"
                );
            },
        );
    }

    #[test]
    fn no_schedule_hands_a_unit_out_twice() {
        claims(whole);
        claims_of_blocks(whole);
    }

    #[test]
    fn no_schedule_of_claims_and_frees_loses_a_bit() {
        claims_beside_frees(whole);
    }

    #[test]
    fn no_schedule_loses_a_reference() {
        references(whole);
        last_reference(whole);
        references_of_neighbours(whole);
    }

    #[test]
    fn counts_of_a_word_do_not_touch_each_other() {
        const MOST: u64 = u16::MAX as u64;
        let some = [0, 1, 2, 0x7fff, 0x8000, 0x8001, MOST - 1, MOST];
        let sets = (0..4).flat_map(|first| (1..=4 - first).map(move |len| (first, len)));
        for (first, len) in sets {
            for pick in 0..some.len() * some.len() {
                let (one, other) = (some[pick % some.len()], some[pick / some.len()]);
                let before: [u64; 4] = std::array::from_fn(|at| [one, other, 0][(at + pick) % 3]);
                let packed = (0..)
                    .zip(before)
                    .map(|(at, count)| count << (16 * at))
                    .sum();
                let inside = |at: u64| at >= first && at < first + len;
                let full = (0..)
                    .zip(before)
                    .any(|(at, count)| inside(at) && count == MOST);
                let counts = std::sync::atomic::AtomicU64::new(packed);
                assert_eq!(add_references(&counts, ones(first, len)), !full);
                let now = counts.load(Ordering::Relaxed);
                for (at, count) in (0..).zip(before) {
                    let more = u64::from(inside(at) && !full);
                    assert_eq!(u64::from(count_of(now, at)), count + more);
                }
                counts.store(packed, Ordering::Relaxed);
                let had = take_references(&counts, ones(first, len));
                let now = counts.load(Ordering::Relaxed);
                for (at, count) in (0..).zip(before) {
                    let less = u64::from(inside(at) && count > 0);
                    assert_eq!(u64::from(count_of(had, at)), less);
                    assert_eq!(u64::from(count_of(now, at)), count - less);
                }
            }
        }
    }

    #[test]
    fn canary_a_claim_by_load_and_store_is_noticed() {
        assert!(noticed(|| claims(torn)));
    }

    #[test]
    fn canary_a_block_claimed_by_load_and_store_is_noticed() {
        assert!(noticed(|| claims_of_blocks(torn)));
    }

    #[test]
    fn canary_a_free_by_load_and_store_is_noticed() {
        assert!(noticed(|| claims_beside_frees(torn)));
    }

    #[test]
    fn canary_references_counted_by_load_and_store_are_noticed() {
        assert!(noticed(|| references(torn)));
        assert!(noticed(|| last_reference(torn)));
        assert!(noticed(|| references_of_neighbours(torn)));
    }
}
