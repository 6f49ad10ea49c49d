//! Nodes whose checksum is right and whose contents are not.

use nacre_types::{ObjectId, UnitNo};
use proptest::prelude::{ProptestConfig, any, prop, proptest};

use super::image::{NodeImage, Payload};
use super::page::{Damaged, NODE_BYTES, SearchKey, entry_len, index_at, reseal, verify};
use crate::layout::{Tree, tree_salt};

const OWNER: ObjectId = ObjectId(9);
const UNIT: UnitNo = UnitNo(77);

fn image(keys: &[Vec<u8>]) -> NodeImage {
    let mut image = NodeImage {
        unit: UNIT,
        owner: OWNER,
        tree: Tree::Entries,
        fresh: true,
        freed: false,
        dirty: [0; 8],
        spare: [0; 8],
        entries_crc: 0,
        loaded: NODE_BYTES,
        bytes: Box::new([0; NODE_BYTES]),
    };
    image.reset(0);
    for key in keys {
        put(&mut image, key).unwrap();
    }
    image.seal();
    image
}

fn put(image: &mut NodeImage, key: &[u8]) -> Result<bool, Damaged> {
    let key = SearchKey::new(key);
    let payload = Payload {
        bytes: &[1, 2, 3],
        overflow: false,
    };
    match image.view()?.find(&key)? {
        Ok(_) => Ok(false),
        Err(index) => image.insert(index, &key, payload),
    }
}

/// Everything that may be done to a node; it may fail, not panic.
fn exercise(image: &mut NodeImage, probe: &[u8]) -> Result<(), Damaged> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let view = image.view()?;
    for index in 0..view.count() {
        let slot = view.slot(index)?;
        view.key_into(&slot, &mut key);
        view.value_into(&slot, &mut value);
        let _ = view.child(index, OWNER);
        let _ = view.overflow(&slot);
        let _ = view.find(&SearchKey::new(&key))?;
    }
    for n in 0..=255 {
        put(image, &[probe, &[n]].concat())?;
    }
    while image.count() > 0 {
        image.remove(image.count() / 2)?;
    }
    Ok(())
}

#[test]
fn sealing_a_sound_node_changes_nothing() {
    let node = image(&[vec![5, 6], vec![7; 20]]);
    let mut sealed = *node.bytes;
    reseal(&mut sealed, tree_salt(OWNER));
    assert!(sealed == *node.bytes);
}

#[test]
fn what_pads_a_short_key_is_zero() {
    let node = image(&[vec![5, 6]]);
    let mut forged = *node.bytes;
    let at = forged.windows(2).rposition(|pair| pair == [5, 6]).unwrap();
    forged[at + 4] = 1;
    reseal(&mut forged, tree_salt(OWNER));
    assert_eq!(verify(&forged, UNIT, OWNER, Tree::Entries), Err(Damaged));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn a_forged_node_is_refused_or_harmless(
        keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..60),
        changes in prop::collection::vec((0usize..NODE_BYTES, any::<u8>()), 1..6),
        near_head in any::<bool>(),
        probe in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut node = image(&keys);
        verify(&node.bytes, UNIT, OWNER, Tree::Entries).unwrap();
        for (at, byte) in changes {
            node.bytes[if near_head { at % 200 } else { at }] = byte;
        }
        node.seal();
        if verify(&node.bytes, UNIT, OWNER, Tree::Entries).is_ok() {
            let _ = exercise(&mut node, &probe);
        }
        let _ = node.view().map(|view| (0..view.count()).filter(|&i| view.slot(i).is_ok()).count());
    }
}

#[test]
fn a_node_of_another_place_object_or_tree_is_refused() {
    let node = image(&[b"key".to_vec()]);
    verify(&node.bytes, UNIT, OWNER, Tree::Entries).unwrap();
    assert!(verify(&node.bytes, UnitNo(78), OWNER, Tree::Entries).is_err());
    assert!(verify(&node.bytes, UNIT, ObjectId(8), Tree::Entries).is_err());
    assert!(verify(&node.bytes, UNIT, OWNER, Tree::Xattrs).is_err());
}

fn sealed_is_sound(image: &mut NodeImage) -> bool {
    image.seal();
    verify(&image.bytes, UNIT, OWNER, Tree::Entries).is_ok()
}

#[test]
fn the_checksum_follows_every_kind_of_change() {
    let mut image = image(&[]);
    let mut number = 0_u32;
    let mut fill = |image: &mut NodeImage| {
        let key = |number: u32| format!("{:08}-long tail", number * 7919 % 1000).into_bytes();
        while put(image, &key(number)).unwrap() {
            number += 1;
        }
    };
    fill(&mut image);
    assert!(image.count() > 50 && sealed_is_sound(&mut image));
    for index in (0..image.count()).rev().step_by(2) {
        image.remove(index).unwrap();
    }
    assert!(sealed_is_sound(&mut image));
    // The heap is full of holes: this compacts it.
    let before = image.count();
    fill(&mut image);
    assert!(image.count() > before && sealed_is_sound(&mut image));
    let payload = Payload {
        bytes: &[7, 8, 9],
        overflow: false,
    };
    assert!(image.overwrite(3, payload).unwrap() && sealed_is_sound(&mut image));
    image.truncate(20).unwrap();
    assert!(sealed_is_sound(&mut image));
}

#[test]
fn entries_out_of_order_are_refused() {
    let mut image = image(&[b"first key".to_vec(), b"second key".to_vec()]);
    image.bytes[index_at(0)..index_at(2)].rotate_left(2);
    assert!(!sealed_is_sound(&mut image));
    image.bytes[index_at(0)..index_at(2)].rotate_left(2);
    assert!(sealed_is_sound(&mut image));
}

#[test]
fn an_insert_logs_a_few_words() {
    let keys: Vec<Vec<u8>> = (0..60).map(|n| format!("{n:08}").into_bytes()).collect();
    let mut image = image(&keys);
    image.dirty = [0; 8];
    assert!(put(&mut image, b"00000029x").unwrap());
    image.seal();
    let mut logged = 0;
    super::image::each_run(&image.dirty, |run| logged += run.len());
    assert!(logged <= 128, "{logged}");
}

#[test]
fn every_flipped_byte_that_counts_is_noticed() {
    let keys: Vec<Vec<u8>> = (0..9)
        .map(|n| format!("key number {n}").into_bytes())
        .collect();
    let image = image(&keys);
    let heap = NODE_BYTES
        - keys
            .iter()
            .map(|key| entry_len(key.len(), 3))
            .sum::<usize>();
    for at in (0..index_at(image.count())).chain(heap..NODE_BYTES) {
        let mut bytes = *image.bytes;
        bytes[at] ^= 0x20;
        assert!(verify(&bytes, UNIT, OWNER, Tree::Entries).is_err(), "{at}");
    }
}
