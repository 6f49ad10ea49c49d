use crate::pools::{assert_sound, dir, file, fs, fs_in, read, root, write};
use nacre_fs::{AllocateMode, Fs, FsError, Holes, InodeRef, MapAccess, Seek, WriteAt};
use nacre_session::{OFD_MAPPED, OFD_STORED, OfdInit};
use nacre_store::WriteMode;
use nacre_types::{DeviceOffset, FileOffset, StoreKind};
use nacre_volume::Observer;
use std::sync::{Arc, Mutex};

const UNIT: u64 = 4096;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

fn allocate(
    fs: &Fs,
    node: InodeRef,
    mode: AllocateMode,
    start: u64,
    len: u64,
) -> Result<(), FsError> {
    fs.allocate(&root(), node, mode, start, len)
}

#[test]
fn what_is_written_is_read_in_both_modes() {
    for mode in [WriteMode::Direct, WriteMode::Atomic] {
        let fs = fs_in(mode);
        let node = file(&fs, fs.root(), "a");
        let mut model = vec![0; 300_000];
        for (at, len) in [
            (0, 10),
            (5, 4090),
            (4096, 4096),
            (100_000, 70_000),
            (99_999, 3),
            (12_000, 20_000),
        ] {
            let bytes = pattern(len, at as u8);
            write(&fs, node, at as u64, &bytes);
            model[at..at + len].copy_from_slice(&bytes);
        }
        assert_eq!(fs.size(node), Ok(170_000));
        assert_eq!(read(&fs, node, 0, 400_000), &model[..170_000]);
        assert_eq!(read(&fs, node, 99_998, 7), &model[99_998..100_005]);
        assert_eq!(read(&fs, node, 170_000, 7), b"");
        assert_sound(&fs);
    }
}

#[test]
fn appends_go_to_the_end() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    let mut end = 0;
    for len in [1, 10, 4085, 4096, 5000] {
        let bytes = pattern(len, len as u8);
        let written = fs
            .write(&root(), node, WriteAt::Append, bytes[..].into())
            .expect("append");
        end += len as u64;
        assert_eq!((written.len, written.end), (len, FileOffset(end)));
        assert_eq!(read(&fs, node, end - len as u64, len), bytes);
    }
}

#[test]
fn pieces_are_one_write() {
    for mode in [WriteMode::Direct, WriteMode::Atomic] {
        let fs = fs_in(mode);
        let node = file(&fs, fs.root(), "a");
        let pieces = [&b"one"[..], b"", b"two", b"three"];
        let from: Vec<_> = pieces.iter().map(|piece| (*piece).into()).collect();
        let at = WriteAt::Offset(FileOffset(2));
        let written = fs.write_vectored(&root(), node, at, &from).expect("write");
        assert_eq!((written.len, written.end.0), (11, 13));
        assert_eq!(read(&fs, node, 0, 20), b"\0\0onetwothree");
        assert_eq!(
            fs.write_vectored(&root(), node, at, &[])
                .expect("nothing")
                .len,
            0
        );
    }
}

#[test]
fn only_regular_files_have_contents() {
    let fs = fs();
    let d = dir(&fs, fs.root(), "d");
    let mut byte = [0; 1];
    let start = FileOffset(0);
    assert_eq!(
        fs.read(d, start, (&mut byte[..]).into()),
        Err(FsError::IsDirectory)
    );
    let at = WriteAt::Offset(start);
    assert_eq!(
        fs.write(&root(), d, at, b"x"[..].into()),
        Err(FsError::IsDirectory)
    );
    assert_eq!(fs.set_size(&root(), d, 1), Err(FsError::IsDirectory));
    assert_eq!(fs.map_begin(d, MapAccess::Store), Err(FsError::IsDirectory));
    let link = fs.symlink(&root(), fs.root(), b"l", b"t").expect("symlink");
    assert_eq!(
        fs.write(&root(), link, at, b"x"[..].into()),
        Err(FsError::Invalid)
    );
    assert_eq!(
        allocate(&fs, link, AllocateMode::Extend, 0, 1),
        Err(FsError::Invalid)
    );
}

#[test]
fn files_have_a_largest_size() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    assert_eq!(
        fs.set_size(&root(), node, u64::MAX),
        Err(FsError::FileTooBig)
    );
    let at = WriteAt::Offset(FileOffset(1 << 60));
    assert_eq!(
        fs.write(&root(), node, at, b"x"[..].into()),
        Err(FsError::FileTooBig)
    );
    assert_eq!(
        allocate(&fs, node, AllocateMode::Extend, u64::MAX - 1, 100),
        Err(FsError::FileTooBig)
    );
    fs.set_size(&root(), node, 1 << 46).expect("sparse");
    assert_eq!(read(&fs, node, (1 << 46) - 5, 10), [0; 5]);
    assert_sound(&fs);
}

#[test]
fn cut_off_bytes_never_come_back() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    write(&fs, node, 0, &[0xAA; 20_000]);
    fs.set_size(&root(), node, 100).expect("shrink");
    fs.set_size(&root(), node, 20_000).expect("grow");
    let mut expected = vec![0; 20_000];
    expected[..100].fill(0xAA);
    assert_eq!(read(&fs, node, 0, 20_000), expected);
    fs.set_size(&root(), node, 50).expect("shrink");
    write(&fs, node, 200, b"x");
    assert_eq!(read(&fs, node, 50, 150), [0; 150]);
    assert_sound(&fs);
}

#[test]
fn holes_are_found() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    write(&fs, node, 4 * UNIT, &[1; UNIT as usize]);
    fs.set_size(&root(), node, 10 * UNIT).expect("grow");
    let seek = |what, at| fs.seek(node, what, at);
    assert_eq!(seek(Seek::Data, 0), Ok(4 * UNIT));
    assert_eq!(seek(Seek::Data, 4 * UNIT + 5), Ok(4 * UNIT + 5));
    assert_eq!(seek(Seek::Hole, 0), Ok(0));
    assert_eq!(seek(Seek::Hole, 4 * UNIT), Ok(5 * UNIT));
    assert_eq!(seek(Seek::Data, 5 * UNIT), Err(FsError::NoSuchOffset));
    assert_eq!(seek(Seek::Hole, 10 * UNIT), Err(FsError::NoSuchOffset));
    assert_eq!(seek(Seek::Data, u64::MAX), Err(FsError::NoSuchOffset));
}

#[test]
fn allocating_and_emptying() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    allocate(&fs, node, AllocateMode::Extend, 0, 3 * UNIT).expect("extend");
    let stat = fs.getattr(node).expect("getattr");
    assert_eq!((stat.size, stat.blocks), (3 * UNIT, 24));
    assert_eq!(read(&fs, node, 0, 20_000), vec![0; 3 * UNIT as usize]);
    allocate(&fs, node, AllocateMode::KeepSize, 3 * UNIT, UNIT).expect("keep size");
    assert_eq!(fs.size(node), Ok(3 * UNIT));
    write(&fs, node, 0, &[5; 3 * UNIT as usize]);
    allocate(&fs, node, AllocateMode::PunchHole, 100, UNIT).expect("punch");
    let mut expected = vec![5; 3 * UNIT as usize];
    expected[100..100 + UNIT as usize].fill(0);
    assert_eq!(read(&fs, node, 0, 20_000), expected);
    let zero = AllocateMode::ZeroRange { keep_size: false };
    allocate(&fs, node, zero, 2 * UNIT, 2 * UNIT).expect("zero");
    expected[2 * UNIT as usize..].fill(0);
    expected.resize(4 * UNIT as usize, 0);
    assert_eq!(read(&fs, node, 0, 20_000), expected);
    assert_eq!(
        allocate(&fs, node, AllocateMode::PunchHole, 0, 0),
        Err(FsError::Invalid)
    );
    assert_sound(&fs);
}

#[test]
fn copies_between_files() {
    let fs = fs();
    let (a, b) = (file(&fs, fs.root(), "a"), file(&fs, fs.root(), "b"));
    let bytes = pattern(50_001, 3);
    write(&fs, a, 0, &bytes);
    write(&fs, b, 0, &[9; 100]);
    let copy = |from_at, to_at, len| fs.copy_range(&root(), (a, from_at), (b, to_at), len);
    assert_eq!(copy(0, 0, 1 << 40), Ok(50_001));
    assert_eq!(read(&fs, b, 0, 60_000), bytes);
    assert_eq!(copy(7, 60_000, 1000), Ok(1000));
    assert_eq!(read(&fs, b, 60_000, 2000), &bytes[7..1007]);
    assert_eq!(read(&fs, b, 50_001, 9_999), vec![0; 9_999]);
    assert_eq!(copy(50_001, 0, 10), Ok(0));
    assert_eq!(
        fs.copy_range(&root(), (a, 0), (a, 10), 100),
        Err(FsError::Invalid)
    );
    assert_eq!(fs.copy_range(&root(), (a, 0), (a, 60_000), 100), Ok(100));
    write(&fs, a, 0, b"changed");
    assert_eq!(read(&fs, b, 0, 7), &bytes[..7]);
    assert_sound(&fs);
}

#[test]
fn clones_share_until_written() {
    let fs = fs();
    let (a, b) = (file(&fs, fs.root(), "a"), file(&fs, fs.root(), "b"));
    let bytes = pattern(40_000, 1);
    write(&fs, a, 0, &bytes);
    let free = fs.statfs().expect("statfs").free_units;
    let clone = |from_at, to_at, len| fs.clone_range(&root(), (a, from_at), (b, to_at), len);
    clone(0, 0, 0).expect("whole file");
    assert!(fs.statfs().expect("statfs").free_units >= free - 2);
    assert_eq!(read(&fs, b, 0, 50_000), bytes);
    write(&fs, b, 10, b"mine");
    assert_eq!(read(&fs, a, 0, 50_000), bytes);
    fs.unlink(&root(), fs.root(), b"a").expect("unlink");
    assert_eq!(read(&fs, b, 14, 50_000), &bytes[14..]);
    assert_sound(&fs);
}

#[test]
fn clones_refuse_what_cannot_be_shared() {
    let fs = fs();
    let (a, b) = (file(&fs, fs.root(), "a"), file(&fs, fs.root(), "b"));
    write(&fs, a, 0, &[1; 10_000]);
    write(&fs, b, 0, &[2; 20_000]);
    let clone =
        |from, from_at, to, to_at, len| fs.clone_range(&root(), (from, from_at), (to, to_at), len);
    assert_eq!(clone(a, 1, b, 0, UNIT), Err(FsError::Invalid));
    assert_eq!(clone(a, 0, b, 0, 100), Err(FsError::Invalid));
    assert_eq!(clone(a, 0, b, 0, 20_000), Err(FsError::Invalid));
    assert_eq!(clone(a, 2 * UNIT, b, 0, 0), Err(FsError::Invalid));
    assert_eq!(clone(a, 0, a, 0, UNIT), Err(FsError::Invalid));
    clone(a, 0, a, UNIT, UNIT).expect("apart");
    clone(a, 0, b, 0, 2 * UNIT).expect("whole units");
    assert_eq!(read(&fs, b, 0, 20_001)[8191..8193], [1, 2]);
    assert_sound(&fs);
}

/// Remembers what is flushed.
#[derive(Default)]
struct Flushes(Mutex<Vec<(u64, u64)>>);

impl Observer for Flushes {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

    fn flush(&self, _: u16, at: DeviceOffset, len: u64) {
        self.0.lock().expect("flushes").push((at.0, len));
    }

    fn fence(&self, _: u16) {}
}

#[test]
fn fsync_and_the_end_of_a_mapping_flush_what_may_have_been_stored_through_it() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    write(&fs, node, 0, &[3; 3 * UNIT as usize]);
    let flushes = Arc::new(Flushes::default());
    let observer: Arc<dyn Observer> = flushes.clone();
    fs.store().volume().set_observer(&observer);
    let bytes_flushed = |act: &dyn Fn()| {
        flushes.0.lock().expect("flushes").clear();
        act();
        let flushed = flushes.0.lock().expect("flushes");
        flushed.iter().map(|(_, len)| len).sum::<u64>()
    };
    let sync = || fs.fsync(node).expect("fsync");
    let contents = 3 * UNIT;
    assert!(bytes_flushed(&sync) < UNIT);
    fs.map_begin(node, MapAccess::Load).expect("map");
    assert!(bytes_flushed(&sync) < UNIT);
    fs.map_begin(node, MapAccess::Store).expect("map");
    assert!(bytes_flushed(&sync) >= contents);
    let all = || fs.sync_all_mapped().expect("sync");
    assert_eq!(bytes_flushed(&all), 0);
    let init = OfdInit {
        ino: node.ino,
        ino_generation: node.generation,
        flags: OFD_MAPPED | OFD_STORED,
        mode: 0o100_644,
        parent: node.ino,
        name: b"a",
    };
    let session = fs.store().session();
    let mapping = session.ofd_alloc(fs.store().slot(), &init).expect("room");
    assert!(bytes_flushed(&all) >= contents);
    assert!(session.unhold(mapping, fs.store().slot()));
    session.ofd_free(mapping);
    assert_eq!(bytes_flushed(&all), 0);
    let end = |access| move |fs: &Fs| fs.map_end(node.ino, access).expect("unmap");
    assert!(bytes_flushed(&|| end(MapAccess::Load)(&fs)) < UNIT);
    assert!(bytes_flushed(&sync) >= contents);
    assert!(bytes_flushed(&|| end(MapAccess::Store)(&fs)) >= contents);
    assert!(bytes_flushed(&sync) < UNIT);
}

#[test]
fn mapped_files_keep_their_units() {
    for mode in [WriteMode::Direct, WriteMode::Atomic] {
        let fs = fs_in(mode);
        let node = file(&fs, fs.root(), "a");
        write(&fs, node, 0, &[3; 5000]);
        fs.set_size(&root(), node, 4 * UNIT).expect("grow");
        fs.map_begin(node, MapAccess::Store).expect("map");
        let pages = || {
            let mapped = fs.map_pages(node, 0, 100, Holes::Fill);
            mapped.map(|mapped| mapped.runs)
        };
        let runs = pages().expect("pages");
        assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), 4);
        write(&fs, node, 0, &[4; 4 * UNIT as usize]);
        assert_eq!(pages(), Ok(runs.clone()));
        let mut byte = [0; 1];
        fs.store().volume().read(runs[0].unit.offset(), &mut byte);
        assert_eq!(byte, [4]);
        fs.set_size(&root(), node, 0).expect("shrink");
        fs.set_size(&root(), node, 4 * UNIT).expect("grow");
        assert_eq!(read(&fs, node, 0, 20_000), vec![0; 4 * UNIT as usize]);
        assert_eq!(pages(), Ok(runs));
        fs.map_end(node.ino, MapAccess::Store).expect("unmap");
        fs.set_size(&root(), node, 0).expect("shrink");
        assert_eq!(fs.getattr(node).expect("getattr").blocks, 0);
        assert_sound(&fs);
    }
}

#[test]
fn a_full_pool_says_so_and_recovers() {
    let fs = fs();
    let node = file(&fs, fs.root(), "a");
    let piece = vec![1; 1 << 20];
    let mut error = None;
    for _ in 0..100 {
        match fs.write(&root(), node, WriteAt::Append, piece[..].into()) {
            Ok(_) => {}
            Err(refused) => {
                error = Some(refused);
                break;
            }
        }
    }
    assert_eq!(error, Some(FsError::NoSpace));
    assert_sound(&fs);
    fs.unlink(&root(), fs.root(), b"a")
        .expect("unlink in a full pool");
    let node = file(&fs, fs.root(), "b");
    write(&fs, node, 0, &piece);
    fs.fsync(node).expect("fsync");
    assert_sound(&fs);
}
