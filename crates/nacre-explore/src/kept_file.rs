//! Files that stand for devices. Their pages are kept from one image to the next: to make them
//! again costs more than to fill them.

use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::path::{Path, PathBuf};

use nacre_testkit::medium::{Difference, LINE};
use nacre_testkit::recorder::DEVICE;

/// Slices that the kernel takes at once.
const AT_ONCE: usize = 1024;

/// Gives a file these bytes, but for patches in order, each with its place; whatever it held and
/// wherever it was.
pub fn fill<'b>(
    path: &Path,
    bytes: &'b [u8],
    patches: impl Iterator<Item = (usize, &'b [u8])>,
) -> io::Result<()> {
    let _is_back = fs::rename(away(path), path);
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    file.set_len(bytes.len() as u64)?;
    for some in pieces(bytes, patches).chunks(AT_ONCE) {
        let len: usize = some.iter().map(|piece| piece.len()).sum();
        if file.write_vectored(some)? < len {
            return Err(io::ErrorKind::StorageFull.into());
        }
    }
    Ok(())
}

/// As [`fill`], of one of several devices, with what an image of all has in other lines.
pub fn fill_device(path: &Path, bytes: &[u8], image: &Difference, device: usize) -> io::Result<()> {
    let per_device = DEVICE / LINE as u64;
    let first = device as u64 * per_device;
    let lines = image.range(first..first + per_device);
    let lines = lines.map(|(number, line)| ((number - first) as usize * LINE, &line[..]));
    fill(path, bytes, lines)
}

fn pieces<'b>(
    bytes: &'b [u8],
    patches: impl Iterator<Item = (usize, &'b [u8])>,
) -> Vec<IoSlice<'b>> {
    let (mut pieces, mut end) = (Vec::new(), 0);
    for (at, patch) in patches {
        pieces.extend([IoSlice::new(&bytes[end..at]), IoSlice::new(patch)]);
        end = at + patch.len();
    }
    pieces.push(IoSlice::new(&bytes[end..]));
    pieces
}

/// Nobody finds the file until it is filled again.
pub fn take_away(path: &Path) -> io::Result<()> {
    fs::rename(path, away(path))
}

fn away(path: &Path) -> PathBuf {
    path.with_extension("away")
}
