//! Pools with objects, and all that can be seen of them.

use std::collections::BTreeMap;

use nacre_objects::{Pool, Transaction};
use nacre_store::check::check;
use nacre_store::{Store, WriteMode};
use nacre_types::VolumeOffset;

use crate::bench::Bench;
use nacre_testkit::image::volume_with_behind;

pub(crate) const DIRECT: WriteMode = WriteMode::Direct;

/// Everything that can be seen of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    bytes: Vec<u8>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    omap: Vec<(Vec<u8>, Vec<u8>)>,
    header: Vec<u8>,
}

pub(crate) type World = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Seen>>;

/// Bytes that differ from place to place.
pub(crate) fn stamp(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ 0x5A).collect()
}

pub(crate) fn see(pool: &Pool) -> Result<World, String> {
    let problems = check(pool.store(), &mut |_| {}).problems;
    if let Some(problem) = problems.first() {
        return Err(format!("check: {problem}"));
    }
    look(pool)
}

/// As [`see`], unchecked.
pub(crate) fn look(pool: &Pool) -> Result<World, String> {
    look_at_all(pool).map_err(|error| error.to_string())
}

fn look_at_all(pool: &Pool) -> nacre_objects::Result<World> {
    let mut world = World::new();
    for c in pool.collections(&[], usize::MAX)? {
        let mut objects = BTreeMap::new();
        for o in pool.objects(&c, &[], usize::MAX)? {
            let mut bytes = vec![0; pool.stat(&c, &o)?.size as usize];
            pool.read(&c, &o, 0, &mut bytes)?;
            let seen = Seen {
                bytes,
                attributes: pool.attributes(&c, &o)?,
                omap: pool.omap_range(&c, &o, &[], usize::MAX)?,
                header: pool.omap_header(&c, &o)?,
            };
            objects.insert(o, seen);
        }
        world.insert(c, objects);
    }
    Ok(world)
}

pub(crate) fn attach(contents: &[u8]) -> Result<Pool, String> {
    attach_with_behind(contents, 0)
}

/// As [`attach`]; so many of the bytes are a device behind.
pub(crate) fn attach_with_behind(contents: &[u8], behind: u64) -> Result<Pool, String> {
    let volume = volume_with_behind(contents, behind);
    let fs = Bench::attach_clean(volume, DIRECT)?;
    Ok(Pool::of(fs.into_store()))
}

pub(crate) fn commit(pool: &Pool, transaction: &Transaction<'_>) -> Result<(), String> {
    pool.commit(transaction).map_err(|error| error.to_string())
}

pub(crate) fn contents(store: &Store) -> Vec<u8> {
    let mut bytes = vec![0; store.volume().len() as usize];
    store.volume().read(VolumeOffset(0), &mut bytes);
    bytes
}
