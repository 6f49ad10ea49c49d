//! Bytes of structures as the fuzzer likes, with right checksums behind them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nacre_hostile::fuzz::try_bytes(bytes, true));
