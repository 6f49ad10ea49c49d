//! Mounts below a pool that are made by programs which are not served (gocryptfs). Those that are
//! served go past them, into the pool itself, so that what was to be encrypted is not: their user
//! is told.

use nacre_types::mount_table;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;

const TABLE: &str = "/proc/self/mountinfo";

/// What nobody keeps files in, and what is mounted below another root (debootstrap).
const OF_THE_KERNEL: [&[u8]; 4] = [b"proc", b"sysfs", b"devpts", b"devtmpfs"];

/// Tells of each mount that appears below a pool which the kernel shows at `folder`, as long as it
/// does.
pub fn watch(folder: &Path) {
    let folder = folder.to_path_buf();
    // Whoever has no thread left is not told.
    let _told = thread::Builder::new().spawn(move || watch_until_gone(&folder));
}

fn watch_until_gone(folder: &Path) -> io::Result<()> {
    let changes = File::open(TABLE)?;
    let mut told = BTreeSet::new();
    loop {
        let table = fs::read(TABLE)?;
        if mount_table::find(&table, folder.as_os_str().as_bytes()).is_none() {
            return Ok(());
        }
        let found = hidden(&table, folder);
        for place in found.difference(&told) {
            eprintln!("nacre: {}", text(place, folder));
        }
        told = found;
        poll(&mut [PollFd::new(&changes, PollFlags::PRI)], None)?;
    }
}

fn hidden(table: &[u8], folder: &Path) -> BTreeSet<PathBuf> {
    let all = mount_table::all(table);
    let others = all.filter(|(_, kind)| !OF_THE_KERNEL.contains(kind));
    let places = others.map(|(at, _)| PathBuf::from(OsStr::from_bytes(&at)));
    places
        .filter(|at| at != folder && at.starts_with(folder))
        .collect()
}

fn text(place: &Path, folder: &Path) -> String {
    format!(
        "{}: something was mounted there that programs below `nacre run` do not see: what they write there goes to \
         the pool itself. Mount it outside of {}, or on a pool that `nacre mount` shows",
        place.display(),
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::hidden;
    use std::path::Path;

    #[test]
    fn what_others_mount_below_a_pool_is_found() {
        let table = br"30 1 0:30 / / rw - ext4 /dev/sda rw
36 35 0:42 / /p rw - fuse.nacre /my.pool rw,user_id=7
37 36 0:43 / /p/plain\040text rw - fuse.gocryptfs /p/enc rw,user_id=0
38 36 0:44 / /p/root/proc rw - proc proc rw
39 35 0:45 / /po rw - tmpfs x rw
";
        let found: Vec<_> = hidden(table, Path::new("/p")).into_iter().collect();
        assert_eq!(found, [Path::new("/p/plain text")]);
    }
}
