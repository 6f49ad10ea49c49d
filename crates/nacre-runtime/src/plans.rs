//! Plans of the C library that an installation has made beside the library that uses them.

use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{self, CWD, FileType, Mode, OFlags};

use crate::trust::Trust;

const NAME: &str = "nacre-plans";

/// Where the plans of a library are.
pub fn plans_beside(library: &Path) -> PathBuf {
    library.with_file_name(NAME)
}

/// The plans beside a library, to be read, if root or the one user of this process has made them
/// and nobody else can change them. Whoever can put others there can put another library there.
pub fn installed_plans(library: &Path) -> Option<OwnedFd> {
    library.is_absolute().then_some(())?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = fs::openat(CWD, plans_beside(library), flags, Mode::empty()).ok()?;
    let found = fs::fstat(&file).ok()?;
    let plain = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    let alone = plain && found.st_nlink == 1 && Trust::user().ok()?.accepts(&found);
    alone.then_some(file)
}

#[cfg(test)]
mod tests {
    use super::{installed_plans, plans_beside};
    use rustix::process::geteuid;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::Path;

    #[test]
    fn only_what_nobody_else_can_have_made_or_can_change_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("library.so");
        let plans = plans_beside(&library);
        assert!(installed_plans(&library).is_none(), "none is there");
        fs::write(&plans, "plans").unwrap();
        for (mode, read) in [(0o644, true), (0o664, false), (0o646, false), (0o600, true)] {
            fs::set_permissions(&plans, Permissions::from_mode(mode)).unwrap();
            assert_eq!(installed_plans(&library).is_some(), read, "{mode:o}");
        }
        let other = folder.path().join("other");
        fs::hard_link(&plans, &other).unwrap();
        assert!(installed_plans(&library).is_none(), "it has another name");
        fs::remove_file(&plans).unwrap();
        symlink(&other, &plans).unwrap();
        assert!(installed_plans(&library).is_none(), "a link");
        fs::rename(&other, &plans).unwrap();
        assert!(installed_plans(&library).is_some());
        assert!(
            installed_plans(Path::new("library.so")).is_none(),
            "relative"
        );
        if geteuid().is_root() {
            chown(&plans, Some(4242), None).unwrap();
            assert!(installed_plans(&library).is_none(), "somebody else's");
        }
    }
}
