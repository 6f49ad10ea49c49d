//! Nodes whose checksum is right and whose contents are not.

use nacre_types::{ObjectId, UnitNo};
use proptest::prelude::{ProptestConfig, any, prop, proptest};

use super::edit::{NodeImage, Payload};
use super::node::{Damaged, NODE_BYTES, SearchKey, verify};
use crate::layout::Tree;

const OWNER: ObjectId = ObjectId(9);
const UNIT: UnitNo = UnitNo(77);

fn image(keys: &[Vec<u8>]) -> NodeImage {
    let mut image = NodeImage {
        unit: UNIT,
        owner: OWNER,
        tree: Tree::Entries,
        fresh: true,
        freed: false,
        dirty: 0,
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
