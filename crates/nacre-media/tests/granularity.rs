//! Which pieces a store or a read is cut to, in which order, at which number of writers.

use std::sync::{Arc, Mutex};

use nacre_media::{
    Direction, Granularity, LOOK, Media, Observer, PieceTable, Policy, SharedTraffic, Traffic,
    UserBytes, UserBytesMut, thread_address,
};
use nacre_types::{DeviceOffset, StoreKind};

const LEN: u64 = 4 << 20;

/// What the medium sees: bytes stored, bytes read, and waits between pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Store(u64, usize),
    Read(u64, u64),
    Ordered,
    Fence,
}

#[derive(Default)]
struct Recorder(Mutex<Vec<Event>>);

impl Recorder {
    fn add(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Recorder {
    fn store(&self, _: u16, at: DeviceOffset, bytes: &[u8], _: StoreKind, _: bool) {
        self.add(Event::Store(at.get(), bytes.len()));
    }

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {}

    fn fence(&self, _: u16) {
        self.add(Event::Fence);
    }

    fn ordered(&self, _: u16) {
        self.add(Event::Ordered);
    }

    fn read(&self, _: u16, at: DeviceOffset, len: u64) {
        self.add(Event::Read(at.get(), len));
    }
}

/// Traffic of this process alone.
#[derive(Default)]
struct Own(Box<Traffic>);

// SAFETY: the box never moves its contents, and is never replaced.
unsafe impl SharedTraffic for Own {
    fn traffic(&self, _: u16) -> &Traffic {
        &self.0
    }
}

struct Bench {
    media: Media,
    recorder: Arc<Recorder>,
    traffic: Arc<Own>,
}

impl Bench {
    fn new(granularity: &Granularity) -> Bench {
        let bench = Bench {
            media: Media::memory(LEN).unwrap(),
            recorder: Arc::default(),
            traffic: Arc::default(),
        };
        let recorder: Arc<dyn Observer> = bench.recorder.clone();
        bench.media.set_observer(0, recorder);
        bench
            .media
            .set_granularity(granularity, bench.traffic.clone(), 0);
        bench
    }

    fn optane(modules: u16) -> Bench {
        Bench::new(&Granularity {
            policy: Policy::Optane { modules },
            ..Granularity::default()
        })
    }

    /// The sizes of the pieces of one store among `others` writers, from which on each is waited
    /// for but the last.
    fn pieces(&self, others: u64, at: u64, len: usize) -> Vec<usize> {
        let traffic = self.traffic.traffic(0);
        // As far from this thread as stacks lie: whoever shares its line would not be counted.
        let _others: Vec<_> = (1..=others)
            .map(|distance| thread_address() as u64 + distance * 0x80_1000)
            .map(|thread| traffic.enter(thread, Direction::Write))
            .collect();
        // The number that a thread has seen holds for a while.
        for _ in 0..LOOK {
            self.store(at, len);
        }
        self.recorder.take();
        self.store(at, len);
        let events = self.recorder.take();
        let mut next = at;
        let pieces: Vec<usize> = events
            .iter()
            .filter_map(|event| match *event {
                Event::Store(at, len) => {
                    assert_eq!(at, next, "pieces follow each other");
                    next += len as u64;
                    Some(len)
                }
                _ => None,
            })
            .collect();
        let expected: Vec<bool> = (1..2 * pieces.len()).map(|place| place % 2 == 1).collect();
        let stores: Vec<bool> = events
            .iter()
            .map(|event| matches!(event, Event::Store(..)))
            .collect();
        assert_eq!(
            stores, expected,
            "one wait between any two pieces, none at the end"
        );
        assert_eq!(pieces.iter().sum::<usize>(), len);
        pieces
    }

    fn store(&self, at: u64, len: usize) {
        let bytes: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
        let bytes = UserBytes::from(&bytes[..]);
        let stored = self
            .media
            .write_user(DeviceOffset(at), bytes, StoreKind::Data);
        // Not fenced: that is the caller's, and not counted here.
        let _ = stored.unwrap();
    }
}

#[test]
fn two_writers_for_each_module_cut_to_lines() {
    let bench = Bench::optane(2);
    assert_eq!(bench.pieces(0, 0, 4096), [4096]);
    assert_eq!(bench.pieces(2, 0, 4095), [4095]);
    assert_eq!(bench.pieces(3, 0, 4096), [256; 16]);
    assert_eq!(bench.pieces(19, 0, 1024), [256; 4]);
    assert_eq!(bench.pieces(0, 0, 4096), [4096], "and back");
}

#[test]
fn few_writers_cut_nothing_and_some_cut_long_stores_in_two_lines_each() {
    let bench = Bench::optane(2);
    assert_eq!(bench.pieces(1, 0, 65536), [65536]);
    assert_eq!(bench.pieces(2, 0, 4095), [4095]);
    assert_eq!(bench.pieces(2, 0, 4096), [512; 8]);
    assert_eq!(bench.pieces(2, 0, 65536), [512; 128]);
    assert_eq!(bench.pieces(3, 0, 65536), [256; 256]);
}

#[test]
fn pieces_end_where_lines_of_the_device_do() {
    let bench = Bench::optane(1);
    assert_eq!(bench.pieces(5, 300, 700), [212, 256, 232]);
    assert_eq!(bench.pieces(5, 256, 256), [256]);
    assert_eq!(
        bench.pieces(5, 200, 100),
        [100],
        "short ones are left alone"
    );
}

#[test]
fn only_data_is_cut() {
    let bench = Bench::optane(1);
    let bytes = [7; 65536];
    for kind in [StoreKind::Metadata, StoreKind::Log] {
        let stored = bench.media.write(DeviceOffset(0), &bytes, kind);
        bench.media.fence(stored).unwrap();
        let expected = [Event::Store(0, 65536), Event::Fence];
        assert_eq!(bench.recorder.take(), expected);
    }
}

#[test]
fn zeros_are_cut_as_other_data() {
    let mut writes = PieceTable::default();
    writes.0[0][3] = 9;
    let bench = Bench::new(&Granularity {
        policy: Policy::Calibrated,
        writes,
        ..Granularity::default()
    });
    let stored = bench.media.zero(DeviceOffset(0), 16384, StoreKind::Data);
    bench.media.fence(stored).unwrap();
    let stores = |event: &&Event| matches!(event, Event::Store(_, 512));
    assert_eq!(bench.recorder.take().iter().filter(stores).count(), 32);
}

#[test]
fn long_reads_come_in_pieces() {
    let bench = Bench::optane(1);
    let mut buffer = vec![1; 1 << 20];
    let to = UserBytesMut::from(&mut buffer[..]);
    bench.media.read_user(DeviceOffset(4096), to).unwrap();
    let quarter = 256 << 10;
    let expected = [
        Event::Read(4096, quarter - 4096),
        Event::Read(quarter, quarter),
        Event::Read(2 * quarter, quarter),
        Event::Read(3 * quarter, quarter),
        Event::Read(4 * quarter, 4096),
    ];
    assert_eq!(bench.recorder.take(), expected);
    assert!(buffer.iter().all(|&byte| byte == 0));
    let to = UserBytesMut::from(&mut buffer[..256 << 10]);
    bench.media.read_user(DeviceOffset(0), to).unwrap();
    assert_eq!(bench.recorder.take(), [Event::Read(0, quarter)]);
}

#[test]
fn what_was_cut_is_what_was_meant() {
    let bench = Bench::optane(1);
    bench.pieces(9, 1001, 70_000);
    let mut found = vec![0; 70_000];
    bench.media.read(DeviceOffset(1001), &mut found);
    assert!(found.iter().enumerate().all(|(at, &byte)| byte == at as u8));
}

#[test]
fn a_measured_table_decides_by_itself() {
    let mut writes = PieceTable::default();
    writes.0[1][4] = 10;
    let bench = Bench::new(&Granularity {
        policy: Policy::Calibrated,
        writes,
        ..Granularity::default()
    });
    assert_eq!(bench.pieces(0, 0, 65536), [65536]);
    assert_eq!(bench.pieces(1, 0, 65536), [1024; 64]);
    assert_eq!(
        bench.pieces(3, 0, 65536),
        [65536],
        "the next row says: whole"
    );
}

#[test]
fn without_a_policy_nothing_is_cut_or_counted() {
    let bench = Bench::new(&Granularity::default());
    assert_eq!(bench.pieces(20, 0, 1 << 20), [1 << 20]);
    let look = || bench.traffic.0.enter(5 << 12, Direction::Write).count;
    for _ in 0..LOOK {
        look();
    }
    assert_eq!(look(), 1);
}

/// A policy that counts one module too many is noticed by what the tests above look at.
#[test]
fn canary_another_number_of_modules_shows() {
    assert_ne!(Bench::optane(3).pieces(3, 0, 4096), [256; 16]);
}
