//! A mounted pool in a folder of its own, which leaves nothing behind.

use crate::commands::{nacre, text};
use nacre_testkit::pool::{PoolChoice, PoolFiles, own_format};
use nacre_volume::{Caching, Checksums};
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

pub struct Stage {
    pub pool: PoolFiles,
    pub mount: PathBuf,
}

impl Stage {
    /// A pool, mounted; `None` where that cannot be done.
    pub fn mounted(arguments: &[&str]) -> Option<Stage> {
        Stage::new(Path::new("/dev/shm"))?.with_mount(arguments)
    }

    /// The same of a pool on the disk of the target folder; `None` also where that is none.
    pub fn mounted_on_disk() -> Option<Stage> {
        let stage = Stage::new(Path::new(env!("CARGO_TARGET_TMPDIR")))?;
        let info = nacre(stage.pool.folder(), &["info", "my.pool"]);
        match text(&info).contains("cached") {
            true => stage.with_mount(&[]),
            false => {
                eprintln!("skipped: the target folder is not on a disk");
                None
            }
        }
    }

    fn with_mount(self, arguments: &[&str]) -> Option<Stage> {
        let stage = self;
        let mounted = stage.mount_again(arguments);
        let said = text(&mounted);
        let hopeless = ["Operation not permitted", "Permission denied", "fuse3, too"];
        if hopeless.iter().any(|reason| said.contains(reason)) {
            eprintln!("skipped: nothing can be mounted: {said}");
            return None;
        }
        assert!(mounted.status.success(), "{said}");
        Some(stage)
    }

    fn new(base: &Path) -> Option<Stage> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        if let Err(error) = device {
            eprintln!("skipped: /dev/fuse: {error}");
            return None;
        }
        let pool = PoolFiles::make(&PoolChoice {
            checksums: Checksums::Never,
            behind: 0,
            stripe: None,
            common: None,
            base,
            devices: &["my.pool"],
            bytes: 64 << 20,
            copies: 0,
            caching: Caching::Disks,
            format: own_format(),
        });
        fs::set_permissions(pool.folder(), Permissions::from_mode(0o755)).unwrap();
        let mount = pool.file("mount");
        fs::create_dir(&mount).unwrap();
        Some(Stage { pool, mount })
    }

    pub fn mount_again(&self, arguments: &[&str]) -> Output {
        let all = [&["mount"], arguments, &["my.pool", "mount"]].concat();
        nacre(self.pool.folder(), &all)
    }

    pub fn unmount(&self) {
        let output = nacre(self.pool.folder(), &["umount", "mount"]);
        assert!(output.status.success(), "{}", text(&output));
    }

    /// Whether the kernel has the mount.
    pub fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.contains(&format!(" {} ", self.mount.display()))
    }

    /// Whether nobody serves the mount any more. A server that met somebody who looked at all
    /// mounts looks again a second later.
    pub fn is_left(&self) -> bool {
        soon(|| !self.is_mounted() && self.servers().is_empty())
    }

    /// The processes that serve the mount.
    pub fn servers(&self) -> Vec<i32> {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let serves = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("--foreground") && line.contains(&self.mount.display().to_string())
        };
        pids.filter(serves).collect()
    }

    /// The contents of a file as a power cut would leave it; `None` if it is not there.
    pub fn on_the_disk(&self, name: &str) -> Option<String> {
        let folder = self.pool.folder();
        fs::copy(folder.join("my.pool"), folder.join("copy")).unwrap();
        let found = nacre(folder, &["cat", &format!("copy:/{name}")]);
        let there = found.status.success();
        there.then(|| String::from_utf8_lossy(&found.stdout).into_owned())
    }

    /// What `nacre check` finds; nobody may use the pool.
    pub fn check(&self) {
        let checked = nacre(self.pool.folder(), &["check", "my.pool"]);
        assert!(checked.status.success(), "{}", text(&checked));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _best_effort = nacre(self.pool.folder(), &["umount", "--lazy", "mount"]);
        }
    }
}

/// A line of the shell as another user; `$0` is the folder.
pub fn as_user(user: u32, folder: &Path, line: &str) -> Output {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", line]).arg(folder).current_dir("/");
    shell
        .uid(user)
        .gid(user)
        .stderr(File::create("/dev/null").unwrap());
    shell.output().unwrap()
}

/// Whether something comes true, as what others look at for a moment takes a second longer to go.
pub fn soon(is_so: impl Fn() -> bool) -> bool {
    (0..3000).any(|_| {
        let done = is_so();
        if !done {
            thread::sleep(Duration::from_millis(10));
        }
        done
    })
}
