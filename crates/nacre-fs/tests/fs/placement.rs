//! Which devices of a pool hold what.

use std::ops::ControlFlow;

use crate::pools::{assert_sound, file, keep_writing, open, pattern, read, root, write};
use nacre_fs::{Fs, FsError, InodeRef, MapAccess, WriteAt};
use nacre_store::{FormatOptions, Holes, Rebalanced, Store, WriteMode};
use nacre_testkit::image::volume_arranged;
use nacre_testkit::pool::{PRIVATE, PoolChoice, PoolFiles};
use nacre_types::{FileOffset, UNIT_SIZE, VolumeOffset};
use nacre_volume::{Access, Arrangement, Granularity, Stripe, UserBytes, Volume};

const MIB: u64 = 1 << 20;

fn pool(devices: &[u64], stripe: Stripe) -> Fs {
    let sizes: Vec<u64> = devices.iter().map(|mib| mib * MIB).collect();
    let volume = Volume::memories(&sizes, Arrangement { stripe, behind: 0 }).expect("volume");
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

fn two_devices() -> PoolFiles {
    PoolFiles::make(&PoolChoice {
        devices: &["pool", "other"],
        bytes: 512 * MIB,
        stripe: Some(Stripe::Bytes(64 << 10)),
        ..PoolChoice::default()
    })
}

/// Remembers how fast the devices of a pool are.
fn measure(pool: &PoolFiles, speeds: [u32; 2]) {
    let measured = |index: usize, before| Granularity {
        speed: speeds[index],
        ..before
    };
    Volume::store_granularity(&pool.path(), measured).expect("labels");
}

fn attach(pool: &PoolFiles) -> Fs {
    Fs::new(pool.attach(Access::ReadWrite).expect("attach"))
}

/// Percent of a file that lie on the first device.
fn on_first(fs: &Fs, node: InodeRef) -> usize {
    let pages = devices_of(fs, node);
    shares(2, &pages)[0] * 100 / pages.len()
}

#[test]
fn a_faster_device_gets_more_by_its_measured_speed() {
    for (speeds, wanted) in [
        ([3000, 1000], 70..=80),
        ([1000, 3000], 20..=30),
        ([3000, 0], 48..=52),
        ([3000, 2900], 48..=52),
    ] {
        let pool = two_devices();
        measure(&pool, speeds);
        let fs = attach(&pool);
        let node = file(&fs, fs.root(), "large");
        fill(&fs, node, 64 * MIB, MIB);
        let first = on_first(&fs, node);
        assert!(wanted.contains(&first), "{speeds:?}: {first} %");
        assert_sound(&fs);
    }
}

#[test]
fn a_rebalance_moves_old_contents_to_the_faster_device() {
    let pool = two_devices();
    let bytes = pattern(64 << 20, 5);
    let fs = attach(&pool);
    let node = file(&fs, fs.root(), "large");
    write(&fs, node, 0, &bytes);
    assert!((48..=52).contains(&on_first(&fs, node)));
    fs.into_store().close().expect("close");
    measure(&pool, [1000, 4000]);
    let fs = attach(&pool);
    let done = rebalance(&fs);
    assert_eq!((done.left, done.in_use), (0, 0), "{done:?}");
    let node = open(&fs, "large");
    let first = on_first(&fs, node);
    assert!((18..=22).contains(&first), "{first} %");
    assert_eq!(rebalance(&fs).moved, 0, "a second time");
    assert!(read(&fs, node, 0, bytes.len() + 1) == bytes);
    assert_sound(&fs);
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

/// A pool all of whose contents lie on the first of two devices, as behind a `device add`.
fn with_a_new_device((size, mode): (u64, WriteMode), stripe: Stripe, fill: impl FnOnce(&Fs)) -> Fs {
    let volume = Volume::memories(&[size; 2], Arrangement::default()).expect("volume");
    let options = FormatOptions {
        mode,
        ..FormatOptions::default()
    };
    Store::format(&volume, &options).expect("format");
    let fs = Fs::new(Store::attach(volume, &PRIVATE).expect("attach"));
    fill(&fs);
    let volume = fs.into_store().close().expect("close");
    let mut bytes = vec![0; volume.len() as usize];
    volume.read(VolumeOffset(0), &mut bytes);
    let arrangement = Arrangement { stripe, behind: 0 };
    let volume = volume_arranged(&bytes, size, arrangement);
    Fs::new(Store::attach(volume, &PRIVATE).expect("attach"))
}

fn rebalance(fs: &Fs) -> Rebalanced {
    let store = fs.store();
    let done = store.rebalance(&mut |_| ControlFlow::Continue(()));
    done.expect("rebalance").expect("a pool that is spread")
}

fn spreads(mode: WriteMode, stripe: &str) {
    let stripe: Stripe = stripe.parse().unwrap();
    let large = pattern(24 << 20, 1);
    let fs = with_a_new_device((64 * MIB, mode), stripe, |fs| {
        write(fs, file(fs, fs.root(), "large"), 0, &large);
        for number in 0..200 {
            let node = file(fs, fs.root(), &format!("f{number}"));
            write(fs, node, 0, &pattern(6000, number));
        }
    });
    let node = open(&fs, "large");
    assert_eq!(shares(2, &devices_of(&fs, node)), [6144, 0]);
    let done = rebalance(&fs);
    assert_eq!((done.left, done.in_use), (0, 0), "{done:?}");
    let even = |pages: &[usize], of: usize| {
        let [first, second] = shares(2, pages)[..] else {
            unreachable!()
        };
        assert!(
            second * of >= first && first * of >= second,
            "{first} and {second}"
        );
    };
    even(&devices_of(&fs, node), 2);
    let small = |number| devices_of(&fs, open(&fs, &format!("f{number}")));
    even(&(0..200).flat_map(small).collect::<Vec<_>>(), 2);
    // Stripes that follow each other lie on both.
    let pages = devices_of(&fs, node);
    let turns: Vec<usize> = pages.chunk_by(|a, b| a == b).map(<[usize]>::len).collect();
    let Stripe::Bytes(bytes) = stripe else {
        unreachable!()
    };
    let longest = turns.iter().max().expect("a turn");
    assert!(*longest as u64 <= 3 * bytes / UNIT_SIZE, "{turns:?}");
    let all = |fs: &Fs| {
        assert!(read(fs, open(fs, "large"), 0, large.len() + 1) == large);
        for number in 0..200 {
            let node = open(fs, &format!("f{number}"));
            assert!(read(fs, node, 0, 7000) == pattern(6000, number));
        }
        assert_sound(fs);
    };
    all(&fs);
    assert_eq!(rebalance(&fs).moved, 0, "a second time");
    let volume = fs.into_store().abandon();
    all(&Fs::new(Store::attach(volume, &PRIVATE).expect("attach")));
}

#[test]
fn after_a_rebalance_old_contents_lie_on_a_new_device_too() {
    spreads(WriteMode::Direct, "2M");
    spreads(WriteMode::Direct, "64K");
    spreads(WriteMode::Atomic, "4K");
}

#[test]
fn a_rebalance_that_was_broken_off_goes_on() {
    let bytes = pattern(64 << 20, 3);
    let fs = with_a_new_device(
        (160 * MIB, WriteMode::Direct),
        Stripe::Bytes(64 << 10),
        |fs| {
            write(fs, file(fs, fs.root(), "large"), 0, &bytes);
        },
    );
    let mut total = 0;
    let done = fs.store().rebalance(&mut |progress| {
        assert!(progress.done <= progress.total);
        total = total.max(progress.total);
        match progress.done {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    let first = done.expect("rebalance").expect("spread").moved;
    assert!(first > 0 && first < total * 3 / 4, "{first} of {total}");
    let second = rebalance(&fs);
    assert_eq!(second.left, 0);
    // Hardly anything moves twice.
    let moved = first + second.moved;
    assert!(moved.abs_diff(total) < MIB, "{moved} of {total}");
    assert!(read(&fs, open(&fs, "large"), 0, bytes.len()) == bytes);
    assert_sound(&fs);
}

#[test]
fn what_is_mapped_or_shared_stays_where_it_is() {
    let bytes = pattern(8 << 20, 5);
    let fs = with_a_new_device(
        (64 * MIB, WriteMode::Direct),
        Stripe::Bytes(64 << 10),
        |fs| {
            for name in ["mapped", "shared", "free"] {
                write(fs, file(fs, fs.root(), name), 0, &bytes);
            }
            let clone = file(fs, fs.root(), "clone");
            let (from, to) = ((open(fs, "shared"), 0), (clone, 0));
            fs.clone_range(&root(), from, to, 8 << 20).expect("clone");
        },
    );
    let mapped = open(&fs, "mapped");
    fs.pin(mapped).expect("pin");
    fs.map_begin(mapped, MapAccess::Store).expect("map");
    fs.map_pages(mapped, 0, 64, Holes::Fill).expect("pages");
    let done = rebalance(&fs);
    assert_eq!(done.in_use, 1);
    assert!(done.left > 0 && done.moved > MIB, "{done:?}");
    for name in ["mapped", "shared", "clone"] {
        assert_eq!(shares(2, &devices_of(&fs, open(&fs, name)))[1], 0, "{name}");
    }
    for name in ["mapped", "shared", "clone", "free"] {
        assert!(
            read(&fs, open(&fs, name), 0, bytes.len()) == bytes,
            "{name}"
        );
    }
    assert!(shares(2, &devices_of(&fs, open(&fs, "free")))[1] > 256);
}

#[test]
fn programs_write_while_contents_move() {
    let fs = with_a_new_device(
        (64 * MIB, WriteMode::Direct),
        Stripe::Bytes(16 << 10),
        |fs| {
            for number in 0..4 {
                let node = file(fs, fs.root(), &format!("f{number}"));
                write(fs, node, 0, &pattern(6 << 20, number));
            }
        },
    );
    let shared = &fs;
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || keep_writing(shared, number, 600));
        }
        for _ in 0..20 {
            rebalance(shared);
        }
    });
    let done = rebalance(&fs);
    assert_eq!((done.left, done.in_use), (0, 0));
    assert_sound(&fs);
}

#[test]
fn a_pool_that_is_not_spread_has_nothing_to_rebalance() {
    let fs = pool(&[64; 2], Stripe::None);
    let done = fs.store().rebalance(&mut |_| ControlFlow::Continue(()));
    assert_eq!(done.expect("rebalance"), None);
}
