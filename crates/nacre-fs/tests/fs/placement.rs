//! Which devices of a pool hold what.

use std::ops::ControlFlow;

use crate::pools::{assert_sound, file, root, write};
use nacre_fs::{Fs, FsError, InodeRef, WriteAt};
use nacre_store::{FormatOptions, Store};
use nacre_testkit::pool::PRIVATE;
use nacre_types::{FileOffset, UNIT_SIZE};
use nacre_volume::{Stripe, UserBytes, Volume};

const MIB: u64 = 1 << 20;

fn pool(devices: &[u64], stripe: Stripe) -> Fs {
    let sizes: Vec<u64> = devices.iter().map(|mib| mib * MIB).collect();
    let volume = Volume::memories(&sizes, stripe).expect("volume");
    Store::format(&volume, &FormatOptions::default()).expect("format");
    Fs::new(Store::attach(volume, &PRIVATE).expect("attach"))
}

/// The device of each page of a file.
fn devices_of(fs: &Fs, node: InodeRef) -> Vec<usize> {
    let devices = fs.store().volume().devices();
    let of = |unit: u64| {
        let holds = |it: &nacre_volume::DeviceInfo| unit < it.range.end.unit().0;
        devices.iter().position(holds).expect("a device")
    };
    let mut pages = Vec::new();
    fs.extents(node, &mut |extent| {
        let units = extent.unit.0..extent.unit.0 + extent.len / UNIT_SIZE;
        pages.extend(units.map(of));
        ControlFlow::Continue(())
    })
    .expect("extents");
    pages
}

fn shares(devices: usize, pages: &[usize]) -> Vec<usize> {
    let count = |device| pages.iter().filter(|&&it| it == device).count();
    (0..devices).map(count).collect()
}

fn fill(fs: &Fs, node: InodeRef, bytes: u64, call: u64) {
    let piece = vec![7; call as usize];
    for at in (0..bytes).step_by(call as usize) {
        write(fs, node, at, &piece);
    }
}

#[test]
fn one_large_file_goes_round_all_devices_stripe_by_stripe() {
    for (stripe, call) in [
        ("4K", 64 << 10),
        ("64K", 5 * 4096),
        ("2M", MIB),
        ("2M", 4 * MIB),
    ] {
        let stripe: Stripe = stripe.parse().unwrap();
        let Stripe::Bytes(bytes) = stripe else {
            unreachable!()
        };
        let fs = pool(&[256; 4], stripe);
        let node = file(&fs, fs.root(), "large");
        fill(&fs, node, 64 * MIB / call * call, call);
        let pages = devices_of(&fs, node);
        let shares = shares(4, &pages);
        let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        assert!(
            *least * 10 >= *most * 9,
            "{stripe}, calls of {call}: {shares:?}"
        );
        // Four stripes one behind the other lie on four devices.
        let per_stripe = (bytes / UNIT_SIZE) as usize;
        let turns: Vec<usize> = pages.chunk_by(|a, b| a == b).map(|run| run[0]).collect();
        assert!(turns.len() >= pages.len() / per_stripe);
        let round = |four: &[usize]| (0..4).all(|device| four.contains(&device));
        assert!(turns.windows(4).all(round), "{stripe}: {turns:?}");
        assert_sound(&fs);
    }
}

#[test]
fn many_small_files_use_all_devices_alike() {
    let fs = pool(&[128; 3], Stripe::USUAL);
    let nodes: Vec<InodeRef> = (0..300)
        .map(|number| {
            let node = file(&fs, fs.root(), &format!("f{number}"));
            write(&fs, node, 0, &[1; 6000]);
            node
        })
        .collect();
    let pages: Vec<usize> = nodes
        .iter()
        .flat_map(|&node| devices_of(&fs, node))
        .collect();
    let shares = shares(3, &pages);
    assert!(
        shares.iter().all(|&units| units >= 150),
        "{shares:?} of 600"
    );
}

#[test]
fn a_device_gets_as_much_as_it_has_room() {
    let fs = pool(&[32, 96], Stripe::Bytes(64 << 10));
    let used = fs.store().used_by_device();
    let free = [32, 96].map(|mib| mib * MIB / UNIT_SIZE);
    let free = [free[0] - used[0], free[1] - used[1]];
    let node = file(&fs, fs.root(), "large");
    fill(&fs, node, 64 * MIB, MIB);
    let shares = shares(2, &devices_of(&fs, node));
    // As 1 to 3, roughly, of what is not metadata.
    let wanted = 64 * MIB / UNIT_SIZE * free[0] / (free[0] + free[1]);
    let off = wanted.abs_diff(shares[0] as u64);
    assert!(
        off * 5 < wanted,
        "{shares:?}, not {wanted} on the first, {free:?}"
    );
}

#[test]
fn all_devices_are_filled_to_the_last_unit() {
    let fs = pool(&[20, 64, 24], Stripe::Bytes(16 << 10));
    let node = file(&fs, fs.root(), "full");
    let piece = vec![3; 100_000];
    let mut at = 0;
    let full = loop {
        let bytes = UserBytes::from(&piece[..]);
        match fs.write(&root(), node, WriteAt::Offset(FileOffset(at)), bytes) {
            Ok(written) => at += written.len as u64,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, FsError::NoSpace), "{full}");
    let free: u64 = fs.store().statfs().free_units;
    assert_eq!(free, 0);
    let sizes = [20, 64, 24].map(|mib| mib * MIB / UNIT_SIZE);
    assert_eq!(fs.store().used_by_device(), sizes);
    assert_sound(&fs);
    fs.truncate(&root(), node, 0).expect("truncate");
    let used = fs.store().used_by_device();
    assert!(used.iter().sum::<u64>() < 24 * MIB / UNIT_SIZE, "{used:?}");
    fill(&fs, node, 8 * MIB, MIB);
    assert!(
        shares(3, &devices_of(&fs, node))
            .iter()
            .all(|&units| units > 100)
    );
}

#[test]
fn without_stripes_one_device_is_filled_before_the_next() {
    let fs = pool(&[64; 2], Stripe::None);
    let node = file(&fs, fs.root(), "large");
    fill(&fs, node, 32 * MIB, MIB);
    assert_eq!(shares(2, &devices_of(&fs, node)), [8192, 0]);
}

#[test]
fn several_writers_have_stripes_of_their_own() {
    let fs = pool(&[64; 4], Stripe::USUAL);
    let nodes: Vec<InodeRef> = (0..4)
        .map(|number| file(&fs, fs.root(), &format!("f{number}")))
        .collect();
    std::thread::scope(|scope| {
        for &node in &nodes {
            let fs = &fs;
            scope.spawn(move || fill(fs, node, 24 * MIB, MIB));
        }
    });
    for node in nodes {
        let shares = shares(4, &devices_of(&fs, node));
        assert!(
            shares.iter().all(|&units| units >= 512),
            "{shares:?} of 6144"
        );
    }
    assert_sound(&fs);
}
