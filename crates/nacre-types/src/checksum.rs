//! Checksums and hashes. What they yield is part of the on-media format.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// CRC-32C (Castagnoli) of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C of the bytes that `crc` already covers followed by `bytes`.
///
/// `crc32c_append(crc32c(a), b) == crc32c(a ++ b)`; start with 0.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// 16-bit check of a 48-bit payload under a salt that tells its place or purpose.
#[inline]
pub const fn check16(payload: u64, salt: u64) -> u16 {
    let mut x = payload ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    x = (x ^ (x >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (x >> 48) as u16
}

/// 64-bit hash of a directory entry's name (XXH3 under the pool's seed).
#[inline]
pub fn name_hash(seed: u64, name: &[u8]) -> u64 {
    xxh3_64_with_seed(name, seed)
}

#[cfg(test)]
mod tests {
    use super::{check16, crc32c, crc32c_append, name_hash};

    #[test]
    fn crc32c_gives_the_standard_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn crc32c_of_parts_equals_crc32c_of_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
        for cut in [0, 1, 8, 63, 64, 255, 256, 1024, 4999, 5000] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(crc32c_append(crc32c(a), b), crc32c(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn check16_changes_with_every_payload_and_salt_bit() {
        let base = check16(0x1234_5678_9abc, 77);
        let payloads = (0..48).filter(|bit| check16(0x1234_5678_9abc ^ (1 << bit), 77) == base);
        let salts = (0..64).filter(|bit| check16(0x1234_5678_9abc, 77 ^ (1 << bit)) == base);
        assert_eq!(payloads.count() + salts.count(), 0);
    }

    #[test]
    fn name_hash_depends_on_the_seed() {
        assert_ne!(name_hash(1, b"name"), name_hash(2, b"name"));
        assert_ne!(name_hash(1, b"name"), name_hash(1, b"nama"));
    }
}
