//! A volume that turns into any image by changing only the lines that differ, and back.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nacre_fs::Fs;
use nacre_store::{Store, WriteMode};
use nacre_types::{StoreKind, VolumeOffset};
use nacre_volume::{Arrangement, Observer, Stripe, Volume};

use crate::action::LEVELLING;
use nacre_testkit::image::volume_arranged;
use nacre_testkit::medium::{Difference, LINE, Line};
use nacre_testkit::pool::PRIVATE;
use nacre_testkit::random::hash;
use nacre_testkit::recorder::{Event, Recorder, What};

/// A volume with known contents: the floor, and the image that stands on it for a moment.
pub struct Bench {
    base: Arc<[u8]>,
    floor: Vec<u8>,
    floor_hash: u64,
    raised: BTreeSet<u64>,
    touched: BTreeSet<u64>,
    volume: Option<Volume>,
    /// So many of the last bytes are a second device.
    second: u64,
    /// What it is for.
    arrangement: Arrangement,
    recorder: Arc<Recorder>,
}

/// How a pool came up, and what its recovery did to the medium.
pub struct Attached {
    /// The pool.
    pub fs: Fs,
    /// Events of the recovery.
    pub events: Vec<Event>,
}

impl Bench {
    /// A volume with these contents.
    pub fn new(base: Arc<[u8]>) -> Result<Bench, String> {
        Bench::arranged(base, 0, Arrangement::default())
    }

    /// As [`Bench::new`]; the last bytes are a device behind the others.
    pub fn with_behind(base: Arc<[u8]>, behind: u64) -> Result<Bench, String> {
        let arrangement = Arrangement {
            behind: usize::from(behind > 0),
            ..Arrangement::default()
        };
        Bench::arranged(base, behind, arrangement)
    }

    /// As [`Bench::new`]; the last bytes are a device that was added to another one. Data is spread
    /// over both, in stripes of one unit.
    pub fn with_added(base: Arc<[u8]>, added: u64) -> Result<Bench, String> {
        let arrangement = Arrangement {
            stripe: Stripe::Bytes(4096),
            behind: 0,
        };
        Bench::arranged(base, added, arrangement)
    }

    fn arranged(base: Arc<[u8]>, second: u64, arrangement: Arrangement) -> Result<Bench, String> {
        let mut bench = Bench {
            floor: base.to_vec(),
            base,
            floor_hash: 0,
            raised: BTreeSet::new(),
            touched: BTreeSet::new(),
            volume: None,
            second,
            arrangement,
            recorder: Arc::default(),
        };
        bench.volume = Some(bench.make_volume());
        Ok(bench)
    }

    fn make_volume(&self) -> Volume {
        let volume = volume_arranged(&self.floor, self.second, self.arrangement);
        if self.second > 0 {
            self.recorder.note_offsets(&volume);
        }
        let observer: Arc<dyn Observer> = Arc::clone(&self.recorder) as Arc<dyn Observer>;
        volume.set_observer(&observer);
        volume
    }

    /// The recorder that watches the volume.
    pub fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.recorder)
    }

    /// A line of the floor.
    pub fn line(&self, number: u64) -> Line {
        line_of(&self.floor, number)
    }

    /// Bytes of the floor.
    pub fn bytes(&self, at: u64, len: u64) -> &[u8] {
        &self.floor[at as usize..(at + len) as usize]
    }

    /// Moves the floor.
    pub fn raise(&mut self, difference: &Difference) {
        for (&number, line) in difference {
            let old = self.line(number);
            self.floor_hash ^= hash(number, &old) ^ hash(number, line);
            let start = number as usize * LINE;
            self.floor[start..start + LINE].copy_from_slice(line);
            self.raised.insert(number);
            self.put(number, line);
        }
    }

    /// Moves the floor back to where it was in the beginning.
    pub fn lower(&mut self) {
        self.clear();
        let back: Difference = std::mem::take(&mut self.raised)
            .into_iter()
            .map(|number| (number, line_of(&self.base, number)))
            .collect();
        self.raise(&back);
        self.raised.clear();
        self.floor_hash = 0;
    }

    /// A hash of the image on this floor, the same on any floor of the same base.
    pub fn hash(&self, image: &Difference) -> u64 {
        image.iter().fold(self.floor_hash, |sum, (&number, line)| {
            let old = self.line(number);
            let same = old == *line;
            sum ^ if same {
                0
            } else {
                hash(number, &old) ^ hash(number, line)
            }
        })
    }

    /// Makes the volume the image and attaches it; what went wrong else.
    pub fn attach(&mut self, image: &Difference, mode: WriteMode) -> Result<Attached, String> {
        for (&number, line) in image {
            self.put(number, line);
            self.touched.insert(number);
        }
        let Some(volume) = self.volume.take() else {
            return Err("there is no volume".into());
        };
        self.recorder.start();
        let attached = catch_unwind(AssertUnwindSafe(|| Store::attach(volume, &PRIVATE)));
        let events = self.recorder.stop();
        self.note(&events);
        match attached {
            Ok(Ok(store)) => Ok(Attached {
                fs: levelled(store, mode),
                events,
            }),
            Ok(Err(error)) => self.renew(format!("attach: {error}")),
            Err(_) => self.renew("attach panics".into()),
        }
    }

    /// Attaches a pool that was left in order.
    pub fn attach_clean(volume: Volume, mode: WriteMode) -> Result<Fs, String> {
        let store = Store::attach(volume, &PRIVATE).map_err(|e| format!("attach: {e}"))?;
        Ok(levelled(store, mode))
    }

    /// Takes the volume back from a pool and lays the floor bare again; `events` are what the pool
    /// did since it attached.
    pub fn take_back(&mut self, fs: Fs, events: &[Event]) {
        self.volume = Some(fs.into_store().abandon());
        self.note(events);
        self.clear();
    }

    /// A new volume in place of one that a failed attachment swallowed.
    pub fn renew<T>(&mut self, why: String) -> Result<T, String> {
        self.touched.clear();
        self.volume = Some(self.make_volume());
        Err(why)
    }

    fn note(&mut self, events: &[Event]) {
        for event in events {
            if let What::Store { at, bytes, .. } = &event.what {
                let last = (at + bytes.len().max(1) as u64 - 1) / LINE as u64;
                self.touched.extend(at / LINE as u64..=last);
            }
        }
    }

    fn clear(&mut self) {
        for number in std::mem::take(&mut self.touched) {
            self.put(number, &self.line(number));
        }
    }

    fn put(&self, number: u64, line: &Line) {
        if let Some(volume) = &self.volume {
            let at = VolumeOffset(number * LINE as u64);
            volume
                .fence(volume.write(at, line, StoreKind::Data))
                .expect("a device that does not fail");
        }
    }
}

fn line_of(bytes: &[u8], number: u64) -> Line {
    let start = number as usize * LINE;
    bytes[start..start + LINE].try_into().unwrap_or([0; LINE])
}

fn levelled(store: Store, mode: WriteMode) -> Fs {
    store.set_levelling(LEVELLING);
    Fs::with_mode(store, mode)
}
