//! Records of a journal that name places where nothing of the pool's data lies.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nacre_cache::{Buffer, Disk, DiskFailed, Draft, Journal, Piece};
use nacre_testkit::pool::{CAREFUL, Devices, memory_file};
use nacre_types::VolumeOffset;
use nacre_volume::{Access, Caching, CreateOptions, Volume};

const MIB: u64 = 1 << 20;
const DATA: u64 = 2 * MIB;
const LEN: u64 = 32 * MIB;

/// A device as who may write its file sees it.
struct Raw(File);

impl Disk for &Raw {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DiskFailed> {
        let read = self.0.read_exact_at(to, at);
        read.map_err(|why| DiskFailed(why.to_string()))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        let written = self.0.write_all_at(bytes, at);
        written.map_err(|why| DiskFailed(why.to_string()))
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> Result<(), DiskFailed> {
        self.write(at, bytes)
    }

    /// Of a record and what is beside it the record alone comes.
    fn write_all_through(&self, pieces: &[(u64, &[u8])]) -> Result<(), DiskFailed> {
        let last = pieces.last();
        last.map_or(Ok(()), |(at, bytes)| self.write(*at, bytes))
    }

    fn sync(&self) -> Result<(), DiskFailed> {
        Ok(())
    }
}

/// A pool of these devices, of each of which the journal has records of places.
fn pool(base: &Path, names: &[&str], homes: &[Range<u64>]) -> Devices {
    let devices = Devices::below(base);
    let options = CreateOptions {
        copies: names.len(),
        caching: Caching::Always,
        ..CAREFUL
    };
    drop(devices.volume(names, LEN, options));
    for name in names {
        add_records(&devices.file(name), homes);
    }
    devices
}

fn add_records(device: &Path, homes: &[Range<u64>]) {
    with_journal(device, |journal| {
        for home in homes {
            let mut draft = Draft::new(Buffer::default(), vec![home.clone()]);
            draft.fill(|_, bytes| bytes.fill(7));
            journal.append(&mut draft).unwrap();
        }
    });
}

fn with_journal(device: &Path, work: impl FnOnce(&mut Journal<&Raw>)) {
    let label = Volume::inspect(device).unwrap();
    let file = File::options().read(true).write(true).open(device);
    let raw = Raw(file.unwrap());
    let at = DATA + label.volume_len();
    work(&mut Journal::open(&raw, label.pool.0, at, label.journal).unwrap());
}

/// Adds a record beside which these bytes of a place should be, and are not written.
fn add_beside(device: &Path, home: u64, bytes: &[u8]) {
    with_journal(device, |journal| {
        let places = [DATA + 4 * MIB].map(|at| at..at + 4096);
        let mut draft = Draft::with_beside(Buffer::default(), places.to_vec(), 1);
        draft.fill(|_, bytes| bytes.fill(9));
        let beside = [Piece { home, bytes }];
        journal.append_beside(&mut draft, &beside).unwrap();
    });
}

/// Whether the pool shows what a record has that names a place of its data, and nothing else has
/// changed.
fn is_whole(devices: &Devices, names: &[&str], access: Access) -> bool {
    let of_all = |work: &dyn Fn(&Path) -> Vec<u8>| -> Vec<Vec<u8>> {
        names.iter().map(|name| work(&devices.file(name))).collect()
    };
    let outside = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        [&bytes[..512 << 10], &bytes[LEN as usize - 4096..]].concat()
    };
    let before = of_all(&outside);
    let volume = Volume::open(&devices.file(names[0]), access).unwrap();
    volume.make_image(memory_file()).unwrap();
    let shown: [u8; 8] = volume.read_array(VolumeOffset(4 * MIB));
    shown == [7; 8] && of_all(&outside) == before
}

#[test]
fn records_that_name_other_places_than_data_do_not_count() {
    let sound = DATA + 4 * MIB..DATA + 4 * MIB + 4096;
    let behind_journal = DATA + 28 * MIB;
    let hostile = [
        0..4096,
        DATA - 8..DATA + 8,
        behind_journal..behind_journal + 8,
        LEN - 4096..LEN,
        LEN..LEN + 8,
        (1 << 62)..(1 << 62) + 8,
        u64::MAX - 8..u64::MAX,
    ];
    let disk = Path::new(env!("CARGO_MANIFEST_DIR"));
    let memory = Path::new("/dev/shm");
    for (base, names) in [(disk, &["a"][..]), (memory, &["a"]), (memory, &["a", "b"])] {
        for home in &hostile {
            for access in [Access::ReadOnly, Access::ReadWrite] {
                let devices = pool(base, names, &[sound.clone(), home.clone()]);
                assert!(
                    is_whole(&devices, names, access),
                    "{names:?} {home:?} {access:?}"
                );
            }
        }
    }
}

/// What a pool shows of a place whose journal has two records, the second of which should have some
/// bytes beside it.
fn shown_with_beside(home: u64, bytes: impl FnOnce(&[u8]) -> Vec<u8>) -> u8 {
    let base = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sound = DATA + 4 * MIB..DATA + 4 * MIB + 4096;
    let devices = pool(base, &["a"], &[sound]);
    let device = devices.file("a");
    add_beside(&device, home, &bytes(&std::fs::read(&device).unwrap()));
    let volume = Volume::open(&device, Access::ReadWrite).unwrap();
    volume.make_image(memory_file()).unwrap();
    let shown: [u8; 8] = volume.read_array(VolumeOffset(4 * MIB));
    assert!(shown.iter().all(|byte| *byte == shown[0]));
    shown[0]
}

#[test]
fn a_record_counts_if_what_should_be_beside_it_is_there() {
    let home = DATA + 8 * MIB;
    let there = |file: &[u8]| file[home as usize..][..8192].to_vec();
    assert_eq!(shown_with_beside(home, there), 9);
    let other = |file: &[u8]| there(file).iter().map(|byte| byte ^ 1).collect();
    assert_eq!(shown_with_beside(home, other), 7);
}

#[test]
fn a_record_beside_other_places_than_data_does_not_count() {
    for home in [0, DATA - 4096, LEN - 4096] {
        let there = |file: &[u8]| file[home as usize..][..4096].to_vec();
        assert_eq!(shown_with_beside(home, there), 7, "{home}");
    }
    let much = |file: &[u8]| file[DATA as usize..][..17 << 20].to_vec();
    assert_eq!(shown_with_beside(DATA, much), 7, "more than is looked at");
}
