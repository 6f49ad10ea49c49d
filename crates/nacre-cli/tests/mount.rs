//! `nacre mount`: a pool as a file system of the kernel, alone and beside preloaded programs.
//!
//! Skipped, with a message, where nothing can be mounted with FUSE.

mod commands;
#[path = "mount/disks.rs"]
mod disks;
#[path = "mount/keeping.rs"]
mod keeping;
#[path = "mount/kills.rs"]
mod kills;
#[path = "mount/model.rs"]
mod model;
#[path = "commands/preload.rs"]
mod preload;
#[path = "mount/run.rs"]
mod run;
#[path = "mount/sharing.rs"]
mod sharing;
#[path = "mount/stage.rs"]
mod stage;

use commands::{nacre, text};
use rustix::fs::{AtFlags, CWD, FallocateFlags, RenameFlags, Timestamps, XattrFlags};
use rustix::io::Errno;
use stage::{Stage, as_user};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

fn kind(result: std::io::Result<impl Sized>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn names_come_and_go() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let at = |name: &str| stage.mount.join(name);
    fs::write(at("file"), "one").unwrap();
    assert_eq!(fs::read(at("file")).unwrap(), b"one");
    fs::create_dir(at("folder")).unwrap();
    let taken = kind(fs::create_dir(at("folder")));
    assert_eq!(taken, Some(ErrorKind::AlreadyExists));
    fs::hard_link(at("file"), at("folder/second")).unwrap();
    assert_eq!(fs::metadata(at("file")).unwrap().nlink(), 2);
    symlink("../file", at("folder/link")).unwrap();
    assert_eq!(fs::read(at("folder/link")).unwrap(), b"one");
    let long = format!("./{}file", "x/../".repeat(100));
    symlink(&long, at("long")).unwrap();
    assert_eq!(fs::read_link(at("long")).unwrap(), Path::new(&long));
    assert_eq!(names(&at("folder")), ["link", "second"]);
    let full = kind(fs::remove_dir(at("folder")));
    assert_eq!(full, Some(ErrorKind::DirectoryNotEmpty));
    rustix::fs::mknodat(
        CWD,
        at("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from(0o600),
        0,
    )
    .unwrap();
    let fifo = fs::symlink_metadata(at("fifo")).unwrap();
    assert!(fifo.file_type().is_fifo());
    for name in ["folder/link", "folder/second", "fifo", "long"] {
        fs::remove_file(at(name)).unwrap();
    }
    fs::remove_dir(at("folder")).unwrap();
    assert_eq!(names(&stage.mount), ["file"]);
    assert_eq!(kind(fs::metadata(at("folder"))), Some(ErrorKind::NotFound));
    let too_long = fs::write(at(&"n".repeat(256)), "");
    assert_eq!(kind(too_long), Some(ErrorKind::InvalidFilename));
}

#[test]
fn renames_replace_exchange_or_refuse() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let at = |name: &str| stage.mount.join(name);
    let rename =
        |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags);
    fs::write(at("a"), "a").unwrap();
    fs::write(at("b"), "b").unwrap();
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(at("a")).unwrap(), b"b");
    fs::rename(at("a"), at("b")).unwrap();
    assert_eq!(fs::read(at("b")).unwrap(), b"b");
    fs::create_dir_all(at("x/y")).unwrap();
    assert_eq!(
        rename("x", "x/y/z", RenameFlags::empty()),
        Err(Errno::INVAL)
    );
    fs::rename(at("b"), at("x/y/b")).unwrap();
    fs::rename(at("x/y"), at("y")).unwrap();
    assert_eq!(names(&stage.mount), ["x", "y"]);
    assert_eq!(names(&at("y")), ["b"]);
}

#[test]
fn attributes_are_those_that_were_set() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let path = stage.mount.join("file");
    fs::write(&path, "0123456789").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(7), Some(8)).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (7, 8));
    }
    let time = |tv_sec, tv_nsec| rustix::fs::Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(1_000_000_000, 5),
        last_modification: time(-3, 250_000_000),
    };
    rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!(found.mode(), 0o100_640);
    assert_eq!((found.atime(), found.atime_nsec()), (1_000_000_000, 5));
    assert_eq!((found.mtime(), found.mtime_nsec()), (-3, 250_000_000));
    let set = |value: &[u8], flags| rustix::fs::setxattr(&path, "user.color", value, flags);
    set(b"red", XattrFlags::CREATE).unwrap();
    assert_eq!(set(b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(&path, "user.color", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"red");
    let small = rustix::fs::getxattr(&path, "user.color", &mut value[..2]);
    assert_eq!(small, Err(Errno::RANGE));
    let len = rustix::fs::listxattr(&path, &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"user.color\0");
    rustix::fs::removexattr(&path, "user.color").unwrap();
    let gone = rustix::fs::getxattr(&path, "user.color", &mut value[..]);
    assert_eq!(gone, Err(Errno::NODATA));
    let space = rustix::fs::statvfs(&stage.mount).unwrap();
    assert!(space.f_bfree < space.f_blocks && space.f_namemax == 255);
}

#[test]
fn contents_are_those_that_were_written() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let path = stage.mount.join("file");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let mut file = options.open(&path).unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    file.write_all(&data).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(&path).unwrap() == data);
    file.write_all_at(b"hole behind", 8 << 20).unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), (8 << 20) + 11);
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
    assert!((3_000_000..8 << 20).contains(&hole), "{hole}");
    let next = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(hole)).unwrap();
    assert_eq!(next, 8 << 20);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 4096).unwrap();
    let mut page = [1; 4096];
    file.read_exact_at(&mut page, 4096).unwrap();
    assert_eq!(page, [0; 4096]);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 8 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 9 << 20);
    file.set_len(5).unwrap();
    assert_eq!(fs::read(&path).unwrap(), &data[..5]);
    let copy = File::create(stage.mount.join("copy")).unwrap();
    let copied = rustix::fs::copy_file_range(&file, Some(&mut 1), &copy, None, 100);
    assert_eq!(copied, Ok(4));
    // A file without a name lives until its last descriptor is closed.
    fs::remove_file(&path).unwrap();
    file.write_all_at(b"still", 0).unwrap();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(
        (text.as_str(), file.metadata().unwrap().nlink()),
        ("still", 0)
    );
}

#[test]
fn files_without_a_name_get_one_and_tell_their_birth() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let open = |flags| rustix::fs::open(&stage.mount, flags, rustix::fs::Mode::from(0o600));
    let mut file = File::from(open(flags).unwrap());
    file.write_all(b"nameless").unwrap();
    assert_eq!(names(&stage.mount), [""; 0]);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let link = |file: &File| {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        rustix::fs::linkat(
            CWD,
            path,
            CWD,
            stage.mount.join("named"),
            AtFlags::SYMLINK_FOLLOW,
        )
    };
    let never = File::from(open(flags | rustix::fs::OFlags::EXCL).unwrap());
    assert_eq!(link(&never), Err(Errno::NOENT));
    link(&file).unwrap();
    assert_eq!(fs::read(stage.mount.join("named")).unwrap(), b"nameless");
    let found = file.metadata().unwrap();
    let age = found
        .modified()
        .unwrap()
        .duration_since(found.created().unwrap());
    assert!(age.is_ok_and(|age| age.as_secs() < 1000));
}

/// The kernel's pins do not outlive their use.
#[test]
fn a_removed_file_gives_its_space_back() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let free = || rustix::fs::statvfs(&stage.mount).unwrap().f_bfree;
    let before = free();
    let data = vec![1; 16 << 20];
    let units = data.len() as u64 / 4096;
    for round in 0..6 {
        let path = stage.mount.join("file");
        fs::write(&path, &data).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), data.len() as u64);
        let open = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(free() + units <= before, "round {round}");
        drop(open);
        // The kernel forgets the file after its close, and nobody waits for that.
        for _ in 0..1000 {
            if free() + units / 16 > before {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(free() + units / 16 > before, "round {round}");
    }
}

#[test]
fn large_directories_are_listed_whole() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let wanted: Vec<String> = (0..2000).map(|number| format!("f{number:04}")).collect();
    for name in &wanted {
        File::create(stage.mount.join(name)).unwrap();
    }
    assert_eq!(names(&stage.mount), wanted);
}

#[test]
fn a_static_program_writes_and_a_program_is_executed() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let source = stage.pool.folder().join("writer.c");
    fs::write(
        &source,
        "#include <stdio.h>\n\
         int main(int n, char **a) {\n\
             FILE *f = n == 2 ? fopen(a[1], \"a\") : 0;\n\
             return !f || fputs(\"static\\n\", f) < 0 || fclose(f);\n\
         }\n",
    )
    .unwrap();
    let program = stage.mount.join("writer");
    let mut compiler = Command::new("gcc");
    compiler.args(["-static", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    for _ in 0..2 {
        let mut writer = Command::new(&program);
        let writer = writer.arg(stage.mount.join("text"));
        assert!(writer.status().unwrap().success());
    }
    let seen = nacre(stage.pool.folder(), &["cat", "my.pool:/text"]);
    assert_eq!(text(&seen), "static\nstatic\n");
}

#[test]
fn a_read_only_mount_takes_no_changes() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    fs::write(stage.mount.join("file"), "x").unwrap();
    stage.unmount();
    let mounted = stage.mount_again(&["--read-only"]);
    assert!(mounted.status.success(), "{}", text(&mounted));
    assert_eq!(fs::read(stage.mount.join("file")).unwrap(), b"x");
    let written = fs::write(stage.mount.join("file"), "y");
    assert_eq!(kind(written), Some(ErrorKind::ReadOnlyFilesystem));
}

#[test]
fn wrong_uses_are_told() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    let said = |arguments: &[&str]| {
        let output = nacre(stage.pool.folder(), arguments);
        assert!(!output.status.success(), "{arguments:?}");
        text(&output)
    };
    let twice = said(&["mount", "my.pool", "mount"]);
    assert!(twice.contains("already; unmount it with"), "{twice}");
    assert!(said(&["mount", "my.pool", "none"]).contains("none: there is no such folder"));
    assert!(said(&["mount", "my.pool"]).contains("name the pool, and the folder"));
    assert!(said(&["mount", "-o", "wrong", "my.pool", "/"]).contains("-o wrong: unknown"));
    fs::create_dir(stage.pool.folder().join("other")).unwrap();
    assert!(said(&["umount", "other"]).contains("no pool is mounted there"));
    let no_pool = said(&["mount", "/etc/passwd", "other"]);
    assert!(no_pool.contains("/etc/passwd"), "{no_pool}");
    let open = File::create(stage.mount.join("open")).unwrap();
    let busy = said(&["umount", "mount"]);
    assert!(busy.contains("end the programs"), "{busy}");
    drop(open);
    stage.unmount();
}

#[test]
fn other_users_see_nothing_unless_they_may() {
    let Some(stage) = Stage::mounted(&[]) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can play two users");
        return;
    }
    let shell = |line: &str| as_user(60_305, &stage.mount, line).status.success();
    fs::set_permissions(&stage.mount, Permissions::from_mode(0o777)).unwrap();
    fs::write(stage.mount.join("secret"), "s").unwrap();
    fs::set_permissions(stage.mount.join("secret"), Permissions::from_mode(0o600)).unwrap();
    assert!(!shell("ls $0"));
    stage.unmount();
    let mounted = stage.mount_again(&["--allow-other"]);
    assert!(mounted.status.success(), "{}", text(&mounted));
    assert!(shell("echo mine > $0/mine"));
    assert_eq!(
        fs::metadata(stage.mount.join("mine")).unwrap().uid(),
        60_305
    );
    assert!(!shell("cat $0/secret"));
    assert!(!shell("chown 0 $0/mine"));
    assert!(!shell("chmod 666 $0/secret"));
    assert!(shell("rm $0/mine"));
}
