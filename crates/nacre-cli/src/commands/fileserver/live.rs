//! The file server in real time: threads and processes that work in a folder by ordinary calls.

use super::mix::{Call, Mix};
use crate::failure::{Failure, Result};
use crate::parallel;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What was done in how long.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    pub calls: u64,
    pub written_bytes: u64,
    pub read_bytes: u64,
    pub seconds: f64,
}

impl Done {
    fn and(self, other: Done) -> Done {
        Done {
            calls: self.calls + other.calls,
            written_bytes: self.written_bytes + other.written_bytes,
            read_bytes: self.read_bytes + other.read_bytes,
            seconds: self.seconds.max(other.seconds),
        }
    }
}

/// What is to be done, and how long.
#[derive(Clone, Debug)]
pub struct Work {
    pub folder: PathBuf,
    pub mix: Mix,
    pub threads: u32,
    pub time: Duration,
}

struct Worker {
    folder: PathBuf,
    files: BTreeMap<u64, File>,
    buffer: Vec<u8>,
    done: Done,
}

impl Worker {
    fn new(folder: PathBuf, mix: &Mix) -> io::Result<Worker> {
        fs::create_dir_all(&folder)?;
        Ok(Worker {
            folder,
            files: BTreeMap::new(),
            buffer: vec![7; mix.io as usize],
            done: Done::default(),
        })
    }

    fn file(&self, number: u64) -> io::Result<&File> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        self.files.get(&number).ok_or_else(missing)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("f{number}"))
    }

    fn call(&mut self, call: Call) -> io::Result<()> {
        match call {
            Call::Create(number) => {
                let mut options = OpenOptions::new();
                options.read(true).append(true).create(true);
                let file = options.open(self.path(number))?;
                self.files.insert(number, file);
            }
            Call::Append(number, len) => {
                let mut file = self.file(number)?;
                file.write_all(&self.buffer[..len as usize])?;
                self.done.written_bytes += len;
            }
            Call::Read(number, at, len) => {
                let mut buffer = std::mem::take(&mut self.buffer);
                let read = self
                    .file(number)?
                    .read_exact_at(&mut buffer[..len as usize], at);
                self.buffer = buffer;
                read?;
                self.done.read_bytes += len;
            }
            Call::Delete(number) => {
                self.files.remove(&number);
                fs::remove_file(self.path(number))?;
            }
        }
        self.done.calls += 1;
        Ok(())
    }

    /// Rounds until the time is over; in the end nothing is left.
    fn work(mut self, mix: &Mix, time: Duration) -> io::Result<Done> {
        let start = Instant::now();
        for round in 0.. {
            for call in mix.round(round) {
                self.call(call)?;
            }
            if start.elapsed() >= time {
                break;
            }
        }
        self.done.seconds = start.elapsed().as_secs_f64();
        fs::remove_dir_all(&self.folder)?;
        Ok(self.done)
    }
}

/// Threads of this process.
pub fn threads(work: &Work) -> Result<Done> {
    let failed = |error: io::Error| Failure::io(work.folder.display(), error);
    let process = std::process::id();
    let one = |number| {
        let folder = work.folder.join(format!("fileserver-{process}-{number}"));
        move || Worker::new(folder, &work.mix)?.work(&work.mix, work.time)
    };
    let done = parallel::together((0..work.threads).map(one).collect())
        .and_then(|all| all.into_iter().collect::<io::Result<Vec<Done>>>());
    let all = done.map_err(failed)?;
    Ok(all.into_iter().fold(Done::default(), Done::and))
}

/// Several processes with as many threads each.
pub fn processes(work: &Work, count: u32) -> Result<Done> {
    let program = std::env::current_exe().map_err(|error| Failure::io("/proc/self/exe", error))?;
    let failed = |error: io::Error| Failure::io(program.display(), error);
    let spawn = || {
        let mut command = Command::new(&program);
        command.arg("fileserver").arg("--json").arg(&work.folder);
        for (option, value) in [
            ("--threads", u64::from(work.threads)),
            ("--file-size", work.mix.file),
            ("--io", work.mix.io),
            ("--milliseconds", work.time.as_millis() as u64),
        ] {
            command.arg(option).arg(value.to_string());
        }
        let ratio = work.mix.ratio.to_possible_value();
        if let Some(ratio) = &ratio {
            command.args(["--ratio", ratio.get_name()]);
        }
        command.stdout(Stdio::piped()).spawn().map_err(failed)
    };
    let children = (0..count).map(|_| spawn()).collect::<Result<Vec<_>>>()?;
    let mut all = Done::default();
    for child in children {
        let output = child.wait_with_output().map_err(failed)?;
        let done: Option<Done> = serde_json::from_slice(&output.stdout).ok();
        let lost = || Failure::Usage("a process of the file server failed; see above".into());
        all = all.and(done.ok_or_else(lost)?);
    }
    Ok(all)
}

/// Whether a folder is there to work in.
pub fn check(folder: &Path) -> Result<()> {
    let found = fs::metadata(folder).map_err(|error| Failure::io(folder.display(), error))?;
    if found.is_dir() {
        return Ok(());
    }
    let folder = folder.display();
    Err(Failure::Usage(format!(
        "{folder}: is no folder; name one to work in"
    )))
}

#[cfg(test)]
mod tests {
    use super::super::mix::Ratio;
    use super::{Mix, Work, threads};
    use std::time::Duration;

    #[test]
    fn threads_do_whole_rounds_and_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let work = Work {
            folder: folder.path().to_owned(),
            mix: Mix {
                file: 40_000,
                io: 16384,
                ratio: Ratio::Bytes,
            },
            threads: 2,
            time: Duration::ZERO,
        };
        let done = threads(&work).unwrap();
        assert_eq!(done.written_bytes, 2 * (40_000 + 16384));
        assert_eq!((done.read_bytes, done.calls), (0, 2 * 5));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
