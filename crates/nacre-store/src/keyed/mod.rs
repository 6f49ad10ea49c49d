//! What the store knows of collections and objects: how they lie on the medium, so that check and
//! repair know them.

pub mod layout;

use nacre_types::ObjectId;

use crate::layout::{INLINE_MAX, Tree};
use crate::store::Store;
use layout::{Item, Kind, Link, goes_on};

/// The registry that the root directory's onode names.
pub(crate) fn registry_of(store: &Store) -> Option<Link> {
    let mut bytes = [0; INLINE_MAX];
    let len = store.inline(ObjectId::ROOT, &mut bytes).ok()?;
    Link::decode_registry(&bytes[..len])
}

/// What an entry of a tree of an onode of this kind names, if anything; an error for what nobody
/// writes there.
pub(crate) fn named_by(
    kind: Kind,
    tree: Tree,
    key: &[u8],
    item: &[u8],
) -> Result<Option<Link>, ()> {
    let item = Item::decode(item).ok_or(())?;
    let below = tree == Tree::Entries && goes_on(key);
    let values = tree == Tree::Xattrs || matches!(kind, Kind::Object | Kind::Layer);
    match item {
        Item::Plain(_) if values && !below => Ok(None),
        Item::Plain(_) => Err(()),
        Item::Link(link) if (link.kind == Kind::Layer) != below => Err(()),
        Item::Link(link) if tree == Tree::Xattrs && link.kind != Kind::Value => Err(()),
        Item::Link(link) if kind.may_name(link.kind) => Ok(Some(link)),
        Item::Link(_) => Err(()),
    }
}

/// Whether a layer, or layers below it, may name onodes of kind `named` when what is above all of
/// them is of kind `above`.
pub(crate) fn may_stand_below(above: Kind, named: Kind) -> bool {
    above != Kind::Layer && above.may_name(named)
}
