//! A rich pool, its structures, and which bytes each file needs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use nacre_explore::visible::{Seen, Visible, look};
use nacre_fs::{AllocateMode, Cred, Fs, InodeRef, Result, WriteAt, XattrFlags};
use nacre_objects::Pool;
use nacre_store::structure_index::{Part, Structure, survey};
use nacre_store::{FormatOptions, Store};
use nacre_testkit::pool::PRIVATE;
use nacre_testkit::recorder::{Recorder, What};
use nacre_types::{FileOffset, ObjectId, StoreKind, UNIT_SIZE, VolumeOffset};
use nacre_volume::{Observer, Volume};

use crate::keyed::{self, KnownObject};

/// Bytes of the prepared pool.
pub const POOL: u64 = 24 << 20;
const SEED: u64 = 0x5eed;
const WIDE: usize = 330;
const DEEP: usize = 13;

type Unit = [u8; UNIT_SIZE as usize];

/// One path of the pool: what is seen there and which objects lead to it.
pub struct Known {
    /// What is seen.
    pub seen: Seen,
    /// The objects on the way, itself included.
    pub objects: BTreeSet<u64>,
}

/// The pool before anybody damaged it.
pub struct Prepared {
    /// Units that are not all zeros.
    pub units: Vec<(u64, Unit)>,
    /// Its structures.
    pub parts: Vec<Part>,
    /// What there is to see, by path.
    pub known: BTreeMap<Vec<u8>, Known>,
    /// Objects of collections.
    pub keyed: Vec<KnownObject>,
    /// Secret of its log.
    pub salt: u64,
    /// Seed of its name hashes.
    pub seed: u64,
}

/// What the pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Files of all shapes.
    Files,
    /// Collections of objects, and a few files.
    Objects,
}

/// The pools that cases are about.
pub const POOLS: [(Contents, Left); 4] = [
    (Contents::Files, Left::Clean),
    (Contents::Files, Left::Crashed),
    (Contents::Objects, Left::Clean),
    (Contents::Objects, Left::Crashed),
];

/// How the pool was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Detached: bitmaps are saved.
    Clean,
    /// As by a crash, with a record that waits for replay.
    Crashed,
}

impl Prepared {
    /// Makes the pool.
    pub fn new(contents: Contents, left: Left) -> std::result::Result<Prepared, String> {
        let volume = Volume::memory(POOL).map_err(|e| e.to_string())?;
        format(&volume)?;
        let store = Store::attach(volume, &PRIVATE).map_err(|e| e.to_string())?;
        let store = match contents {
            Contents::Files => fill_with_files(store, left)?,
            Contents::Objects => fill_with_objects(store, left)?,
        };
        let fs = Fs::new(store);
        let visible = look(&fs)?;
        let pool = Pool::of(fs.into_store());
        let keyed = keyed::known(&pool).map_err(|e| e.to_string())?;
        let store = pool.into_store();
        let parts = survey(&store);
        // Detaching gives no volume back: what it writes is taken from a second pool with the same
        // contents.
        let units = units_of(store.volume());
        match left {
            Left::Crashed => Ok(Prepared::of(units, parts, &visible, keyed)),
            Left::Clean => Prepared::detached(units, &visible, keyed),
        }
    }

    /// The same pool after a detach.
    fn detached(
        units: Vec<(u64, Unit)>,
        visible: &Visible,
        keyed: Vec<KnownObject>,
    ) -> std::result::Result<Self, String> {
        let volume = volume_of(&units)?;
        let recorder = Arc::new(Recorder::default());
        let observer: Arc<dyn Observer> = Arc::clone(&recorder) as Arc<dyn Observer>;
        volume.set_observer(&observer);
        recorder.start();
        let store = Store::attach(volume, &PRIVATE).map_err(|e| e.to_string())?;
        store.detach().map_err(|e| e.to_string())?;
        let after = volume_of(&units)?;
        for event in recorder.stop() {
            if let What::Store { at, bytes, kind } = event.what {
                after
                    .fence(after.write(VolumeOffset(at), &bytes, kind))
                    .expect("a device that does not fail");
            }
        }
        let units = units_of(&after);
        let store = Store::attach(after, &PRIVATE).map_err(|e| e.to_string())?;
        let mut parts = survey(&store);
        parts.retain(|part| part.what != Structure::Snapshot);
        // Attaching took the promise back; the area itself is still there.
        let volume = volume_of(&units)?;
        parts.extend(snapshot_area(&volume));
        Ok(Prepared::of(units, parts, visible, keyed))
    }

    fn of(
        units: Vec<(u64, Unit)>,
        parts: Vec<Part>,
        visible: &Visible,
        keyed: Vec<KnownObject>,
    ) -> Prepared {
        Prepared {
            units,
            parts,
            known: known(visible),
            keyed,
            salt: SEED,
            seed: SEED,
        }
    }

    /// The pool on a fresh volume.
    pub fn volume(&self) -> std::result::Result<Volume, String> {
        volume_of(&self.units)
    }

    /// Objects whose parts lie in one of these ranges; `None` stands for what belongs to nobody.
    pub fn objects_in(&self, ranges: &[Range<u64>]) -> BTreeSet<Option<u64>> {
        let hit = |part: &Part| {
            let (start, end) = (part.at.0, part.at.0 + part.len);
            ranges
                .iter()
                .any(|range| range.start < end && start < range.end)
        };
        let parts = self.parts.iter().filter(|part| hit(part));
        parts.map(|part| part.object.map(|id| id.0)).collect()
    }
}

fn snapshot_area(volume: &Volume) -> Option<Part> {
    use nacre_store::layout::{RawState, STATE_AT, STATE_CLEAN};
    use nacre_types::UnitNo;
    let clean = STATE_AT.into_iter().find_map(|at| {
        let bytes: [u8; size_of::<RawState>()] = volume.read_array(at);
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let flags = word(std::mem::offset_of!(RawState, flags));
        let unit = word(std::mem::offset_of!(RawState, snapshot_unit));
        let len = word(std::mem::offset_of!(RawState, snapshot_bytes));
        (flags & STATE_CLEAN != 0).then_some((unit, len))
    });
    clean.map(|(unit, len)| Part {
        what: Structure::Snapshot,
        object: None,
        at: UnitNo(unit).offset(),
        len,
    })
}

fn volume_of(units: &[(u64, Unit)]) -> std::result::Result<Volume, String> {
    let volume = Volume::memory(POOL).map_err(|e| e.to_string())?;
    for (unit, bytes) in units {
        let at = VolumeOffset(unit * UNIT_SIZE);
        volume
            .fence(volume.write(at, bytes, StoreKind::Data))
            .expect("a device that does not fail");
    }
    Ok(volume)
}

fn units_of(volume: &Volume) -> Vec<(u64, Unit)> {
    (0..volume.units())
        .map(|unit| (unit, volume.read_array(VolumeOffset(unit * UNIT_SIZE))))
        .filter(|(_, bytes)| *bytes != [0; UNIT_SIZE as usize])
        .collect()
}

/// Formats with seeds that are the same on every run.
pub fn format(volume: &Volume) -> std::result::Result<(), String> {
    let options = FormatOptions {
        seed: Some(SEED),
        ..FormatOptions::default()
    };
    Store::format(volume, &options).map_err(|e| e.to_string())
}

fn known(visible: &Visible) -> BTreeMap<Vec<u8>, Known> {
    let objects = |path: &[u8]| -> BTreeSet<u64> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let ends = ends.map(|(end, _)| end).chain([0, path.len()]);
        ends.filter_map(|end| Some(visible.get(&path[..end])?.ino))
            .chain([ObjectId::ROOT.0])
            .collect()
    };
    visible
        .iter()
        .map(|(path, seen)| {
            let (seen, objects) = (seen.clone(), objects(path));
            (path.clone(), Known { seen, objects })
        })
        .collect()
}

/// Bytes that differ from file to file and from unit to unit.
pub fn pattern(salt: u64, len: usize) -> Vec<u8> {
    nacre_explore::action::pattern(salt, len as u64)
}

fn file(fs: &Fs, dir: InodeRef, name: &str, pieces: &[(u64, usize)]) -> Result<InodeRef> {
    let node = fs.create(&Cred::root(), dir, name.as_bytes(), 0o644)?;
    for &(at, len) in pieces {
        let bytes = pattern(node.ino.0, len);
        let at = WriteAt::Offset(FileOffset(at));
        fs.write(&Cred::root(), node, at, bytes[..].into())?;
    }
    fs.unpin(node.ino)?;
    Ok(node)
}

/// Files of all shapes, directories deep and wide, attributes, clones, links.
pub fn fill(fs: &Fs) -> Result<()> {
    let (cred, root) = (&Cred::root(), fs.root());
    let shapes: [(&str, &[(u64, usize)]); 9] = [
        ("empty", &[]),
        ("tiny", &[(0, 10)]),
        ("one unit", &[(0, 4096)]),
        ("small", &[(0, 6000)]),
        ("middle", &[(0, 400_000)]),
        ("holes", &[(8192, 100), (40_000, 5000)]),
        ("two levels", &[(0, 5000), (2 << 20, 9000)]),
        ("three levels", &[(0, 100), (1 << 20, 4096), (1 << 21, 100)]),
        ("tail", &[(3_000_000, 4097)]),
    ];
    for (name, pieces) in shapes {
        file(fs, root, name, pieces)?;
    }
    let far = file(fs, root, "far", &[(0, 100)])?;
    fs.allocate(cred, far, AllocateMode::KeepSize, 0, 20_000)?;
    fs.allocate(cred, far, AllocateMode::KeepSize, 1 << 30, 8192)?;
    let (from, to) = (
        file(fs, root, "origin", &[(0, 30_000)])?,
        file(fs, root, "clone", &[])?,
    );
    fs.clone_range(cred, (from, 0), (to, 0), 0)?;
    fs.write(
        cred,
        to,
        WriteAt::Offset(FileOffset(5000)),
        b"changed"[..].into(),
    )?;
    fill_attributes(fs, from)?;
    fs.symlink(cred, root, b"link", b"small")?;
    fs.symlink(cred, root, b"long link", &[b'l'; 300])?;
    fs.mknod(cred, root, b"fifo", 0o010_600, 0)?;
    fs.link(cred, from, root, b"hard link")?;
    fill_directories(fs, from)
}

fn fill_attributes(fs: &Fs, node: InodeRef) -> Result<()> {
    let (cred, flags) = (&Cred::root(), XattrFlags::empty());
    for number in 0..40 {
        let name = format!("user.attribute {number}");
        fs.set_xattr(cred, node, name.as_bytes(), &pattern(number, 100), flags)?;
    }
    fs.set_xattr(cred, node, b"user.long", &pattern(7, 30_000), flags)
}

fn fill_directories(fs: &Fs, linked: InodeRef) -> Result<()> {
    let (cred, root) = (&Cred::root(), fs.root());
    let wide = fs.mkdir(cred, root, b"wide", 0o755)?;
    for number in 0..WIDE {
        let name = format!("{number:03}-{}", "w".repeat(220));
        fs.link(cred, linked, wide, name.as_bytes())?;
    }
    let many = fs.mkdir(cred, root, b"many", 0o755)?;
    for number in 0..60 {
        file(
            fs,
            many,
            &format!("file {number}"),
            &[(0, 300 * (number % 5))],
        )?;
    }
    let mut deep = fs.mkdir(cred, root, b"deep", 0o755)?;
    for level in 0..DEEP {
        file(fs, deep, "file", &[(0, 100 + level)])?;
        deep = fs.mkdir(cred, deep, b"d", 0o750)?;
    }
    let single = fs.mkdir(cred, root, b"single", 0o755)?;
    file(fs, single, "only entry", &[(0, 9000)])?;
    fs.mkdir(cred, root, b"hollow", 0o700).map(drop)
}

fn fill_with_files(store: Store, left: Left) -> std::result::Result<Store, String> {
    let fs = Fs::new(store);
    fill(&fs).map_err(|error| format!("prepare: {error}"))?;
    if left == Left::Crashed {
        let tiny = fs.lookup(&Cred::root(), fs.root(), b"tiny");
        let node = tiny.map_err(|e| e.to_string())?.node;
        let chmod = || fs.chmod(&Cred::root(), node, 0o600);
        leave_record(fs.store(), || chmod().map_err(|e| e.to_string()))?;
    }
    Ok(fs.into_store())
}

fn fill_with_objects(store: Store, left: Left) -> std::result::Result<Store, String> {
    let fs = Fs::new(store);
    let made = file(&fs, fs.root(), "a file", &[(0, 6000)]);
    made.map_err(|e| e.to_string())?;
    let pool = Pool::of(fs.into_store());
    keyed::fill(&pool).map_err(|e| format!("prepare objects: {e}"))?;
    if left == Left::Crashed {
        let last = || keyed::last(&pool).map_err(|e| e.to_string());
        leave_record(pool.store(), last)?;
    }
    Ok(pool.into_store())
}

/// Makes the record of `change` wait for replay again.
fn leave_record(
    store: &Store,
    change: impl FnOnce() -> std::result::Result<(), String>,
) -> std::result::Result<(), String> {
    let volume = store.volume();
    let words: Vec<Part> = survey(store)
        .into_iter()
        .filter(|part| part.what == Structure::LogTailWord)
        .collect();
    let before: Vec<u64> = words.iter().map(|word| volume.load_u64(word.at)).collect();
    change()?;
    for (part, word) in words.iter().zip(before) {
        volume
            .fence(volume.store_u64(part.at, word, StoreKind::Log))
            .expect("a device that does not fail");
    }
    Ok(())
}
