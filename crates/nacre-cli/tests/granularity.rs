//! The granularity of a pool, from one command to the next.

mod commands;

use std::path::Path;

use commands::{nacre, text};
use nacre_testkit::pool::{PoolFiles, own_format};

/// Runs a command that must succeed.
fn done(folder: &Path, arguments: &[&str]) -> String {
    let output = nacre(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    text(&output)
}

/// Runs a command that must be refused, with a remedy.
fn refused(folder: &Path, arguments: &[&str], remedy: &str) {
    let output = nacre(folder, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    assert!(
        text(&output).contains(remedy),
        "{arguments:?}: {}",
        text(&output)
    );
}

#[test]
fn a_policy_is_made_with_the_pool_and_told() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    done(folder, &["create", "plain", "--size", "32M"]);
    assert!(done(folder, &["info", "plain"]).contains("granularity: none"));
    let create = ["create", "p", "--size", "32M", "--granularity", "optane:2"];
    done(folder, &create);
    assert!(done(folder, &["info", "p"]).contains("granularity: optane:2"));
    let create = |policy| ["create", "q", "--size", "32M", "--granularity", policy];
    refused(folder, &create("calibrated"), "nacre calibrate");
    refused(folder, &create("optane:0"), "optane:MODULES");
    refused(folder, &create("fast"), "optane:MODULES");
    let made = done(
        folder,
        &[
            "create",
            "r",
            "--size",
            "32M",
            "--granularity",
            "auto",
            "--json",
        ],
    );
    assert!(
        made.contains("\"granularity\": \"none\""),
        "memory is not cut: {made}"
    );
    let run = [
        "run",
        "--pool",
        "p",
        "--granularity",
        "calibrated",
        "--",
        "true",
    ];
    refused(folder, &run, "nothing was measured yet");
}

#[test]
fn a_pool_is_made_to_emulate_a_device() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = folder.path();
    let create = |profile| ["create", "p", "--size", "32M", "--emulate", profile];
    refused(folder, &create("optan"), "there are optane-100");
    refused(folder, &create("./my.toml"), "check its name");
    assert!(!folder.join("p").exists(), "nothing was made");
    let shown = done(folder, &["model", "--show", "pcm"]);
    std::fs::write(folder.join("my.toml"), shown).unwrap();
    done(folder, &create("./my.toml"));
    let info = done(folder, &["info", "p"]);
    assert!(
        info.contains("emulates") && info.contains("/my.toml"),
        "{info}"
    );
    std::fs::remove_file(folder.join("my.toml")).unwrap();
    refused(
        folder,
        &["run", "--pool", "p", "--", "true"],
        "my.toml: cannot be read",
    );
}

#[test]
fn what_a_model_says_is_remembered_and_contents_stay() {
    let pool = PoolFiles::with(&["p"], 32 << 20, &own_format());
    let folder = pool.folder();
    std::fs::write(folder.join("file"), b"contents".repeat(5000)).unwrap();
    done(folder, &["cp", "file", "p:/file"]);
    let calibrate = ["calibrate", "p", "--model", "optane-100", "--quick"];
    let dry = done(folder, &[&calibrate[..], &["--dry-run"]].concat());
    assert!(dry.contains("not stored"), "{dry}");
    assert!(done(folder, &["info", "p"]).contains("granularity: none"));
    let said = done(folder, &[&calibrate[..], &["--svg", "h.svg"]].concat());
    assert!(said.contains("calibrated, remembered"), "{said}");
    assert!(folder.join("h.svg").is_file());
    let info = done(folder, &["info", "p"]);
    assert!(
        info.contains("granularity: calibrated (measured)"),
        "{info}"
    );
    assert_eq!(done(folder, &["cat", "p:/file"]), "contents".repeat(5000));
    done(folder, &["check", "p"]);
}

#[test]
fn devices_are_measured_without_changing_contents() {
    let pool = PoolFiles::with(&["a", "b"], 16 << 20, &own_format());
    let folder = pool.folder();
    std::fs::write(folder.join("file"), b"contents".repeat(5000)).unwrap();
    done(folder, &["cp", "file", "a:/file"]);
    // What is chosen depends on the machine; that something is measured of each device does not.
    let said = done(folder, &["calibrate", "a", "--quick", "--json"]);
    assert_eq!(said.matches("\"granularity\"").count(), 2, "{said}");
    assert!(said.contains("\"stored\": true"), "{said}");
    assert_eq!(
        done(folder, &["info", "b"]).matches("(measured)").count(),
        2
    );
    assert_eq!(done(folder, &["cat", "b:/file"]), "contents".repeat(5000));
    refused(folder, &["calibrate", "a", "--margin", "2000"], "0 to 1000");
    refused(
        folder,
        &["calibrate", "a", "--model", "nothing"],
        "optane-100",
    );
    refused(folder, &["calibrate", "none"], "check the path");
}

#[test]
fn a_file_server_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    refused(folder, &["fileserver"], "DIR");
    refused(folder, &["fileserver", "nowhere"], "nowhere");
    refused(
        folder,
        &["fileserver", "--model", "optan"],
        "there are optane-100",
    );
    refused(folder, &["fileserver", "--threads", "0", "."], "1 to 64");
    let short = [
        "fileserver",
        "--threads",
        "2",
        "--processes",
        "2",
        "--file-size",
        "64K",
    ];
    let said = done(
        folder,
        &[&short[..], &["--milliseconds", "1", "--json", "."]].concat(),
    );
    assert!(said.contains("written_bytes"), "{said}");
    assert_eq!(folder.read_dir().unwrap().count(), 0);
}
