//! A process dies at each of its steps inside Nacre; who is left goes on, and nothing is lost.
//!
//! Short here; `cargo xtask torture --steps` dies at every step of every operation.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nacre_store::check::check;
use nacre_store::{FormatOptions, Store, WriteMode};
use nacre_testkit::pool::PoolFiles;
use nacre_volume::Access;

/// So many dead processes may wait until somebody recovers them all.
const MANY_DEAD: usize = 300;

/// What one run of tests/c/steps.c found.
#[derive(Default)]
struct Outcome {
    points: u64,
    longest_us: u64,
    scenarios: usize,
    leaked_units: u64,
    /// Empty if all went well.
    complaint: String,
}

/// The shared object of this build.
fn library() -> PathBuf {
    nacre_testkit::built::library("libnacre_preload.so")
}

fn compile(folder: &Path) -> PathBuf {
    let source = |name| {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/c")
            .join(name)
    };
    let build = |source: PathBuf, program: &Path, kind| {
        let compiled = Command::new("gcc")
            .args(["-O1", "-w", kind, "-o"])
            .args([program, &source])
            .status()
            .expect("gcc is needed for this test");
        assert!(compiled.success());
    };
    let program = folder.join("steps");
    build(source("steps.c"), &program, "-pthread");
    build(
        source("unserved.c"),
        &folder.join("steps-unserved"),
        "-static",
    );
    program
}

/// Runs the program, and checks the pool, in its live session, whenever it asks.
fn run(mode: WriteMode, arguments: &[&str]) -> Outcome {
    let options = FormatOptions {
        mode,
        ..FormatOptions::default()
    };
    let files = PoolFiles::with(&["pool"], 48 << 20, &options);
    let store = files.attach(Access::ReadWrite).unwrap();
    let mut child = Command::new(compile(files.folder()))
        .args(arguments)
        .env("LD_PRELOAD", library())
        .env("NACRE_MOUNTS", format!("/nacre={}", files.path().display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut outcome = attend(&mut child, &store);
    outcome.complaint += &complaint_of(child);
    store.reap(&mut |_| Ok(())).unwrap();
    store.detach().unwrap();
    if outcome.complaint.is_empty() {
        assert_nothing_is_left(&files);
    }
    outcome
}

fn attend(child: &mut Child, store: &Store) -> Outcome {
    let mut outcome = Outcome::default();
    let mut answers = child.stdin.take().unwrap();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["check"] => {
                let report = check(store, &mut |_| {});
                outcome.leaked_units = outcome.leaked_units.max(report.counts.leaked_units);
                // Else the dead would take all slots.
                if store.dead_slots().count() > MANY_DEAD {
                    store.reap(&mut |_| Ok(())).unwrap();
                }
                let answer = report.problems.first().map(ToString::to_string);
                let _gone = writeln!(answers, "{}", answer.unwrap_or_else(|| "ok".into()));
            }
            ["done", name, points, longest] => {
                println!("{name:>18} {points:>6} steps, longest wait of the survivor {longest} us");
                outcome.scenarios += 1;
                outcome.points += points.parse::<u64>().unwrap();
                outcome.longest_us = outcome.longest_us.max(longest.parse().unwrap());
            }
            _ => outcome.complaint += &line,
        }
    }
    outcome
}

/// What a failed child said, and how it ended. One that succeeded may have said whom it waited for.
fn complaint_of(mut child: Child) -> String {
    let mut text = String::new();
    let mut errors = child.stderr.take().unwrap();
    errors.read_to_string(&mut text).unwrap();
    let status = child.wait().unwrap();
    if status.success() {
        return String::new();
    }
    text + &status.to_string()
}

/// The scan of the next attach ends every leak.
fn assert_nothing_is_left(files: &PoolFiles) {
    let store = files.attach(Access::ReadWrite).unwrap();
    let report = check(&store, &mut |_| {});
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.counts.leaked_units, 0);
    store.detach().unwrap();
}

fn assert_survives(mode: WriteMode, arguments: &[&str]) -> Outcome {
    let outcome = run(mode, arguments);
    assert_eq!(outcome.complaint, "");
    println!(
        "{} operations, {} steps to die at, longest {} us, at most {} units leaked until the next attach",
        outcome.scenarios, outcome.points, outcome.longest_us, outcome.leaked_units
    );
    outcome
}

#[test]
fn a_survivor_goes_on_wherever_another_died() {
    let outcome = assert_survives(WriteMode::Direct, &["kill", "13", "1"]);
    assert!(outcome.scenarios > 30 && outcome.points > 100);
}

#[test]
fn a_parent_goes_on_wherever_a_child_in_its_memory_died() {
    let outcome = assert_survives(WriteMode::Direct, &["kill", "1", "1", "vfork", "beside"]);
    assert!(outcome.points > 40);
}

#[test]
fn nobody_waits_for_threads_that_an_exec_killed_inside() {
    use WriteMode::{Atomic, Direct};
    let operations = ["exec-threads", "exec-unserved", "exec-dies"];
    for (stride, operation) in ["7", "17", "29"].into_iter().zip(operations) {
        let outcome = assert_survives(Direct, &["kill", stride, "1", operation]);
        assert!(outcome.points > 5, "{operation}: {} steps", outcome.points);
    }
    assert_survives(Atomic, &["kill", "199", "1", "exec-dies"]);
}

#[test]
fn a_survivor_goes_on_after_another_was_stopped_and_killed() {
    let outcome = assert_survives(WriteMode::Atomic, &["stop", "29", "2"]);
    assert!(outcome.points > 50);
}

/// The operations of tests/c/steps.c, in parts that each end in minutes.
const PARTS: [&[&str]; 4] = [
    &[
        "create",
        "write",
        "write-small",
        "write-units",
        "write-gap",
        "append",
        "append-small",
        "allocate",
        "punch",
        "clone",
        "copy",
        "map",
    ],
    &[
        "rename",
        "rename-replacing",
        "rename-elsewhere",
        "rename-folder",
        "rename-exchange",
        "unlink",
        "unlink-open",
        "truncate-down",
        "truncate-up",
        "truncate-open",
        "mkdir",
        "rmdir",
        "link",
        "symlink",
        "symlink-long",
    ],
    &[
        "lock",
        "open",
        "list",
        "xattr",
        "chmod",
        "many-names",
        "fork",
        "spawn",
        "vfork",
        "beside",
    ],
    &["exec", "exec-threads", "exec-dies", "exec-unserved"],
];

fn assert_survives_every_step(mode: WriteMode, how: &str, part: usize) {
    let arguments = [&[how, "1", "1"], PARTS[part]].concat();
    assert_survives(mode, &arguments);
}

/// Tests that die at every step: one for each part of the operations.
macro_rules! every_step {
    ($($name:ident: $mode:ident $how:literal $part:literal,)*) => {$(
        #[test]
        #[ignore = "minutes: cargo xtask torture --steps"]
        fn $name() {
            assert_survives_every_step(WriteMode::$mode, $how, $part);
        }
    )*};
}

every_step! {
    every_step_of_contents_killed_in_direct_mode: Direct "kill" 0,
    every_step_of_names_killed_in_direct_mode: Direct "kill" 1,
    every_step_of_processes_killed_in_direct_mode: Direct "kill" 2,
    every_step_of_exec_killed_in_direct_mode: Direct "kill" 3,
    every_step_of_contents_killed_in_atomic_mode: Atomic "kill" 0,
    every_step_of_names_killed_in_atomic_mode: Atomic "kill" 1,
    every_step_of_processes_killed_in_atomic_mode: Atomic "kill" 2,
    every_step_of_exec_killed_in_atomic_mode: Atomic "kill" 3,
    every_step_of_contents_stopped_in_direct_mode: Direct "stop" 0,
    every_step_of_names_stopped_in_direct_mode: Direct "stop" 1,
    every_step_of_processes_stopped_in_direct_mode: Direct "stop" 2,
    every_step_of_exec_stopped_in_direct_mode: Direct "stop" 3,
    every_step_of_contents_stopped_in_atomic_mode: Atomic "stop" 0,
    every_step_of_names_stopped_in_atomic_mode: Atomic "stop" 1,
    every_step_of_processes_stopped_in_atomic_mode: Atomic "stop" 2,
    every_step_of_exec_stopped_in_atomic_mode: Atomic "stop" 3,
}

/// No operation may be forgotten in [`PARTS`], or be there twice.
#[test]
fn the_parts_are_all_operations() {
    let source = include_str!("c/steps.c");
    let table = source.split("} scenarios[] = {").nth(1).unwrap();
    let table = table.split("};").next().unwrap();
    let names = table
        .lines()
        .filter_map(|line| line.trim().strip_prefix("{\""));
    let mut named: Vec<&str> = names.map(|line| line.split('"').next().unwrap()).collect();
    let mut run = PARTS.concat();
    named.sort_unstable();
    run.sort_unstable();
    assert_eq!(named, run);
}

#[test]
fn canary_a_lost_operation_is_noticed() {
    let outcome = run(WriteMode::Direct, &["lie", "1", "1", "create"]);
    assert!(
        outcome.complaint.contains("acknowledged, state"),
        "{}",
        outcome.complaint
    );
}

#[test]
fn canary_a_hang_is_noticed() {
    let outcome = run(WriteMode::Direct, &["hang", "1", "1", "create"]);
    assert!(
        outcome.complaint.contains("SIGALRM"),
        "{}",
        outcome.complaint
    );
}
