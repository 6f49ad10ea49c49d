//! Counters are exact for known stores, belong to one pool, and cost nothing once off.

use std::sync::Arc;

use nacre_emulator::{Emulation, EmulationError, Pool, Profile, Settings, Spread};
use nacre_media::{Media, Observer, Owner};
use nacre_types::{DeviceOffset, StoreKind, Uuid};

const LEN: u64 = 1 << 20;

fn pool() -> Pool {
    Pool {
        uuid: Uuid::random(),
        devices: vec![LEN],
        owner: Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o600,
        },
    }
}

fn emulated(
    folder: &std::path::Path,
    granularity: u64,
    pool: &Pool,
) -> Result<(Media, Arc<Emulation>), EmulationError> {
    let profile = Profile::load("optane-100").unwrap();
    let settings = Settings {
        profile: &profile,
        delays: false,
        wear: Some(granularity),
    };
    let emulation = Arc::new(Emulation::create(&folder.join("e"), &settings, pool)?);
    let media = Media::memory(LEN).unwrap();
    media.set_observer(0, Arc::clone(&emulation) as Arc<dyn Observer>);
    Ok((media, emulation))
}

#[test]
fn counters_are_exact_at_every_granularity() {
    for (granularity, most) in [(64, 3), (256, 4), (4096, 5)] {
        let folder = tempfile::tempdir().unwrap();
        let (media, emulation) = emulated(folder.path(), granularity, &pool()).unwrap();
        // One line thrice, its neighbour in 256 bytes once, one in the same page once.
        for at in [0, 8, 56, 64, 1024] {
            let _ = media.store_u64(DeviceOffset(at), 1, StoreKind::Metadata);
        }
        let _ = media.write(DeviceOffset(8192), &[1; 4096], StoreKind::Data);
        let _ = media.write(DeviceOffset(20479), &[1; 2], StoreKind::Log);
        let wear = emulation.wear().unwrap();
        let metadata = wear.spread(Some(StoreKind::Metadata));
        assert_eq!(
            (metadata.writes, metadata.most),
            (5, most),
            "at {granularity}"
        );
        assert_eq!(
            wear.spread(Some(StoreKind::Data)).granules,
            4096 / granularity
        );
        assert_eq!(wear.spread(Some(StoreKind::Log)).granules, 2);
        assert_eq!(wear.totals.stores, [1, 5, 1]);
        assert_eq!(wear.totals.bytes, [4096, 40, 2]);
        assert_eq!(wear.totals.lines, [64, 5, 2]);
        assert_eq!(wear.granules, LEN / granularity);
    }
}

#[test]
fn whole_lines_are_not_amplified_and_scattered_words_are() {
    let folder = tempfile::tempdir().unwrap();
    let (media, emulation) = emulated(folder.path(), 256, &pool()).unwrap();
    let _ = media.write(DeviceOffset(0), &[1; 65536], StoreKind::Data);
    assert!((emulation.wear().unwrap().totals.ewr() - 1.0).abs() < 1e-9);
    let folder = tempfile::tempdir().unwrap();
    let (media, emulation) = emulated(folder.path(), 256, &pool()).unwrap();
    for place in 0..4096u64 {
        let at = place * 1237 % 4096 * 256;
        let _ = media.store_u64(DeviceOffset(at), 1, StoreKind::Metadata);
    }
    let ewr = emulation.wear().unwrap().totals.ewr();
    assert!((0.24..0.27).contains(&ewr), "{ewr}");
}

#[test]
fn counters_of_another_pool_and_other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ours = pool();
    drop(emulated(folder.path(), 64, &ours).unwrap());
    let path = folder.path().join("e");
    assert!(
        Emulation::join(&path, ours.uuid, ours.owner)
            .unwrap()
            .is_some()
    );
    let error = Emulation::join(&path, Uuid::random(), ours.owner)
        .err()
        .unwrap();
    assert!(error.to_string().contains("another pool"), "{error}");
    std::fs::write(&path, "something else").unwrap();
    let error = Emulation::open(&path, ours.uuid, ours.owner).err().unwrap();
    assert!(error.to_string().contains("nacre wear --reset"), "{error}");
    let error = emulated(folder.path(), 100, &ours).err().unwrap();
    assert!(error.to_string().contains("granularity 100"), "{error}");
}

#[test]
fn nobody_joins_what_is_off_but_its_counters_stay() {
    let folder = tempfile::tempdir().unwrap();
    let ours = pool();
    let (media, emulation) = emulated(folder.path(), 64, &ours).unwrap();
    emulation.begin_use();
    let _ = media.store_u64(DeviceOffset(0), 1, StoreKind::Log);
    emulation.end_use();
    let _ = media.store_u64(DeviceOffset(0), 1, StoreKind::Log);
    let path = folder.path().join("e");
    assert!(
        Emulation::join(&path, ours.uuid, ours.owner)
            .unwrap()
            .is_none()
    );
    let wear = Emulation::open(&path, ours.uuid, ours.owner)
        .unwrap()
        .unwrap()
        .wear()
        .unwrap();
    assert_eq!(wear.totals.stores, [0, 0, 1]);
    assert!(wear.lifetime().is_some());
}

#[test]
fn delays_are_those_of_the_formula() {
    let folder = tempfile::tempdir().unwrap();
    let profile = Profile::load("pcm").unwrap();
    let settings = Settings {
        profile: &profile,
        delays: true,
        wear: None,
    };
    let emulation = Emulation::create(&folder.path().join("e"), &settings, &pool()).unwrap();
    emulation.persisted(0, DeviceOffset(0), 100, StoreKind::Data);
    let pace = nacre_emulator::Pace::measure().unwrap();
    let waited = emulation.waited_ns(pace);
    // Two units of 64 bytes, 500 ns each; the two measurements of the pace differ a little.
    assert!((990.0..1010.0).contains(&waited), "{waited}");
}

#[test]
fn spread_of_known_counts() {
    let equal = Spread::of([3, 3, 3, 0].into_iter());
    assert_eq!((equal.granules, equal.most, equal.gini), (3, 3, 0.0));
    let unequal = Spread::of([1, 3].into_iter());
    assert!((unequal.gini - 0.25).abs() < 1e-9);
    assert_eq!(Spread::of([].into_iter()), Spread::default());
}
