//! Names in folders where everybody makes names, as `/tmp`.
//!
//! The kernel refuses what others may have put there if `fs.protected_symlinks`,
//! `fs.protected_regular` and `fs.protected_fifos` are set. Where they are not, we do.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Stat, stat, statat};
use rustix::io::Errno;

use crate::identity::one_user;
use crate::trust::ignores_checks;

const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;

/// Whether what stands under a name may have been put there by somebody else: in a folder with the
/// sticky bit that several may write, all that is neither the caller's, nor root's, nor of the
/// folder's owner; and a file that has other names, as anybody may have made this one.
///
/// What it answers for names of the caller's holds on: nobody else can take them away there.
pub fn may_be_of_others(path: &Path) -> Result<bool, Errno> {
    let doubtful = |found: &Stat, folder: &Stat| is_of_others(found, folder) || has_names(found);
    where_several_write(path, doubtful)
}

/// Whether it is a file with other names, where several may write: one of the caller's own that
/// somebody else has led this name to.
pub fn has_other_names(path: &Path) -> Result<bool, Errno> {
    where_several_write(path, |found, _| has_names(found))
}

fn where_several_write(
    path: &Path,
    doubtful: impl Fn(&Stat, &Stat) -> bool,
) -> Result<bool, Errno> {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => stat(parent)?,
        _ => stat(".")?,
    };
    let is_shared = folder.st_mode & STICKY != 0 && folder.st_mode & OTHERS_WRITE != 0;
    Ok(is_shared && doubtful(&found, &folder) && !ignores_checks())
}

fn is_of_others(found: &Stat, folder: &Stat) -> bool {
    let is_trusted = |uid| [0, folder.st_uid].contains(&uid) || one_user() == Some(uid);
    !is_trusted(found.st_uid)
}

fn has_names(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_nlink > 1
}
