//! fork, vfork, exec and exit, and mappings that go with them.

use crate::world::{
    AT_FDCWD, FilePool, Harness, MockKernel, O_CLOEXEC, O_CREAT, O_RDONLY, O_RDWR, O_WRONLY,
    memory_fs, passed, value,
};
use nacre_types::{DeviceOffset, StoreKind};
use nacre_vfs::{
    ErrorKind, FileLock, Holes, Kernel, MapRange, MapRequest, MountSpec, Staying, Vfs,
};
use nacre_volume::Observer;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const F_SETLK: i32 = 6;
const F_WRLCK: i16 = 1;
/// More than the session has slots.
const MANY: usize = nacre_session::MAX_SLOTS + 100;

#[test]
fn a_child_shares_positions_and_outlives_the_parents_fds() {
    let harness = Harness::new();
    harness.file("/nacre/f", "0123456789");
    let fd = harness.open("/nacre/f", O_RDONLY).unwrap();
    harness.mkdir("/nacre/d").unwrap();
    harness.chdir("/nacre/d").unwrap();
    let parent_cwd = || harness.getcwd().unwrap();
    let child = harness.vfs.vfork_view().unwrap();
    harness.kernel.fork(2);
    child.adopt().unwrap();
    harness.kernel.switch(2);
    let child_read = |len: usize| {
        let mut buffer = vec![0; len];
        let got = value(child.read(fd, buffer.as_mut_slice().into())).unwrap();
        String::from_utf8(buffer[..got as usize].to_vec()).unwrap()
    };
    assert_eq!(child_read(2), "01");
    harness.kernel.switch(1);
    assert_eq!(harness.read(fd, 2).as_deref(), Ok("23"));
    harness.close(fd).unwrap();
    harness.unlink("/nacre/f").unwrap();
    assert_eq!(child_read(2), "45");
    harness.kernel.switch(2);
    assert_eq!(passed(child.chdir(b"/tmp")), None);
    child.host_chdir_done();
    let opened =
        value(child.openat(AT_FDCWD, b"/nacre/g", O_WRONLY | O_CREAT, 0o600)).unwrap() as i32;
    assert_eq!(value(child.close(fd)), Ok(0));
    harness.kernel.switch(1);
    assert_eq!(parent_cwd(), "/nacre/d");
    assert!(!harness.vfs.ours(opened));
    harness.kernel.switch(2);
    child.exit();
    harness.kernel.switch(1);
    assert_eq!(harness.contents("/nacre/g").as_deref(), Ok(""));
}

/// Other threads work between the parent's look at its numbers and the kernel's copy of them.
#[test]
fn a_child_in_the_parents_memory_goes_by_the_kernels_copy_of_the_numbers() {
    let harness = Harness::new();
    harness.file("/nacre/f", "first");
    harness.file("/nacre/g", "second");
    harness.vfs.now_threaded();
    let closed = harness.open("/nacre/f", O_RDONLY).unwrap();
    let replaced = harness.open("/nacre/f", O_RDONLY).unwrap();
    let kept = harness.open("/nacre/f", O_RDONLY).unwrap();
    let shared = harness.open("/nacre/g", O_RDONLY).unwrap();
    let child = harness.vfs.vfork_view().unwrap();
    harness.close(closed).unwrap();
    harness.close(replaced).unwrap();
    assert_eq!(harness.kernel.host_open("/tmp"), closed);
    assert_eq!(harness.open("/nacre/g", O_RDONLY), Ok(replaced));
    let cached = harness.open("/nacre/g", O_RDONLY).unwrap();
    harness.close(cached).unwrap();
    harness.kernel.fork(2);
    harness.vfs.vfork_has_begun();
    // What the parent does from here on is its own.
    harness.close(shared).unwrap();
    assert_eq!(harness.open("/nacre/f", O_RDONLY), Ok(shared));
    harness.vfs.before_exec(false).unwrap();
    harness.kernel.switch(2);
    child.adopt().unwrap();
    assert!(!child.ours(closed) && child.ours(kept));
    let read = |fd: i32| {
        let mut buffer = [0; 6];
        let got = value(child.read(fd, buffer.as_mut_slice().into()))?;
        Ok::<_, ErrorKind>(String::from_utf8(buffer[..got as usize].to_vec()).unwrap())
    };
    assert_eq!(read(replaced).as_deref(), Ok("second"));
    assert_eq!(read(shared).as_deref(), Ok("second"));
    assert!(!harness.kernel.is_open(cached));
    // A host file gets no identity, and nobody is refused.
    child.before_exec(false).unwrap();
    assert_eq!(read(kept).as_deref(), Ok("first"));
    child.exit();
}

#[test]
fn a_forked_child_has_no_number_that_a_thread_was_about_to_open_or_close() {
    let harness = Harness::new();
    harness.file("/nacre/f", "text");
    harness.vfs.now_threaded();
    let kept = harness.open("/nacre/f", O_RDONLY).unwrap();
    let host = harness.kernel.host_open("/tmp");
    let ticket = harness.vfs.before_fork().unwrap();
    let opening = harness.kernel.open_placeholder(0, false).unwrap();
    // The test goes on as the child.
    harness.vfs.after_fork_child(ticket).unwrap();
    assert!(!harness.kernel.is_open(opening));
    assert!(harness.vfs.ours(kept) && !harness.vfs.ours(host));
    assert!(harness.kernel.is_open(host) && harness.close(kept).is_ok());
}

#[test]
fn what_other_threads_open_instead_gets_no_identity_before_exec() {
    let harness = Harness::new();
    harness.file("/nacre/f", "first");
    let fd = harness.open("/nacre/f", O_RDONLY).unwrap();
    // As another thread does between the look at the table and at the kernel.
    harness.kernel.close(fd).unwrap();
    assert_eq!(harness.kernel.host_open("/tmp"), fd);
    for threads in [false, true] {
        if threads {
            harness.vfs.now_threaded();
        }
        assert!(harness.vfs.before_exec(threads).is_ok());
        harness.vfs.after_failed_exec();
    }
}

#[test]
fn exec_keeps_fds_positions_and_the_current_directory() {
    let pool = FilePool::new();
    let before = pool.first_program();
    before.mkdir("/nacre/d").unwrap();
    before.file("/nacre/d/f", "0123456789");
    before.file("/nacre/gone", "x");
    let kept = before.open("/nacre/d/f", O_RDONLY).unwrap();
    let closed = before.open("/nacre/gone", O_RDONLY | O_CLOEXEC).unwrap();
    let host = before.kernel.host_open("/tmp");
    before.unlink("/nacre/gone").unwrap();
    before.chdir("/nacre/d").unwrap();
    before.read(kept, 4).unwrap();
    let free = before.free_files();
    let after = pool.next_program(before);
    assert!(after.vfs.ours(kept) && !after.vfs.ours(closed) && !after.vfs.ours(host));
    assert_eq!(after.read(kept, 3).as_deref(), Ok("456"));
    assert_eq!(after.getcwd().as_deref(), Ok("/nacre/d"));
    assert_eq!(after.contents("f").as_deref(), Ok("0123456789"));
    assert_eq!(after.free_files(), free + 1);
    let last = pool.next_program(after);
    assert_eq!(last.read(kept, 3).as_deref(), Ok("789"));
    assert_eq!(last.getcwd().as_deref(), Ok("/nacre/d"));
}

#[test]
fn exec_with_a_current_directory_on_the_host() {
    let pool = FilePool::new();
    let before = pool.first_program();
    before.chdir("/nacre").unwrap();
    before.kernel.chdir(b"/tmp").unwrap();
    before.vfs.host_chdir_done();
    let after = pool.next_program(before);
    assert_eq!(passed(after.vfs.fstatat(AT_FDCWD, b"x", 0)), None);
}

#[test]
fn a_forked_child_has_its_own_locks_and_share() {
    let harness = Harness::new();
    let fd = harness.open("/nacre/f", O_RDWR | O_CREAT).unwrap();
    let mut lock = FileLock {
        kind: F_WRLCK,
        ..FileLock::default()
    };
    value(harness.vfs.fcntl_lock(fd, F_SETLK, &mut lock)).unwrap();
    harness.chdir("/nacre").unwrap();
    let free = harness.free_files();
    // The test goes on as the child; the parent's slot stays as it is, with its lock and its file.
    let ticket = harness.vfs.before_fork().unwrap();
    harness.vfs.after_fork_child(ticket).unwrap();
    let childs = value(harness.vfs.fcntl_lock(fd, F_SETLK, &mut lock));
    assert_eq!(childs, Err(ErrorKind::WouldBlock));
    assert_eq!(harness.getcwd().as_deref(), Ok("/nacre"));
    harness.unlink("/nacre/f").unwrap();
    harness.close(fd).unwrap();
    assert_eq!(harness.free_files(), free);
}

#[test]
fn a_fork_that_fails_leaves_nothing() {
    let harness = Harness::new();
    let fd = harness.open("/nacre/f", O_RDWR | O_CREAT).unwrap();
    let free = harness.free_files();
    for _ in 0..MANY {
        let ticket = harness.vfs.before_fork().unwrap();
        harness.vfs.after_fork_parent(ticket, None);
        harness.vfs.vfork_view().unwrap().vfork_done(None);
    }
    harness.unlink("/nacre/f").unwrap();
    harness.close(fd).unwrap();
    assert_eq!(harness.free_files(), free + 1);
}

#[test]
fn forks_reap_the_dead_when_the_slots_are_used_up() {
    let harness = Harness::new();
    let mut process = std::process::Command::new("true").spawn().unwrap();
    let dead = process.id() as i32;
    process.wait().unwrap();
    for _ in 0..MANY {
        let ticket = harness.vfs.before_fork().unwrap();
        harness.vfs.after_fork_parent(ticket, Some(dead));
    }
}

#[test]
fn more_than_a_thousand_children_live_at_once() {
    let harness = Harness::new();
    let fd = harness.open("/nacre/f", O_WRONLY | O_CREAT).unwrap();
    let alive = std::process::id() as i32;
    for _ in 0..3000 {
        let ticket = harness.vfs.before_fork().unwrap();
        harness.vfs.after_fork_parent(ticket, Some(alive));
    }
    let free = harness.free_files();
    harness.unlink("/nacre/f").unwrap();
    harness.close(fd).unwrap();
    assert_eq!(harness.free_files(), free, "the children have it open");
}

#[test]
fn exit_lets_go_of_everything() {
    let harness = Harness::new();
    let free = harness.free_files();
    for n in 0..MANY {
        let child = harness.vfs.vfork_view().unwrap();
        child.adopt().unwrap();
        let path = format!("/nacre/{n}");
        value(child.openat(AT_FDCWD, path.as_bytes(), O_WRONLY | O_CREAT, 0o600)).unwrap();
        value(child.chdir(b"/nacre")).unwrap();
        harness.unlink(&path).unwrap();
        child.exit();
        child.vfork_done(Some(1));
    }
    assert_eq!(harness.free_files(), free);
}

#[test]
fn shared_mappings_show_the_devices_units() {
    let pool = FilePool::new();
    let harness = pool.first_program();
    harness.file("/nacre/f", &"x".repeat(5000));
    let fd = harness.open("/nacre/f", O_RDWR).unwrap();
    let wish = MapRequest {
        write: true,
        exec: false,
        shared: true,
        offset: 0,
        len: 16384,
    };
    let plan = value(harness.vfs.mmap_plan(fd, wish)).unwrap();
    assert_eq!((plan.file_bytes, plan.may_write), (5000, true));
    assert_eq!(
        plan.range.pieces.iter().map(|piece| piece.len).sum::<u64>(),
        8192
    );
    let free = harness.free_files();
    harness.close(fd).unwrap();
    harness.unlink("/nacre/f").unwrap();
    let device = std::fs::File::open(pool.device()).unwrap();
    for piece in &plan.range.pieces {
        let mut byte = [0];
        device
            .read_exact_at(&mut byte, piece.device_offset)
            .unwrap();
        assert_eq!(&byte, b"x");
    }
    harness.vfs.mapping_added(plan.hold);
    harness.vfs.mapping_removed(plan.hold);
    assert_eq!(harness.free_files(), free);
    let again = harness
        .vfs
        .map_range(plan.hold, (4096, 4096), Holes::Leave, Staying::Always);
    let MapRange { pieces, shown, .. } = again.unwrap();
    assert_eq!((pieces.len(), pieces[0].at, pieces[0].len), (1, 0, 4096));
    assert_eq!(shown, 4096);
    harness.vfs.sync_mapping(plan.hold, 0, 8192).unwrap();
    harness.vfs.mapping_removed(plan.hold);
    assert_eq!(harness.free_files(), free + 1);
}

/// Counts the bytes that reach a device.
#[derive(Default)]
struct Reached(AtomicU64);

impl Observer for Reached {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {}

    fn persisted(&self, _: u16, _: DeviceOffset, len: u64, _: StoreKind) {
        self.0.fetch_add(len, Relaxed);
    }
}

#[test]
fn a_mapping_that_only_loads_costs_a_sync_nothing() {
    const LEN: u64 = 1 << 20;
    let pool = FilePool::on_disk();
    let reached = Arc::new(Reached::default());
    let observer: Arc<dyn Observer> = reached.clone();
    let harness = pool.watched_program(&observer);
    harness.file("/nacre/f", &"x".repeat(LEN as usize));
    let fd = harness.open("/nacre/f", O_RDWR).unwrap();
    let synced = || {
        value(harness.vfs.pwrite(fd, (&b"y"[..]).into(), 0)).unwrap();
        let before = reached.0.load(Relaxed);
        value(harness.vfs.fsync(fd)).unwrap();
        reached.0.load(Relaxed) - before
    };
    synced();
    let wish = MapRequest {
        write: false,
        exec: false,
        shared: true,
        offset: 0,
        len: LEN,
    };
    let map = |wish| value(harness.vfs.mmap_plan(fd, wish)).unwrap().hold;
    let hold = map(wish);
    assert!(synced() < LEN / 4, "of a mapping for loads");
    // Twice, as two programs that share it may.
    harness.vfs.mapping_stores(hold).unwrap();
    harness.vfs.mapping_stores(hold).unwrap();
    assert!(synced() >= LEN, "stores are allowed");
    harness.vfs.mapping_removed(hold);
    assert!(synced() < LEN / 4, "it is gone");
    let hold = map(MapRequest {
        write: true,
        ..wish
    });
    assert!(synced() >= LEN, "of a mapping for stores");
    harness.vfs.mapping_removed(hold);
    assert!(synced() < LEN / 4, "it is gone, too");
}

/// A process whose pool at `/nacre` is not attached.
fn unattached() -> Harness {
    let kernel = MockKernel::new();
    let mount = MountSpec {
        prefix: b"/nacre".to_vec(),
        fs: None,
        read_only: false,
    };
    let vfs = Vfs::start(vec![mount], kernel.clone()).unwrap();
    Harness { vfs, kernel }
}

#[test]
fn a_pool_is_attached_by_the_first_path_into_it_and_by_no_other() {
    let harness = unattached();
    harness.kernel.offer(memory_fs());
    harness.kernel.host_link("/home/me/there", "/nacre/d");
    let host = harness.kernel.host_open("/tmp/f");
    assert!(!harness.vfs.ours(host) && harness.vfs.fstatat(AT_FDCWD, b"/tmp", 0).is_ok());
    let ticket = harness.vfs.before_fork().unwrap();
    harness.vfs.after_fork_parent(ticket, Some(7));
    assert!(harness.kernel.is_unattached() && !harness.vfs.is_attached());
    harness.mkdir("/nacre/d").unwrap();
    assert!(!harness.kernel.is_unattached() && harness.vfs.is_attached());
    harness.file("/nacre/d/f", "kept");
    assert_eq!(harness.contents("/nacre/d/f").as_deref(), Ok("kept"));
}

#[test]
fn what_looks_like_a_placeholder_attaches_the_pool() {
    let harness = unattached();
    harness.kernel.offer(memory_fs());
    let sent = harness.kernel.open_placeholder(0, false).unwrap();
    assert!(!harness.vfs.ours(sent), "it names nothing");
    assert!(!harness.kernel.is_unattached());
}

#[test]
fn a_pool_that_cannot_be_attached_fails_the_call_and_nothing_else() {
    let harness = unattached();
    assert!(harness.mkdir("/nacre/d").is_err());
    assert!(harness.vfs.fstatat(AT_FDCWD, b"/tmp", 0).is_ok());
    harness.kernel.offer(memory_fs());
    harness.mkdir("/nacre/d").unwrap();
}
