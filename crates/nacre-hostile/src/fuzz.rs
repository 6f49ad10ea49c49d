//! Damage that a fuzzer chooses.

use std::sync::OnceLock;

use crate::canary::Trust;
use crate::drive::{Case, Tally};
use crate::pool::{Left, Prepared};

/// Damages a pool as the bytes say and tries everything; a finding is a panic, which is what a fuzzer understands.
///
/// The bytes: 1 which pool and how many changes; for each change 2 which part, 2 where in it, 1 how many, then what to put there.
pub fn try_bytes(bytes: &[u8], sealed: bool) {
    static POOLS: OnceLock<[Prepared; 2]> = OnceLock::new();
    let pools = POOLS.get_or_init(|| {
        [Left::Clean, Left::Crashed].map(|left| match Prepared::new(left) {
            Ok(prepared) => prepared,
            Err(why) => panic!("{why}"),
        })
    });
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let mut tally = Tally::default();
    let prepared = &pools[usize::from(first & 1)];
    let case = Case::new(prepared, 1, u64::from(*first), Trust::Nobody, &mut tally);
    if let Err(why) = case.run_bytes(rest, sealed) {
        panic!("{why}");
    }
}
