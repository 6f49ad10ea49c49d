//! Any bytes anywhere in any structure of a pool, through every door and through repair.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nacre_hostile::fuzz::try_bytes(bytes, false));
