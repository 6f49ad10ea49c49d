//! Metadata of files and folders that is damaged on one copy of a pool in memory (D113).

use std::ops::ControlFlow;
use std::path::PathBuf;

use nacre_fs::{Fs, FsError, InodeRef, RenameFlags, WriteAt, XattrFlags};
use nacre_store::Store;
use nacre_store::scrub::{Doubtful, scrub};
use nacre_store::structure_index::{Part, Structure, survey};
use nacre_testkit::damage::{self, Is, KINDS, two_copies};
use nacre_testkit::pool::{PRIVATE, PoolFiles, assert_sound};
use nacre_types::FileOffset;
use nacre_volume::{Access, Volume};

use crate::pools::{dir, file, names, read, root, write};

const FILES: usize = 60;
/// Where a map of two levels leads.
const FAR: u64 = 1 << 30;
const VALUE: [u8; 9000] = [7; 9000];

struct Rig {
    files: PoolFiles,
    parts: Vec<Part>,
}

fn attach(files: &PoolFiles, name: &str) -> Fs {
    let volume = Volume::open(&files.file(name), Access::ReadWrite).expect("open");
    Fs::new(Store::attach(volume, &PRIVATE).expect("attach"))
}

fn detach(fs: Fs) {
    fs.into_store().detach().expect("detach");
}

impl Rig {
    fn new() -> Rig {
        let files = two_copies();
        let fs = attach(&files, "a");
        let folder = dir(&fs, fs.root(), "folder");
        for number in 0..FILES {
            file(
                &fs,
                folder,
                &format!("a file with a rather long name {number}"),
            );
        }
        let node = file(&fs, folder, "file");
        write(&fs, node, 0, b"near");
        write(&fs, node, FAR, b"far");
        for (name, value) in [("user.short", &VALUE[..9]), ("user.long", &VALUE)] {
            let set = fs.set_xattr(&root(), node, name.as_bytes(), value, XattrFlags::empty());
            set.expect("set");
        }
        let link = fs.symlink(&root(), folder, b"link", b"target");
        link.expect("symlink");
        let parts = survey(fs.store());
        detach(fs);
        Rig { files, parts }
    }

    /// Inverts what is of some kind on one device.
    fn wreck(&self, name: &str, is_one: Is) {
        assert!(damage::wreck(&self.files.file(name), &self.parts, is_one) > 0);
    }
}

fn find(fs: &Fs, folder: InodeRef, name: &str) -> Result<InodeRef, FsError> {
    Ok(fs.lookup(&root(), folder, name.as_bytes())?.node)
}

fn folder(fs: &Fs) -> Result<InodeRef, FsError> {
    find(fs, fs.root(), "folder")
}

fn node(fs: &Fs) -> Result<InodeRef, FsError> {
    find(fs, folder(fs)?, "file")
}

fn renamed(fs: &Fs, from: &str, to: &str) -> Result<(), FsError> {
    let (folder, [from, to]) = (folder(fs)?, [from, to].map(str::as_bytes));
    fs.rename(&root(), folder, from, folder, to, RenameFlags::empty())
}

type Call = fn(&Fs) -> Result<(), FsError>;

const CALLS: [(&str, Call); 12] = [
    ("stat", |fs| {
        assert_eq!(fs.size(node(fs)?)?, FAR + 3);
        Ok(())
    }),
    ("readdir", |fs| {
        assert_eq!(names(fs, folder(fs)?).len(), FILES + 2);
        Ok(())
    }),
    ("read", |fs| {
        let node = node(fs)?;
        assert_eq!(read(fs, node, FAR, 9), b"far");
        assert_eq!(read(fs, node, 0, 4), b"near");
        Ok(())
    }),
    ("getxattr", |fs| {
        let (node, mut value) = (node(fs)?, [0; 9000]);
        assert_eq!(fs.get_xattr(&root(), node, b"user.short", &mut value)?, 9);
        assert_eq!(fs.get_xattr(&root(), node, b"user.long", &mut value)?, 9000);
        assert_eq!(value, VALUE);
        Ok(())
    }),
    ("readlink", |fs| {
        let (link, mut target) = (find(fs, folder(fs)?, "link")?, [0; 6]);
        assert_eq!(fs.readlink(link, &mut target)?, 6);
        assert_eq!(&target, b"target");
        Ok(())
    }),
    ("write", |fs| {
        let at = WriteAt::Offset(FileOffset(FAR));
        fs.write(&root(), node(fs)?, at, b"far"[..].into())?;
        let at = WriteAt::Offset(FileOffset(FAR / 2));
        fs.write(&root(), node(fs)?, at, b"new"[..].into())?;
        Ok(())
    }),
    ("truncate", |fs| {
        fs.truncate(&root(), node(fs)?, FAR + 9000)?;
        fs.truncate(&root(), node(fs)?, FAR + 3)
    }),
    ("setxattr", |fs| {
        let (node, flags) = (node(fs)?, XattrFlags::empty());
        fs.set_xattr(&root(), node, b"user.long", &VALUE, flags)?;
        fs.set_xattr(&root(), node, b"user.new", b"new", flags)?;
        fs.remove_xattr(&root(), node, b"user.new")
    }),
    ("create and remove", |fs| {
        let folder = folder(fs)?;
        for number in 0..FILES {
            file(fs, folder, &format!("another one {number}"));
        }
        for number in 0..FILES {
            let name = format!("another one {number}");
            fs.unlink(&root(), folder, name.as_bytes())?;
        }
        Ok(())
    }),
    ("rename", |fs| {
        renamed(fs, "file", "other")?;
        renamed(fs, "other", "file")
    }),
    ("link", |fs| {
        fs.link(&root(), node(fs)?, folder(fs)?, b"linked")?;
        fs.unlink(&root(), folder(fs)?, b"linked")
    }),
    ("remove", |fs| {
        let folder = folder(fs)?;
        fs.unlink(&root(), folder, b"file")?;
        let node = file(fs, folder, "file");
        write(fs, node, 0, b"near");
        write(fs, node, FAR, b"far");
        let flags = XattrFlags::empty();
        fs.set_xattr(&root(), node, b"user.short", &VALUE[..9], flags)?;
        fs.set_xattr(&root(), node, b"user.long", &VALUE, flags)
    }),
];

/// The calls that only read.
const READS: usize = 5;

fn use_all(fs: &Fs, what: &str) {
    for (call, one) in &CALLS[..READS] {
        one(fs).unwrap_or_else(|error| panic!("{what}, then {call}: {error}"));
    }
}

/// What no call has met.
fn scrub_rest(fs: &Fs, is_one: Is) {
    // Some of it is found by who knows its owner.
    let wanted = match is_one(Structure::Value) || is_one(Structure::MapNode(1, 0)) {
        true => Doubtful::TakenFrom(volume_path(fs, "b")),
        false => Doubtful::Told,
    };
    let report = scrub(fs.store(), 1, &wanted, &mut |_| ControlFlow::Continue(()));
    assert_eq!(report.expect("scrub").left, 0);
}

fn volume_path(fs: &Fs, name: &str) -> PathBuf {
    let copies = fs.store().volume().copies().expect("copies");
    let copy = copies.into_iter().find(|copy| copy.path.ends_with(name));
    copy.expect("a copy").path
}

#[test]
fn each_call_meets_damage_and_does_what_it_is_to_do() {
    for (kind, is_one) in KINDS {
        for (call, one) in CALLS {
            let rig = Rig::new();
            rig.wreck("a", is_one);
            let fs = attach(&rig.files, "a");
            one(&fs).unwrap_or_else(|error| panic!("{kind}, {call}: {error}"));
            use_all(&fs, kind);
            scrub_rest(&fs, is_one);
            assert_sound(fs.store());
            detach(fs);
            for (name, other) in [("a", "b"), ("b", "a")] {
                let away = rig.files.file("away");
                std::fs::rename(rig.files.file(other), &away).unwrap();
                let fs = attach(&rig.files, name);
                use_all(&fs, &format!("{kind}, {call}, {name} alone"));
                assert_sound(fs.store());
                detach(fs);
                std::fs::rename(away, rig.files.file(other)).unwrap();
            }
        }
    }
}

/// Who may only read gets what is there and repairs nothing.
#[test]
fn who_may_only_read_changes_nothing() {
    let rig = Rig::new();
    rig.wreck("a", KINDS[2].1);
    let before = std::fs::read(rig.files.file("a")).unwrap();
    let volume = Volume::open(&rig.files.file("a"), Access::ReadOnly).expect("open");
    let fs = Fs::new(Store::attach(volume, &PRIVATE).expect("attach"));
    assert!(matches!(folder(&fs), Err(FsError::Corrupt(_))));
    drop(fs.into_store().abandon());
    assert!(std::fs::read(rig.files.file("a")).unwrap() == before);
}
