//! Devices that somebody names.

use nacre_volume::CopyInfo;
use std::path::Path;

/// The device that somebody names.
pub fn find<'c>(copies: &'c [CopyInfo], named: &Path) -> Option<&'c CopyInfo> {
    let number = named.to_str().and_then(|text| text.parse::<usize>().ok());
    let mut copies = copies.iter();
    copies.find(|copy| is_at(copy, named) || Some(copy.index) == number)
}

/// Whether a copy is at a path.
pub fn is_at(copy: &CopyInfo, named: &Path) -> bool {
    let absolute = std::path::absolute(named);
    copy.path == named || absolute.is_ok_and(|absolute| copy.path == absolute)
}
