//! Places where the files of a pool are, or were: its folder, its devices, an older name.

use std::fs;
use std::path::{Path, PathBuf};

use crate::stage::{A, B, KINDS, Kind, SECRET, SQUATS, Stage, give, set_mode, squat};

/// Devices of pools that stand in the base.
pub const DEVICES: [&str; 1] = ["second"];

/// All names in a pool's folder.
const INSIDE: [&str; 11] = [
    "session",
    "session.new",
    "session.zeros",
    "session.nodes",
    "emulation",
    "image",
    "image.new",
    "copies",
    "pool",
    "gone",
    "session.zeros-new",
];

/// B takes the name of the pool's folder, and all names in it.
pub fn names_in_the_pools_folder(trusting: bool) -> Result<(), String> {
    for (how, kind) in SQUATS
        .into_iter()
        .flat_map(|how| KINDS.map(|kind| (how, kind)))
    {
        let stage = Stage::of(kind, 0o644, trusting);
        squat(&stage, "$POOL_NAME", "mkdir -m 777 $1");
        for name in INSIDE {
            squat(&stage, &format!("$POOL_NAME/{name}"), how);
        }
        let seen = stage.usual().and_then(|()| stage.exposed());
        seen.and_then(|()| stage.ends_clean())
            .map_err(|error| format!("{kind:?}, {how}: {error}"))?;
        stage.nothing_is_trapped(how)?;
    }
    Ok(())
}

/// B may write the pool, and so make names in its folder: A may be kept from working, but no other
/// file of A's is read or written by them.
pub fn names_in_a_shared_folder(trusting: bool) -> Result<(), String> {
    let attacks = [
        "ln -s ~+/../a/victim $1",
        "ln -s ~+/../a/missing $1",
        "echo x >$1; chmod 666 $1",
        "mkdir -m 777 $1",
        "mkfifo -m 777 $1",
    ];
    for (how, kind) in attacks
        .into_iter()
        .flat_map(|how| KINDS.map(|kind| (how, kind)))
    {
        let stage = Stage::of(kind, 0o666, trusting);
        stage.works_elsewhere(&format!("echo '{SECRET}' >victim; chmod 600 victim"))?;
        squat(&stage, "$POOL_NAME", "mkdir -m 1777 $1");
        for name in INSIDE {
            squat(&stage, &format!("$POOL_NAME/{name}"), how);
        }
        // Whatever comes of it.
        stage.run(
            A,
            "timeout 5 bash -c 'echo x >/nacre/f; cat /nacre/f; mkfifo /nacre/p'",
        );
        let victim = fs::read_to_string(stage.path("a/victim")).unwrap();
        if victim.trim() != SECRET || stage.path("a/missing").exists() {
            return Err(format!("{kind:?}, {how}: A's own file is written"));
        }
        // The writer who made them takes them away.
        stage.run(B, "rm -rf $BASE/$POOL_NAME");
        stage
            .usual()
            .map_err(|error| format!("{kind:?}, {how}: {error}"))?;
    }
    Ok(())
}

/// A copy of A's pool as it was, for everybody: A would write into it what B may read.
const TRAP: &str = "cp ~+/../a/pool $1; chmod 666 $1";

/// What `nacre run` tells programs of a pool with copies.
fn told_of(first: &Path, second: &Path) -> String {
    let (first, second) = (first.display(), second.display());
    format!("{first},owner={A}:{A}:644,copy={second}")
}

fn sum(path: PathBuf) -> Vec<u8> {
    let found = fs::symlink_metadata(&path).unwrap();
    match found.is_file() {
        true => fs::read(path).unwrap(),
        false => Vec::new(),
    }
}

/// A device of a pool with copies is lost, and B makes something in its place.
pub fn the_place_of_a_lost_copy(trusting: bool) -> Result<(), String> {
    for how in SQUATS.into_iter().chain([TRAP]) {
        let stage = Stage::of(Kind::Copies, 0o644, trusting);
        let (first, second) = (stage.path("a/pool"), stage.path("base/second"));
        fs::remove_file(&second).unwrap();
        squat(&stage, "second", how);
        let before = sum(second.clone());
        let devices = told_of(&first, &second);
        let output = stage.by_devices(
            &devices,
            &format!("echo '{SECRET}' >/nacre/f; cat /nacre/f"),
        );
        let said = String::from_utf8_lossy(&output.stdout);
        let told = String::from_utf8_lossy(&output.stderr);
        if said.trim() != SECRET && !told.contains("second") {
            return Err(format!("{how}: neither served nor refused: {output:?}"));
        }
        if sum(second.clone()) != before {
            return Err(format!("{how}: B's file is written"));
        }
        let _gone = fs::remove_file(&second).or_else(|_| fs::remove_dir(&second));
        stage.usual().map_err(|error| format!("{how}: {error}"))?;
        stage.nothing_is_trapped(how)?;
    }
    Ok(())
}

/// The device that a program was told of is lost, and the other one's place is B's.
pub fn the_place_of_all_copies(trusting: bool) -> Result<(), String> {
    let stage = Stage::of(Kind::Copies, 0o644, trusting);
    let (first, second) = (stage.path("a/pool"), stage.path("base/second"));
    let devices = told_of(&first, &second);
    let away = stage.path("a/away");
    fs::rename(&second, &away).unwrap();
    squat(&stage, "second", TRAP);
    fs::remove_file(&first).unwrap();
    let output = stage.by_devices(&devices, &format!("echo '{SECRET}' >/nacre/f"));
    if output.status.success() {
        return Err(format!("A writes to B's pool: {output:?}"));
    }
    // The canary: A's own copy in its place is used.
    fs::rename(&away, &second).unwrap();
    let output = stage.by_devices(
        &devices,
        &format!("echo '{SECRET}' >/nacre/f; cat /nacre/f"),
    );
    match String::from_utf8_lossy(&output.stdout).trim() == SECRET {
        true => Ok(()),
        false => Err(format!("A's own copy is not used: {output:?}")),
    }
}

/// Where earlier versions had A's default pool stands one of B's, put there when A had looked.
pub fn an_old_default_pool_of_bs(trusting: bool) -> Result<(), String> {
    let stage = Stage::new(0o644, trusting);
    squat(&stage, "nacre-default-60102.pool", TRAP);
    let pool = stage.base().join("nacre-default-60102.pool");
    let says = || {
        stage.by_devices(
            pool.to_str().unwrap(),
            &format!("echo '{SECRET}' >/nacre/f"),
        )
    };
    let output = says();
    if output.status.success() {
        return Err(format!("A writes to B's pool: {output:?}"));
    }
    let _one = fs::remove_file(&pool);
    std::os::unix::fs::symlink(stage.path("a/pool"), &pool).unwrap();
    give(&pool, B);
    if says().status.success() {
        return Err("A goes where B's link leads".into());
    }
    // The canary: one that is A's own is used.
    fs::remove_file(&pool).unwrap();
    fs::copy(stage.path("a/pool"), &pool).unwrap();
    give(&pool, A);
    set_mode(&pool, 0o600);
    let output = says();
    match output.status.success() {
        true => stage.usual(),
        false => Err(format!("A's own pool is not used: {output:?}")),
    }
}

/// A's pool is named by a link of B's, in a folder where everybody makes names: it leads to A's
/// pool, and to one of B's as soon as A's first program has looked.
pub fn a_link_to_a_pool(trusting: bool) -> Result<(), String> {
    let stage = Stage::new(0o644, trusting);
    let link = stage.base().join("link");
    let writes = || {
        stage.by_devices(
            link.to_str().unwrap(),
            &format!("echo '{SECRET}' >/nacre/f; cat /nacre/f"),
        )
    };
    for to in ["~+/../a/pool", "~+/pool"] {
        squat(
            &stage,
            "link",
            &format!("set -- $1 ~+/pool; {TRAP_IN_B}; ln -sfn {to} $1"),
        );
        let output = writes();
        if output.status.success() || !output.stdout.is_empty() {
            return Err(format!("A goes where B's link leads, {to}: {output:?}"));
        }
    }
    // The canary: A's own link is followed.
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(stage.path("a/pool"), &link).unwrap();
    give(&link, A);
    let output = writes();
    match output.status.success() {
        true => stage.usual(),
        false => Err(format!("A's own link is not followed: {output:?}")),
    }
}

/// A pool of B's own, which everybody may write.
const TRAP_IN_B: &str = "cp ~+/../a/pool $2; chmod 666 $2";
