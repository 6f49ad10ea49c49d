//! Stores and loads: every byte arrives, every store is seen by the observer, what is fenced is
//! durable.

use std::fs;
use std::sync::{Arc, Mutex};

use nacre_media::{
    Access, AddressRange, Device, DeviceKind, FlushMethod, Media, MediaError, Observer,
    RANGE_ALIGNMENT, Unfenced, UserBytes, UserBytesMut,
};
use nacre_types::{DeviceOffset, StoreKind};
use proptest::prelude::{any, prop, proptest};

const LEN: u64 = 1 << 20;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + i / 251 + 1) as u8).collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_and_nothing_else_changes(
        writes in prop::collection::vec((0u64..100_000, 0usize..30_000, any::<u8>(), 0..3), 1..20),
    ) {
        let media = Media::memory(1 << 17).unwrap();
        let mut model = vec![0; 1 << 17];
        for (at, len, seed, way) in writes {
            let bytes: Vec<u8> = pattern(len).into_iter().map(|byte| byte ^ seed).collect();
            let (to, theirs) = (DeviceOffset(at), UserBytes::from(&bytes[..]));
            let stored = match way {
                0 => media.write(to, &bytes, StoreKind::Data),
                1 => media.write_user(to, theirs, StoreKind::Data).unwrap(),
                _ => media.write_user_fresh(to, theirs, StoreKind::Data).unwrap(),
            };
            media.fence(stored).unwrap();
            model[at as usize..at as usize + len].copy_from_slice(&bytes);
        }
        let mut back = vec![0; 1 << 17];
        media.read(DeviceOffset(0), &mut back);
        assert!(back == model);
        media.read_user(DeviceOffset(0), UserBytesMut::from(&mut back[..])).unwrap();
        assert!(back == model);
    }
}

#[test]
fn zeroing_reaches_every_byte_and_no_other() {
    let media = Media::memory(LEN).unwrap();
    media
        .fence(media.write(DeviceOffset(0), &[7; 40_000], StoreKind::Data))
        .unwrap();
    media
        .fence(media.zero(DeviceOffset(13), 30_001, StoreKind::Data))
        .unwrap();
    let mut back = vec![1; 40_000];
    media.read(DeviceOffset(0), &mut back);
    assert!(
        back[..13]
            .iter()
            .chain(&back[13 + 30_001..])
            .all(|&byte| byte == 7)
    );
    assert!(back[13..13 + 30_001].iter().all(|&byte| byte == 0));
}

#[test]
fn integers_are_little_endian() {
    let media = Media::memory(4096).unwrap();
    media
        .fence(media.store_u64(DeviceOffset(8), 0x0807_0605_0403_0201, StoreKind::Metadata))
        .unwrap();
    assert_eq!(media.read_array(DeviceOffset(8)), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(media.load_u64(DeviceOffset(8)), 0x0807_0605_0403_0201);
    assert_eq!(media.load_u32(DeviceOffset(12)), 0x0807_0605);
    assert_eq!(media.load_u16(DeviceOffset(10)), 0x0403);
    assert_eq!(media.load_u8(DeviceOffset(15)), 8);
    media.store_u64_lazy(DeviceOffset(8), 1, StoreKind::Metadata);
    assert_eq!(media.load_u64(DeviceOffset(8)), 1);
}

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Store(u64, Vec<u8>, StoreKind, bool),
    Flush(u64, u64),
    Fence,
}

#[derive(Default)]
struct Recorder(Mutex<Vec<Event>>);

impl Recorder {
    fn add(&self, device: u16, event: Event) {
        assert_eq!(device, 3);
        self.0.lock().unwrap().push(event);
    }
}

impl Observer for Recorder {
    fn store(&self, device: u16, at: DeviceOffset, bytes: &[u8], kind: StoreKind, atomic: bool) {
        self.add(device, Event::Store(at.get(), bytes.to_vec(), kind, atomic));
    }

    fn flush(&self, device: u16, at: DeviceOffset, len: u64) {
        self.add(device, Event::Flush(at.get(), len));
    }

    fn fence(&self, device: u16) {
        self.add(device, Event::Fence);
    }
}

#[test]
fn what_an_observer_is_to_see_is_not_persisted_at_once() {
    let media = Media::memory(LEN).unwrap();
    media.store_u64_lazy(DeviceOffset(8), 1, StoreKind::Metadata);
    assert_eq!(media.persist_now(DeviceOffset(0), 64), Some(()));
    let recorder = Arc::new(Recorder::default());
    media.set_observer(3, Arc::clone(&recorder) as Arc<dyn Observer>);
    assert_eq!(media.persist_now(DeviceOffset(0), 64), None);
    assert_eq!(*recorder.0.lock().unwrap(), []);
}

#[test]
fn the_observer_sees_every_store_flush_and_fence_in_order() {
    let media = Media::memory(LEN).unwrap();
    let recorder = Arc::new(Recorder::default());
    media.set_observer(3, Arc::clone(&recorder) as Arc<dyn Observer>);
    let long = pattern(10_000);
    let stored: Unfenced = media
        .write(DeviceOffset(10), b"abc", StoreKind::Log)
        .and(
            media
                .write_user(
                    DeviceOffset(100),
                    UserBytes::from(&long[..]),
                    StoreKind::Data,
                )
                .unwrap(),
        )
        .and(media.store_u64(DeviceOffset(16), 9, StoreKind::Metadata));
    media.store_u64_lazy(DeviceOffset(24), 4, StoreKind::Metadata);
    let flushed = media.flush(DeviceOffset(24), 8);
    media.fence(stored.and(flushed)).unwrap();
    media
        .order(media.zero(DeviceOffset(0), 17_000, StoreKind::Data))
        .unwrap();
    use Event::{Fence, Flush, Store};
    let expected = [
        Store(10, b"abc".to_vec(), StoreKind::Log, false),
        Flush(10, 3),
        Store(100, long, StoreKind::Data, false),
        Flush(100, 10_000),
        Store(16, 9u64.to_le_bytes().to_vec(), StoreKind::Metadata, true),
        Flush(16, 8),
        Store(24, 4u64.to_le_bytes().to_vec(), StoreKind::Metadata, true),
        Flush(24, 8),
        Fence,
        Store(0, vec![0; 16_384], StoreKind::Data, false),
        Flush(0, 16_384),
        Store(16_384, vec![0; 616], StoreKind::Data, false),
        Flush(16_384, 616),
        Fence,
    ];
    assert_eq!(*recorder.0.lock().unwrap(), expected);
}

#[test]
#[should_panic(expected = "not in the window")]
fn loads_outside_of_the_window_are_bugs() {
    Media::memory(4096).unwrap().load_u64(DeviceOffset(4096));
}

#[test]
#[should_panic(expected = "not in the window")]
fn lengths_that_wrap_around_are_bugs() {
    let media = Media::memory(4096).unwrap();
    let _ = media.flush(DeviceOffset(4000), u64::MAX);
}

#[test]
#[should_panic(expected = "misaligned")]
fn misaligned_integers_are_bugs() {
    Media::memory(4096).unwrap().load_u64(DeviceOffset(4));
}

#[test]
#[should_panic(expected = "0 of them writable")]
fn stores_to_read_only_devices_are_bugs() {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(LEN).unwrap();
    let media = Media::open(file.path(), Access::ReadOnly).unwrap();
    let _ = media.store_u64(DeviceOffset(0), 1, StoreKind::Data);
}

#[test]
fn files_in_memory_need_no_flush_and_survive_processes_only() {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(LEN).unwrap();
    let media = Media::open(file.path(), Access::ReadWrite).unwrap();
    assert_eq!(
        (media.kind(), media.flush_method()),
        (DeviceKind::MemoryFile, FlushMethod::None)
    );
    assert!(media.survives().process_death && !media.survives().kernel_crash);
    media
        .fence(media.write(DeviceOffset(5), b"hello", StoreKind::Data))
        .unwrap();
    assert_eq!(&fs::read(file.path()).unwrap()[..10], b"\0\0\0\0\0hello");
}

#[test]
fn windows_are_mapped_side_by_side_at_their_places() {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(LEN).unwrap();
    let device = Arc::new(Device::open(file.path(), Access::ReadWrite).unwrap());
    let mut place = AddressRange::reserve(LEN).unwrap();
    let rest = place.split_off(8192);
    let (start, next) = (place.start(), rest.start());
    let first = Media::map(&device, DeviceOffset(4096), 8192, Some(place)).unwrap();
    let second = Media::map(&device, DeviceOffset(65536), 4096, Some(rest)).unwrap();
    assert_eq!((first.base_addr(), second.base_addr()), (start, next));
    assert!((start as u64).is_multiple_of(RANGE_ALIGNMENT));
    second
        .fence(second.write(DeviceOffset(65540), b"x", StoreKind::Data))
        .unwrap();
    assert_eq!(second.load_u8(DeviceOffset(65540)), b'x');
    assert_eq!(fs::read(file.path()).unwrap()[65540], b'x');
}

#[test]
fn windows_behind_the_end_or_off_the_granule_are_errors() {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(LEN).unwrap();
    let device = Arc::new(Device::open(file.path(), Access::ReadWrite).unwrap());
    let map = |start, len| {
        Media::map(&device, DeviceOffset(start), len, None)
            .map(|_| ())
            .unwrap_err()
    };
    let path = file.path().to_owned();
    let needed = LEN + 4096;
    assert_eq!(
        map(4096, LEN),
        MediaError::TooShort {
            path: path.clone(),
            actual: LEN,
            needed
        }
    );
    assert_eq!(
        map(0, 100),
        MediaError::BadSize {
            path: path.clone(),
            size: 100,
            granule: 4096
        }
    );
    assert_eq!(
        map(100, 4096),
        MediaError::BadSize {
            path,
            size: 4096,
            granule: 4096
        }
    );
}

#[test]
fn children_share_anonymous_memory() {
    let media = Media::memory(4096).unwrap();
    // SAFETY: the child calls nothing but stores and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        media
            .fence(media.store_u64(DeviceOffset(0), 42, StoreKind::Data))
            .unwrap();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits for our own child.
    let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(waited, child);
    assert_eq!(media.load_u64(DeviceOffset(0)), 42);
}

/// KiB of dirty pages in the mapping that starts at `start`.
fn dirty_kib(start: usize) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps
        .lines()
        .skip_while(|line| !line.starts_with(&format!("{start:x}-")))
        .skip(1);
    let fields = lines
        .by_ref()
        .take_while(|line| !line.starts_with("VmFlags"));
    let dirty = fields.filter(|line| line.contains("_Dirty:"));
    dirty
        .map(|line| {
            line.split_whitespace()
                .nth(1)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum()
}

#[test]
fn files_on_a_disk_are_written_back_by_the_fence() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(LEN).unwrap();
    let media = Media::open(file.path(), Access::ReadWrite).unwrap();
    if media.kind() != DeviceKind::CachedFile {
        return;
    }
    assert_eq!(media.flush_method(), FlushMethod::Msync);
    let stored = media.write(DeviceOffset(5000), b"hello", StoreKind::Data);
    assert!(dirty_kib(media.base_addr()) > 0);
    media.fence(stored).unwrap();
    assert_eq!(dirty_kib(media.base_addr()), 0);
    assert_eq!(media.health(), Ok(()));
    assert_eq!(&fs::read(file.path()).unwrap()[5000..5005], b"hello");
}

/// Counts as an emulator does; bytes are none of its business.
#[derive(Default)]
struct Counter(Mutex<Vec<(u64, u64, Option<StoreKind>)>>);

impl Observer for Counter {
    fn store(&self, _: u16, _: DeviceOffset, _: &[u8], _: StoreKind, _: bool) {
        panic!("not wanted");
    }

    fn flush(&self, _: u16, _: DeviceOffset, _: u64) {
        panic!("not wanted");
    }

    fn fence(&self, _: u16) {}

    fn wants_stores(&self) -> bool {
        false
    }

    fn persisted(&self, _: u16, at: DeviceOffset, len: u64, kind: StoreKind) {
        self.0.lock().unwrap().push((at.get(), len, Some(kind)));
    }

    fn read(&self, _: u16, at: DeviceOffset, len: u64) {
        self.0.lock().unwrap().push((at.get(), len, None));
    }
}

#[test]
fn an_observer_without_interest_in_bytes_sees_what_is_persisted_and_read() {
    let media = Media::memory(LEN).unwrap();
    let counter = Arc::new(Counter::default());
    media.set_observer(0, Arc::clone(&counter) as Arc<dyn Observer>);
    let _ = media.write(DeviceOffset(10), b"abc", StoreKind::Log);
    let _ = media.store_u64(DeviceOffset(16), 9, StoreKind::Metadata);
    media.store_u64_lazy(DeviceOffset(24), 4, StoreKind::Metadata);
    let _ = media.flush(DeviceOffset(24), 8);
    let _ = media.flush_as(DeviceOffset(0), 4096, StoreKind::Data);
    media.read(DeviceOffset(5), &mut [0; 7]);
    let seen = counter.0.lock().unwrap();
    assert_eq!(
        *seen,
        [
            (10, 3, Some(StoreKind::Log)),
            (16, 8, Some(StoreKind::Metadata)),
            (24, 8, Some(StoreKind::Metadata)),
            (0, 4096, Some(StoreKind::Data)),
            (5, 7, None),
        ]
    );
}
