//! Opening a pool of many objects after a crash: `opening COUNT [PATH]`.
//!
//! A process of its own makes COUNT objects with attributes as an OSD's, a tenth of them with an
//! omap, and is killed in the middle of transactions. Then another one opens the pool, commits a
//! transaction, lists names, and closes it; and another one opens what was closed. Each step is
//! told with its processor time: wall-clock time says little on a machine that others use.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nacre_objects::{Error, Pool, Transaction};
use nacre_store::{AttachOptions, Store};
use nacre_volume::{Access, Volume};
use rustix::time::{ClockId, clock_gettime};

type Done<T> = Result<T, Box<dyn std::error::Error>>;

/// Objects that one transaction makes.
const TOGETHER: u64 = 100;
/// Objects of a collection, as of a placement group.
const COLLECTION: u64 = 10_000;
/// One object in so many has an omap.
const OMAP: u64 = 10;
/// Bytes of the pool for each object: three units, and its part of onodes and names.
const ROOM: u64 = 14 << 10;
/// Time in which the maker changes objects before it is killed.
const BUSY: Duration = Duration::from_millis(700);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().unwrap_or(1_000_000);
    let done = match words[..] {
        ["make", count, path] => make(number(count), Path::new(path)),
        ["open", path] => open(Path::new(path)).and_then(|pool| Ok(pool.close()?)),
        // Dies as it is: the next opening is one after a crash, too.
        ["die", path] => open(Path::new(path)).map(|_| std::process::exit(0)),
        [count, path] => all(number(count), Path::new(path)),
        [count] => all(number(count), Path::new("/dev/shm/nacre-opening")),
        _ => all(1_000_000, Path::new("/dev/shm/nacre-opening")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("opening: {error}");
            ExitCode::FAILURE
        }
    }
}

fn all(count: u64, path: &Path) -> Done<()> {
    let done = crash(count, path).and_then(|()| {
        println!("after the crash, three times");
        again(&["die"], path)?;
        again(&["die"], path)?;
        again(&["open"], path)?;
        println!("after it was closed");
        again(&["open"], path)
    });
    std::fs::remove_file(path)?;
    done
}

/// This program in another process.
fn again(words: &[&str], path: &Path) -> Done<()> {
    let mut command = Command::new(std::env::current_exe()?);
    match command.args(words).arg(path).status()?.success() {
        true => Ok(()),
        false => Err("a step failed".into()),
    }
}

/// Makes a pool in a process that is killed as it changes objects.
fn crash(count: u64, path: &Path) -> Done<()> {
    let mut maker = Command::new(std::env::current_exe()?)
        .args(["make", &count.to_string()])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()?;
    let told = wait_for_word(&mut maker);
    std::thread::sleep(BUSY);
    maker.kill()?;
    maker.wait()?;
    told
}

fn wait_for_word(maker: &mut Child) -> Done<()> {
    let mut word = String::new();
    let out = maker.stdout.take().ok_or("no output")?;
    match BufReader::new(out).read_line(&mut word)? {
        0 => Err("the maker ended".into()),
        _ => Ok(()),
    }
}

fn collection(number: u64) -> Vec<u8> {
    format!("pg.{:04}", number / COLLECTION).into_bytes()
}

fn name(number: u64) -> Vec<u8> {
    format!("rbd_data.{number:016x}").into_bytes()
}

fn make(count: u64, path: &Path) -> Done<()> {
    let pool = Pool::create(path, (count * ROOM + (64 << 20)).next_multiple_of(4 << 20))?;
    for first in (0..count).step_by(TOGETHER as usize) {
        let mut t = Transaction::new();
        if first.is_multiple_of(COLLECTION) {
            t.create_collection(&collection(first));
        }
        (first..count.min(first + TOGETHER)).for_each(|number| object(&mut t, number, 1));
        pool.commit(&t)?;
    }
    println!("made");
    let pool = &pool;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=4)
            .map(|one| scope.spawn(move || change(pool, count, one)))
            .collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect::<Result<(), Error>>()
    })?;
    Ok(())
}

fn object(t: &mut Transaction<'_>, number: u64, value: u8) {
    let (c, o) = (collection(number), name(number));
    t.write(&c, &o, 0, vec![value; 1024])
        .set_attribute(&c, &o, b"_", vec![value; 293])
        .set_attribute(&c, &o, b"snapset", vec![value; 35]);
    if number.is_multiple_of(OMAP) {
        t.set_omap(&c, &o, b"_fastinfo", vec![value; 186]).set_omap(
            &c,
            &o,
            b"log.1",
            vec![value; 234],
        );
    }
}

/// Changes objects for as long as the process lives.
fn change(pool: &Pool, count: u64, one: u64) -> Result<(), Error> {
    let mut at = one;
    loop {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(one);
        let mut t = Transaction::new();
        object(&mut t, (at >> 20) % count, at as u8);
        pool.commit(&t)?;
    }
}

fn open(path: &Path) -> Done<Pool> {
    let all = Clock::start();
    let mut clock = Clock::start();
    let volume = Volume::open(path, Access::ReadWrite)?;
    clock.tell("the volume is mapped");
    // As `Pool::open` does.
    let options = AttachOptions {
        parallel: true,
        ..AttachOptions::default()
    };
    let store = Store::attach(volume, &options)?;
    clock.tell("the pool is attached: records replayed, session filled");
    let pool = Pool::of(store);
    let mut t = Transaction::new();
    object(&mut t, 5, 9);
    pool.commit(&t)?;
    clock.tell("the first transaction is durable");
    let collections = pool.collections(b"", usize::MAX)?;
    let names = pool.objects(&collections[0], b"", 1000)?;
    clock.tell("1000 names are listed");
    all.tell_all("opened");
    assert!(!names.is_empty(), "a collection holds objects");
    Ok(pool)
}

struct Clock {
    wall: Instant,
    processor: Duration,
}

impl Clock {
    fn start() -> Clock {
        Clock {
            wall: Instant::now(),
            processor: processor(),
        }
    }

    fn tell(&mut self, what: &str) {
        self.tell_all(what);
        *self = Clock::start();
    }

    fn tell_all(&self, what: &str) {
        let (time, wall) = (processor() - self.processor, self.wall.elapsed());
        println!("  {time:>10.1?} of processors, {wall:>10.1?}: {what}");
    }
}

fn processor() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
