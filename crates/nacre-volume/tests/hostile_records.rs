//! Records of a journal that name places where nothing of the pool's data lies.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nacre_cache::{Buffer, Disk, DiskFailed, Draft, Journal};
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
    let label = Volume::inspect(device).unwrap();
    let file = File::options().read(true).write(true).open(device);
    let raw = Raw(file.unwrap());
    let at = DATA + label.volume_len();
    let mut journal = Journal::open(&raw, label.pool.0, at, label.journal).unwrap();
    for home in homes {
        let mut draft = Draft::new(Buffer::default(), vec![home.clone()]);
        draft.fill(|_, bytes| bytes.fill(7));
        journal.append(&mut draft).unwrap();
    }
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
