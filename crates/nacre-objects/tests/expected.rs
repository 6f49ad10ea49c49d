//! Transactions that expect values: whoever was changed meanwhile is told, and nothing happens.

use nacre_objects::{Error, Pool, Transaction};
use nacre_testkit::pool::memory_pool;

const C: &[u8] = b"c";
const O: &[u8] = b"o";
const NONE: Option<&[u8]> = None;

fn with<'b>(fill: impl FnOnce(&mut Transaction<'b>)) -> Pool {
    let pool = Pool::of(memory_pool(64 << 20));
    let mut t = Transaction::new();
    t.create_collection(C);
    fill(&mut t);
    pool.commit(&t).unwrap();
    pool
}

/// Whether a transaction that also writes is done; it is wholly or not at all.
fn done<'b>(pool: &Pool, expect: impl FnOnce(&mut Transaction<'b>)) -> bool {
    let mut t = Transaction::new();
    t.touch(C, b"done");
    expect(&mut t);
    let result = pool.commit(&t);
    assert_eq!(pool.exists(C, b"done").unwrap(), result.is_ok());
    let mut t = Transaction::new();
    t.remove(C, b"done").if_exists();
    pool.commit(&t).unwrap();
    match result {
        Ok(()) => true,
        Err(Error::Operation {
            number: 1..,
            source,
        }) => {
            assert!(matches!(*source, Error::Changed(..)), "{source}");
            false
        }
        Err(other) => panic!("{other}"),
    }
}

/// Values as they lie in a tree, and behind a link; a long key.
#[test]
fn values_of_all_lengths_are_compared_whole() {
    let key = [b'k'; 2000];
    for len in [0, 1, 300, 32 << 10, (32 << 10) + 1, 100_001] {
        let value = vec![7; len];
        let pool = with(|t| {
            t.touch(C, O).set_omap(C, O, &key, &value[..]);
            t.set_attribute(C, O, b"a", &value[..]);
        });
        let longer = [&value[..], b"x"].concat();
        let mut others = vec![None, Some(longer)];
        if let Some((_, first)) = value.split_last() {
            others.push(Some(first.to_vec()));
            others.push(Some([first, b"x"].concat()));
        }
        assert!(done(&pool, |t| {
            t.expect_omap(C, O, &key, Some(&value[..]));
            t.expect_attribute(C, O, b"a", Some(&value[..]));
        }));
        for other in others {
            assert!(!done(&pool, |t| {
                t.expect_omap(C, O, &key, other.as_deref());
            }));
            assert!(!done(&pool, |t| {
                t.expect_attribute(C, O, b"a", other.as_deref());
            }));
        }
    }
}

#[test]
fn what_is_not_there_can_be_expected() {
    let pool = with(|t| {
        t.touch(C, O).set_omap(C, O, b"k", &b"1"[..]);
    });
    for o in [O, b"nobody"] {
        assert!(done(&pool, |t| {
            t.expect_omap(C, o, b"other", NONE)
                .expect_omap(C, o, &[b'k'; 2000], NONE)
                .expect_attribute(C, o, b"k", NONE);
        }));
        assert!(!done(&pool, |t| {
            t.expect_omap(C, o, b"other", Some(&b""[..]));
        }));
        assert!(!done(&pool, |t| {
            t.expect_attribute(C, o, b"k", Some(&b""[..]));
        }));
    }
    assert!(done(&pool, |t| {
        let wanted = Some(&b"?"[..]);
        t.expect_omap(C, b"nobody", b"k", wanted).if_exists();
    }));
    let mut t = Transaction::new();
    t.expect_omap(b"no collection", O, b"k", NONE);
    let error = pool.commit(&t).unwrap_err();
    assert!(matches!(error.cause(), Error::NoSuchCollection(_)));
}

#[test]
fn what_the_transaction_did_before_counts() {
    let long = vec![3; 50_000];
    let pool = with(|t| {
        t.touch(C, O).set_omap(C, O, b"k", &long[..]);
    });
    assert!(done(&pool, |t| {
        t.set_omap(C, O, b"k", &b"2"[..])
            .expect_omap(C, O, b"k", Some(&b"2"[..]))
            .set_omap(C, O, b"k", &long[1..])
            .expect_omap(C, O, b"k", Some(&long[1..]))
            .remove_omap(C, O, b"k")
            .expect_omap(C, O, b"k", NONE)
            .set_attribute(C, O, b"a", &long[..])
            .expect_attribute(C, O, b"a", Some(&long[..]))
            .remove(C, O)
            .expect_attribute(C, O, b"a", NONE);
    }));
}

/// Read, change, write: with an expectation no change is lost, whoever is quicker.
#[test]
fn threads_that_count_lose_nothing() {
    const EACH: u64 = 300;
    let pool = with(|t| {
        t.touch(C, O)
            .set_omap(C, O, b"n", 0u64.to_be_bytes().to_vec());
    });
    let read = || {
        let bytes = pool.omap(C, O, b"n").unwrap().unwrap();
        u64::from_be_bytes(bytes.try_into().unwrap())
    };
    let add = || loop {
        let known = read();
        let mut t = Transaction::new();
        t.expect_omap(C, O, b"n", Some(known.to_be_bytes().to_vec()));
        t.set_omap(C, O, b"n", (known + 1).to_be_bytes().to_vec());
        match pool.commit(&t) {
            Ok(()) => return,
            Err(error) => assert!(matches!(error.cause(), Error::Changed(..)), "{error}"),
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..EACH).for_each(|_| add()));
        }
    });
    assert_eq!(read(), 4 * EACH);
}
