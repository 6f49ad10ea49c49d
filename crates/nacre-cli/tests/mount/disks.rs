//! Pools on disks, mounted: what is synced through the kernel is on the disk.

use crate::stage::Stage;
use rustix::io::ReadWriteFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;
use std::time::Duration;

#[test]
fn what_is_synced_through_a_mount_is_on_the_disk() {
    let Some(stage) = Stage::mounted_on_disk() else {
        return;
    };
    fs::write(stage.mount.join("by-folder"), "named").unwrap();
    File::open(&stage.mount).unwrap().sync_all().unwrap();
    assert_eq!(stage.on_the_disk("by-folder").as_deref(), Some("named"));

    let mut options = OpenOptions::new();
    options.write(true).create(true);
    for flag in [libc_flags::O_DSYNC, libc_flags::O_SYNC] {
        let name = format!("flag-{flag}");
        let mut file = options
            .custom_flags(flag)
            .open(stage.mount.join(&name))
            .unwrap();
        file.write_all(b"synced").unwrap();
        assert_eq!(stage.on_the_disk(&name).as_deref(), Some("synced"));
    }

    let file = File::create(stage.mount.join("rwf")).unwrap();
    let bytes = [IoSlice::new(b"by a flag of the call")];
    rustix::io::pwritev2(&file, &bytes, 0, ReadWriteFlags::DSYNC).unwrap();
    let found = stage.on_the_disk("rwf");
    assert_eq!(found.as_deref(), Some("by a flag of the call"));

    fs::write(stage.mount.join("fsynced"), "by fsync").unwrap();
    File::open(stage.mount.join("fsynced"))
        .unwrap()
        .sync_data()
        .unwrap();
    assert_eq!(stage.on_the_disk("fsynced").as_deref(), Some("by fsync"));
}

/// Numbers of Linux on x86-64.
mod libc_flags {
    pub(super) const O_DSYNC: i32 = 0o10000;
    pub(super) const O_SYNC: i32 = 0o4_010_000;
}

#[test]
fn what_was_written_through_a_mount_comes_to_the_disk_by_itself() {
    let Some(stage) = Stage::mounted_on_disk() else {
        return;
    };
    fs::write(stage.mount.join("late"), "some seconds").unwrap();
    for _ in 0..400 {
        if stage.on_the_disk("late").as_deref() == Some("some seconds") {
            return;
        }
        thread::sleep(Duration::from_millis(300));
    }
    panic!("it never comes to the disk");
}
