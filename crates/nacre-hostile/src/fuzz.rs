//! Damage that a fuzzer chooses.

use std::sync::OnceLock;

use crate::canary::Trust;
use crate::drive::Case;
use crate::pool::{POOLS, Prepared};
use crate::tally::Tally;

/// Damages a pool as the bytes say and tries everything; a finding is a panic, which is what a
/// fuzzer understands.
///
/// The bytes: 1 which pool and how many changes; for each change 2 which part, 2 where in it, 1 how
/// many, then what to put there.
pub fn try_bytes(bytes: &[u8], sealed: bool) {
    if let Err(why) = judge(bytes, sealed, Trust::Nobody) {
        panic!("{why}");
    }
}

/// An error is a finding.
fn judge(bytes: &[u8], sealed: bool, trust: Trust) -> Result<(), String> {
    static MADE: OnceLock<[Prepared; POOLS.len()]> = OnceLock::new();
    let pools = MADE.get_or_init(|| {
        POOLS.map(|(contents, left)| match Prepared::new(contents, left) {
            Ok(prepared) => prepared,
            Err(why) => panic!("{why}"),
        })
    });
    let Some((first, rest)) = bytes.split_first() else {
        return Ok(());
    };
    let mut tally = Tally::default();
    let prepared = &pools[usize::from(*first) % POOLS.len()];
    Case::new(prepared, 1, u64::from(*first), trust, &mut tally).run_bytes(rest, sealed)
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use nacre_testkit::random::Random;

    use super::judge;
    use crate::canary::Trust;

    /// Inputs as a fuzzer that knows nothing makes them.
    fn inputs() -> impl Iterator<Item = Vec<u8>> {
        (0..400).map(|number| {
            let mut random = Random::new(3, number);
            let len = 1 + random.below(40);
            (0..len).map(|_| random.below(256) as u8).collect()
        })
    }

    #[test]
    fn canary_a_reader_that_trusts_a_length_is_found_by_some_input() {
        let found = inputs().any(|bytes| {
            let judged = catch_unwind(|| judge(&bytes, true, Trust::Length));
            !matches!(judged, Ok(Ok(())))
        });
        assert!(found);
        for bytes in inputs().take(4) {
            assert_eq!(judge(&bytes, true, Trust::Nobody), Ok(()));
        }
    }

    #[test]
    fn canary_a_byte_that_changes_in_silence_is_found_by_some_input() {
        assert!(inputs().any(|bytes| judge(&bytes, false, Trust::Silent).is_err()));
    }
}
