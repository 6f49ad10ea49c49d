//! Another user of the machine, who takes names that the commands of A are about to use. Only root
//! can play two users.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nacre_store::FormatOptions;
use nacre_testkit::built;
use nacre_testkit::pool::{PoolChoice, PoolFiles, own_format};
use nacre_volume::Volume;

const A: u32 = 60_302;
const B: u32 = 60_301;
const SECRET: &str = "the secret of A";

/// What B puts under a name, by a script; `$1` is the name.
const SQUATS: [&str; 9] = [
    "echo x >$1; chmod 0 $1",
    "echo x >$1; chmod 777 $1",
    "mkdir -m 0 $1",
    "mkdir -m 777 $1",
    "ln -s ~+/trap $1",
    "ln -s $OWN/victim $1",
    HARD_LINK,
    "mkfifo -m 0 $1",
    "mkfifo -m 777 $1",
];

/// Root does it in B's place, who could where `fs.protected_hardlinks` is 0.
const HARD_LINK: &str = "ln $OWN/victim $1";

/// Folders of A and B, and one in which everybody makes names, with a pool of A's in it.
struct Stage {
    files: PoolFiles,
}

impl Stage {
    fn new() -> Option<Stage> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can play two users");
            return None;
        }
        let format = FormatOptions {
            uid: A,
            gid: A,
            ..own_format()
        };
        let files = PoolFiles::make(&PoolChoice {
            devices: &["base/a.pool"],
            format,
            ..PoolChoice::default()
        });
        let stage = Stage { files };
        set_mode(stage.files.folder(), 0o755);
        for (name, mode, owner) in [("base", 0o1777, 0), ("a", 0o755, A), ("b", 0o755, B)] {
            let path = stage.path(name);
            fs::create_dir_all(&path).unwrap();
            give(&path, owner);
            set_mode(&path, mode);
        }
        fs::create_dir(stage.path("b/trap")).unwrap();
        set_mode(&stage.path("b/trap"), 0o777);
        give(&stage.path("base/a.pool"), A);
        set_mode(&stage.path("base/a.pool"), 0o644);
        fs::write(stage.path("a/victim"), SECRET).unwrap();
        give(&stage.path("a/victim"), A);
        set_mode(&stage.path("a/victim"), 0o600);
        // The build's own folder may be closed to A. What another test starts meanwhile must not
        // inherit a descriptor that writes it: nobody could execute it.
        let mut copies = Command::new("cp");
        copies.args([Path::new(env!("CARGO_BIN_EXE_nacre")), &stage.path("nacre")]);
        assert!(copies.status().unwrap().success());
        Some(stage)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.file(name)
    }

    fn run(&self, user: u32, script: &str) -> Output {
        let home = self.path(if user == B { "b" } else { "a" });
        let mut command = Command::new("bash");
        command
            .args(["-c", script])
            .uid(user)
            .gid(user)
            .current_dir(home);
        command
            .env("BASE", self.path("base"))
            .env("OWN", self.path("a"))
            .env("NACRE", self.path("nacre"))
            .env("NACRE_PRELOAD", built::library("libnacre_preload.so"))
            .env("NACRE_SESSION_DIR", self.path("base"))
            .env("XDG_CACHE_HOME", self.path("a"))
            .env_remove("NACRE_DEFAULT_POOL");
        command.output().unwrap()
    }

    /// A file, and a folder with one, in A's pool.
    fn fill(&self) {
        let fill = "$NACRE run --no-fuse --pool $BASE/a.pool -- \
            sh -c 'echo x >/nacre/f; mkdir /nacre/d; echo x >/nacre/d/inside'";
        let filled = self.run(A, fill);
        assert!(filled.status.success(), "{}", said(&filled));
    }

    fn squat(&self, name: &str, how: &str) {
        let user = if how.starts_with("ln $OWN") { 0 } else { B };
        let made = self.run(user, &format!("set -e; set -- $BASE/{name}; {how}"));
        assert!(made.status.success(), "{how}: {made:?}");
    }

    /// A pool of a user's as `--save-to` makes it on a disk.
    fn save(&self, user: u32, shown: &str, name: &str) {
        let made = self.run(user, &format!("$NACRE create --size 24M {shown}"));
        assert!(made.status.success(), "{}", said(&made));
        Volume::store_saved_every(&self.path(name), 5000).unwrap();
    }

    fn clear(&self, name: &str) {
        let path = self.path("base").join(name);
        let _gone = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
    }

    /// Whatever A's command did: A's other file is as before, and nothing is in B's trap.
    fn assert_nothing_leaked(&self, how: &str) {
        let victim = fs::read_to_string(self.path("a/victim")).unwrap();
        assert_eq!(victim, SECRET, "{how}");
        let trapped = fs::read_dir(self.path("b/trap")).unwrap().count();
        assert_eq!(trapped, 0, "{how}: something of A's is in B's trap");
    }
}

fn give(path: &Path, owner: u32) {
    lchown(path, Some(owner), Some(owner)).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// What A's command does, and the name that B has taken before.
const COMMANDS: [(&str, &str); 10] = [
    ("made", "timeout 20 $NACRE create --size 24M $BASE/made"),
    (
        "page",
        "timeout 20 $NACRE run --no-fuse --pool $BASE/a.pool --wear-html $BASE/page -- true",
    ),
    (
        "archive",
        "timeout 20 $NACRE export $BASE/a.pool:/ -o $BASE/archive",
    ),
    (
        "copied",
        "timeout 20 $NACRE cp $BASE/a.pool:/f $BASE/copied",
    ),
    ("tree", "timeout 20 $NACRE cp -r $BASE/a.pool:/d $BASE/tree"),
    ("nacre.1", "timeout 20 $NACRE man --all $BASE"),
    (
        "a.pool.wear",
        "timeout 20 $NACRE run --no-fuse --pool $BASE/a.pool --wear --keep -- true",
    ),
    (
        "a.pool.wear.new",
        "timeout 20 $NACRE run --no-fuse --pool $BASE/a.pool --wear --keep -- true",
    ),
    (
        "saved",
        "timeout 20 $NACRE run --no-fuse --size 24M --save-to $BASE/saved -- true",
    ),
    (
        "name",
        "timeout 20 $NACRE run --no-fuse --pool $BASE/name --save-to $OWN/saved -- true",
    ),
];

#[test]
fn names_that_commands_make_are_refused_if_somebody_else_took_them() {
    let Some(stage) = Stage::new() else {
        return;
    };
    stage.save(A, "$OWN/saved", "a/saved");
    stage.fill();
    for (name, command) in COMMANDS {
        // A folder takes what is copied into it.
        let is_copy = ["copied", "tree"].contains(&name);
        for how in SQUATS
            .into_iter()
            .filter(|how| !(is_copy && how.starts_with("mkdir")))
        {
            stage.squat(name, how);
            let output = stage.run(A, command);
            let told = said(&output);
            let has_run = name == "a.pool.wear.new";
            // A name for A's own file A can remove.
            let silent = has_run && how == HARD_LINK;
            // The status of `nacre run` is the program's, once that has run.
            let named = told.contains(name) || silent;
            assert!(named, "{command}, {how}: {told}");
            assert_eq!(output.status.success(), has_run, "{command}, {how}: {told}");
            assert!(!told.contains("panicked"), "{command}, {how}: {told}");
            stage.assert_nothing_leaked(how);
            stage.clear(name);
        }
    }
}

/// What a command without the checks would do is done by the shell.
#[test]
fn canary_a_command_that_follows_a_strangers_link_is_noticed() {
    let kernel = fs::read_to_string("/proc/sys/fs/protected_symlinks");
    let Some(stage) = Stage::new().filter(|_| kernel.is_ok_and(|set| set.trim() == "0")) else {
        eprintln!("skipped: the kernel refuses it by itself");
        return;
    };
    for how in ["ln -s $OWN/victim $1", "ln -s ~+/trap/x $1"] {
        stage.squat("page", how);
        stage.run(A, "echo page >$BASE/page");
        let noticed = std::panic::catch_unwind(|| stage.assert_nothing_leaked(how));
        assert!(noticed.is_err(), "{how}");
        stage.clear("page");
        fs::write(stage.path("a/victim"), SECRET).unwrap();
    }
}

#[test]
fn a_pool_that_somebody_else_put_where_one_is_saved_to_is_not_used() {
    let Some(stage) = Stage::new() else {
        return;
    };
    stage.save(B, "$BASE/saved", "base/saved");
    set_mode(&stage.path("base/saved"), 0o666);
    let run = "timeout 20 $NACRE run --no-fuse --save-to $BASE/saved -- true";
    let refused = stage.run(A, run);
    assert!(said(&refused).contains("--pool"), "{}", said(&refused));
    assert!(!refused.status.success());
    // A link of B's to one of A's may lead elsewhere the next moment.
    fs::rename(stage.path("base/saved"), stage.path("a/saved")).unwrap();
    give(&stage.path("a/saved"), A);
    set_mode(&stage.path("a/saved"), 0o600);
    stage.squat("saved", "ln -s $OWN/saved $1");
    let refused = stage.run(A, run);
    assert!(!refused.status.success(), "{}", said(&refused));
    // A's own link is followed.
    stage.clear("saved");
    let own = stage.run(A, &format!("ln -s $OWN/saved $BASE/saved; {run}"));
    assert!(own.status.success(), "{}", said(&own));
}

/// Commands that a link of B's would lead to another file of A's, or to a pool that B may change
/// the next moment.
const THROUGH_LINKS: [&str; 6] = [
    "$NACRE info $BASE/link",
    "$NACRE create --force --size 24M $BASE/link",
    "$NACRE delete --force $BASE/link",
    "$NACRE run --no-fuse --pool $BASE/link -- true",
    "$NACRE check $BASE/link",
    "$NACRE run --no-fuse --size 24M --save-to $BASE/link -- true",
];

#[test]
fn a_link_of_somebody_else_is_no_name_of_a_pool() {
    let Some(stage) = Stage::new() else {
        return;
    };
    let opens = |command: &str| stage.run(A, &format!("timeout 20 {command}"));
    for to in ["$BASE/a.pool", "$OWN/victim", "$OWN/missing"] {
        stage.squat("link", &format!("ln -s {to} $1"));
        for command in THROUGH_LINKS {
            let output = opens(command);
            let told = said(&output);
            assert!(
                !output.status.success() && told.contains("link"),
                "{command}: {told}"
            );
            stage.assert_nothing_leaked(command);
            assert!(stage.path("base/a.pool").exists() && !stage.path("a/missing").exists());
        }
        stage.clear("link");
    }
    // A's own link is followed.
    let own = opens("ln -s $BASE/a.pool $BASE/link; $NACRE check $BASE/link");
    assert!(own.status.success(), "{}", said(&own));
}

/// Files of A's own, which A did not mean.
#[test]
fn a_second_name_that_somebody_else_gave_a_file_is_no_place_for_a_pool() {
    let Some(stage) = Stage::new() else {
        return;
    };
    stage.save(A, "$OWN/saved", "a/saved");
    for (how, command) in [
        (HARD_LINK, "create --size 24M $BASE/second"),
        (HARD_LINK, "create --force --size 24M $BASE/second"),
        (
            "ln $OWN/saved $1",
            "run --no-fuse --save-to $BASE/second -- true",
        ),
    ] {
        stage.squat("second", how);
        let output = stage.run(A, &format!("timeout 20 $NACRE {command}"));
        let told = said(&output);
        let refused = !output.status.success() && told.contains("second: ");
        assert!(refused && told.contains("others may"), "{command}: {told}");
        stage.assert_nothing_leaked(command);
        stage.clear("second");
    }
    // The canary: without the second name it is used.
    let own = "timeout 20 $NACRE run --no-fuse --save-to $OWN/saved -- true";
    let own = stage.run(A, own);
    assert!(own.status.success(), "{}", said(&own));
}

#[test]
fn a_folder_or_link_of_somebody_else_is_no_place_to_mount_at() {
    let Some(stage) = Stage::new() else {
        return;
    };
    stage.run(A, "mkdir $OWN/empty; chmod 777 $OWN/empty");
    for how in ["mkdir -m 777 $1", "ln -s $OWN/empty $1", "ln -s ~+/trap $1"] {
        stage.squat("place", how);
        // As root, whom the system keeps from nothing.
        for command in [
            "mount $BASE/a.pool $BASE/place",
            "mount --cover $BASE/a.pool $BASE/place",
        ] {
            let output = stage.run(0, &format!("timeout 20 $NACRE {command}"));
            let told = said(&output);
            assert!(
                !output.status.success() && told.contains("place"),
                "{how}: {told}"
            );
        }
        stage.clear("place");
    }
    let mounted = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounted.contains(&*stage.files.folder().to_string_lossy()));
}

#[test]
fn a_folder_of_somebody_else_below_the_destination_takes_no_copies() {
    let Some(stage) = Stage::new() else {
        return;
    };
    stage.fill();
    stage.squat("d", "mkdir -m 777 $1");
    let copied = stage.run(A, "timeout 20 $NACRE cp -r $BASE/a.pool:/d $BASE");
    assert!(!copied.status.success() && said(&copied).contains("base/d"));
    stage.clear("d");
    // The canary: where nobody has taken the name, it is copied.
    let copied = stage.run(
        A,
        "timeout 20 $NACRE cp -r $BASE/a.pool:/d $BASE; cat $BASE/d/inside",
    );
    assert_eq!(said(&copied), "x\n");
}

#[test]
fn a_pool_is_deleted_whatever_somebody_else_put_beside_it() {
    for how in SQUATS {
        let Some(stage) = Stage::new() else {
            return;
        };
        stage.squat("a.pool.wear", how);
        let output = stage.run(A, "timeout 20 $NACRE delete --force $BASE/a.pool");
        assert!(output.status.success(), "{how}: {}", said(&output));
        assert!(!stage.path("base/a.pool").exists());
        stage.assert_nothing_leaked(how);
    }
}

/// Folders as pools have them, with sessions that B made up.
#[test]
fn a_list_of_pools_survives_sessions_that_somebody_else_made_up() {
    let Some(stage) = Stage::new() else {
        return;
    };
    let mut holder = Command::new("bash");
    holder
        .args(["-c", "exec $NACRE run --no-fuse --pool $BASE/a.pool -- bash -c 'touch $OWN/ready; read line; true'"])
        .uid(A)
        .gid(A)
        .current_dir(stage.path("a"))
        .env("BASE", stage.path("base"))
        .env("OWN", stage.path("a"))
        .env("NACRE", stage.path("nacre"))
        .env("NACRE_PRELOAD", built::library("libnacre_preload.so"))
        .env("NACRE_SESSION_DIR", stage.path("base"))
        .stdin(std::process::Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    while !stage.path("a/ready").exists() {
        assert!(holder.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let session = fs::read_dir(stage.path("base")).unwrap().flatten();
    let session = session
        .map(|entry| entry.path().join("session"))
        .find(|path| path.exists());
    let session = session.expect("a session");
    let fake = format!("nacre-{}-1-2", "01234567-89ab-cdef-0123-456789abcdef");
    stage.squat(&fake, "mkdir -m 755 $1");
    let bait = stage.path("base").join(&fake).join("session");
    let copied = Command::new("cp")
        .arg("--sparse=always")
        .args([&session, &bait])
        .status();
    assert!(copied.unwrap().success());
    give(&bait, B);
    let head = fs::read(&bait).unwrap()[..8192].to_vec();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed >> 33
    };
    let list = |what: &str| {
        let output = stage.run(A, "timeout -s KILL 20 $NACRE list --json");
        assert!(
            output.status.success() && said(&output).contains("a.pool"),
            "{what}: {output:?}"
        );
    };
    list("as it is");
    for round in 0..40 {
        use std::os::unix::fs::FileExt;
        let mut bytes = head.clone();
        for _ in 0..1 + random() % 4 {
            let at = random() as usize % (bytes.len() / 8) * 8;
            let worst = [u64::MAX, 0, 1 << 40, random()][random() as usize % 4];
            bytes[at..at + 8].copy_from_slice(&worst.to_le_bytes());
        }
        let file = fs::OpenOptions::new().write(true).open(&bait).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        list(&format!("round {round}"));
    }
    // Cut behind what says how long it is.
    let file = fs::OpenOptions::new().write(true).open(&bait).unwrap();
    let len = file.metadata().unwrap().len();
    std::os::unix::fs::FileExt::write_all_at(&file, &head, 0).unwrap();
    file.set_len(4096).unwrap();
    file.set_len(len).unwrap();
    list("cut");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
}
