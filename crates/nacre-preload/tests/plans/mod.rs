//! Plans that are kept are hints: whoever can write them makes nothing of it but that they are made
//! again.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use tempfile::TempDir;

use super::{Stage, compiled, under_library};

/// Where the sites of the first plan begin in the file, how long the room of each plan is, and a
/// site.
const DIRECTORY: usize = 256 * 32;
const ROOM: usize = 4096;
const SITE: usize = 12;
const OTHER: u32 = 4242;

/// Of one site.
type Change = fn(&mut [u8]);

struct Cache(TempDir);

impl Cache {
    fn new() -> Cache {
        Cache(TempDir::new().unwrap())
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("nacre")
    }

    fn file(&self) -> PathBuf {
        self.folder().join("plans")
    }

    fn read(&self) -> Vec<u8> {
        fs::read(self.file()).unwrap()
    }

    /// Runs something that uses the pool, with the plans of this cache.
    fn use_pool(&self, stage: &Stage) {
        let script = "echo one > /nacre/f; read one < /nacre/f; [ $one = one ]; rm /nacre/f";
        self.run(stage, "bash", &["-ec", script]);
    }

    fn run(&self, stage: &Stage, program: &str, arguments: &[&str]) {
        let mut command = under_library(program, arguments, &stage.mounts);
        let output = command.env("XDG_CACHE_HOME", self.0.path()).output();
        let output = output.unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
    }
}

/// Changes every site of every plan.
fn doctored(good: &[u8], change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bad = good.to_vec();
    for room in bad[DIRECTORY..].chunks_mut(ROOM) {
        let sites = room.chunks_exact_mut(SITE);
        sites.filter(|site| site[..4] != [0; 4]).for_each(&change);
    }
    assert!(bad != good);
    bad
}

/// The sites of all plans, in any order of the plans.
fn sites(file: &[u8]) -> Vec<&[u8]> {
    let mut rooms: Vec<&[u8]> = file[DIRECTORY..].chunks(ROOM).collect();
    rooms.sort_unstable();
    rooms
}

#[test]
fn a_plan_with_wrong_sites_is_made_again() {
    let (stage, cache) = (Stage::new(), Cache::new());
    cache.use_pool(&stage);
    let good = cache.read();
    cache.use_pool(&stage);
    // The canary: were plans not read at all, nothing below would show anything.
    assert!(cache.read() == good, "a good plan is used, not made again");
    let changes: [(&str, Change); 6] = [
        ("one byte on", |site| site[0] = site[0].wrapping_add(1)),
        ("far off", |site| site[1] ^= 0x10),
        ("another call", |site| site[4] = site[4].wrapping_add(1)),
        ("a longer window", |site| site[8] += 1),
        ("a shorter window", |site| site[8] -= 1),
        ("the call elsewhere", |site| site[9] += 1),
    ];
    for (what, change) in changes {
        fs::write(cache.file(), doctored(&good, change)).unwrap();
        cache.use_pool(&stage);
        assert!(sites(&cache.read()) == sites(&good), "{what}");
    }
}

#[test]
fn plans_of_others_are_neither_read_nor_changed() {
    let (stage, cache) = (Stage::new(), Cache::new());
    cache.use_pool(&stage);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bad = doctored(&cache.read(), |site| site[0] = site[0].wrapping_add(1));
    fs::write(cache.file(), &bad).unwrap();
    for place in [cache.file(), cache.folder()] {
        chown(&place, Some(OTHER), None).unwrap();
        cache.use_pool(&stage);
        assert!(cache.read() == bad, "{}", place.display());
        chown(&place, Some(0), None).unwrap();
    }
    cache.use_pool(&stage);
    assert!(cache.read() != bad, "one's own is read");
}

#[test]
fn who_is_two_users_at_once_has_no_plans() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let stage = Stage::new();
    let program = compiled(&stage, "other_user", "other_user", &[]);
    let flags = ["-DLIBRARY", "-DLARGE", "-shared", "-fPIC"];
    let library = compiled(&stage, "raw", "libraw.so", &flags);
    fs::set_permissions(stage.host(), Permissions::from_mode(0o755)).unwrap();
    stage.script("mkdir -m 777 /nacre/d; chmod 777 /nacre");
    let [program, library] = [program, library].map(|path| path.display().to_string());
    let other = OTHER.to_string();
    let both = [library.as_str(), &other];
    // Whoever is one user has some.
    for (arguments, kept) in [(&[both[0], both[1], "all"][..], true), (&both[..], false)] {
        let cache = Cache::new();
        fs::set_permissions(cache.0.path(), Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(cache.folder()).unwrap();
        chown(cache.folder(), Some(OTHER), None).unwrap();
        cache.run(&stage, &program, arguments);
        assert_eq!(cache.file().exists(), kept, "{arguments:?}");
    }
}
