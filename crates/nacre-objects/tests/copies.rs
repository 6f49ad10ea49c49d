//! Pools with copies that programs open by the library, without a supervisor.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nacre_objects::{OpenOptions, Pool, Transaction};
use nacre_store::structure_index::{Structure, survey};
use nacre_testkit::damage::{NAMES, are_alike, two_copies, wreck};
use nacre_testkit::pool::PoolFiles;
use nacre_volume::LegState;

fn pool() -> (PoolFiles, Pool) {
    let files = two_copies();
    let pool = Pool::open(files.file("a"), OpenOptions::default()).unwrap();
    (files, pool)
}

#[test]
fn a_copy_that_something_was_written_over_is_given_up_by_who_changes_the_pool() {
    for name in NAMES {
        let (files, pool) = pool();
        let file = File::options().write(true).open(files.file(name));
        file.unwrap().write_all_at(&[7; 4 << 20], 0).unwrap();
        let mut t = Transaction::new();
        t.create_collection(b"one");
        t.write(b"one", b"object", 0, vec![5; 9000]);
        pool.commit(&t).unwrap();
        let copies = pool.store().volume().copies().unwrap();
        let lost = copies.iter().find(|copy| copy.path.ends_with(name));
        assert_eq!(lost.unwrap().state, LegState::Failed);
        pool.close().unwrap();
    }
}

const OBJECTS: u32 = 100;

fn filled(pool: &Pool) {
    let mut t = Transaction::new();
    t.create_collection(b"c");
    for number in 0..OBJECTS {
        let name = number.to_be_bytes();
        t.write(b"c", &name, 0, vec![number as u8; 3000]);
        t.set_attribute(b"c", &name, b"_", vec![number as u8; 300]);
        t.set_omap(b"c", &name, b"key", vec![number as u8; 200]);
    }
    pool.commit(&t).unwrap();
}

fn commit_one(pool: &Pool) {
    let mut t = Transaction::new();
    t.write(b"c", &0_u32.to_be_bytes(), 0, vec![0; 100]);
    pool.commit(&t).unwrap();
}

#[test]
fn log_tails_that_were_damaged_on_one_copy_come_from_the_other() {
    for name in NAMES {
        let (files, pool) = pool();
        filled(&pool);
        let parts = survey(pool.store());
        pool.close().unwrap();
        let is_tail = |what| what == Structure::LogTailWord;
        assert!(wreck(&files.file(name), &parts, is_tail) >= 1024);
        let problems = Pool::check(files.file("b")).unwrap();
        assert!(problems.is_empty(), "{name}: {problems:?}");
        let pool = Pool::open(files.file("b"), OpenOptions::default()).unwrap();
        commit_one(&pool);
        pool.close().unwrap();
        assert!(
            name == "b" || are_alike(&files),
            "{name}: the copies differ"
        );
    }
}

#[test]
fn metadata_that_was_damaged_on_one_copy_comes_from_the_other_after_a_crash() {
    for name in NAMES {
        let (files, pool) = pool();
        filled(&pool);
        let is_judged = |what| matches!(what, Structure::Onode | Structure::TreeNode(..));
        let wrecked = wreck(&files.file(name), &survey(pool.store()), is_judged);
        assert!(wrecked > 2 * OBJECTS as usize);
        drop(pool.into_store().abandon());
        let problems = Pool::check(files.file("b")).unwrap();
        assert!(problems.is_empty(), "{name}: {problems:?}");
        let pool = Pool::open(files.file("b"), OpenOptions::default()).unwrap();
        for number in 0..OBJECTS {
            let (name, mut bytes) = (number.to_be_bytes(), [0; 3001]);
            let expected = vec![number as u8; 3000];
            assert_eq!(pool.read(b"c", &name, 0, &mut bytes).unwrap(), 3000);
            assert_eq!(bytes[..3000], expected);
            assert_eq!(pool.attribute(b"c", &name, b"_").unwrap(), expected[..300]);
            let value = pool.omap(b"c", &name, b"key").unwrap();
            assert_eq!(value.unwrap(), expected[..200]);
        }
        commit_one(&pool);
        pool.close().unwrap();
        assert!(are_alike(&files), "{name}: the copies differ");
    }
}
