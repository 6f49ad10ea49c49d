//! What the kernel keeps while nobody else uses the pool, and that it forgets it in time.

use crate::commands::{nacre, text};
use crate::sharing::Shell;
use crate::stage::Stage;
use rustix::fs::sendfile;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// So long is waited for the kernel to be let keep things, which takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);
const CALLS: u64 = 100;

/// How many requests the server has received so far, give or take a few.
fn requests(stage: &Stage) -> u64 {
    let servers = stage.servers();
    let [server] = servers.as_slice() else {
        panic!("{servers:?}");
    };
    let counts = fs::read_to_string(format!("/proc/{server}/io")).unwrap();
    let reads = counts.lines().find_map(|line| line.strip_prefix("syscr: "));
    reads.unwrap().parse().unwrap()
}

/// How many requests [`CALLS`] calls take.
fn requests_of(stage: &Stage, call: impl Fn()) -> u64 {
    let before = requests(stage);
    (0..CALLS).for_each(|_| call());
    requests(stage) - before
}

/// Waits until the kernel keeps what it is told; `false` where it never does.
pub fn is_kept(stage: &Stage, name: &Path) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if requests_of(stage, || drop(fs::metadata(name))) < CALLS / 2 {
            return true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    false
}

/// Whether this kernel can forget names and contents (Linux 6.6).
pub fn can_forget() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = release
        .split(['.', '-'])
        .map(|part| part.parse().unwrap_or(0));
    (parts.next(), parts.next()) >= (Some(6), Some(6))
}

fn mounted() -> Option<Stage> {
    can_forget().then(|| Stage::mounted(&[])).flatten()
}

#[test]
fn who_is_alone_asks_once() {
    let Some(stage) = mounted() else {
        return;
    };
    let at = |name: &str| stage.mount.join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/f"), "contents").unwrap();
    assert!(is_kept(&stage, &at("d/f")));
    let absent = requests_of(&stage, || assert!(!at("d/none").exists()));
    assert!(absent < CALLS / 2, "{absent}");
    let file = File::open(at("d/f")).unwrap();
    let mut seen = [0; 8];
    file.read_exact_at(&mut seen, 0).unwrap();
    let read = requests_of(&stage, || _ = file.read_at(&mut [0; 8], 0).unwrap());
    assert!(read < CALLS / 2, "{read}");
    drop(file);
    let opened = requests_of(&stage, || _ = fs::read(at("d/f")).unwrap());
    assert!(
        opened < 4 * CALLS,
        "to open, twice to close, and nothing to read: {opened}"
    );
    // What it does itself it knows.
    for round in 0..50 {
        fs::write(at("d/f"), format!("{round}")).unwrap();
        assert_eq!(fs::read_to_string(at("d/f")).unwrap(), format!("{round}"));
        let (from, to) = (at(&format!("d/{round}")), at(&format!("d/{}", round + 1)));
        if round == 0 {
            fs::write(&from, "moves").unwrap();
        }
        fs::rename(&from, &to).unwrap();
        assert!(!from.exists() && to.exists());
        fs::create_dir(&from).unwrap();
        assert!(from.is_dir());
        fs::remove_dir(&from).unwrap();
        assert!(!from.exists());
    }
    stage.unmount();
    stage.check();
}

#[test]
fn who_comes_finds_that_nothing_old_is_kept() {
    let Some(stage) = mounted() else {
        return;
    };
    let at = |name: &str| stage.mount.join(name);
    for folder in ["d", "e"] {
        fs::create_dir(at(folder)).unwrap();
    }
    for round in 0..3 {
        let name = |name: &str| at(&format!("d/{name}{round}"));
        let contents = [
            ("a", "old"),
            ("b", "gone soon"),
            ("c", "in e soon"),
            ("s", "old"),
        ];
        for (file, contents) in contents {
            fs::write(name(file), contents).unwrap();
        }
        fs::create_dir(name("folder")).unwrap();
        fs::write(name("folder").join("inside"), "inside").unwrap();
        assert!(is_kept(&stage, &name("a")));
        let all = ["a", "b", "c", "s"].map(|file| File::open(name(file)).unwrap());
        for file in &all {
            file.read_at(&mut [0; 100], 0).unwrap();
        }
        assert!(name("folder").join("inside").exists() && !name("new").exists());
        let mut shell = Shell::start(&stage);
        shell.say("cd /nacre/d");
        let changes = "echo -n new >aR; rm bR; mv cR ../e; mv folderR movedR; echo -n there >newR; \
                       echo -n new 1<>sR";
        shell.say(&changes.replace('R', &round.to_string()));
        // It asks for no attributes before.
        assert_eq!(sent(&all[3]), "new");
        assert_eq!(fs::read_to_string(name("a")).unwrap(), "new");
        assert_eq!(read(&all[0]), "new");
        assert!(!name("b").exists() && !name("c").exists() && !name("folder").exists());
        assert!(at(&format!("e/c{round}")).exists() && name("moved").join("inside").exists());
        assert_eq!(fs::read_to_string(name("new")).unwrap(), "there");
        // A file that was opened before is read again each time, however soon after.
        for number in 0..200 {
            shell.say(&format!("echo -n {number} >a{round}"));
            assert_eq!(read(&all[0]), number.to_string());
        }
        assert_eq!(read(&all[1]), "gone soon");
    }
    stage.unmount();
    stage.check();
}

fn sent(file: &File) -> String {
    let mut to = tempfile::tempfile().unwrap();
    sendfile(&to, file, Some(&mut 0), 100).unwrap();
    to.rewind().unwrap();
    io::read_to_string(to).unwrap()
}

fn read(file: &File) -> String {
    let mut seen = vec![0; 100];
    let len = file.read_at(&mut seen, 0).unwrap();
    String::from_utf8(seen[..len].to_vec()).unwrap()
}

/// Reads `shared` by its name, and by a file that stays open for a while, and makes names all the
/// time. What is read is never older than what was there when it began.
fn look(mount: &Path, me: usize, newest: &AtomicU64, ends: &AtomicBool) {
    let own = |number: u64| mount.join(format!("own-{me}-{number}"));
    fs::write(own(0), "").unwrap();
    for round in 0.. {
        let file = File::open(mount.join("shared")).unwrap();
        for _ in 0..20 {
            let least = newest.load(Ordering::SeqCst);
            // So that the kernel knows that it is missing, if it is.
            let _soon = mount.join(format!("made-{}", least + 1)).exists();
            let by_name = fs::read_to_string(mount.join("shared")).unwrap();
            let number: u64 = by_name.trim().parse().unwrap();
            assert!(number >= least, "{number} instead of {least}");
            assert!(mount.join(format!("made-{least}")).exists(), "{least}");
        }
        let least = newest.load(Ordering::SeqCst);
        let number: u64 = read(&file).trim().parse().unwrap();
        assert!(
            number >= least,
            "{number} instead of {least} by an open file"
        );
        fs::rename(own(round), own(round + 1)).unwrap();
        if ends.load(Ordering::SeqCst) {
            return;
        }
    }
}

#[test]
fn whoever_comes_and_goes_is_seen_at_once() {
    let Some(stage) = mounted() else {
        return;
    };
    fs::write(stage.mount.join("shared"), "0\n").unwrap();
    fs::write(stage.mount.join("made-0"), "").unwrap();
    let (newest, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for me in 0..3 {
            let (newest, ends, mount) = (&newest, &ends, &stage.mount);
            scope.spawn(move || look(mount, me, newest, ends));
        }
        // The threads above are not to outlive a failure.
        let changed = (1..=8).try_for_each(|number| change(&stage, &newest, number));
        ends.store(true, Ordering::SeqCst);
        changed.unwrap();
    });
    stage.unmount();
    stage.check();
}

/// Another process writes `shared` where it is, and makes a name.
fn change(stage: &Stage, newest: &AtomicU64, number: u64) -> Result<(), String> {
    // Long enough that the kernel keeps things, and now and then not.
    thread::sleep(Duration::from_millis(number % 4 * 700));
    let line = format!("echo {number} 1<>/nacre/shared; : >/nacre/made-{number}");
    let mut shell = Shell::start(stage);
    shell.say(&line);
    newest.store(number, Ordering::SeqCst);
    drop(shell);
    let info = nacre(stage.pool.folder(), &["info", "my.pool"]);
    match info.status.success() {
        true => Ok(()),
        false => Err(text(&info)),
    }
}
