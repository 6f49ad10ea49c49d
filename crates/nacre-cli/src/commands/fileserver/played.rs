//! The file server in the model's time: the file system's own stores and loads, played by many
//! threads.

use super::mix::{Call, Mix};
use crate::failure::{Result, fs_failure, store_failure};
use nacre_emulator::Profile;
use nacre_emulator::model::{ModelStep, play};
use nacre_fs::{Cred, Fs, FsError, InodeRef, WriteAt};
use nacre_store::{AttachOptions, FormatOptions, SessionChoice, Store};
use nacre_types::{Clock, DeviceOffset, StoreKind, Timestamp};
use nacre_volume::{Granularity, Observer, UserBytes, UserBytesMut, Volume};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Rounds before what is recorded, and behind it: files are deleted as fast as they are made by
/// then.
const FIRST: u64 = 2;
const END: u64 = 4;
/// The same places for the same names, each time.
const SEED: u64 = 17;
/// Some moment in 2023: what is recorded must not depend on when a clock ticked.
const STOPPED: Clock = Clock::Stopped(Timestamp::from_parts(1_700_000_000, 0));
const WHERE: &str = "the file server's pool";

/// Notes what reaches the medium.
#[derive(Default)]
struct Recorder(Mutex<Vec<ModelStep>>);

impl Recorder {
    fn add(&self, step: ModelStep) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(step);
    }

    fn take(&self) -> Vec<ModelStep> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Recorder {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {
        self.add(ModelStep::Fence);
    }

    fn wants_stores(&self) -> bool {
        false
    }

    fn persisted(&self, _: u16, at: DeviceOffset, len: u64, kind: StoreKind) {
        self.add(ModelStep::Store {
            at: at.get(),
            len,
            data: kind == StoreKind::Data,
        });
    }

    fn read(&self, _: u16, at: DeviceOffset, len: u64) {
        self.add(ModelStep::Load { at: at.get(), len });
    }
}

/// A pool in memory, and the files of the thread that is at work.
struct Server {
    fs: Fs,
    cred: Cred,
    files: BTreeMap<u64, InodeRef>,
    buffer: Vec<u8>,
}

impl Server {
    fn call(&mut self, folder: InodeRef, call: Call) -> std::result::Result<(), FsError> {
        let name = |file: u64| format!("f{file}").into_bytes();
        let node = |files: &BTreeMap<u64, InodeRef>, file: u64| {
            files.get(&file).copied().ok_or(FsError::NotFound)
        };
        match call {
            Call::Create(file) => {
                let made = self.fs.create(&self.cred, folder, &name(file), 0o644)?;
                self.files.insert(file, made);
            }
            Call::Append(file, len) => {
                let bytes = UserBytes::from(&self.buffer[..len as usize]);
                let node = node(&self.files, file)?;
                self.fs.write(&self.cred, node, WriteAt::Append, bytes)?;
            }
            Call::Read(file, at, len) => {
                let node = node(&self.files, file)?;
                let to = UserBytesMut::from(&mut self.buffer[..len as usize]);
                self.fs.read(node, nacre_types::FileOffset(at), to)?;
            }
            Call::Delete(file) => {
                let node = node(&self.files, file)?;
                self.files.remove(&file);
                self.fs.unlink(&self.cred, folder, &name(file))?;
                self.fs.unpin(node.ino)?;
            }
        }
        Ok(())
    }
}

/// What each of `threads` threads stores and loads in two rounds, after two that fill the pool;
/// before each call it does something else for `think` ns.
pub fn record(mix: &Mix, threads: u32, think: u32) -> Result<Vec<Vec<ModelStep>>> {
    record_with(mix, threads, think, || {})
}

/// As [`record`]; `between` runs before each call.
fn record_with(
    mix: &Mix,
    threads: u32,
    think: u32,
    between: impl Fn(),
) -> Result<Vec<Vec<ModelStep>>> {
    let bytes = (mix.file + mix.io) * u64::from(threads) * END + (64 << 20);
    let volume = Volume::memory(bytes)?;
    let failed = |error| store_failure(Path::new(WHERE), error);
    let format = FormatOptions {
        seed: Some(SEED),
        clock: STOPPED,
        ..FormatOptions::default()
    };
    Store::format(&volume, &format).map_err(failed)?;
    let recorder = Arc::new(Recorder::default());
    let observer: Arc<dyn Observer> = recorder.clone();
    volume.set_observer(&observer);
    let options = AttachOptions {
        session: SessionChoice::Memory,
        clock: STOPPED,
        ..AttachOptions::default()
    };
    let mut server = Server {
        fs: Fs::new(Store::attach(volume, &options).map_err(failed)?),
        cred: Cred::root(),
        files: BTreeMap::new(),
        buffer: vec![7; mix.io as usize],
    };
    let mut streams = Vec::new();
    for thread in 0..threads {
        let name = format!("t{thread}").into_bytes();
        let root = server.fs.root();
        let made = server.fs.mkdir(&server.cred, root, &name, 0o755);
        let folder = made.map_err(fs_failure(WHERE))?;
        for round in 0..END {
            if round == FIRST {
                recorder.take();
            }
            for call in mix.round(round) {
                if think > 0 {
                    recorder.add(ModelStep::Pause { ns: think });
                }
                between();
                server.call(folder, call).map_err(fs_failure(WHERE))?;
            }
        }
        server.files.clear();
        streams.push(recorder.take());
    }
    Ok(streams)
}

/// One number of threads, with and without a policy.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub threads: u32,
    pub whole_gb_s: f64,
    pub whole_ewr: f64,
    pub cut_gb_s: f64,
    pub cut_ewr: f64,
    pub gain_percent: f64,
}

/// Plays the streams of the first `threads` threads until about `bytes` are moved.
pub fn row(
    profile: &Profile,
    streams: &[Vec<ModelStep>],
    threads: u32,
    granularity: &Granularity,
    bytes: u64,
) -> Row {
    let streams = &streams[..streams.len().min(threads as usize)];
    let whole = play(profile, streams, &|_, _| 0, bytes);
    let cut = |storing, len| granularity.stored_piece(storing, len);
    let cut = play(profile, streams, &cut, bytes);
    let digits = |value: f64| (value * 1000.0).round() / 1000.0;
    Row {
        threads,
        whole_gb_s: digits(whole.bandwidth),
        whole_ewr: digits(whole.ewr),
        cut_gb_s: digits(cut.bandwidth),
        cut_ewr: digits(cut.ewr),
        gain_percent: (1000.0 * (cut.bandwidth / whole.bandwidth - 1.0)).round() / 10.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::mix::Ratio;
    use super::{Mix, record, record_with, row};
    use nacre_emulator::Profile;
    use nacre_emulator::model::ModelStep;
    use nacre_volume::{Granularity, Policy};

    const MIX: Mix = Mix {
        file: 128 << 10,
        io: 16 << 10,
        ratio: Ratio::Bytes,
    };

    #[test]
    fn what_the_file_system_stores_and_loads_is_recorded_for_each_thread() {
        let streams = record(&MIX, 2, 0).unwrap();
        assert_eq!(streams.len(), 2);
        for stream in &streams {
            let bytes = |pick: fn(&ModelStep) -> u64| stream.iter().map(pick).sum::<u64>();
            let data = bytes(|step| match step {
                ModelStep::Store {
                    len, data: true, ..
                } => *len,
                _ => 0,
            });
            assert_eq!(data, 2 * (MIX.file + MIX.io));
            let loaded = bytes(|step| match step {
                // Others are of structures.
                ModelStep::Load { len, .. } if *len == MIX.io => *len,
                _ => 0,
            });
            assert_eq!(loaded, MIX.file);
            assert!(stream.contains(&ModelStep::Fence));
        }
        assert_ne!(streams[0], streams[1], "each has files of its own");
    }

    #[test]
    fn each_record_is_the_same() {
        let first = record(&MIX, 3, 0).unwrap();
        for _ in 0..4 {
            assert!(record(&MIX, 3, 0).unwrap() == first);
        }
    }

    #[test]
    fn a_record_does_not_depend_on_the_ticks_of_the_clock() {
        let longer_than_a_tick = std::time::Duration::from_millis(12);
        let slow = record_with(&MIX, 1, 0, || std::thread::sleep(longer_than_a_tick)).unwrap();
        assert!(slow == record(&MIX, 1, 0).unwrap());
    }

    #[test]
    fn many_threads_gain_and_a_policy_of_none_changes_nothing() {
        let streams = record(&MIX, 16, 0).unwrap();
        let optane = Profile::load("optane-100").unwrap();
        let played = |policy| {
            let granularity = Granularity {
                policy,
                ..Granularity::default()
            };
            row(&optane, &streams, 16, &granularity, 4 << 20)
        };
        assert!(played(Policy::Optane { modules: 1 }).gain_percent > 5.0);
        assert_eq!(played(Policy::None).gain_percent, 0.0);
    }
}
