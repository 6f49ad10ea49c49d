//! Reading contents of a pool's files from outside, compared with checksums if that is asked for.

use crate::commands::scrub::sentences;
use crate::failure::{Failure, Result, fs_failure};
use crate::output::harmless;
use crate::size;
use crate::tree_path::TreePath;
use nacre_fs::{Fs, InodeRef};
use nacre_store::scrub::Damage;
use nacre_types::FileOffset;
use nacre_volume::UserBytesMut;
use std::cell::Cell;
use std::path::Path;

/// Reads files of one pool.
pub struct Reader<'a> {
    fs: &'a Fs,
    pool: &'a Path,
    verifies: bool,
    /// Bytes that were read and have no checksum.
    unsealed: Cell<u64>,
}

impl<'a> Reader<'a> {
    /// Refuses to verify what has no checksums.
    pub fn new(fs: &'a Fs, pool: &'a Path, verifies: bool) -> Result<Reader<'a>> {
        let path = pool.display();
        if verifies && !fs.store().volume().has_copies() {
            return Err(Failure::Usage(format!(
                "{path}: is a pool without copies: its contents have no checksums; leave --verify out"
            )));
        }
        if verifies && !fs.store().is_writable() {
            return Err(Failure::Usage(format!(
                "{path}: --verify repairs what is damaged, and needs permission to write to the pool"
            )));
        }
        Ok(Reader {
            fs,
            pool,
            verifies,
            unsealed: Cell::new(0),
        })
    }

    /// Reads what fits from a byte on; 0 at the end.
    pub fn read(
        &self,
        node: InodeRef,
        at: u64,
        buffer: &mut [u8],
        place: &TreePath,
    ) -> Result<usize> {
        match self.verifies {
            true => self.read_verified(node, at, buffer, place),
            false => self.read_plainly(node, at, buffer, place),
        }
    }

    fn read_plainly(
        &self,
        node: InodeRef,
        at: u64,
        buffer: &mut [u8],
        place: &TreePath,
    ) -> Result<usize> {
        let to = UserBytesMut::from(buffer);
        let read = self.fs.read(node, FileOffset(at), to);
        read.map_err(fs_failure(place))
    }

    fn read_verified(
        &self,
        node: InodeRef,
        at: u64,
        buffer: &mut [u8],
        place: &TreePath,
    ) -> Result<usize> {
        let read = self.fs.read_verified(node, FileOffset(at), buffer);
        let (len, verified) = read.map_err(fs_failure(place))?;
        self.tell_repaired(&verified.repaired);
        self.unsealed.set(self.unsealed.get() + verified.unsealed);
        match verified.lost {
            Some(offset) if len == 0 => Err(Failure::Lost {
                file: place.to_string(),
                offset,
                pool: self.pool.to_owned(),
            }),
            _ => Ok(len),
        }
    }

    fn tell_repaired(&self, repaired: &[Damage]) {
        let repaired: Vec<&Damage> = repaired.iter().collect();
        for sentence in sentences(self.fs, &repaired) {
            eprintln!(
                "nacre: {}: {sentence}",
                harmless(&self.pool.display().to_string())
            );
        }
    }

    /// Says how much of what was read has no checksum.
    pub fn tell_unsealed(&self, what: &TreePath) {
        let bytes = self.unsealed.get();
        if bytes > 0 {
            let (size, pool) = (size::human(bytes), self.pool.display());
            eprintln!(
                "nacre: {what}: nothing vouches for {bytes} bytes ({size}): stored to since the last nacre scrub {}",
                harmless(&pool.to_string())
            );
        }
    }
}
