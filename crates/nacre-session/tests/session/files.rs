//! Session files: made, joined, refused, removed.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::processes::{End, GEOMETRY, die_at_every_step, fork, reap_all};
use nacre_runtime::{Folder, RuntimeError, Trust};
use nacre_session::{Geometry, Session, SessionError, SessionPlace, State, ZEROS_LEN};
use rustix::process::{Resource, Rlimit, setrlimit};
use tempfile::TempDir;

/// The place of a session in a folder that is not looked at closely, for a pool that one user
/// writes and a group reads.
pub fn place(path: &Path) -> SessionPlace {
    let trust = Trust {
        mode: 0o640,
        ..Trust::user().unwrap()
    };
    let folder = Folder::given(path.parent().unwrap(), trust).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    SessionPlace::new(Arc::new(folder), name, 7)
}

/// A session in a folder of its own.
pub fn made(stamp: u64) -> (TempDir, PathBuf, Session) {
    made_in(tempfile::tempdir().unwrap(), stamp)
}

fn made_in(folder: TempDir, stamp: u64) -> (TempDir, PathBuf, Session) {
    let path = folder.path().join("session");
    let session = Session::create(&place(&path), GEOMETRY, stamp).unwrap();
    (folder, path, session)
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(bytes, offset)
        .unwrap();
}

fn refusal(path: &Path) -> SessionError {
    match Session::open(&place(path)) {
        Ok(_) => panic!("a bad session file was opened"),
        Err(error) => error,
    }
}

#[test]
fn two_openers_share_one_memory() {
    let (_folder, path, first) = made(42);
    assert_eq!(first.state(), State::Building);
    first.set_ready();
    let second = Session::open(&place(&path)).unwrap();
    assert_eq!(
        (second.stamp(), second.geometry(), second.state()),
        (42, GEOMETRY, State::Ready)
    );
    first.unit_bits()[77].store(5, Ordering::SeqCst);
    first.share_counts()[1249].store(6, Ordering::SeqCst);
    assert_eq!(second.unit_bits()[77].load(Ordering::SeqCst), 5);
    assert_eq!(second.share_counts()[1249].load(Ordering::SeqCst), 6);
    assert_eq!(second.verified_bits()[77].load(Ordering::SeqCst), 0);
    let me = first.claim_slot().unwrap();
    assert!(second.is_current(me));
    assert_eq!(first.file_id(), second.file_id());
}

#[test]
fn regions_have_the_size_of_the_geometry() {
    let session = Session::memory(Geometry {
        units: 65,
        max_objects: 129,
        lanes: 3,
    })
    .unwrap();
    assert_eq!(
        (
            session.unit_bits().len(),
            session.verified_bits().len(),
            session.object_bits().len()
        ),
        (2, 2, 3)
    );
    assert_eq!(
        (session.share_counts().len(), session.lane_count()),
        (17, 3)
    );
    session.icore(128).opens.fetch_add(1, Ordering::SeqCst);
    assert_eq!(session.object_bits()[0].load(Ordering::SeqCst), 0);
    assert!(session.path().is_none() && session.file_id().is_none());
}

#[test]
fn the_file_is_sparse_and_for_those_who_may_write_the_pool() {
    let (_folder, path, _session) = made(1);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o600);
    assert!(metadata.blocks() * 512 < 1 << 20 && metadata.len() > 1 << 25);
}

#[test]
fn an_old_file_is_replaced() {
    let (_folder, path, first) = made(1);
    let second = Session::create(&place(&path), GEOMETRY, 2).unwrap();
    assert_eq!(Session::open(&place(&path)).unwrap().stamp(), 2);
    first.unlink().unwrap();
    assert!(path.exists(), "a session removed the file of its successor");
    second.unlink().unwrap();
    assert!(matches!(refusal(&path), SessionError::Missing(_)));
    second.unlink().unwrap();
}

#[test]
fn a_maker_that_dies_at_any_step_leaves_nothing_that_opens_half_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    for n in 1..20 {
        let end = fork(|| {
            nacre_session::step::arm(n);
            let session = Session::create(&place(&path), GEOMETRY, 9).unwrap();
            session.set_ready();
        })
        .wait();
        match Session::open(&place(&path)) {
            Ok(session) => assert!(
                session.stamp() == 9 && (end == End::Exit(0)) == (session.state() == State::Ready)
            ),
            Err(error) => assert!(matches!(error, SessionError::Missing(_)), "{error}"),
        }
    }
    assert!(Session::create(&place(&path), GEOMETRY, 10).is_ok());
}

#[test]
fn a_cut_or_grown_file_is_refused() {
    let (_folder, path, session) = made(1);
    drop(session);
    let full = fs::metadata(&path).unwrap().len();
    for len in [0, 7, 100, 4096, full - 1, full - 4096, full + 4096] {
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(full)
            .unwrap();
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(len)
            .unwrap();
        let error = refusal(&path);
        assert!(
            matches!(error, SessionError::Truncated { found, .. } if found == len) || len == 100,
            "{len}: {error}"
        );
        if len < full {
            File::create(&path).unwrap();
            Session::create(&place(&path), GEOMETRY, 1).unwrap();
        }
    }
}

fn is_foreign(error: &SessionError) -> bool {
    matches!(error, SessionError::Runtime(RuntimeError::Foreign(_)))
}

#[test]
fn foreign_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![b'x'; 100_000]).unwrap();
    assert!(matches!(refusal(&path), SessionError::Foreign { .. }));
    fs::write(&path, vec![0; 100_000]).unwrap();
    assert!(matches!(refusal(&path), SessionError::Foreign { .. }));
    let directory = folder.path().join("directory");
    fs::create_dir(&directory).unwrap();
    assert!(is_foreign(&refusal(&directory)));
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(is_foreign(&refusal(&link)));
    assert!(matches!(
        refusal(&folder.path().join("none")),
        SessionError::Missing(_)
    ));
}

/// The identity at the start of the file: magic, version and lanes (4 bytes each), units, objects,
/// stamp, devices (8 each), mark, namespace, boot (16 each).
#[test]
fn every_damaged_word_of_the_identity_is_noticed() {
    type Expected = fn(&SessionError) -> bool;
    let cases: [(u64, u64, Expected); 8] = [
        (0, 1, |error| matches!(error, SessionError::Foreign { .. })),
        (8, 99, |error| {
            matches!(error, SessionError::Version { found: 99, .. })
        }),
        (16, u64::MAX, |error| {
            matches!(error, SessionError::Foreign { .. })
        }),
        (16, 0, |error| matches!(error, SessionError::Foreign { .. })),
        (16, 1 << 30, |error| {
            matches!(error, SessionError::Truncated { .. })
        }),
        (24, 1 << 40, |error| {
            matches!(error, SessionError::Foreign { .. })
        }),
        (40, 8, |error| {
            matches!(error, SessionError::OtherDevices(_))
        }),
        (72, 1, |error| matches!(error, SessionError::Namespace(_))),
    ];
    for (offset, value, expected) in cases {
        let (_folder, path, session) = made(1);
        drop(session);
        overwrite(&path, offset, &value.to_le_bytes());
        let error = refusal(&path);
        assert!(expected(&error), "offset {offset}: {error}");
    }
}

#[test]
fn a_session_that_cannot_be_mapped_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let maker = fork(|| {
        let few = Rlimit {
            current: Some(64 << 20),
            maximum: None,
        };
        setrlimit(Resource::As, few).unwrap();
        let made = Session::create(&place(&path), GEOMETRY, 1);
        assert!(matches!(made, Err(SessionError::NoAddresses { .. })));
    });
    assert_eq!(maker.wait(), End::Exit(0));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_outlives_the_system_is_stale_after_its_end() {
    const BOOT: u64 = 80;
    let on_disk = env!("CARGO_TARGET_TMPDIR");
    for base in ["/dev/shm", on_disk] {
        let folder = tempfile::tempdir_in(base).unwrap();
        let (_folder, path, session) = made_in(folder, 1);
        session.set_ready();
        overwrite(&path, BOOT, &1u64.to_le_bytes());
        let is_memory = rustix::fs::statfs(base).unwrap().f_type == 0x0102_1994;
        assert!(is_memory || base == on_disk);
        match Session::open(&place(&path)) {
            Ok(_) => assert!(is_memory),
            Err(error) => assert!(!is_memory && matches!(error, SessionError::Stale(_))),
        }
    }
}

#[test]
fn only_the_last_process_may_close() {
    let (_folder, _path, session) = made(1);
    session.set_ready();
    let me = session.claim_slot().unwrap();
    let other = session.claim_slot().unwrap();
    assert!(!session.begin_closing(me));
    assert_eq!(session.state(), State::Ready);
    session.release_slot(other);
    assert!(session.begin_closing(me));
    assert_eq!(session.state(), State::Closing);
    assert!(!session.begin_closing(me));
}

#[test]
fn what_others_could_have_made_or_may_write_is_refused() {
    let (_folder, path, session) = made(1);
    drop(session);
    assert!(Session::open(&place(&path)).is_ok());
    for mode in [0o620, 0o602, 0o666] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(is_foreign(&refusal(&path)), "{mode:o}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    match chown(&path, Some(60_001), None) {
        Ok(()) => assert!(is_foreign(&refusal(&path))),
        Err(_) => eprintln!("partly skipped: only root can give files away"),
    }
}

/// Length of the file of zeros of a session.
fn zeros_len(path: &Path) -> u64 {
    let zeros = path.with_file_name("session.zeros");
    fs::metadata(zeros).unwrap().len()
}

#[test]
fn zeros_that_were_hidden_are_gone_and_the_next_ones_lie_below() {
    let (_folder, path, session) = made(1);
    session.set_ready();
    let me = session.claim_slot().unwrap();
    session.hide_zeros(me).unwrap();
    assert!(!path.with_file_name("session.zeros").exists());
    let mut below = u64::MAX;
    for _ in 0..3 {
        let zeros = session.show_zeros(me).unwrap();
        assert!(zeros.offset + ZEROS_LEN <= below);
        assert_eq!(session.show_zeros(me).unwrap().offset, zeros.offset);
        let mut bytes = vec![1; ZEROS_LEN as usize];
        File::from(zeros.fd)
            .read_exact_at(&mut bytes, zeros.offset)
            .unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert!(zeros_len(&path) >= zeros.offset + ZEROS_LEN);
        session.hide_zeros(me).unwrap();
        assert_eq!(zeros_len(&path), zeros.offset);
        below = zeros.offset;
    }
    session.unlink().unwrap();
    assert!(!path.with_file_name("session.zeros").exists());
}

#[test]
fn death_at_any_step_leaves_no_zeros_that_nobody_can_hide() {
    let (_folder, path, session) = made(1);
    session.set_ready();
    let me = session.claim_slot().unwrap();
    let body = || {
        let own = session.claim_slot().unwrap();
        session.show_zeros(own).unwrap();
        session.hide_zeros(own).unwrap();
        session.show_zeros(own).unwrap();
        session.release_slot(own);
    };
    let deaths = die_at_every_step(&session, body, |n| {
        reap_all(&session, me);
        let zeros = session.show_zeros(me).unwrap();
        assert!(zeros_len(&path) >= zeros.offset + ZEROS_LEN, "step {n}");
        session.hide_zeros(me).unwrap();
        assert_eq!(zeros_len(&path), zeros.offset, "step {n}");
    });
    assert!(deaths >= 6);
}
