//! Large stores: runs of units, each line on all legs before the next.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use nacre_types::{DeviceOffset, StoreKind};

use super::{AT, LEN, LegState, Rig, START};
use crate::address_range::AddressRange;
use crate::error::CopyError;
use crate::media::Media;
use crate::user::UserBytes;

const RUN: usize = 64 << 10;
const UNIT: u64 = 4096;

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 7 + at / 4096 + salt) as u8)
        .collect()
}

fn assert_alike(rig: &Rig) {
    let first = rig.bytes(rig.names[0]);
    for name in rig.names {
        assert!(rig.bytes(name) == first, "{name} differs");
    }
}

#[test]
fn stores_of_any_length_at_any_place_reach_all_legs() {
    for names in [&["a", "b"][..], &["a", "b", "c", "d"]] {
        let rig = Rig::of(names);
        let mut expected = vec![0; LEN as usize];
        let lens = [4096, 8191, 8192, 12_288, 65_536, 65_537, 200_000, 2 << 20];
        for (number, len) in lens.into_iter().enumerate() {
            for skip in [0, 4096, 61_440, (1 << 20) - 8192, 1, 63, 4095] {
                let bytes = pattern(len, number + skip);
                rig.write(DeviceOffset(START + skip as u64), &bytes);
                expected[skip..skip + len].copy_from_slice(&bytes);
            }
            assert!(rig.bytes(names[0]) == expected, "{len} bytes");
        }
        assert_alike(&rig);
    }
}

#[test]
fn a_bad_pointer_in_a_large_store_leaves_the_legs_equal() {
    for whole in [4096, 5 * 4096, 15 * 4096] {
        let rig = Rig::new();
        rig.write(AT, &vec![1; 2 * RUN]);
        let place = AddressRange::reserve(RUN as u64).unwrap();
        let (start, memory) = (place.start(), Media::memory(whole as u64).unwrap());
        // SAFETY: the pages are moved to a place that is reserved; nobody else uses either.
        let moved = unsafe {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let from = memory.base_addr() as *mut libc::c_void;
            libc::mremap(from, whole, whole, flags, start as *mut libc::c_void)
        };
        assert_eq!(moved.addr(), start);
        // SAFETY: behind so many bytes nothing can be read; the fault is caught.
        let bad = unsafe { UserBytes::from_raw(start as *const u8, RUN) };
        let refused = rig.media.write_user(AT, bad, StoreKind::Data);
        assert_eq!(refused.err(), Some(CopyError::UserFault));
        assert_alike(&rig);
        assert_eq!(rig.states(), [LegState::Current; 2]);
        std::mem::forget(memory);
    }
}

#[test]
fn a_leg_that_is_truncated_under_a_large_store_is_left_within_the_call() {
    for (lost, name) in [(0, "a"), (1, "b")] {
        let rig = Rig::new();
        let bytes = pattern(3 * RUN, lost);
        rig.truncate(name);
        rig.write(AT, &bytes);
        let mut found = vec![0; bytes.len()];
        rig.media.read(AT, &mut found);
        assert!(found == bytes, "{name}");
        rig.media.health().unwrap();
        assert_eq!(rig.states()[lost], LegState::Failed);
        assert_eq!(rig.states()[1 - lost], LegState::Current);
    }
}

/// Both get what one look at the program's bytes gave.
#[test]
fn bytes_that_change_meanwhile_are_the_same_on_all_legs() {
    let rig = Rig::of(&["a", "b", "c"]);
    let bytes: Vec<AtomicU8> = (0..RUN).map(|_| AtomicU8::new(0)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let turn = || {
            for value in (0..=255u8).cycle() {
                for byte in bytes.iter().step_by(61) {
                    byte.store(value, Ordering::Relaxed);
                }
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        };
        scope.spawn(turn);
        for _ in 0..100 {
            // SAFETY: the bytes live on; that they change meanwhile is what is tried here.
            let from = unsafe { UserBytes::from_raw(bytes.as_ptr().cast(), RUN) };
            let stored = rig.media.write_user(AT, from, StoreKind::Data).unwrap();
            rig.media.fence(stored).unwrap();
            let first = rig.bytes("a");
            assert!(["b", "c"].iter().all(|name| rig.bytes(name) == first));
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn large_and_small_stores_to_one_place_leave_the_legs_equal() {
    let rig = Rig::new();
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let rig = &rig;
            scope.spawn(move || {
                for round in 0..200u64 {
                    let skip = round % 5 * UNIT;
                    match thread % 2 {
                        0 => rig.write(AT.add(skip), &vec![thread; 2 * RUN]),
                        _ => rig.write(AT.add(skip * 3 + 100), &[thread; 5000]),
                    }
                }
            });
        }
    });
    assert_alike(&rig);
}

#[test]
fn who_dies_in_the_middle_of_a_large_store_leaves_the_legs_equal() {
    for _ in 0..5 {
        let rig = Rig::new();
        let bytes: Vec<Vec<u8>> = (0..8).map(|salt| pattern(4 * RUN, salt)).collect();
        rig.write(AT, &bytes[0]);
        // SAFETY: the child makes stores and dies.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                for bytes in &bytes {
                    let _ = rig.media.write(AT, bytes, StoreKind::Data);
                }
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        // SAFETY: the child is ours.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        // Whoever stores to a unit next finishes what was begun there.
        for unit in 0..4 * RUN as u64 / UNIT {
            rig.write(AT.add(unit * UNIT + 7), b"x");
        }
        assert_alike(&rig);
    }
}
