//! How much memory the processes of a container or service may use.
//!
//! What is in shared memory counts for the control group (cgroup) of who touched it first. The
//! kernel kills the programs of a group whose limit is reached.

use std::fs;
use std::path::{Component, Path, PathBuf};

const GROUPS: &str = "/sys/fs/cgroup";
/// Version 1 shows a number near this one where nothing is limited.
const UNLIMITED: u64 = i64::MAX as u64 & !((1 << 20) - 1);

/// Files that limit memory, below a hierarchy that `/proc/self/cgroup` names so.
struct Hierarchy {
    controller: &'static str,
    root: &'static str,
    limits: &'static [&'static str],
}

/// Version 1; version 2; version 2 beside version 1.
const HIERARCHIES: [Hierarchy; 3] = [
    Hierarchy {
        controller: "memory",
        root: "memory",
        limits: &["memory.limit_in_bytes"],
    },
    Hierarchy {
        controller: "",
        root: "",
        limits: &["memory.max", "memory.high"],
    },
    Hierarchy {
        controller: "",
        root: "unified",
        limits: &["memory.max", "memory.high"],
    },
];

/// Bytes of memory that the control groups of this process allow, the least of all that are above
/// it. `None` if nothing limits them.
pub fn memory_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_of(&own, Path::new(GROUPS))
}

fn limit_of(own: &str, groups: &Path) -> Option<u64> {
    let limits = HIERARCHIES.iter().flat_map(|hierarchy| {
        let root = groups.join(hierarchy.root);
        let group = group_of(own, hierarchy.controller).unwrap_or_default();
        folders(&root, group).flat_map(|folder| {
            let files = hierarchy.limits.iter();
            files.filter_map(move |file| read(&folder.join(file)))
        })
    });
    limits.filter(|&bytes| bytes < UNLIMITED).min()
}

/// The group of a line `number:controllers:/group`.
fn group_of<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let named = controllers.split(',').any(|name| name == controller);
        named.then_some(group)
    })
}

/// The folders of a group and of all above it. In a container the group may have a name that only
/// the host knows; the container's own limit then stands in the root.
fn folders(root: &Path, group: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let parts = Path::new(group).components();
    let names = parts.filter(|part| matches!(part, Component::Normal(_)));
    let deepest = names.fold(root.to_path_buf(), |folder, name| folder.join(name));
    let depth = deepest.components().count() - root.components().count();
    let mut folder = Some(deepest);
    let up = std::iter::from_fn(move || {
        let this = folder.take()?;
        folder = this.parent().map(Path::to_path_buf);
        Some(this)
    });
    up.take(depth + 1)
}

/// The number in a file. `None` for `max`, and if there is no such file.
fn read(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::limit_of;
    use std::fs;
    use std::path::Path;

    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
        fs::write(file, text).expect("a file");
    }

    #[test]
    fn the_least_limit_above_a_process_counts() {
        let groups = tempfile::tempdir().expect("a folder");
        let root = groups.path();
        write(root, "system.slice/a.service/memory.max", "max\n");
        write(root, "system.slice/a.service/memory.high", "900\n");
        write(root, "system.slice/memory.max", "500\n");
        write(root, "other/memory.max", "7\n");
        assert_eq!(limit_of("0::/system.slice/a.service\n", root), Some(500));
        assert_eq!(limit_of("0::/system.slice\n", root), Some(500));
        assert_eq!(limit_of("0::/\n", root), None);
        assert_eq!(limit_of("", root), None);
    }

    #[test]
    fn version_1_shows_a_large_number_for_none() {
        let groups = tempfile::tempdir().expect("a folder");
        let root = groups.path();
        write(
            root,
            "memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        assert_eq!(limit_of("4:memory:/\n0::/\n", root), None);
        write(root, "memory/x/memory.limit_in_bytes", "300\n");
        assert_eq!(limit_of("4:cpu,memory:/x/y\n0::/\n", root), Some(300));
        assert_eq!(limit_of("4:cpu:/x/y\n", root), None);
    }

    #[test]
    fn a_container_finds_its_limit_in_the_root() {
        let groups = tempfile::tempdir().expect("a folder");
        write(groups.path(), "memory.max", "400\n");
        assert_eq!(limit_of("0::/docker/0123\n", groups.path()), Some(400));
        assert_eq!(limit_of("0::/../../up\n", groups.path()), Some(400));
    }
}
