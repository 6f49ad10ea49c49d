//! Bad pointers and failing devices: with the handler installed each gives an error and the process
//! lives on.

use std::fs::OpenOptions;
use std::path::PathBuf;

use nacre_media::fault::POISON;
use nacre_media::{
    Access, CopyError, Fault, Media, MediaFailed, Unfenced, UserBytes, UserBytesMut, fault,
};
use nacre_types::{DeviceOffset, StoreKind};
use tempfile::TempDir;

const LEN: u64 = 1 << 20;
const CUT: u64 = 64 << 10;

/// A device in memory whose file is cut after it was mapped.
fn truncated() -> (TempDir, Media) {
    fault::install_handler();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path: PathBuf = dir.path().join("device");
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(LEN).unwrap();
    let media = Media::open(&path, Access::ReadWrite).unwrap();
    assert_eq!(media.len(), LEN);
    media
        .fence(media.write(DeviceOffset(0), &[1; 8192], StoreKind::Data))
        .unwrap();
    file.set_len(CUT).unwrap();
    (dir, media)
}

/// Addresses that no program can access: the first page, the end of the lower half, not canonical.
fn bad_pointers() -> [usize; 3] {
    [16, 0x7fff_ffff_f000, 0x8000_0000_0000_0000]
}

fn bad_source(address: usize, len: usize) -> UserBytes<'static> {
    // SAFETY: nothing is accessible there.
    unsafe { UserBytes::from_raw(std::ptr::without_provenance(address), len) }
}

fn bad_target(address: usize, len: usize) -> UserBytesMut<'static> {
    // SAFETY: nothing is accessible there.
    unsafe { UserBytesMut::from_raw(std::ptr::without_provenance_mut(address), len) }
}

#[test]
fn bad_pointers_of_the_program_are_user_faults() {
    fault::install_handler();
    let media = Media::memory(LEN).unwrap();
    for address in bad_pointers() {
        for len in [1, 8, 30, 64, 100, 300, 5000, 100_000] {
            let write =
                media.write_user(DeviceOffset(7), bad_source(address, len), StoreKind::Data);
            assert_eq!(
                write.err(),
                Some(CopyError::UserFault),
                "write of {len} from {address:#x}"
            );
            let fresh =
                media.write_user_fresh(DeviceOffset(7), bad_source(address, len), StoreKind::Data);
            assert_eq!(fresh.err(), Some(CopyError::UserFault), "of {len} fresh");
            let read = media.read_user(DeviceOffset(7), bad_target(address, len));
            assert_eq!(
                read,
                Err(CopyError::UserFault),
                "read of {len} to {address:#x}"
            );
            let mut own = vec![0; len];
            assert_eq!(bad_source(address, len).copy_to_slice(&mut own), Err(Fault));
            assert_eq!(bad_target(address, len).copy_from_slice(&own), Err(Fault));
            assert_eq!(bad_target(address, len).fill_zero(), Err(Fault));
        }
    }
    assert_eq!(media.health(), Ok(()));
}

#[test]
fn a_buffer_that_ends_at_an_unmapped_page_is_a_user_fault() {
    fault::install_handler();
    let place = nacre_media::AddressRange::reserve(4 << 20).unwrap();
    let program = Media::memory_at(4096, place).unwrap();
    let end = program.base_addr() + 4096;
    let media = Media::memory(LEN).unwrap();
    for (before, len) in [
        (1, 2),
        (20, 40),
        (100, 200),
        (1000, 2000),
        (4000, 9000),
        (4000, 40_000),
    ] {
        let write = media.write_user(
            DeviceOffset(64),
            bad_source(end - before, len),
            StoreKind::Data,
        );
        assert_eq!(write.err(), Some(CopyError::UserFault));
        assert!(
            media
                .write_user(
                    DeviceOffset(64),
                    bad_source(end - before, before),
                    StoreKind::Data
                )
                .is_ok()
        );
    }
}

#[test]
fn copies_for_the_program_from_a_truncated_device_are_media_faults() {
    let (_dir, media) = truncated();
    let mut bytes = [0; 20_000];
    for len in [1, 8, 64, 300, 5000, 20_000] {
        let read = media.read_user(DeviceOffset(CUT), UserBytesMut::from(&mut bytes[..len]));
        assert_eq!(read, Err(CopyError::MediaFault));
        let source = UserBytes::from(&bytes[..len]);
        let write = media.write_user(DeviceOffset(CUT), source, StoreKind::Data);
        assert_eq!(write.err(), Some(CopyError::MediaFault));
    }
    let whole = media.read_user(DeviceOffset(0), UserBytesMut::from(&mut bytes[..8192]));
    assert_eq!(whole, Ok(()));
    assert_eq!(bytes[..8192], [1; 8192]);
}

#[test]
fn reads_of_a_truncated_device_give_poison_and_a_failed_device() {
    let (_dir, media) = truncated();
    assert_eq!(media.health(), Ok(()));
    assert_eq!(media.persist_now(DeviceOffset(0), 64), Some(()));
    let mut bytes = [9; 300];
    media.read(DeviceOffset(CUT + 5), &mut bytes);
    assert_eq!(bytes, [POISON; 300]);
    assert_eq!(media.health(), Err(MediaFailed));
    assert_eq!(media.persist_now(DeviceOffset(0), 64), None);
    assert_eq!(media.read_array::<8>(DeviceOffset(CUT)), [POISON; 8]);
}

#[test]
fn loads_of_a_truncated_device_give_poison_and_a_failed_device() {
    let (_dir, media) = truncated();
    assert_eq!(media.load_u64(DeviceOffset(CUT + 8)), u64::MAX);
    assert_eq!(media.health(), Err(MediaFailed));
    assert_eq!(media.load_u8(DeviceOffset(LEN - 1)), POISON);
    assert_eq!(media.load_u8(DeviceOffset(0)), 1);
}

#[test]
fn stores_to_a_truncated_device_are_lost_and_the_device_failed() {
    let (_dir, media) = truncated();
    let stored = media.store_u64(DeviceOffset(CUT), 5, StoreKind::Metadata);
    assert_eq!(media.fence(stored), Err(MediaFailed));
    assert_eq!(media.fence(Unfenced::nothing()), Err(MediaFailed));
    let (_dir, media) = truncated();
    let stored = media.write(DeviceOffset(CUT), &[5; 1000], StoreKind::Metadata);
    assert_eq!(media.fence(stored), Err(MediaFailed));
    assert_eq!(media.fence(Unfenced::nothing()), Err(MediaFailed));
    let (_dir, media) = truncated();
    let stored = media.zero(DeviceOffset(CUT - 4096), 20_000, StoreKind::Metadata);
    assert_eq!(media.fence(stored), Err(MediaFailed));
    assert_eq!(media.fence(Unfenced::nothing()), Err(MediaFailed));
}

#[test]
fn a_new_device_in_a_failed_ones_slot_is_healthy() {
    let (_dir, media) = truncated();
    media.load_u64(DeviceOffset(CUT));
    drop(media);
    assert_eq!(Media::memory(4096).unwrap().health(), Ok(()));
}

#[test]
fn faults_that_are_none_of_ours_are_left_to_others() {
    let elsewhere = faults_elsewhere as *const () as usize;
    assert_eq!(fault::resolve(elsewhere, 16), fault::Resolution::NotOurs);
    assert_eq!(fault::fault_landing(elsewhere), None);
}

fn faults_elsewhere() {}

#[test]
fn a_wild_access_still_ends_the_process() {
    const CHILD: &str = "NACRE_TEST_WILD_ACCESS";
    if std::env::var_os(CHILD).is_some() {
        fault::install_handler();
        // SAFETY: none: the access is meant to end this process.
        unsafe { std::ptr::without_provenance::<u8>(24).read_volatile() };
        return;
    }
    use std::os::unix::process::ExitStatusExt;
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_wild_access_still_ends_the_process"])
        .env(CHILD, "1")
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}
