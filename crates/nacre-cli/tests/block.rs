//! Pools on block devices. Where no loop device can be made, the tests say so and pass.

#[path = "commands/mod.rs"]
mod commands;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use commands::{nacre, text};
use nacre_media::{Access, Device, MediaError};
use nacre_store::{AttachOptions, Store};
use nacre_volume::Volume;
use tempfile::TempDir;

const SIZE: u64 = 96 << 20;

/// A loop device of a file of its own, gone in the end.
struct Loop {
    folder: TempDir,
    name: String,
}

impl Loop {
    fn new(sector: &str) -> Option<Self> {
        // On a disk, where the test's results are.
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = tempfile::tempdir_in(place).unwrap();
        let file = folder.path().join("disk");
        File::create(&file).unwrap().set_len(SIZE).unwrap();
        let made = Command::new("losetup")
            .args(["-f", "--show", "-b", sector])
            .arg(&file)
            .output();
        let made = made.ok().filter(|made| made.status.success());
        let Some(made) = made else {
            println!("skipped: losetup makes no loop device here");
            return None;
        };
        let name = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        Some(Self { folder, name })
    }

    fn nacre(&self, arguments: &[&str]) -> (bool, String) {
        let output = nacre(self.folder.path(), arguments);
        (output.status.success(), text(&output))
    }

    #[track_caller]
    fn does(&self, arguments: &[&str]) -> String {
        let (done, said) = self.nacre(arguments);
        assert!(done, "{arguments:?}: {said}");
        said
    }

    #[track_caller]
    fn refuses(&self, arguments: &[&str], why: &str) {
        let (done, said) = self.nacre(arguments);
        assert!(!done && said.contains(why), "{arguments:?}: {said}");
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.name]).status();
    }
}

#[test]
fn a_loop_device_and_its_file_are_one_device() {
    let Some(disk) = Loop::new("512") else { return };
    let (name, same) = (disk.name.as_str(), "are the same device");
    for how in [&[][..], &["--copies", "2"], &["--copies", "metadata=2"]] {
        disk.refuses(&[&["create", "disk", name][..], how].concat(), same);
        disk.refuses(&[&["create", name, "disk"][..], how].concat(), same);
    }
    disk.does(&["create", "disk"]);
    disk.refuses(&["device", "add", "--force", "disk", name], same);
    disk.refuses(&["device", "add", "--copy", "--force", "disk", name], same);
    disk.does(&["device", "add", "--copy", "disk", "other"]);
    disk.refuses(&["device", "add", "--force", "disk", name], same);
    disk.refuses(
        &["device", "replace", "--force", "disk", "other", name],
        same,
    );
    assert!(disk.does(&["check", "disk"]).contains("clean"));
}

#[test]
fn a_loop_device_and_its_file_are_not_used_at_the_same_time() {
    let Some(disk) = Loop::new("512") else { return };
    disk.does(&["create", "disk"]);
    let place = |name: &str| disk.folder.path().join(name);
    for (used, other) in [("disk", disk.name.as_str()), (&disk.name, "disk")] {
        disk.does(&["mkdir", &format!("{used}:/d")]);
        let volume = Volume::open(&place(used), Access::ReadWrite).unwrap();
        let store = Store::attach(volume, &AttachOptions::default()).unwrap();
        let list = ["ls", &format!("{other}:/")];
        disk.refuses(&list, "in use by processes of another");
        store.close().unwrap();
        disk.does(&["rm", "-r", &format!("{other}:/d")]);
    }
    assert!(disk.does(&["check", "disk"]).contains("clean"));
}

#[test]
fn a_read_only_block_device_is_refused_for_that() {
    let Some(disk) = Loop::new("512") else { return };
    let name = disk.name.as_str();
    disk.does(&["create", name]);
    let mut made = Command::new("losetup");
    let made = made.args(["-r", "-f", "--show", "disk"]);
    let made = made.current_dir(disk.folder.path()).output().unwrap();
    let reads = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    disk.refuses(&["create", "--force", &reads], "permission denied");
    disk.refuses(
        &["create", "--copies", "2", "--size", "96M", "a", &reads],
        "permission denied",
    );
    assert!(disk.does(&["info", &reads]).contains("mode      cached"));
    let _ = Command::new("losetup").args(["-d", &reads]).status();
}

#[test]
fn a_block_device_is_a_disk() {
    let Some(disk) = Loop::new("512") else { return };
    let name = disk.name.as_str();
    let said = disk.does(&["create", name]);
    assert!(said.contains("mode cached"), "{said}");
    fs::write(disk.folder.path().join("f"), vec![7; 300_000]).unwrap();
    disk.does(&["cp", "f", &format!("{name}:/f")]);
    let info = disk.does(&["info", name]);
    assert!(info.contains("disk behind a cache in memory"), "{info}");
    assert!(disk.does(&["check", name]).contains("clean"));
    // All is on the device, as another kind of file shows.
    assert!(disk.does(&["check", "disk"]).contains("clean"));
    let read = nacre(disk.folder.path(), &["cat", &format!("{name}:/f")]);
    assert!(read.stdout == vec![7; 300_000]);
    disk.refuses(&["create", name], "already");
    let link = disk.folder.path().join("link");
    std::os::unix::fs::symlink(name, &link).unwrap();
    let both = ["create", "--force", name, link.to_str().unwrap()];
    disk.refuses(&both, "same device");
    disk.does(&["delete", "--force", name]);
    disk.refuses(&["info", name], "no device of a Nacre pool");
    assert!(Path::new(name).exists());
}

#[test]
fn a_device_that_others_claim_is_refused() {
    let Some(disk) = Loop::new("512") else { return };
    let made = Command::new("mkfs.ext4").args(["-q", &disk.name]).status();
    let place = disk.folder.path().join("mounted");
    fs::create_dir(&place).unwrap();
    let mount = || Command::new("mount").arg(&disk.name).arg(&place).status();
    let mounted = made.is_ok_and(|made| made.success()) && mount().is_ok_and(|done| done.success());
    if !mounted {
        println!("skipped: nothing can be mounted here");
        return;
    }
    let (done, said) = disk.nacre(&["create", "--force", &disk.name]);
    let opened = Device::open(Path::new(&disk.name), Access::ReadWrite);
    let looked_at = Device::open(Path::new(&disk.name), Access::ReadOnly);
    assert!(
        Command::new("umount")
            .arg(&place)
            .status()
            .unwrap()
            .success()
    );
    assert!(!done && said.contains("mounted"), "{said}");
    assert!(matches!(opened, Err(MediaError::Claimed(_))), "{opened:?}");
    assert!(looked_at.is_ok());
    disk.refuses(&["create", &disk.name], "force");
    disk.does(&["create", "--force", &disk.name]);
}

#[test]
fn large_sectors_do() {
    let Some(disk) = Loop::new("4096") else {
        return;
    };
    disk.does(&["create", &disk.name]);
    disk.does(&["mkdir", &format!("{}:/d", disk.name)]);
    assert!(
        disk.does(&["ls", &format!("{}:/", disk.name)])
            .contains('d')
    );
}
