//! The default pool, where another user could put one first. Only root can play two users.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use nacre_store::FormatOptions;
use nacre_testkit::pool::PoolFiles;

const A: u32 = 60_202;
const B: u32 = 60_201;

/// A base that everybody may write, with a pool of B, and the program where A can execute it.
fn stage() -> Option<PoolFiles> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can play two users");
        return None;
    }
    let format = FormatOptions {
        uid: B,
        gid: B,
        ..FormatOptions::default()
    };
    let pool = PoolFiles::with(&[&trap()], 32 << 20, &format);
    set_mode(pool.folder(), 0o755);
    let base = pool.file("base");
    set_mode(&base, 0o1777);
    chown(pool.file(&trap()), Some(B), Some(B)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_nacre"), pool.file("nacre")).unwrap();
    Some(pool)
}

/// B's pool, where A's default pool would be.
fn trap() -> String {
    format!("base/nacre-default-{A}.pool")
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn as_user(user: u32, stage: &PoolFiles, arguments: &[&str]) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(stage.file("nacre"));
    command.args(arguments).uid(user).gid(user).current_dir("/");
    command.env("NACRE_SESSION_DIR", stage.file("base"));
    command.env_remove("NACRE_DEFAULT_POOL");
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn a_pool_that_another_user_made_is_not_taken_for_the_default() {
    let Some(stage) = stage() else {
        return;
    };
    let trap = stage.file(&trap());
    let path = trap.to_str().unwrap();
    set_mode(&trap, 0o666);
    let info = as_user(A, &stage, &["info"]).output().unwrap();
    assert!(
        said(&info).contains("there is no default pool"),
        "{}",
        said(&info)
    );
    // By this name it is A's own or none, whoever names it. By another name it is everybody's still
    // if the environment names it, and A's own choice on the command line.
    let named = as_user(A, &stage, &["info", path]).output().unwrap();
    assert!(said(&named).contains("is not used"), "{}", said(&named));
    let other = stage.file("base/other.pool");
    fs::rename(&trap, &other).unwrap();
    let path = other.to_str().unwrap();
    let mut by_variable = as_user(A, &stage, &["info"]);
    let refused = by_variable
        .env("NACRE_DEFAULT_POOL", path)
        .output()
        .unwrap();
    assert!(
        said(&refused).contains("name it with --pool"),
        "{}",
        said(&refused)
    );
    let named = as_user(A, &stage, &["info", path]).output().unwrap();
    assert!(named.status.success(), "{}", said(&named));
    fs::rename(&other, &trap).unwrap();
    // One that is A's own goes on to be used.
    chown(&trap, Some(A), Some(A)).unwrap();
    set_mode(&trap, 0o600);
    let own = as_user(A, &stage, &["info"]).output().unwrap();
    assert!(own.status.success(), "{}", said(&own));
}
