//! A worker of the kill torture (`cargo xtask torture`): changes its objects by transactions and
//! compares when it starts. A file of the host says what it was about to do and what was done.
//!
//!     torture work|lie|verify POOL MODEL NUMBER
//!
//! `move` instead moves what is cold to a device behind, bit by bit, for as long as it lives.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nacre_objects::{Error, OpenOptions, Pool, Transaction};

const SHARED: &[u8] = b"shared";
const OBJECTS: u8 = 3;
/// A liar leaves out one transaction in so many.
const LIE: u64 = 40;

/// What the host's file says: the round that was begun last, and that which was acknowledged last.
struct Model(File);

impl Model {
    fn open(path: &Path) -> std::io::Result<Model> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).map(Model)
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        // A file that is empty yet says 0.
        match self.0.read_exact_at(&mut bytes, at) {
            Ok(()) => u64::from_le_bytes(bytes),
            Err(_) => 0,
        }
    }

    fn begun(&self) -> u64 {
        self.word(0)
    }

    fn done(&self) -> u64 {
        self.word(8)
    }

    fn set(&self, at: u64, round: u64) -> Result<(), String> {
        let written = self.0.write_all_at(&round.to_le_bytes(), at);
        written.map_err(|error| error.to_string())
    }
}

struct Worker {
    pool: Pool,
    model: Model,
    number: u8,
}

fn value(number: u8, round: u64) -> Vec<u8> {
    [&round.to_be_bytes()[..], &[number]].concat()
}

impl Worker {
    fn own(&self) -> Vec<u8> {
        vec![b'w', self.number]
    }

    fn object(&self, which: u8) -> Vec<u8> {
        vec![self.number, which]
    }

    /// Collections that the first transaction finds missing.
    fn prepare(&self) -> Result<(), String> {
        for name in [SHARED.to_vec(), self.own()] {
            let made = self
                .pool
                .commit(Transaction::new().create_collection(&name));
            match made.as_ref().map_err(Error::cause) {
                Ok(()) | Err(Error::Exists(..)) => {}
                Err(error) => return Err(format!("a collection is not made: {error}")),
            }
        }
        Ok(())
    }

    /// All objects of the worker get the same mark in bytes, attribute, omap and a long value; one
    /// is where the round says.
    fn change(&self, round: u64) -> Result<(), String> {
        let (own, mark) = (self.own(), value(self.number, round));
        let mut t = Transaction::new();
        for which in 0..OBJECTS {
            let o = self.object(which);
            t.write(
                SHARED,
                &o,
                0,
                vec![round as u8; 3000 + (round % 5) as usize * 1000],
            )
            .write(SHARED, &o, 100, mark.clone())
            .set_attribute(SHARED, &o, b"mark", mark.clone())
            .set_omap(SHARED, &o, b"mark", mark.clone())
            .set_omap(SHARED, &o, &round.to_be_bytes(), vec![round as u8; 180])
            .remove_omap(SHARED, &o, &round.saturating_sub(20).to_be_bytes())
            .set_omap(SHARED, &o, b"long", mark.repeat(4000));
        }
        let moving = self.object(OBJECTS);
        t.remove(SHARED, &moving).if_exists();
        t.remove(&own, &moving).if_exists();
        match round % 3 {
            0 => t.touch(SHARED, &moving),
            1 => t
                .clone_object(SHARED, &self.object(0), &moving)
                .rename((SHARED, &moving), (&own, &moving)),
            _ => t.truncate(SHARED, &self.object(1), 20_000),
        };
        let done = self.pool.commit(&t);
        done.map_err(|error| format!("round {round}: {error}"))
    }

    /// The round that the pool shows, in all places.
    fn compare(&self) -> Result<(), String> {
        let (begun, done) = (self.model.begun(), self.model.done());
        let first = match self.pool.omap(SHARED, &self.object(0), b"mark") {
            Ok(Some(mark)) => mark,
            Err(Error::NoSuchObject(..)) if done == 0 => return Ok(()),
            other => return Err(format!("round {done}: its mark is {other:?}")),
        };
        let round = first.get(..8).and_then(|word| word.try_into().ok());
        let round = u64::from_be_bytes(round.ok_or("a mark is too short")?);
        if first != value(self.number, round) || !(done..=begun).contains(&round) {
            return Err(format!(
                "{first:?} is there; {done} was acknowledged, {begun} begun"
            ));
        }
        for which in 0..OBJECTS {
            let object = self.object(which);
            let sound = self.is_of(&object, &first);
            if !sound.map_err(|error| format!("object {which}: {error}"))? {
                return Err(format!("object {which} is not of round {round}"));
            }
        }
        let moving = self.object(OBJECTS);
        let there = [SHARED, &self.own()].map(|c| self.pool.exists(c, &moving).ok());
        let expected = [Some(round % 3 == 0), Some(round % 3 == 1)];
        match there == expected {
            true => Ok(()),
            false => Err(format!(
                "the object that moves is {there:?} in round {round}"
            )),
        }
    }

    fn is_of(&self, object: &[u8], mark: &[u8]) -> Result<bool, Error> {
        let mut bytes = vec![0; mark.len()];
        let len = self.pool.read(SHARED, object, 100, &mut bytes)?;
        Ok(len == mark.len()
            && bytes == mark
            && self.pool.attribute(SHARED, object, b"mark")? == mark
            && self.pool.omap(SHARED, object, b"mark")?.as_deref() == Some(mark)
            && self.pool.omap(SHARED, object, b"long")? == Some(mark.repeat(4000)))
    }

    fn work(&self, lies: bool) -> Result<(), String> {
        for round in self.model.begun() + 1.. {
            self.model.set(0, round)?;
            if !(lies && round.is_multiple_of(LIE)) {
                self.change(round)?;
            }
            self.model.set(8, round)?;
            if round.is_multiple_of(16) {
                self.compare()?;
                if is_orphan() {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Whether the torture that started this worker was itself ended.
fn is_orphan() -> bool {
    let torture = std::env::var("TORTURE");
    torture.is_ok_and(|pid| !Path::new("/proc").join(pid).exists())
}

/// Little at a time, so that what moves is used between.
fn keep_moving(pool: &Pool) -> Result<(), String> {
    for units in (1..40).cycle().take_while(|_| !is_orphan()) {
        let moved = pool.store().move_cold(units);
        if moved.map_err(|error| error.to_string())? == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn run(arguments: &[String]) -> Result<(), String> {
    let [what, pool, model, number] = arguments else {
        return Err("torture work|lie|verify POOL MODEL NUMBER".to_owned());
    };
    let pool = Pool::open(pool, OpenOptions::default()).map_err(|error| error.to_string())?;
    let worker = Worker {
        pool,
        model: Model::open(Path::new(model)).map_err(|error| error.to_string())?,
        number: number.parse().map_err(|_| "no number")?,
    };
    worker.prepare()?;
    worker.compare()?;
    match what.as_str() {
        "verify" => worker.pool.close().map_err(|error| error.to_string()),
        "move" => keep_moving(&worker.pool),
        what => worker.work(what == "lie"),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("objects: {why}");
            ExitCode::FAILURE
        }
    }
}
