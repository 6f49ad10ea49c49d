//! Pools whose disks hold a part together and the rest each alone (D80).

use std::collections::HashMap;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;

use nacre_fs::{AllocateMode, Fs, FsError, InodeRef, NewMode, WriteAt, XattrFlags};
use nacre_store::check::check;
use nacre_store::{Store, WriteMode};
use nacre_testkit::pool::{PRIVATE, PoolChoice, PoolFiles, assert_sound, states_of_copies};
use nacre_types::{FileOffset, ObjectId};
use nacre_volume::{Access, Caching, Common, LegState, Volume};

use crate::pools::{dir, file, read, root, write};

const MIB: u64 = 1 << 20;
const COPIES: &[u8] = b"user.nacre.copies";

pub(crate) struct Pool(pub(crate) PoolFiles);

impl Pool {
    pub(crate) fn new() -> Self {
        Self(PoolFiles::make(&PoolChoice {
            devices: &["a", "b"],
            bytes: 64 * MIB,
            caching: Caching::Always,
            copies: 2,
            common: Some(Common::Usual),
            ..PoolChoice::default()
        }))
    }

    pub(crate) fn open(&self, name: &str) -> Fs {
        let volume = Volume::open(&self.0.file(name), Access::ReadWrite).expect("open");
        Fs::new(Store::attach(volume, &PRIVATE).expect("attach"))
    }

    pub(crate) fn take_away(&self, name: &str) {
        fs::rename(self.0.file(name), self.0.file("away")).unwrap();
    }

    pub(crate) fn put_back(&self, name: &str) {
        fs::rename(self.0.file("away"), self.0.file(name)).unwrap();
    }

    pub(crate) fn states(&self, name: &str) -> Vec<LegState> {
        states_of_copies(&self.0.file(name))
    }
}

pub(crate) fn close(fs: Fs) {
    fs.into_store().detach().unwrap();
}

pub(crate) fn find(fs: &Fs, dir: InodeRef, name: &str) -> InodeRef {
    fs.lookup(&root(), dir, name.as_bytes()).unwrap().node
}

pub(crate) fn set(fs: &Fs, node: InodeRef, value: &[u8]) -> Result<(), FsError> {
    fs.set_xattr(&root(), node, COPIES, value, XattrFlags::empty())
}

pub(crate) fn get(fs: &Fs, node: InodeRef) -> Result<Vec<u8>, FsError> {
    let mut value = [0; 16];
    let len = fs.get_xattr(&root(), node, COPIES, &mut value)?;
    Ok(value[..len].to_vec())
}

pub(crate) fn pattern(number: u64, len: u64) -> Vec<u8> {
    let byte = |at: u64| (number * 31 + at * 7 + at / 4096) as u8;
    (0..len).map(byte).collect()
}

/// Length of the file with a number.
pub(crate) fn len_of(number: u64) -> u64 {
    number * 130_000 % 1_500_000 + 5
}

/// Files in a folder; those of different numbers differ.
pub(crate) fn fill(fs: &Fs, dir: InodeRef, numbers: Range<u64>) {
    for number in numbers {
        let node = file(fs, dir, &format!("f{number}"));
        write(fs, node, 0, &pattern(number, len_of(number)));
    }
}

/// Reads page by page; which bytes cannot be read.
pub(crate) fn unreadable(fs: &Fs, node: InodeRef, wanted: &[u8]) -> Vec<Range<u64>> {
    let mut lost: Vec<Range<u64>> = Vec::new();
    for (page, wanted) in (0..).zip(wanted.chunks(4096)) {
        let mut bytes = vec![0; wanted.len()];
        match fs.read(node, FileOffset(page * 4096), bytes.as_mut_slice().into()) {
            Ok(len) => assert!(len == wanted.len() && bytes == wanted, "page {page}"),
            Err(FsError::Io) => match lost.last_mut() {
                Some(last) if last.end == page * 4096 => last.end += 4096,
                _ => lost.push(page * 4096..(page + 1) * 4096),
            },
            Err(other) => panic!("{other}"),
        }
    }
    lost
}

/// What check says of each object.
pub(crate) fn told(fs: &Fs) -> HashMap<ObjectId, Vec<Range<u64>>> {
    let report = check(fs.store(), &mut |_| {});
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    let mut told: HashMap<ObjectId, Vec<Range<u64>>> = HashMap::new();
    for lost in report.lost {
        told.entry(lost.object).or_default().push(lost.bytes);
    }
    told
}

/// With files that lie on either disk, and precious ones.
pub(crate) fn filled(pool: &Pool) -> (Fs, InodeRef, InodeRef) {
    let fs = pool.open("a");
    let [plain, precious] = ["plain", "precious"].map(|name| dir(&fs, fs.root(), name));
    set(&fs, precious, b"2").unwrap();
    fill(&fs, plain, 0..20);
    fill(&fs, precious, 20..28);
    (fs, plain, precious)
}

#[test]
fn names_and_precious_files_survive_either_disk_and_the_rest_is_told() {
    let pool = Pool::new();
    let (fs, ..) = filled(&pool);
    assert!(told(&fs).is_empty());
    close(fs);
    for (away, other) in [("a", "b"), ("b", "a")] {
        pool.take_away(away);
        let fs = pool.open(other);
        let (plain, precious) = (
            find(&fs, fs.root(), "plain"),
            find(&fs, fs.root(), "precious"),
        );
        let mut told = told(&fs);
        let mut whole = 0;
        for number in 0..20 {
            let node = find(&fs, plain, &format!("f{number}"));
            let lost = unreadable(&fs, node, &pattern(number, len_of(number)));
            whole += usize::from(lost.is_empty());
            assert_eq!(lost, told.remove(&ObjectId(node.ino.0)).unwrap_or_default());
        }
        assert!(told.is_empty() && (1..20).contains(&whole), "{whole}");
        for number in 20..28 {
            let node = find(&fs, precious, &format!("f{number}"));
            assert!(unreadable(&fs, node, &pattern(number, len_of(number))).is_empty());
        }
        go_on(&fs, plain, precious);
        close(fs);
        // Others see the same, and what came since.
        let fs = pool.open(other);
        let new = find(&fs, find(&fs, fs.root(), "plain"), "f40");
        assert!(unreadable(&fs, new, &pattern(40, len_of(40))).is_empty());
        close(fs);
        pool.put_back(away);
        come_back(&pool, other);
    }
}

/// What works without one of the disks.
pub(crate) fn go_on(fs: &Fs, plain: InodeRef, precious: InodeRef) {
    fill(fs, plain, 40..44);
    fill(fs, precious, 44..46);
    for (dir, numbers) in [(plain, 40..44), (precious, 44..46)] {
        for number in numbers {
            let node = find(fs, dir, &format!("f{number}"));
            assert!(unreadable(fs, node, &pattern(number, len_of(number))).is_empty());
        }
    }
    let gone = file(fs, plain, "gone");
    write(fs, gone, 0, &[1; 100_000]);
    fs.unlink(&root(), plain, b"gone").unwrap();
    fs.store().commit_now().unwrap();
}

/// A disk that was away has what it had, and gets what all hold.
fn come_back(pool: &Pool, other: &str) {
    let fs = pool.open(other);
    let volume = fs.store().volume();
    for copy in volume.copies().unwrap() {
        if copy.state != LegState::Current {
            assert!(volume.return_copy(copy.uuid).unwrap());
        }
    }
    let whole = volume.rebuild_copies(|_| ControlFlow::Continue(()));
    assert_eq!(whole.unwrap(), 1);
    assert_eq!(pool.states(other), [LegState::Current; 2]);
    let plain = find(&fs, fs.root(), "plain");
    for number in 0..20 {
        let node = find(&fs, plain, &format!("f{number}"));
        assert!(unreadable(&fs, node, &pattern(number, len_of(number))).is_empty());
    }
    for number in 40..44 {
        fs.unlink(&root(), plain, format!("f{number}").as_bytes())
            .unwrap();
    }
    let precious = find(&fs, fs.root(), "precious");
    for number in 44..46 {
        fs.unlink(&root(), precious, format!("f{number}").as_bytes())
            .unwrap();
    }
    close(fs);
    let fs = pool.open(other);
    assert!(told(&fs).is_empty());
    assert_sound(fs.store());
    close(fs);
}

#[test]
fn a_file_moves_when_it_is_asked_for_and_back() {
    let pool = Pool::new();
    let fs = pool.open("a");
    let node = file(&fs, fs.root(), "f");
    let wanted = pattern(3, 7 * MIB + 5);
    write(&fs, node, 0, &wanted);
    let free = || {
        (
            fs.store().statfs().free_units,
            fs.store().statfs().free_alone,
        )
    };
    let (all, alone) = free();
    assert!(matches!(get(&fs, node), Err(FsError::NoAttribute)));
    set(&fs, node, b"2").unwrap();
    assert_eq!(get(&fs, node).unwrap(), b"2");
    assert_eq!(free().1, alone + 7 * 256 + 1);
    assert!(free().0.abs_diff(all) < 8);
    assert!(read(&fs, node, 0, wanted.len()) == wanted);
    let mut names = [0; 64];
    let len = fs.list_xattr(&root(), node, &mut names).unwrap();
    assert_eq!(&names[..len], b"user.nacre.copies\0");
    // It goes on there.
    write(&fs, node, wanted.len() as u64, &[7; 100_000]);
    assert_eq!(free().1, alone + 7 * 256 + 1);
    fs.remove_xattr(&root(), node, COPIES).unwrap();
    assert!(matches!(get(&fs, node), Err(FsError::NoAttribute)));
    assert_eq!(free().1, alone - 24);
    let again = fs.remove_xattr(&root(), node, COPIES);
    assert!(matches!(again, Err(FsError::NoAttribute)));
    assert!(read(&fs, node, 0, wanted.len()) == wanted);
    assert_sound(fs.store());
}

#[test]
fn values_and_flags_are_as_of_other_attributes() {
    let pool = Pool::new();
    let fs = pool.open("a");
    let node = file(&fs, fs.root(), "f");
    for bad in [&b""[..], b"0", b"3", b"two", b"2\n", b"-1"] {
        assert!(
            matches!(set(&fs, node, bad), Err(FsError::Invalid)),
            "{bad:?}"
        );
    }
    let with = |value: &[u8], flags| fs.set_xattr(&root(), node, COPIES, value, flags);
    assert!(matches!(
        with(b"2", XattrFlags::REPLACE),
        Err(FsError::NoAttribute)
    ));
    with(b"2", XattrFlags::CREATE).unwrap();
    assert!(matches!(
        with(b"2", XattrFlags::CREATE),
        Err(FsError::Exists)
    ));
    with(b"1", XattrFlags::REPLACE).unwrap();
    assert!(matches!(get(&fs, node), Err(FsError::NoAttribute)));
    let other = fs.set_xattr(
        &crate::pools::user(7),
        node,
        COPIES,
        b"2",
        XattrFlags::empty(),
    );
    assert!(matches!(other, Err(FsError::PermissionDenied)));
    // In other pools it is an attribute like others.
    let fs = crate::pools::fs_in(WriteMode::Direct);
    let node = file(&fs, fs.root(), "f");
    set(&fs, node, b"whatever").unwrap();
    assert_eq!(get(&fs, node).unwrap(), b"whatever");
}

#[test]
fn what_is_made_in_a_folder_is_like_it() {
    let pool = Pool::new();
    let fs = pool.open("a");
    let top = dir(&fs, fs.root(), "top");
    set(&fs, top, b"2").unwrap();
    let below = dir(&fs, top, "below");
    let node = fs
        .create(&root(), below, b"f", NewMode::masked(0o666, 0o027))
        .unwrap();
    assert_eq!(
        fs.store().attrs(ObjectId(node.ino.0)).unwrap().mode & 0o777,
        0o640
    );
    let link = fs.symlink(&root(), below, b"link", b"f").unwrap();
    for node in [below, node] {
        assert_eq!(get(&fs, node).unwrap(), b"2");
    }
    assert!(get(&fs, link).is_err());
    let listed = fs.list_xattr(&root(), link, &mut [0; 64]).unwrap();
    assert_eq!(listed, 0, "a link has none of them");
    let alone = fs.store().statfs().free_alone;
    write(&fs, node, 0, &pattern(1, MIB));
    // Reserved room, and a long link anywhere.
    let reserved = file(&fs, below, "reserved");
    fs.allocate(&root(), reserved, AllocateMode::KeepSize, 0, MIB)
        .unwrap();
    write(&fs, reserved, 0, &[3; 5000]);
    fs.symlink(&root(), fs.root(), b"long", &[b'x'; 3000])
        .unwrap();
    assert_eq!(fs.store().statfs().free_alone, alone);
    let from = fs.lookup(&root(), fs.root(), b"top").unwrap();
    fs.clone_tree(&root(), from, fs.root(), b"copy").unwrap();
    let copy = find(&fs, find(&fs, fs.root(), "copy"), "below");
    let copied = find(&fs, copy, "f");
    assert_eq!(get(&fs, copied).unwrap(), b"2");
    write(&fs, copied, 5000, &[1; 50_000]);
    assert_eq!(fs.store().statfs().free_alone, alone);
}

#[test]
fn what_has_no_room_is_refused_and_nothing_has_changed() {
    let pool = Pool::new();
    let fs = pool.open("a");
    let node = file(&fs, fs.root(), "large");
    let wanted = pattern(9, 30 * MIB);
    for (number, piece) in (0..).zip(wanted.chunks(1 << 20)) {
        write(&fs, node, number << 20, piece);
        fs.store().commit_now().unwrap();
    }
    let before = fs.store().statfs();
    assert!(matches!(set(&fs, node, b"2"), Err(FsError::NoSpace)));
    assert!(get(&fs, node).is_err());
    assert_eq!(fs.store().statfs(), before);
    assert!(read(&fs, node, 0, wanted.len()) == wanted);
    // The one part is full, the other is not.
    let kept = file(&fs, fs.root(), "kept");
    set(&fs, kept, b"2").unwrap();
    fill_up(&fs, kept);
    let plain = file_if_room(&fs);
    if let Some(plain) = plain {
        // Without a node of a map.
        write(&fs, plain, 0, &[1; 4096]);
    }
    fs.unlink(&root(), fs.root(), b"kept").unwrap();
    let plain = file(&fs, fs.root(), "rest");
    fill_up(&fs, plain);
    assert_eq!(fs.store().statfs().free_alone, 0);
    let small = file(&fs, fs.root(), "small");
    set(&fs, small, b"2").unwrap();
    write(&fs, small, 0, &[1; 100_000]);
    fs.store().commit_now().unwrap();
    assert_sound(fs.store());
}

fn file_if_room(fs: &Fs) -> Option<InodeRef> {
    fs.create(&root(), fs.root(), b"more", 0o644).ok()
}

/// Writes until there is no room.
fn fill_up(fs: &Fs, node: InodeRef) {
    for number in 0..1000 {
        let at = WriteAt::Offset(FileOffset(number * 100_000));
        match fs.write(&root(), node, at, [5; 100_000][..].into()) {
            Ok(written) if written.len == 100_000 => fs.store().commit_now().unwrap(),
            Ok(_) | Err(FsError::NoSpace) => return,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("it never fills");
}

#[test]
fn contents_that_are_shared_are_not_moved_behind_their_other_owners() {
    let pool = Pool::new();
    let fs = pool.open("a");
    let top = dir(&fs, fs.root(), "top");
    let node = file(&fs, top, "f");
    write(&fs, node, 0, &pattern(1, MIB));
    let from = fs.lookup(&root(), fs.root(), b"top").unwrap();
    fs.clone_tree(&root(), from, fs.root(), b"copy").unwrap();
    assert!(matches!(set(&fs, node, b"2"), Err(FsError::Busy)));
    assert!(get(&fs, node).is_err());
    assert!(read(&fs, node, 0, MIB as usize) == pattern(1, MIB));
    assert_sound(fs.store());
}

#[test]
fn a_disk_that_is_lost_while_it_is_used_takes_only_what_it_alone_held() {
    let pool = Pool::new();
    let (fs, plain, precious) = filled(&pool);
    fs.store().commit_now().unwrap();
    fs.store().volume().checkpoint().unwrap();
    fs.store().volume().drop_memory();
    let label = fs::File::options().write(true).open(pool.0.file("b"));
    label.unwrap().write_all_at(&[0; 4096], 0).unwrap();
    fs.store().volume().check_copies().unwrap();
    assert_eq!(pool.states("a"), [LegState::Current, LegState::Failed]);
    fs.store().commit_now().unwrap();
    let mut told = told(&fs);
    assert!(!told.is_empty());
    for number in 0..20 {
        let node = find(&fs, plain, &format!("f{number}"));
        let lost = unreadable(&fs, node, &pattern(number, len_of(number)));
        assert_eq!(lost, told.remove(&ObjectId(node.ino.0)).unwrap_or_default());
        let Some(first) = lost.first() else { continue };
        refuses_changes(&fs, node, first.start);
    }
    for number in 20..28 {
        let node = find(&fs, precious, &format!("f{number}"));
        assert!(unreadable(&fs, node, &pattern(number, len_of(number))).is_empty());
    }
    go_on(&fs, plain, precious);
    // A file that is written again from its start is whole.
    let node = find(&fs, plain, "f11");
    fs.truncate(&root(), node, 0).unwrap();
    write(&fs, node, 0, &pattern(11, len_of(11)));
    fs.store().commit_now().unwrap();
    close(fs);
    let fs = pool.open("a");
    let node = find(&fs, find(&fs, fs.root(), "plain"), "f11");
    assert!(unreadable(&fs, node, &pattern(11, len_of(11))).is_empty());
    assert_sound(fs.store());
}

/// Changes of what is lost fail alone; the next ones do not.
fn refuses_changes(fs: &Fs, node: InodeRef, at: u64) {
    for len in [100, 4096] {
        let bytes = vec![1; len];
        let done = fs.write(
            &root(),
            node,
            WriteAt::Offset(FileOffset(at)),
            bytes[..].into(),
        );
        assert!(matches!(done, Err(FsError::Io)), "{done:?}");
    }
    let zeroed = fs.allocate(&root(), node, AllocateMode::PunchHole, at + 10, 20);
    assert!(matches!(zeroed, Err(FsError::Io)), "{zeroed:?}");
    fs.store().volume().health().unwrap();
}
