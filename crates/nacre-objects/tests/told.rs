//! Damage of an object is told: each answer is the right one or names the damage, never another.

use nacre_objects::{Error, Pool, Result, Transaction};
use nacre_store::structure_index::{Part, Structure, survey};
use nacre_store::{Store, StoreError};
use nacre_testkit::pool::{PRIVATE, memory_pool};
use nacre_testkit::random::Random;
use nacre_types::StoreKind;
use nacre_volume::Volume;

const C: &[u8] = b"c";
const BYTES: u64 = 16 << 20;
/// Bytes that are changed of a part, one at a time.
const CHANGED: u64 = 6;

fn names() -> Vec<Vec<u8>> {
    let long = [&[b'l'; 1500][..], b"1"].concat();
    (0..12u8).map(|n| vec![b'o', n]).chain([long]).collect()
}

fn filled() -> Pool {
    let pool = Pool::of(memory_pool(BYTES));
    let mut t = Transaction::new();
    t.create_collection(C);
    for (number, o) in (1u8..).zip(names()) {
        t.write(C, &o, 0, vec![number; 9000]);
        t.set_attribute(C, &o, b"_", vec![number; 300]);
        t.set_omap_header(C, &o, vec![number; 20]);
        t.set_omap(C, &o, b"short", vec![number; 200]);
        t.set_omap(C, &o, &[b'k'; 1500], vec![number; 2000]);
        t.set_omap(C, &o, b"valued", vec![number; 40_000]);
    }
    pool.commit(&t).unwrap();
    let mut t = Transaction::new();
    for (number, o) in (101u8..).zip(names()) {
        t.write(C, &o, 1024, vec![number; 1024]);
    }
    pool.commit(&t).unwrap();
    pool
}

/// Answers about an object, and about those that are there.
type Answers = Vec<Result<Vec<u8>>>;

fn ask(pool: &Pool, o: &[u8]) -> Answers {
    let mut bytes = vec![0; 9000];
    let pairs = |found: Result<Vec<(Vec<u8>, Vec<u8>)>>| {
        let flat = |(key, value)| [key, value].concat();
        found.map(|pairs| pairs.into_iter().flat_map(flat).collect())
    };
    vec![
        pool.read(C, o, 0, &mut bytes)
            .map(|len| bytes[..len].to_vec()),
        pool.stat(C, o).map(|stat| format!("{stat:?}").into()),
        pool.exists(C, o).map(|there| vec![u8::from(there)]),
        pool.attribute(C, o, b"_"),
        pairs(pool.attributes(C, o)),
        pool.omap_header(C, o),
        pool.omap(C, o, b"short").map(Option::unwrap_or_default),
        pairs(pool.omap_range(C, o, &[], 100)),
        pool.objects(C, &[], 100).map(|names| names.concat()),
        pool.collections(&[], 100).map(|names| names.concat()),
    ]
}

/// Whether the error says that something is damaged: EUCLEAN in C.
fn names_damage(error: &Error) -> bool {
    matches!(
        error.cause(),
        Error::Damaged(_) | Error::Store(StoreError::Corrupt(_) | StoreError::NoSuchObject(_))
    )
}

/// How many answers tell of damage. All others must be as in the sound pool.
fn told(pool: &Pool, sound: &[Answers], what: &str) -> usize {
    let mut told = 0;
    for (o, sound) in names().iter().zip(sound) {
        for (number, (now, before)) in ask(pool, o).iter().zip(sound).enumerate() {
            match (now, before) {
                (Ok(now), Ok(before)) => assert!(now == before, "{what}: answer {number}"),
                (Err(error), _) => {
                    assert!(names_damage(error), "{what}: answer {number}: {error}");
                    told += 1;
                }
                (Ok(_), Err(error)) => panic!("the sound pool said {error}"),
            }
        }
    }
    told
}

fn put(volume: &Volume, part: &Part, bytes: &[u8]) {
    let unfenced = volume.write(part.at, bytes, StoreKind::Metadata);
    volume.fence(unfenced).unwrap();
}

/// Attaches a damaged pool; gives the volume back as it was.
fn with_damage(
    volume: Volume,
    part: &Part,
    damage: &mut dyn FnMut(&mut [u8]),
    sound: &[Answers],
) -> (Volume, usize) {
    let (mut whole, mut bytes) = (vec![0; BYTES as usize], vec![0; part.len as usize]);
    volume.read(nacre_types::VolumeOffset(0), &mut whole);
    volume.read(part.at, &mut bytes);
    damage(&mut bytes);
    put(&volume, part, &bytes);
    let pool = Pool::of(Store::attach(volume, &PRIVATE).unwrap());
    let told = told(&pool, sound, &format!("{part:?}"));
    let volume = pool.into_store().abandon();
    let unfenced = volume.write(nacre_types::VolumeOffset(0), &whole, StoreKind::Metadata);
    volume.fence(unfenced).unwrap();
    (volume, told)
}

fn parts_of_objects(store: &Store) -> Vec<Part> {
    let parts = survey(store).into_iter();
    let wanted = |what| matches!(what, Structure::Onode | Structure::TreeNode(..));
    parts.filter(|part| wanted(part.what)).collect()
}

/// Damages each onode and tree node; how many damages there were and how many were told.
fn damaged(mut damage: impl FnMut(&mut [u8], &mut Random), times: u64) -> (usize, usize) {
    let pool = filled();
    let sound: Vec<Answers> = names().iter().map(|o| ask(&pool, o)).collect();
    assert!(sound.iter().flatten().all(|answer| answer.is_ok()));
    let parts = parts_of_objects(pool.store());
    let mut volume = pool.into_store().abandon();
    let mut dice = Random::new(7, 0);
    let mut counts = (0, 0);
    for part in &parts {
        for _ in 0..times {
            let mut change = |bytes: &mut [u8]| damage(bytes, &mut dice);
            let told;
            (volume, told) = with_damage(volume, part, &mut change, &sound);
            counts = (counts.0 + 1, counts.1 + usize::from(told > 0));
        }
    }
    counts
}

#[test]
fn a_changed_byte_of_an_object_is_told_or_changes_no_answer() {
    let (damages, told) = damaged(
        |bytes, dice| bytes[dice.below(bytes.len() as u64) as usize] ^= 1 << dice.below(8),
        CHANGED,
    );
    // What is not told lies in room that nothing uses.
    assert!(damages > 300 && told * 4 > damages, "{told} of {damages}");
}

#[test]
fn an_onode_or_a_node_that_was_lost_is_told() {
    let (damages, told) = damaged(|bytes, _| bytes.fill(0), 1);
    assert_eq!(damages, told);
}
