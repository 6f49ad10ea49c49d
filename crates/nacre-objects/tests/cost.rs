//! What a transaction like an OSD's costs on the medium: fences, bytes and lines made durable.
//!
//! `cargo test -p nacre-objects --test cost -- --nocapture` prints the figures of docs/objects.md.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use nacre_objects::Pool;
use nacre_objects::osd::{BESIDE_LOG, ImageWrite, LOG, new_collection};
use nacre_store::layout::{RECORDS_NAME_NEW_BYTES, SUPERBLOCK_AT};
use nacre_store::{FormatOptions, Store};
use nacre_testkit::pool::{PRIVATE, formatted_memory, memory_pool};
use nacre_types::{StoreKind, crc32c};
use nacre_volume::Observer;

const COLLECTIONS: u64 = 4;
const OBJECTS: u64 = 8;
const OBJECT: u64 = 256 << 10;
const ROUNDS: u64 = 2000;

/// Counts what is made durable.
#[derive(Default)]
struct Counter(Mutex<Counts>);

#[derive(Clone, Default)]
struct Counts {
    fences: u64,
    /// By kind: data, metadata, log.
    bytes: [u64; 3],
    lines: u64,
    /// Pieces of 256 bytes, each once between two fences.
    cells: u64,
    touched: BTreeSet<u64>,
}

impl Observer for Counter {
    fn store(&self, _: u16, _: nacre_types::DeviceOffset, _: &[u8], _: StoreKind, _: bool) {}
    fn flush(&self, _: u16, _: nacre_types::DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {
        let mut counts = self.0.lock().unwrap();
        counts.fences += 1;
        counts.cells += counts.touched.len() as u64;
        counts.touched.clear();
    }

    fn wants_stores(&self) -> bool {
        false
    }

    fn persisted(&self, _: u16, at: nacre_types::DeviceOffset, len: u64, kind: StoreKind) {
        let mut counts = self.0.lock().unwrap();
        counts.bytes[kind.index()] += len;
        let end = at.0 + len;
        counts.lines += end.div_ceil(64) - at.0 / 64;
        counts.touched.extend(at.0 / 256..end.div_ceil(256));
    }
}

/// What one transaction comes to, on average.
#[derive(Debug)]
struct Cost {
    fences: f64,
    /// Bytes made durable over bytes that the client wrote: as they are, by lines, by pieces of 256
    /// bytes.
    bytes: f64,
    lines: f64,
    cells: f64,
}

/// What the bytes of transactions with two fences are, on average, each number as often as it is
/// made durable.
#[derive(Clone, Default)]
struct Account(Arc<Mutex<Parts>>);

#[derive(Clone, Debug, Default)]
struct Parts {
    /// Of the record.
    head: u64,
    logged_data: u64,
    logged_words: u64,
    heads_of_changes: u64,
    names: u64,
    tail: u64,
    /// Where they belong.
    data: u64,
    placed: u64,
    words: u64,
    fences: u64,
}

impl Parts {
    fn record(&mut self, bytes: &[u8]) {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (len, names) = (bytes.len(), 8 * word(20) as usize);
        self.head += 32;
        self.names += names as u64;
        let mut at = 32;
        while at < len - names {
            let head = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let size = (head >> 48 & 0x7fff).next_multiple_of(8);
            self.heads_of_changes += 8;
            match head >> 63 {
                1 => self.logged_data += size,
                _ => self.logged_words += size,
            }
            at += 8 + size as usize;
        }
    }
}

impl Observer for Account {
    fn store(
        &self,
        _: u16,
        _: nacre_types::DeviceOffset,
        bytes: &[u8],
        kind: StoreKind,
        is_word: bool,
    ) {
        if kind == StoreKind::Log && !is_word {
            self.0.lock().unwrap().record(bytes);
        }
    }

    fn flush(&self, _: u16, _: nacre_types::DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {
        self.0.lock().unwrap().fences += 1;
    }

    fn persisted(&self, _: u16, _: nacre_types::DeviceOffset, len: u64, kind: StoreKind) {
        let mut parts = self.0.lock().unwrap();
        let is_before = parts.fences.is_multiple_of(2);
        match kind {
            StoreKind::Log if len == 8 => parts.tail += 8,
            StoreKind::Log => {}
            StoreKind::Data => parts.data += len,
            StoreKind::Metadata if is_before => parts.placed += len,
            StoreKind::Metadata => parts.words += len,
        }
    }
}

fn name(kind: &str, number: u64) -> Vec<u8> {
    format!("{kind}.{number:06}").into_bytes()
}

fn filled() -> Pool {
    fill(Pool::of(memory_pool(64 << 20)))
}

/// A pool as programs made it before records named new bytes.
fn filled_older() -> Pool {
    let volume = formatted_memory(64 << 20, &FormatOptions::default());
    for copy in SUPERBLOCK_AT {
        let mut bytes: [u8; 4096] = volume.read_array(copy);
        bytes[12..16].copy_from_slice(&(RECORDS_NAME_NEW_BYTES - 1).to_le_bytes());
        let crc = crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        let written = volume.write(copy, &bytes, StoreKind::Metadata);
        volume.fence(written).unwrap();
    }
    fill(Pool::of(Store::attach(volume, &PRIVATE).unwrap()))
}

fn fill(pool: Pool) -> Pool {
    for c in 0..COLLECTIONS {
        let collection = name("c", c);
        let mut t = new_collection(&collection);
        for o in 0..OBJECTS {
            t.write(&collection, &name("o", o), 0, vec![1; OBJECT as usize]);
        }
        pool.commit(&t).unwrap();
    }
    pool
}

/// How many entries each collection's log has got.
type Logs = [u64; COLLECTIONS as usize];

/// One transaction as an OSD queues it for a write of an image.
fn change(pool: &Pool, logs: &mut Logs, round: u64, bytes: u64) {
    let noise = round.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
    let log = &mut logs[(noise % COLLECTIONS) as usize];
    let contents = vec![noise as u8; bytes as usize];
    let write = ImageWrite {
        collection: &name("c", noise % COLLECTIONS),
        object: &name("o", noise / 7 % OBJECTS),
        at: noise / 97 % (OBJECT / bytes) * bytes,
        bytes: &contents,
        entry: *log,
        beside: &contents,
    };
    *log += 1;
    pool.commit(&write.transaction()).unwrap();
}

/// The logs hold what an OSD would have kept: nothing else grows from round to round.
fn assert_trimmed(pool: &Pool) {
    for c in 0..COLLECTIONS {
        let entries = pool.omap_range(&name("c", c), b"meta", b"", usize::MAX);
        assert_eq!(entries.unwrap().len() as u64, LOG + BESIDE_LOG.len() as u64);
    }
}

fn cost(bytes: u64) -> Cost {
    cost_in(&filled(), bytes)
}

fn cost_in(pool: &Pool, bytes: u64) -> Cost {
    let mut logs = Logs::default();
    // What comes for the first time is there afterwards.
    (0..ROUNDS).for_each(|round| change(pool, &mut logs, round, bytes));
    assert_trimmed(pool);
    let counter = Arc::new(Counter::default());
    let observer: Arc<dyn Observer> = Arc::clone(&counter) as Arc<dyn Observer>;
    pool.store().volume().set_observer(&observer);
    (ROUNDS..2 * ROUNDS).for_each(|round| change(pool, &mut logs, round, bytes));
    let counts = counter.0.lock().unwrap().clone();
    let (rounds, client) = (ROUNDS as f64, (ROUNDS * bytes) as f64);
    let [data, metadata, log] = counts.bytes.map(|bytes| bytes as f64 / rounds);
    let cost = Cost {
        fences: counts.fences as f64 / rounds,
        bytes: counts.bytes.iter().sum::<u64>() as f64 / client,
        lines: (counts.lines * 64) as f64 / client,
        cells: (counts.cells * 256) as f64 / client,
    };
    println!("{bytes}: {cost:.2?}; bytes of data {data:.0}, metadata {metadata:.0}, log {log:.0}");
    cost
}

#[test]
fn what_the_bytes_of_a_write_of_1_kib_are() {
    let (pool, mut logs) = (filled(), Logs::default());
    (0..ROUNDS).for_each(|round| change(&pool, &mut logs, round, 1 << 10));
    let account = Account::default();
    let observer: Arc<dyn Observer> = Arc::new(account.clone());
    pool.store().volume().set_observer(&observer);
    (ROUNDS..2 * ROUNDS).for_each(|round| change(&pool, &mut logs, round, 1 << 10));
    let parts = account.0.lock().unwrap().clone();
    let each = |sum: u64| sum as f64 / ROUNDS as f64;
    println!("of a transaction, in all: {parts:?}");
    println!(
        "data {:.0}, placed {:.0}, words {:.0}; record: head {:.0}, data {:.0}, words {:.0}, \
         heads of changes {:.0}, names {:.0}; tail {:.0}",
        each(parts.data),
        each(parts.placed),
        each(parts.words),
        each(parts.head),
        each(parts.logged_data),
        each(parts.logged_words),
        each(parts.heads_of_changes),
        each(parts.names),
        each(parts.tail)
    );
    // A part of a page has a place of its own, and is written once.
    assert_eq!((parts.logged_data, each(parts.data)), (0, 1024.0));
    // What is logged comes to its place, and nothing else does.
    assert_eq!(parts.words, parts.logged_words);
}

#[test]
fn what_a_write_of_an_osd_makes_durable_does_not_grow() {
    let [small, page, large] = [1 << 10, 4 << 10, 64 << 10].map(cost);
    // Canary: all of it is counted.
    assert!(small.bytes > 2.0 && page.bytes > 1.3 && large.bytes > 1.0);
    assert!(small.fences > 1.9 && small.lines > small.bytes && small.cells > small.lines);
    for (cost, (fences, bytes)) in [small, page, large].iter().zip(MOST) {
        assert!(cost.fences < fences && cost.bytes < bytes, "{cost:?}");
    }
}

/// It may have to be recovered by an older program, which knows no such records.
#[test]
fn a_pool_of_an_older_format_gets_records_that_older_programs_know() {
    let pool = filled_older();
    let account = Account::default();
    let observer: Arc<dyn Observer> = Arc::new(account.clone());
    pool.store().volume().set_observer(&observer);
    let mut logs = Logs::default();
    (0..20).for_each(|round| change(&pool, &mut logs, round, 1 << 10));
    let parts = account.0.lock().unwrap().clone();
    assert_eq!((parts.fences, parts.names), (80, 0));
    assert!(cost_in(&filled_older(), 4 << 10).fences > 3.9);
}

/// Fences and amplification of 1, 4 and 64 KiB, a little above what they are.
const MOST: [(f64, f64); 3] = [(2.1, 2.3), (2.1, 1.35), (3.1, 1.05)];
