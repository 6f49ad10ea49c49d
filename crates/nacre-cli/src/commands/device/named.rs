//! Devices that somebody names.

use nacre_volume::CopyInfo;
use std::fs;
use std::path::{Path, PathBuf};

/// The device that somebody names.
pub fn find<'c>(copies: &'c [CopyInfo], named: &Path) -> Option<&'c CopyInfo> {
    let number = named.to_str().and_then(|text| text.parse::<usize>().ok());
    let mut copies = copies.iter();
    copies.find(|copy| is_at(copy, named) || Some(copy.index) == number)
}

/// Whether a copy is at a path.
pub fn is_at(copy: &CopyInfo, named: &Path) -> bool {
    let absolute = std::path::absolute(named);
    let is_it = |real: PathBuf| fs::canonicalize(&copy.path).is_ok_and(|path| path == real);
    copy.path == named
        || absolute.is_ok_and(|absolute| copy.path == absolute)
        || fs::canonicalize(named).is_ok_and(is_it)
}

#[cfg(test)]
mod tests {
    use super::{find, fs};
    use nacre_types::Uuid;
    use nacre_volume::{CopyInfo, LegState};

    #[test]
    fn a_device_is_found_by_each_name_that_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        fs::write(&path, "").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("device", &link).unwrap();
        let copy = CopyInfo {
            index: 3,
            uuid: Uuid::random(),
            path: path.clone(),
            size: 0,
            state: LegState::Current,
            present: true,
            replaces: None,
        };
        let around = folder
            .path()
            .join("..")
            .join(folder.path().file_name().unwrap());
        for named in [path, link, around.join("device"), "3".into()] {
            let found = find(std::slice::from_ref(&copy), &named);
            assert!(found.is_some(), "{}", named.display());
        }
        for named in [folder.path().join("other"), "4".into()] {
            let found = find(std::slice::from_ref(&copy), &named);
            assert!(found.is_none(), "{}", named.display());
        }
    }
}
