//! What a large transaction took of memory is given back when it ends. The program has this one
//! test, as all of its threads are counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nacre_objects::{Pool, Transaction};
use nacre_testkit::pool::memory_pool;

/// Bytes that are in use.
static USED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        USED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const KEYS: u32 = 100_000;

fn commit(pool: &Pool, fill: impl FnOnce(&mut Transaction<'_>)) {
    let mut t = Transaction::new();
    fill(&mut t);
    pool.commit(&t).unwrap();
}

#[test]
fn memory_of_large_transactions_is_given_back() {
    let pool = Pool::of(memory_pool(256 << 20));
    commit(&pool, |t| {
        t.create_collection(b"c").touch(b"c", b"o");
    });
    let before = USED.load(Relaxed);
    let given_back = |what: &str| {
        let more = USED.load(Relaxed).saturating_sub(before);
        assert!(more < 2 << 20, "{what}: {more} bytes stay");
    };
    commit(&pool, |t| {
        for key in 0..KEYS {
            t.set_omap(b"c", b"o", &key.to_be_bytes(), vec![1; 100]);
        }
        // The canary: so much is seen.
        assert!(USED.load(Relaxed) - before > 100 * KEYS as usize);
    });
    given_back("keys that are set");
    commit(&pool, |t| {
        t.clone_object(b"c", b"o", b"clone");
    });
    given_back("a clone");
    for object in [b"o".as_slice(), b"clone"] {
        commit(&pool, |t| {
            t.remove(b"c", object);
        });
        given_back("an object that is removed");
    }
    commit(&pool, |t| {
        for object in 0..KEYS / 10 {
            t.write(b"c", &object.to_be_bytes(), 0, vec![1; 100]);
        }
    });
    given_back("objects that are written");
}
