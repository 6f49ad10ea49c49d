//! Metadata that is damaged on one of two disks that hold the same, and what hangs on it.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use nacre_fs::Fs;
use nacre_store::scrub::{Doubtful, scrub};
use nacre_store::structure_index::{Part, Structure, survey};
use nacre_store::{Store, runtime};
use nacre_testkit::damage::{DATA_START, NAMES, wreck};
use nacre_testkit::pool::{PRIVATE, PoolChoice, PoolFiles, assert_sound};
use nacre_types::UNIT_SIZE;
use nacre_volume::{Access, Caching, LegState, Volume};

use crate::kept::{close, find, pattern};
use crate::pools::{file, read, write};

const LEN: u64 = 3 << 20;
/// A page of the file that is not among the first ones.
const PAGE: u64 = 600;

struct Rig {
    files: PoolFiles,
    parts: Vec<Part>,
}

impl Rig {
    /// With a file whose map has two levels, after a power cut.
    fn new() -> Rig {
        let files = PoolFiles::make(&PoolChoice {
            devices: &NAMES,
            bytes: 64 << 20,
            caching: Caching::Always,
            copies: NAMES.len(),
            ..PoolChoice::default()
        });
        let fs = open(&files, "a");
        let node = file(&fs, fs.root(), "file");
        write(&fs, node, 0, &pattern(1, LEN));
        fs.commit().expect("commit");
        let volume = fs.store().volume();
        volume.prepare_scrub().expect("home");
        let parts = survey(fs.store());
        let left = runtime::folder(volume).expect("a folder");
        drop(fs.into_store().abandon());
        if let Some(folder) = left {
            folder.clear();
            folder.leave();
        }
        Rig { files, parts }
    }

    /// Its map, and a page that only the map leads to.
    fn wreck_map_and_page(&self, name: &str) {
        let device = self.files.file(name);
        let is_map = |what| matches!(what, Structure::MapNode(..));
        assert!(wreck(&device, &self.parts, is_map) > 1);
        let mut pages = self.parts.iter();
        let page = pages.find(|part| part.what == Structure::Data(PAGE));
        let at = DATA_START + page.expect("the page").at.0;
        let device = File::options().write(true).open(device).expect("a device");
        let noise = [0x5a; UNIT_SIZE as usize];
        device.write_all_at(&noise, at).expect("room");
    }

    /// The page as a device has it.
    fn has_page(&self, name: &str) -> bool {
        let mut pages = self.parts.iter();
        let page = pages.find(|part| part.what == Structure::Data(PAGE));
        let mut bytes = [0; UNIT_SIZE as usize];
        let device = File::open(self.files.file(name)).expect("a device");
        let at = DATA_START + page.expect("the page").at.0;
        device.read_exact_at(&mut bytes, at).expect("bytes");
        let first = (PAGE * UNIT_SIZE) as usize;
        bytes[..] == pattern(1, LEN)[first..first + bytes.len()]
    }
}

fn open(files: &PoolFiles, name: &str) -> Fs {
    let volume = Volume::open(&files.file(name), Access::ReadWrite).expect("open");
    Fs::new(Store::attach(volume, &PRIVATE).expect("attach"))
}

fn compare(fs: &Fs) -> u64 {
    let go_on = &mut |_| ControlFlow::Continue(());
    let report = scrub(fs.store(), 1, &Doubtful::Told, go_on);
    report.expect("scrub").left
}

#[test]
fn what_hangs_on_damaged_metadata_is_not_taken_for_free() {
    for (name, other) in [("a", "b"), ("b", "a")] {
        let rig = Rig::new();
        assert!(NAMES.into_iter().all(|name| rig.has_page(name)));
        rig.wreck_map_and_page(name);
        let fs = open(&rig.files, "a");
        // Of the page nothing tells which one is right; all else tells by itself.
        assert_eq!(compare(&fs), UNIT_SIZE, "{name}");
        close(fs);
        assert!(rig.has_page(other), "{name}: the right page is gone");
        let fs = open(&rig.files, "a");
        assert_sound(fs.store());
        close(fs);
    }
}

#[test]
fn what_hangs_on_damaged_metadata_goes_to_a_new_disk() {
    let rig = Rig::new();
    let is_map = |what| matches!(what, Structure::MapNode(..));
    for name in NAMES {
        assert!(wreck(&rig.files.file(name), &rig.parts, is_map) > 1);
    }
    let fs = open(&rig.files, "a");
    assert!(!fs.store().is_writable());
    let volume = fs.store().volume();
    let copies = volume.copies().expect("copies");
    let new = rig.files.file("c");
    volume
        .replace_copy(copies[1].uuid, &new, false)
        .expect("it comes");
    let go_on = |_| ControlFlow::Continue(());
    assert_eq!(fs.store().rebuild_copies(1, go_on).expect("rebuild").0, 1);
    let states = volume.copies().expect("copies");
    assert!(
        states
            .iter()
            .any(|it| it.path == new && it.state == LegState::Current)
    );
    assert!(rig.has_page("c"), "the new disk lacks what the map led to");
    drop(fs.into_store().abandon());
}

#[test]
fn log_tails_that_were_damaged_on_one_disk_come_from_the_other() {
    for name in NAMES {
        let rig = Rig::new();
        let device = rig.files.file(name);
        let is_tail = |what| what == Structure::LogTailWord;
        assert!(wreck(&device, &rig.parts, is_tail) > 1);
        let fs = open(&rig.files, "a");
        assert!(read(&fs, find(&fs, fs.root(), "file"), 0, 4 << 20) == pattern(1, LEN));
        assert_eq!(compare(&fs), 0, "{name}");
        assert_sound(fs.store());
        close(fs);
        std::fs::remove_file(rig.files.file("a")).expect("a device");
        assert_sound(open(&rig.files, "b").store());
    }
}
