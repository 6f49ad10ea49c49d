//! What the kernel says of a ring.

/// `struct io_uring_params`, in words of 32 bits.
pub type Parameters = [u32; 30];

/// Offset at which a ring is mapped.
pub const RING_AT: usize = 0;
/// That of its requests.
pub const REQUESTS_AT: usize = 0x1000_0000;
