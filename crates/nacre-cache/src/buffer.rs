//! Memory that direct I/O takes, used again and again.

use crate::layout::BLOCK;

const ALIGNMENT: usize = BLOCK as usize;
/// Longer buffers grow by so much, shorter ones to twice their size.
const STEP: usize = 1 << 20;

/// Bytes that begin at an address which direct I/O takes. Its memory is kept, as fresh memory
/// costs a page fault for each page.
#[derive(Debug, Default)]
pub struct Buffer {
    memory: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Buffer {
    /// From now on it has `len` bytes; what is in them is left over from earlier uses.
    pub fn set_len(&mut self, len: usize) {
        if self.memory.len() < self.skip + len || self.memory.is_empty() {
            self.memory = vec![0; rounded(len) + ALIGNMENT];
            self.skip = self.memory.as_ptr().align_offset(ALIGNMENT);
        }
        self.len = len;
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.skip..self.skip + self.len]
    }

    /// Its bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.skip..self.skip + self.len]
    }

    /// How much memory it keeps.
    pub fn kept(&self) -> usize {
        self.memory.len()
    }
}

fn rounded(len: usize) -> usize {
    match len {
        STEP.. => len.next_multiple_of(STEP),
        _ => len.next_power_of_two().max(ALIGNMENT),
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, Buffer};

    #[test]
    fn bytes_begin_where_direct_io_wants_them_and_keep_their_memory() {
        let mut buffer = Buffer::default();
        for len in [0, 1, 4096, 40_000, 3, 65_536] {
            buffer.set_len(len);
            assert_eq!(buffer.bytes().len(), len);
            assert_eq!(buffer.bytes().as_ptr().addr() % ALIGNMENT, 0);
        }
        let before = (buffer.bytes().as_ptr(), buffer.kept());
        buffer.set_len(17);
        assert_eq!((buffer.bytes().as_ptr(), buffer.kept()), before);
    }
}
