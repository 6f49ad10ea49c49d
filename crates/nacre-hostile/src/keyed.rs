//! Collections and objects of a pool: what they are, and which onodes lead to each.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use nacre_objects::{Error, HashBits, Pool, Result, Transaction};
use nacre_store::keyed::layout::{Item, Kind, Link, PART_MAX, goes_on};
use nacre_store::{INLINE_MAX, Store, StoreError, Tree};
use nacre_testkit::random::Random;
use nacre_types::ObjectId;

use crate::place::names_place;

const COLLECTIONS: [&[u8]; 3] = [b"first", b"second", &[b'c'; 2500]];
/// Objects of each collection.
const OBJECTS: u64 = 14;
/// Most of what a damaged pool lists that is looked at.
const MOST: usize = 400;

/// Everything that can be seen of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    bytes: Vec<u8>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    omap: Vec<(Vec<u8>, Vec<u8>)>,
    header: Vec<u8>,
}

/// One object of a sound pool.
pub struct KnownObject {
    /// Names of its collection and of itself.
    pub path: (Vec<u8>, Vec<u8>),
    /// What is seen.
    pub seen: Seen,
    /// The onodes on the way, those that belong to it included.
    pub onodes: BTreeSet<u64>,
}

/// The name of an object: some are so long that layers hold the rest of them.
fn name(number: u64) -> Vec<u8> {
    match number % 5 {
        0 => [vec![b'l'; 1500], number.to_be_bytes().to_vec()].concat(),
        _ => format!("object {number}").into_bytes(),
    }
}

fn pattern(salt: u64, len: u64) -> Vec<u8> {
    nacre_explore::action::pattern(salt, len)
}

/// Makes collections and objects of all shapes.
pub fn fill(pool: &Pool) -> Result<()> {
    let mut t = Transaction::new();
    for c in COLLECTIONS {
        t.create_collection(c);
        for number in 0..OBJECTS {
            fill_object(&mut t, c, number);
        }
    }
    t.clone_object(b"first", &name(3), b"twin");
    pool.commit(&t)
}

fn fill_object(t: &mut Transaction<'_>, c: &[u8], number: u64) {
    let o = name(number);
    t.write(c, &o, (number % 4) * 3000, pattern(number, 9000));
    t.set_attribute(c, &o, b"_", pattern(number, 290));
    t.set_omap(c, &o, &name(number), pattern(number, 150));
    match number % 7 {
        0 => t.set_omap(c, &o, b"long", pattern(number, 40_000)),
        1 => t.set_omap_header(c, &o, pattern(number, 50)),
        2 => t.write(c, &o, 3 << 20, pattern(number, 100)),
        3 => t.set_attribute(c, &o, b"long", pattern(number, 35_000)),
        _ => t.touch(c, &o),
    };
    if number % 6 == 4 {
        for key in 0..60u64 {
            let value = pattern(key, 100);
            t.set_omap(c, &o, format!("{number}.{key:03}").as_bytes(), value);
        }
    }
}

/// A transaction like an OSD's, which a crash shall leave waiting for replay.
pub fn last(pool: &Pool) -> Result<()> {
    let (c, o) = (b"first", name(1));
    let mut t = Transaction::new();
    t.write(c, &o, 4096 + 100, pattern(9, 700))
        .set_attribute(c, &o, b"_", pattern(8, 293))
        .set_omap(c, b"object 4", b"4.700", pattern(7, 180))
        .remove_omap(c, b"object 4", b"4.001");
    pool.commit(&t)
}

/// All that is seen of an object.
pub fn see(pool: &Pool, c: &[u8], o: &[u8]) -> Result<Seen> {
    let mut bytes = vec![0; (pool.stat(c, o)?.size as usize).min(1 << 23)];
    let len = pool.read(c, o, 0, &mut bytes)?;
    bytes.truncate(len);
    Ok(Seen {
        bytes,
        attributes: pool.attributes(c, o)?,
        omap: pool.omap_range(c, o, &[], MOST)?,
        header: pool.omap_header(c, o)?,
    })
}

/// All objects of a sound pool.
pub fn known(pool: &Pool) -> Result<Vec<KnownObject>> {
    let store = pool.store();
    let mut found = Vec::new();
    let Some(registry) = registry(store)? else {
        return Ok(found);
    };
    let above = BTreeSet::from([ObjectId::ROOT.0, registry.object.0]);
    for (c, collection, way) in names(store, registry.object, &above, &[])? {
        for (o, object, mut onodes) in names(store, collection.object, &way, &[])? {
            add_parts(store, object.object, &mut onodes)?;
            let seen = see(pool, &c, &o)?;
            found.push(KnownObject {
                path: (c.clone(), o),
                seen,
                onodes,
            });
        }
    }
    Ok(found)
}

/// These objects are as they were.
pub fn compare(pool: &Pool, objects: &[&KnownObject]) -> Judged {
    for object in objects {
        let (c, o) = &object.path;
        let name = || String::from_utf8_lossy(&o[o.len().saturating_sub(20)..]).into_owned();
        let seen = see(pool, c, o).map_err(|e| format!("undamaged object {:?}: {e}", name()))?;
        if seen != object.seen {
            return Err(format!("undamaged object {:?} is another one", name()));
        }
    }
    Ok(())
}

fn registry(store: &Store) -> Result<Option<Link>> {
    let mut bytes = [0; INLINE_MAX];
    let len = store.inline(ObjectId::ROOT, &mut bytes)?;
    Ok(Link::decode_registry(&bytes[..len]))
}

/// Key, link, onodes on the way.
type Name = (Vec<u8>, Link, BTreeSet<u64>);

/// What an onode's entry tree names, also through layers.
fn names(
    store: &Store,
    within: ObjectId,
    above: &BTreeSet<u64>,
    before: &[u8],
) -> Result<Vec<Name>> {
    let mut found = Vec::new();
    for (key, link) in links(store, within, Tree::Entries)? {
        let mut way = above.clone();
        way.insert(link.object.0);
        match goes_on(&key) {
            true => {
                let before = [before, &key[..PART_MAX]].concat();
                found.extend(names(store, link.object, &way, &before)?);
            }
            false => found.push(([before, &key].concat(), link, way)),
        }
    }
    Ok(found)
}

fn links(store: &Store, of: ObjectId, tree: Tree) -> Result<Vec<(Vec<u8>, Link)>> {
    let mut found = Vec::new();
    store.tree_scan(of, tree, &[], &mut |key, item, _| {
        if let Some(Item::Link(link)) = Item::decode(item) {
            found.push((key.to_vec(), link));
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Layers and long values of an object.
fn add_parts(store: &Store, of: ObjectId, onodes: &mut BTreeSet<u64>) -> Result<()> {
    for tree in [Tree::Entries, Tree::Xattrs] {
        for (_, link) in links(store, of, tree)? {
            onodes.insert(link.object.0);
            if link.kind == Kind::Layer {
                add_parts(store, link.object, onodes)?;
            }
        }
    }
    Ok(())
}

/// Collections and objects that a damaged pool lists, and what it answers about each.
pub fn walk(pool: &Pool, judge: &mut dyn FnMut(Result<()>) -> Judged) -> Judged {
    let mut lists = Vec::new();
    let listed = pool.collections(&[], MOST).map(|found| lists = found);
    judge(listed)?;
    lists.extend(COLLECTIONS.map(<[u8]>::to_vec));
    for c in lists {
        let mut objects = vec![name(0), name(1)];
        let listed = pool.objects(&c, &[], MOST);
        judge(listed.map(|found| objects.extend(found)))?;
        for o in objects {
            look_at(pool, &c, &o, judge)?;
        }
    }
    Ok(())
}

/// An error is a finding.
pub type Judged = std::result::Result<(), String>;

fn look_at(pool: &Pool, c: &[u8], o: &[u8], judge: &mut dyn FnMut(Result<()>) -> Judged) -> Judged {
    let mut bytes = vec![0; 12_000];
    for offset in [0, 8000, u64::MAX >> 17] {
        judge(pool.read(c, o, offset, &mut bytes).map(drop))?;
    }
    judge(pool.stat(c, o).map(drop))?;
    judge(pool.attributes(c, o).map(drop))?;
    judge(pool.attribute(c, o, b"long").map(drop))?;
    judge(pool.omap(c, o, b"long").map(drop))?;
    judge(pool.omap_range(c, o, &[], MOST).map(drop))?;
    judge(pool.omap_header(c, o).map(drop))?;
    judge(pool.extents(c, o, 0..u64::MAX >> 16, MOST).map(drop))
}

/// Changes damaged and undamaged objects.
pub fn change(
    pool: &Pool,
    random: &mut Random,
    judge: &mut dyn FnMut(Result<()>) -> Judged,
) -> Judged {
    for step in 0..16 {
        let c = COLLECTIONS[random.below(3) as usize];
        let (o, other) = (name(random.below(OBJECTS)), name(random.below(OBJECTS)));
        let mut t = Transaction::new();
        match random.below(12) {
            0 => t.remove(c, &o),
            1 => t.clear_omap(c, &o).truncate(c, &o, step * 1000),
            2 => t.write(c, &o, step * 700, pattern(step, 6000)),
            3 => t.clone_object(c, &o, &other),
            4 => t.rename(
                (c, &o),
                (COLLECTIONS[0], format!("moved {step}").as_bytes()),
            ),
            5 => t
                .remove_attributes(c, &o)
                .set_omap_header(c, &o, vec![1; 60]),
            6 => t.clone_range(c, &o, 0..9000, &other, 4096),
            7 => t.remove_omap_range(c, &o, b"4", b"z"),
            8 => t.set_omap(c, &o, &other, pattern(step, 34_000)),
            9 => t.zero(c, &o, 1000, 9000).remove_omap(c, &o, b"long"),
            10 => t.split(c, COLLECTIONS[1], half()),
            _ => t.merge(c, COLLECTIONS[0]),
        };
        judge(pool.commit(&t))?;
    }
    Ok(())
}

/// Of the short names those whose numbers have this bit.
fn half() -> HashBits {
    HashBits {
        offset: 4,
        bits: 1,
        value: 0,
    }
}

/// An error is fine if it says what is damaged, or refuses what cannot be done.
pub fn located(error: &Error) -> Judged {
    match error.cause() {
        Error::Store(error @ StoreError::Corrupt(_)) => names_place(error),
        _ => Ok(()),
    }
}
