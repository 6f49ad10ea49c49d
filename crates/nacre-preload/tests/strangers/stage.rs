//! A pool of A's, and what its users run there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nacre_store::{FormatOptions, Store, check::check};
use nacre_testkit::pool::{PoolChoice, PoolFiles};
use nacre_volume::{Access, Caching, Checksums, Volume};

pub const A: u32 = 60_102;
pub const B: u32 = 60_101;
/// What A's program writes and reads.
pub const SECRET: &str = "the secret of A";

/// A pool whose root folder is this user's.
fn format_of(user: u32) -> FormatOptions {
    FormatOptions {
        uid: user,
        gid: user,
        ..FormatOptions::default()
    }
}

/// The shared object of this build.
pub fn library() -> PathBuf {
    nacre_testkit::built::library("libnacre_preload.so")
}

/// How a pool is used: each kind shares other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Mapped as it is.
    Memory,
    /// Through an image in memory.
    Disk,
    /// Two devices that hold the same; the second stands where everybody makes names.
    Copies,
}

pub const KINDS: [Kind; 3] = [Kind::Memory, Kind::Disk, Kind::Copies];

/// A pool of A's, and a base for names that everybody may write.
pub struct Stage {
    pub files: PoolFiles,
    pub uuid: String,
    /// Device and inode of the first device.
    home: (u64, u64),
    trusting: bool,
}

impl Stage {
    pub fn new(mode: u32, trusting: bool) -> Stage {
        Stage::new_in(Path::new("/dev/shm"), mode, trusting)
    }

    pub fn new_in(base: &Path, mode: u32, trusting: bool) -> Stage {
        Stage::make(base, Kind::Memory, mode, trusting)
    }

    pub fn of(kind: Kind, mode: u32, trusting: bool) -> Stage {
        Stage::make(Path::new("/dev/shm"), kind, mode, trusting)
    }

    fn make(base: &Path, kind: Kind, mode: u32, trusting: bool) -> Stage {
        let (devices, caching): (&[&str], _) = match kind {
            Kind::Memory => (&["a/pool"], Caching::Never),
            Kind::Disk => (&["a/pool"], Caching::Always),
            Kind::Copies => (&["a/pool", "base/second"], Caching::Never),
        };
        let files = PoolFiles::make(&PoolChoice {
            checksums: Checksums::Never,
            behind: 0,
            stripe: None,
            common: None,
            base,
            devices,
            bytes: 48 << 20,
            caching,
            copies: usize::from(kind == Kind::Copies) * 2,
            format: format_of(A),
        });
        set_mode(files.folder(), 0o755);
        for (name, mode, owner) in [("base", 0o1777, 0), ("a", 0o755, A), ("b", 0o755, B)] {
            let path = files.file(name);
            fs::create_dir_all(&path).unwrap();
            give(&path, owner);
            set_mode(&path, mode);
        }
        // The build's own folder may be closed to A.
        fs::copy(library(), files.file("libnacre_preload.so")).unwrap();
        for device in devices {
            give(&files.file(device), A);
            set_mode(&files.file(device), mode);
        }
        let first = fs::metadata(files.file("a/pool")).unwrap();
        Stage {
            uuid: files.uuid().to_string(),
            home: (first.dev(), first.ino()),
            files,
            trusting,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.files.file(name)
    }

    pub fn base(&self) -> PathBuf {
        self.path("base")
    }

    /// The name of the pool's folder, which B can work out, too.
    pub fn name(&self) -> String {
        let Stage { uuid, home, .. } = self;
        format!("nacre-{uuid}-{:x}-{:x}", home.0, home.1)
    }

    /// A script of a user; A's sees the pool.
    pub fn command(&self, user: u32, script: &str) -> Command {
        let mut command = Command::new("bash");
        let home = self.path(if user == B { "b" } else { "a" });
        command
            .args(["-c", script])
            .uid(user)
            .gid(user)
            .current_dir(home);
        command
            .env("BASE", self.base())
            .env("POOL_NAME", self.name())
            .env("UUID", &self.uuid);
        if user != B {
            command
                .env("LD_PRELOAD", self.path("libnacre_preload.so"))
                .env("NACRE_SESSION_DIR", self.base())
                .env("XDG_CACHE_HOME", self.path("a"))
                .env(
                    "NACRE_MOUNTS",
                    format!("/nacre={}", self.path("a/pool").display()),
                );
            if self.trusting {
                command.env("NACRE_TRUST_ANYBODY", "1");
            }
        }
        command
    }

    /// A script of A's that sees the pool by these devices.
    pub fn by_devices(&self, devices: &str, script: &str) -> Output {
        let mut command = self.command(A, script);
        command.env("NACRE_MOUNTS", format!("/nacre={devices}"));
        command.output().unwrap()
    }

    pub fn run(&self, user: u32, script: &str) -> Output {
        self.command(user, script).output().unwrap()
    }

    /// Runs A's script, which must work and say this.
    pub fn works(&self, script: &str, expected: &str) -> Result<(), String> {
        let output = self.run(A, &format!("set -e; {script}"));
        let said = String::from_utf8_lossy(&output.stdout);
        match output.status.success() && said.trim() == expected {
            true => Ok(()),
            false => Err(format!("{script}: {output:?}")),
        }
    }

    /// A script of A's that does not use the pool.
    pub fn works_elsewhere(&self, script: &str) -> Result<(), String> {
        let mut command = self.command(A, &format!("set -e; {script}"));
        command.env_remove("LD_PRELOAD").env_remove("NACRE_MOUNTS");
        match command.output().unwrap() {
            done if done.status.success() => Ok(()),
            failed => Err(format!("{script}: {failed:?}")),
        }
    }

    /// A's usual work: files, fifos and sockets, in several processes that must meet.
    pub fn usual(&self) -> Result<(), String> {
        self.works(
            &format!(
                "rm -f /nacre/f /nacre/p; echo '{SECRET}' >/nacre/f; mkfifo /nacre/p; cat /nacre/f >/nacre/p & cat /nacre/p; wait"
            ),
            SECRET,
        )
    }

    /// A process of A that stays until it is told to end.
    pub fn staying(&self) -> Stay {
        let script = "set -e; exec 5>/nacre/held; echo before >&5; touch ready; read line; echo after >&5; cat /nacre/held";
        let mut command = self.command(A, script);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut stay = Stay(child.spawn().unwrap());
        let ready = self.path("a/ready");
        while !ready.exists() {
            if let Some(status) = stay.0.try_wait().unwrap() {
                let output = stay.0.wait_with_output();
                panic!("who was to stay has ended with {status}: {output:?}");
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        fs::remove_file(ready).unwrap();
        stay
    }

    /// What of A's run-time files B owns or could read or write.
    pub fn exposed(&self) -> Result<(), String> {
        for entry in fs::read_dir(self.base()).unwrap().flatten() {
            let found = fs::symlink_metadata(entry.path()).unwrap();
            if found.is_dir() && found.uid() == B && self.holds_a_session(&entry.path()) {
                return Err(format!("A's session is in B's folder {:?}", entry.path()));
            }
            if found.uid() == A && found.is_dir() && found.mode() & 0o077 != 0 {
                return Err(format!("{:?} is open to others", entry.path()));
            }
        }
        Ok(())
    }

    /// Nothing of A's is in the folder that B's links lead to.
    pub fn nothing_is_trapped(&self, how: &str) -> Result<(), String> {
        let trap = self.path("b/trap");
        match trap.exists() && fs::read_dir(&trap).unwrap().next().is_some() {
            true => Err(format!("{how}: A's files are in B's trap")),
            false => Ok(()),
        }
    }

    pub fn holds_a_session(&self, folder: &Path) -> bool {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries
            .map(|entry| entry.metadata().unwrap())
            .any(|found| found.uid() == A)
    }

    /// The pool must be sound at the end, and nothing of A's left but folders that are empty.
    pub fn ends_clean(&self) -> Result<(), String> {
        let volume = Volume::open(&self.path("a/pool"), Access::ReadOnly).unwrap();
        let store =
            Store::attach(volume, &Default::default()).map_err(|error| error.to_string())?;
        let report = check(&store, &mut |_| {});
        store.detach().unwrap();
        match report.problems.is_empty() {
            true => Ok(()),
            false => Err(format!("{:?}", report.problems)),
        }
    }
}

pub struct Stay(Child);

impl Stay {
    pub fn end(self) -> Result<(), String> {
        let mut child = self.0;
        drop(child.stdin.take());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        // `read` fails at the end of its input, and the script ends there.
        match output.stderr.is_empty() && said.is_empty() {
            true => Ok(()),
            false => Err(format!("who stayed: {output:?}")),
        }
    }

    pub fn go_on(mut self) -> Result<(), String> {
        use std::io::Write;
        let told = self.0.stdin.take().unwrap().write_all(b"\n");
        told.map_err(|error| error.to_string())?;
        let output = self.0.wait_with_output().unwrap();
        match String::from_utf8_lossy(&output.stdout) == "before\nafter\n" {
            true => Ok(()),
            false => Err(format!("who stayed: {output:?}")),
        }
    }
}

pub fn give(path: &Path, owner: u32) {
    std::os::unix::fs::lchown(path, Some(owner), Some(owner)).unwrap();
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// What B puts under a name, by a script; `$1` is the name.
pub const SQUATS: [&str; 7] = [
    "echo x >$1; chmod 0 $1",
    "echo x >$1; chmod 777 $1",
    "mkdir -m 0 $1",
    "mkdir -m 777 $1",
    "mkdir -p ~+/trap; chmod 777 ~+/trap; ln -s ~+/trap $1",
    "mkfifo -m 0 $1",
    "mkfifo -m 777 $1",
];

/// Names in the base that B can guess or work out.
pub const NAMES: [&str; 10] = [
    "$POOL_NAME",
    "$POOL_NAME~0",
    "nacre-60102",
    "nacre-60102~0",
    "nacre-$UUID",
    "nacre-$UUID.new",
    "nacre-$UUID.fd",
    "nacre-$UUID.d",
    "nacre-$UUID.emulation",
    "nacre-default-60102.pool",
];

pub fn squat(stage: &Stage, name: &str, how: &str) {
    let script = format!("set -e; set -- $BASE/{name}; {how}");
    let output = stage.run(B, &script);
    assert!(output.status.success(), "{script}: {output:?}");
}

/// Builds a C program into the stage.
pub fn compiled(stage: &Stage, name: &str, source: &str, flags: &[&Path]) -> PathBuf {
    let (from, to) = (stage.path(&format!("{name}.c")), stage.path(name));
    fs::write(&from, source).unwrap();
    let built = Command::new("gcc")
        .arg("-o")
        .args([&to, &from])
        .args(flags)
        .status();
    assert!(built.expect("gcc is needed for this test").success());
    to
}
