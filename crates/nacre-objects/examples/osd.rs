//! Transactions as an OSD queues them, for a profiler: `osd BYTES ROUNDS`, or `osd many COUNT` for
//! one transaction of so many objects. Tells the processor time of each.

use std::time::Instant;

use nacre_objects::osd::{ImageWrite, new_collection};
use nacre_objects::{Pool, Result, Transaction};
use nacre_testkit::pool::memory_pool;

const COLLECTIONS: u64 = 4;
const OBJECTS: u64 = 8;
const OBJECT: u64 = 4 << 20;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().unwrap_or_default();
    let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
    match first.as_str() {
        "many" => many(number(arguments.next()).unwrap_or(10_000)),
        bytes => {
            let bytes = number(Some(bytes.to_owned())).unwrap_or(1024);
            writes(bytes, number(arguments.next()).unwrap_or(10_000))
        }
    }
}

fn name(kind: &str, number: u64) -> Vec<u8> {
    format!("{kind}.{number:016x}").into_bytes()
}

fn writes(bytes: u64, rounds: u64) -> Result<()> {
    let pool = Pool::of(memory_pool(512 << 20));
    for c in 0..COLLECTIONS {
        let collection = name("c", c);
        let mut t = new_collection(&collection);
        for o in 0..OBJECTS {
            t.write(&collection, &name("o", o), 0, vec![1; OBJECT as usize]);
        }
        pool.commit(&t)?;
    }
    let mut logs = Logs::default();
    (0..rounds).try_for_each(|round| change(&pool, &mut logs, round, bytes))?;
    let begin = Instant::now();
    (rounds..2 * rounds).try_for_each(|round| change(&pool, &mut logs, round, bytes))?;
    let each = begin.elapsed() / rounds as u32;
    println!("{bytes} bytes: {each:.1?} for a transaction");
    Ok(())
}

/// How many entries each collection's log has got.
type Logs = [u64; COLLECTIONS as usize];

/// What a profiler is to look at.
#[inline(never)]
fn change(pool: &Pool, logs: &mut Logs, round: u64, bytes: u64) -> Result<()> {
    let noise = round.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
    let log = &mut logs[(noise % COLLECTIONS) as usize];
    let contents = vec![noise as u8; bytes.max(1 << 10) as usize];
    let write = ImageWrite {
        collection: &name("c", noise % COLLECTIONS),
        object: &name("o", noise / 7 % OBJECTS),
        at: noise / 97 % (OBJECT / bytes) * bytes,
        bytes: &contents[..bytes as usize],
        entry: *log,
        beside: &contents,
    };
    *log += 1;
    pool.commit(&write.transaction())
}

fn many(count: u64) -> Result<()> {
    let pool = Pool::of(memory_pool(512 << 20));
    let mut t = Transaction::new();
    t.create_collection(b"c");
    for o in 0..count {
        t.write(b"c", &name("o", o), 0, vec![1; 100]).set_attribute(
            b"c",
            &name("o", o),
            b"_",
            vec![2; 100],
        );
    }
    timed("create", &pool, &t, count)?;
    let mut t = Transaction::new();
    for o in 0..count {
        t.write(b"c", &name("o", o), 10, vec![3; 20])
            .set_attribute(b"c", &name("o", o), b"_", vec![4; 100])
            .set_omap(b"c", &name("o", o), b"k", vec![5; 10]);
    }
    timed("change", &pool, &t, count)?;
    let mut t = Transaction::new();
    for o in 0..count {
        t.set_omap(b"c", &name("o", o), b"l", vec![5; 10]);
    }
    timed("add", &pool, &t, count)?;
    let mut t = Transaction::new();
    for o in 0..count {
        t.remove(b"c", &name("o", o));
    }
    timed("remove", &pool, &t, count)
}

fn timed(what: &str, pool: &Pool, t: &Transaction<'_>, count: u64) -> Result<()> {
    let begin = Instant::now();
    pool.commit(t)?;
    let each = begin.elapsed() / count as u32;
    println!("{what} {count}: {each:.1?} for an object");
    Ok(())
}
