//! The server dies, or comes and goes: nothing acknowledged is lost, and nothing is left.

use crate::commands::{nacre, text};
use crate::stage::Stage;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const WRITERS: usize = 3;

/// Makes files and appends lines to one; counts what was acknowledged. Ends with the first error.
fn write_until_it_ends(mount: &Path, writer: usize, acknowledged: &AtomicUsize) {
    let log = mount.join(format!("log-{writer}"));
    for number in 0.. {
        let made = fs::write(
            mount.join(format!("f-{writer}-{number}")),
            number.to_string(),
        );
        let file = OpenOptions::new().append(true).create(true).open(&log);
        let logged = file.and_then(|mut file| writeln!(file, "{number:08}"));
        if made.is_err() || logged.is_err() {
            return;
        }
        acknowledged.store(number + 1, Ordering::SeqCst);
    }
}

/// Everything acknowledged is there; the last operation of a writer may be, too.
fn find_all(mount: &Path, writer: usize, acknowledged: usize) -> Result<(), String> {
    let log = fs::read_to_string(mount.join(format!("log-{writer}"))).unwrap_or_default();
    let lines: Vec<String> = log.lines().map(ToString::to_string).collect();
    if lines.len() < acknowledged || lines.len() > acknowledged + 1 {
        return Err(format!("{} lines of {acknowledged}", lines.len()));
    }
    for (number, line) in lines.iter().enumerate().take(acknowledged) {
        let found = fs::read_to_string(mount.join(format!("f-{writer}-{number}")));
        if found.as_ref().ok() != Some(&number.to_string()) {
            return Err(format!("file {number}: {found:?}"));
        }
        if *line != format!("{number:08}") {
            return Err(format!("line {number}: {line}"));
        }
    }
    Ok(())
}

fn signal(stage: &Stage, signal: Signal) {
    let servers = stage.servers();
    assert_eq!(servers.len(), 1, "{servers:?}");
    kill_process(Pid::from_raw(servers[0]).unwrap(), signal).unwrap();
}

#[test]
fn a_killed_server_has_lost_nothing_acknowledged() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let acknowledged: [AtomicUsize; WRITERS] = Default::default();
    thread::scope(|scope| {
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let mount = &stage.mount;
            scope.spawn(move || write_until_it_ends(mount, writer, acknowledged));
        }
        let enough = || acknowledged.iter().all(|n| n.load(Ordering::SeqCst) >= 50);
        while !enough() {
            thread::sleep(Duration::from_millis(1));
        }
        signal(&stage, Signal::KILL);
    });
    assert!(fs::metadata(&stage.mount).is_err());
    let dead = stage.mount_again(&[]);
    assert!(text(&dead).contains("served it died"), "{}", text(&dead));
    stage.unmount();
    assert!(!stage.is_mounted());
    let mounted = stage.mount_again(&[]);
    assert!(mounted.status.success(), "{}", text(&mounted));
    for (writer, acknowledged) in acknowledged.iter().enumerate() {
        let acknowledged = acknowledged.load(Ordering::SeqCst);
        assert_eq!(find_all(&stage.mount, writer, acknowledged), Ok(()));
    }
    // The canaries.
    let all = acknowledged[0].load(Ordering::SeqCst);
    assert!(find_all(&stage.mount, 0, all + 2).is_err());
    fs::write(stage.mount.join("f-0-7"), "8").unwrap();
    assert!(find_all(&stage.mount, 0, all).is_err());
    stage.unmount();
    stage.check();
}

#[test]
fn a_terminated_server_unmounts_and_leaves_the_pool() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    fs::write(stage.mount.join("file"), "x").unwrap();
    signal(&stage, Signal::TERM);
    while !stage.servers().is_empty() {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!stage.is_mounted());
    stage.check();
}

#[test]
fn a_terminated_server_serves_who_still_uses_it() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    fs::write(stage.mount.join("file"), "x").unwrap();
    let open = File::open(stage.mount.join("file")).unwrap();
    signal(&stage, Signal::TERM);
    while stage.is_mounted() {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(std::io::read_to_string(&open).unwrap(), "x");
    drop(open);
    while !stage.servers().is_empty() {
        thread::sleep(Duration::from_millis(5));
    }
    stage.check();
}

#[test]
fn mounts_come_and_go_without_a_trace() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    for round in 0..20 {
        fs::write(stage.mount.join("round"), round.to_string()).unwrap();
        stage.unmount();
        assert!(!stage.is_mounted());
        let info = text(&nacre(stage.pool.folder(), &["info", "my.pool"]));
        assert!(info.contains("nobody"), "{info}");
        assert_eq!(stage.servers(), [0; 0]);
        let mounted = stage.mount_again(&[]);
        assert!(mounted.status.success(), "{}", text(&mounted));
        assert_eq!(
            fs::read(stage.mount.join("round")).unwrap(),
            round.to_string().as_bytes()
        );
    }
}
