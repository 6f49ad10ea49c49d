//! Looking up and reading, without locks: each answer is true of one moment between two
//! transactions.

use std::ops::{ControlFlow, Range};

use nacre_store::keyed::layout::{
    ATTRIBUTE, HEADER_KEY, Item, LONG_KEY_MAX, LONG_VALUE_MAX, Link, PART_MAX, goes_on, split_key,
};
use nacre_store::{Extent, StoreError, Tree};
use nacre_types::{FileOffset, ObjectId};

use crate::error::{Error, Result, shown};
use crate::pool::{Pool, Stat};
use crate::transaction::{check_attribute, check_key};

/// How often a look-up is repeated because what it found was removed within a microsecond.
const TRIES: usize = 100;

/// Is given keys and values; says whether to go on.
type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>> + 'v;

/// Why a look-up ends early.
enum Stop {
    /// What was found is gone: look again.
    Stale(ObjectId),
    Failed(Error),
}

type Found<T> = std::result::Result<T, Stop>;

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        match error {
            StoreError::NoSuchObject(id) => Stop::Stale(id),
            other => Stop::Failed(other.into()),
        }
    }
}

impl Pool {
    /// Names of collections from `from` on, in order, at most `limit`.
    pub fn collections(&self, from: &[u8], limit: usize) -> Result<Vec<Vec<u8>>> {
        match self.registry()? {
            None => Ok(Vec::new()),
            Some(registry) => self.keys(|| Ok(registry), from, limit),
        }
    }

    /// Whether a collection exists.
    pub fn has_collection(&self, collection: &[u8]) -> Result<bool> {
        self.again(|| match self.find_collection(collection) {
            Ok(link) => self.still(link).map(|()| true),
            Err(Stop::Failed(Error::NoSuchCollection(_))) => Ok(false),
            Err(other) => Err(other),
        })
    }

    /// Names of objects of a collection from `from` on, in order, at most `limit`.
    pub fn objects(&self, collection: &[u8], from: &[u8], limit: usize) -> Result<Vec<Vec<u8>>> {
        self.keys(|| self.find_collection(collection), from, limit)
    }

    /// Whether an object exists, in a collection that does.
    pub fn exists(&self, collection: &[u8], object: &[u8]) -> Result<bool> {
        self.again(|| match self.find(collection, object) {
            Ok(_) => Ok(true),
            Err(Stop::Failed(Error::NoSuchObject(..))) => Ok(false),
            Err(other) => Err(other),
        })
    }

    /// What an object is.
    pub fn stat(&self, collection: &[u8], object: &[u8]) -> Result<Stat> {
        self.again(|| {
            let link = self.find(collection, object)?;
            self.stable(link, || {
                let attrs = self.store.attrs(link.object)?;
                let header = self.raw(link, Tree::Xattrs, HEADER_KEY)?.is_some();
                Ok(Stat {
                    size: attrs.size,
                    attributes: attrs.xattrs.saturating_sub(u64::from(header)),
                    has_omap: attrs.has_entries,
                })
            })
        })
    }

    /// Reads bytes of an object from `offset` on; returns how many there were.
    pub fn read(
        &self,
        collection: &[u8],
        object: &[u8],
        offset: u64,
        to: &mut [u8],
    ) -> Result<usize> {
        let read = self.read_with_size(collection, object, offset, to);
        read.map(|(len, _)| len)
    }

    /// As [`Pool::read`]; returns also how many bytes the object had at that moment.
    pub fn read_with_size(
        &self,
        collection: &[u8],
        object: &[u8],
        offset: u64,
        to: &mut [u8],
    ) -> Result<(usize, u64)> {
        self.again(|| self.read_link(self.find(collection, object)?, offset, to))
    }

    /// Where bytes of an object lie that were written, within `range`, in order, at most `limit`
    /// stretches; all else reads as zeros.
    pub fn extents(
        &self,
        collection: &[u8],
        object: &[u8],
        range: Range<u64>,
        limit: usize,
    ) -> Result<Vec<Range<u64>>> {
        self.again(|| {
            let link = self.find(collection, object)?;
            let size = self.stable(link, || Ok(self.store.attrs(link.object)?.size))?;
            let end = range.end.min(size);
            let mut found: Vec<Range<u64>> = Vec::new();
            if limit == 0 || range.start >= end {
                return Ok(found);
            }
            let mut visit = |extent: Extent| {
                let part = extent.offset.max(range.start)..(extent.offset + extent.len).min(end);
                let full = found.len() == limit;
                match found.last_mut() {
                    Some(last) if last.end == part.start => last.end = part.end,
                    _ if full => return ControlFlow::Break(()),
                    _ => found.push(part),
                }
                ControlFlow::Continue(())
            };
            self.store
                .extents(link.object, range.start, end, &mut visit)?;
            self.still(link)?;
            Ok(found)
        })
    }

    /// The value of an attribute; [`Error::NoSuchKey`] if there is none.
    pub fn attribute(&self, collection: &[u8], object: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        check_attribute(name).map_err(Error::Invalid)?;
        let key = [&[ATTRIBUTE], name].concat();
        let found = self.again(|| {
            let link = self.find(collection, object)?;
            self.value(link, Tree::Xattrs, &key)
        })?;
        found.ok_or_else(|| Error::NoSuchKey("attribute", shown(name)))
    }

    /// All attributes of an object, by name.
    pub fn attributes(&self, collection: &[u8], object: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.again(|| {
            let link = self.find(collection, object)?;
            self.stable(link, || {
                let mut found = Vec::new();
                let mut items = Vec::new();
                self.store.tree_scan(
                    link.object,
                    Tree::Xattrs,
                    &[ATTRIBUTE],
                    &mut |key, item, _| {
                        let Some(name) = key.strip_prefix(&[ATTRIBUTE]) else {
                            return ControlFlow::Break(());
                        };
                        items.push((name.to_vec(), item.to_vec()));
                        ControlFlow::Continue(())
                    },
                )?;
                for (name, item) in items {
                    let value = self.resolve(link, &item)?;
                    found.push((name, value));
                }
                Ok(found)
            })
        })
    }

    /// The value of an omap key; `None` if there is none.
    pub fn omap(&self, collection: &[u8], object: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>> {
        check_key(key).map_err(Error::Invalid)?;
        self.again(|| {
            let link = self.find(collection, object)?;
            self.stable(link, || match self.item(link, key)? {
                Some(item) => self.resolve(link, &item).map(Some),
                None => Ok(None),
            })
        })
    }

    /// The omap's header; empty if there is none.
    pub fn omap_header(&self, collection: &[u8], object: &[u8]) -> Result<Vec<u8>> {
        let found = self.again(|| {
            let link = self.find(collection, object)?;
            self.value(link, Tree::Xattrs, HEADER_KEY)
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Keys and values of an omap from `from` on, in order, at most `limit`.
    pub fn omap_range(
        &self,
        collection: &[u8],
        object: &[u8],
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.pairs((collection, object), limit, |link, visit| {
            self.scan(link, from, &mut Vec::new(), visit)
        })
    }

    /// Keys and values of an omap, at most `limit`, in the order in which `scan` visits them.
    fn pairs(
        &self,
        (collection, object): (&[u8], &[u8]),
        limit: usize,
        scan: impl Fn(Link, &mut Visit<'_>) -> Found<ControlFlow<()>>,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.again(|| {
            let link = self.find(collection, object)?;
            self.stable(link, || {
                let mut found = Vec::new();
                if limit == 0 {
                    return Ok(found);
                }
                let mut visit =
                    |key: &[u8], item: &[u8]| self.add_pair(link, key, item, limit, &mut found);
                let _end = scan(link, &mut visit)?;
                Ok(found)
            })
        })
    }

    /// Adds a key of an omap and its value; says whether there is room for more.
    fn add_pair(
        &self,
        of: Link,
        key: &[u8],
        item: &[u8],
        limit: usize,
        pairs: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<ControlFlow<()>> {
        match self.resolve(of, item) {
            Ok(value) => pairs.push((key.to_vec(), value)),
            Err(Stop::Failed(error)) => return Err(error),
            // Its owner stays as it is meanwhile: it is not gone, but damaged.
            Err(Stop::Stale(value)) => return Err(Error::Damaged(value)),
        }
        Ok(match pairs.len() < limit {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    }

    /// Keys and values of an omap that are before `end`, all if that is empty, from the last one
    /// on backwards, at most `limit`.
    pub fn omap_back(
        &self,
        collection: &[u8],
        object: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let end = Some(end).filter(|end| !end.is_empty());
        self.pairs((collection, object), limit, |link, visit| {
            self.scan_back(link, end, &mut Vec::new(), visit)
        })
    }

    /// The collection of a name.
    pub(crate) fn collection_link(&self, name: &[u8]) -> Result<Link> {
        self.repeated(|| {
            let link = self.find_collection(name)?;
            self.still(link).map(|()| link)
        })
    }

    /// Whether what a link names exists.
    pub(crate) fn is_there(&self, link: Link) -> bool {
        self.still(link).is_ok()
    }

    /// As [`Pool::repeated`], for who reads. Who is disturbed often takes a lock, which a forked
    /// child would hold in its parent's name.
    fn again<T>(&self, look: impl FnMut() -> Found<T>) -> Result<T> {
        self.refuse_to_forked()?;
        self.repeated(look)
    }

    /// Repeats a look-up while what it finds is removed meanwhile.
    fn repeated<T>(&self, mut look: impl FnMut() -> Found<T>) -> Result<T> {
        let (mut gone, mut met) = (ObjectId::ROOT, None);
        for tries in 0..TRIES {
            match look() {
                Ok(found) => return Ok(found),
                Err(Stop::Failed(error)) if !self.repairs(&error, &mut met) => {
                    return Err(self.blamed(error));
                }
                Err(Stop::Failed(_)) => {}
                Err(Stop::Stale(object)) => {
                    gone = object;
                    if tries >= TRIES / 2 {
                        // What is gone for so long may be damaged.
                        self.store.repair_object_copies(gone);
                    }
                }
            }
            self.forget_collections();
            std::thread::yield_now();
        }
        Err(self.blamed(Error::Damaged(gone)))
    }

    /// The collection of a name, which may be gone: whoever uses it compares its generation.
    fn find_collection(&self, name: &[u8]) -> Found<Link> {
        let missing = || Error::NoSuchCollection(shown(name));
        if let Some(link) = self.known_collection(name) {
            return Ok(link);
        }
        check_key(name).map_err(Error::Invalid)?;
        let registry = self.registry()?.ok_or_else(missing)?;
        match self.item(registry, name)? {
            Some(item) => {
                let link = link_of(registry.object, &item)?;
                self.remember_collection(name, link);
                Ok(link)
            }
            None => Err(missing().into()),
        }
    }

    fn find(&self, collection: &[u8], object: &[u8]) -> Found<Link> {
        check_key(object).map_err(Error::Invalid)?;
        let within = self.find_collection(collection)?;
        match self.item(within, object)? {
            Some(item) => Ok(link_of(within.object, &item)?),
            None => Err(Error::NoSuchObject(shown(collection), shown(object)).into()),
        }
    }

    /// Runs `read` on an onode that still is what the link names, and stays so.
    fn stable<T>(&self, link: Link, mut read: impl FnMut() -> Found<T>) -> Found<T> {
        self.store.read_stable(link.object, || {
            // What a disturbed try finds is thrown away, errors too.
            match self.store.generation(link.object) {
                Ok(generation) if generation == link.generation => Ok(read()),
                Ok(_) | Err(StoreError::NoSuchObject(_)) => Ok(Err(Stop::Stale(link.object))),
                Err(error) => Err(error),
            }
        })?
    }

    fn raw(&self, link: Link, tree: Tree, key: &[u8]) -> Found<Option<Vec<u8>>> {
        let mut item = Vec::new();
        let found = self.store.tree_get(link.object, tree, key, &mut item)?;
        Ok(found.then_some(item))
    }

    /// What a key of any length stands for in an onode's entry tree and the layers below it.
    fn item(&self, within: Link, key: &[u8]) -> Found<Option<Vec<u8>>> {
        let (mut link, mut key) = (within, key);
        loop {
            let (part, rest) = split_key(key);
            let found = self.stable(link, || self.raw(link, Tree::Entries, &part))?;
            match (found, rest) {
                (Some(item), Some(rest)) => (link, key) = (link_of(link.object, &item)?, rest),
                (found, _) => return Ok(found),
            }
        }
    }

    /// A value of a tree, whatever its length.
    fn value(&self, link: Link, tree: Tree, key: &[u8]) -> Found<Option<Vec<u8>>> {
        self.stable(link, || match self.raw(link, tree, key)? {
            Some(item) => self.resolve(link, &item).map(Some),
            None => Ok(None),
        })
    }

    /// The bytes that an item stands for.
    fn resolve(&self, of: Link, item: &[u8]) -> Found<Vec<u8>> {
        match Item::decode(item) {
            Some(Item::Plain(bytes)) => Ok(bytes.to_vec()),
            Some(Item::Link(link)) => {
                let size = self.stable(link, || Ok(self.store.attrs(link.object)?.size))?;
                // No value has holes: what is longer than the pool is damaged.
                if size > (LONG_VALUE_MAX as u64).min(self.store.volume().len()) {
                    return Err(Error::Damaged(link.object).into());
                }
                let mut bytes = vec![0; size as usize];
                let (len, _) = self.read_link(link, 0, &mut bytes)?;
                bytes.truncate(len);
                Ok(bytes)
            }
            None => Err(Error::Damaged(of.object).into()),
        }
    }

    /// How many bytes were read, and how many the object had.
    fn read_link(&self, link: Link, offset: u64, to: &mut [u8]) -> Found<(usize, u64)> {
        let same = |head: &nacre_store::FileHead| match head.generation == link.generation
            && head.mode != 0
        {
            true => Ok(()),
            false => Err(Stop::Stale(link.object)),
        };
        let read = self
            .store
            .read_parts_checked(link.object, FileOffset(offset), to.into(), same);
        read.map(|(head, len)| (len, head.size))
    }

    /// Keys from `from` on. What is removed meanwhile, as layers of long keys are, ends a try, not
    /// the list: it goes on behind the last key.
    fn keys(
        &self,
        within: impl Fn() -> Found<Link>,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        while !self.again(|| self.more_keys(within()?, from, limit, &mut keys))? {}
        Ok(keys)
    }

    /// Adds keys; whether these are all. Fails if it finds none since something was removed.
    fn more_keys(
        &self,
        within: Link,
        from: &[u8],
        limit: usize,
        keys: &mut Vec<Vec<u8>>,
    ) -> Found<bool> {
        let known = keys.len();
        if known >= limit {
            return self.still(within).map(|()| true);
        }
        let from = match keys.last() {
            Some(last) => [last, &[0][..]].concat(),
            None => from.to_vec(),
        };
        let scanned = self.scan(within, &from, &mut Vec::new(), &mut |key, _| {
            keys.push(key.to_vec());
            Ok(match keys.len() < limit {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            })
        });
        match scanned {
            Err(Stop::Stale(_)) if keys.len() > known => Ok(false),
            scanned => scanned.map(|_| true),
        }
    }

    /// Visits all keys from `from` on in order; `before` is what layers above hold of them.
    fn scan(
        &self,
        within: Link,
        from: &[u8],
        before: &mut Vec<u8>,
        visit: &mut Visit<'_>,
    ) -> Found<ControlFlow<()>> {
        if from.len() + before.len() > LONG_KEY_MAX + 1 || before.len() > LONG_KEY_MAX {
            return Err(match before.is_empty() {
                true => Error::Invalid("a key may have 64 KiB at most").into(),
                false => Error::Damaged(within.object).into(),
            });
        }
        let (part, rest) = split_key(from);
        let mut outcome: Found<ControlFlow<()>> = Ok(ControlFlow::Continue(()));
        let scanned =
            self.store
                .tree_scan(within.object, Tree::Entries, &part, &mut |key, item, _| {
                    outcome = self.visit_key(
                        within,
                        (key, item),
                        before,
                        visit,
                        |layer, before, visit| {
                            let rest = rest.filter(|_| *key == *part).unwrap_or_default();
                            self.scan(layer, rest, before, visit)
                        },
                    );
                    outcome_of(&outcome)
                });
        scanned?;
        self.still(within)?;
        outcome
    }

    /// As [`Pool::scan`], of the keys before `end`, from the last one on backwards.
    fn scan_back(
        &self,
        within: Link,
        end: Option<&[u8]>,
        before: &mut Vec<u8>,
        visit: &mut Visit<'_>,
    ) -> Found<ControlFlow<()>> {
        if end.map_or(0, <[u8]>::len) + before.len() > LONG_KEY_MAX + 1 {
            return Err(match before.is_empty() {
                true => Error::Invalid("a key may have 64 KiB at most").into(),
                false => Error::Damaged(within.object).into(),
            });
        }
        let (part, rest) = end.map(split_key).unzip();
        // The layer that `end` leads to has some before it.
        if let (Some(part), Some(Some(rest))) = (&part, rest)
            && let Some(item) = self.raw(within, Tree::Entries, part)?
        {
            let layer = |layer, before: &mut _, visit: &mut _| {
                self.scan_back(layer, Some(rest), before, visit)
            };
            if self
                .visit_key(within, (part, &item), before, visit, layer)?
                .is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        let mut outcome: Found<ControlFlow<()>> = Ok(ControlFlow::Continue(()));
        let scanned = self.store.tree_scan_back(
            within.object,
            Tree::Entries,
            part.as_deref(),
            &mut |key, item, _| {
                let layer = |layer, before: &mut _, visit: &mut _| {
                    self.scan_back(layer, None, before, visit)
                };
                outcome = self.visit_key(within, (key, item), before, visit, layer);
                outcome_of(&outcome)
            },
        );
        scanned?;
        self.still(within)?;
        outcome
    }

    /// Visits a key of a tree, or the layer that it leads to; `before` is what layers above hold.
    fn visit_key<'v>(
        &self,
        within: Link,
        (key, item): (&[u8], &[u8]),
        before: &mut Vec<u8>,
        visit: &mut Visit<'v>,
        below: impl FnOnce(Link, &mut Vec<u8>, &mut Visit<'v>) -> Found<ControlFlow<()>>,
    ) -> Found<ControlFlow<()>> {
        let known = before.len();
        let outcome = match goes_on(key) {
            false => {
                before.extend_from_slice(key);
                visit(before, item).map_err(Stop::Failed)
            }
            true => {
                before.extend_from_slice(&key[..PART_MAX]);
                let layer = link_of(within.object, item).map_err(Stop::Failed);
                layer.and_then(|layer| below(layer, before, visit))
            }
        };
        before.truncate(known);
        outcome
    }

    /// The onode still is what the link names.
    fn still(&self, link: Link) -> Found<()> {
        match self.store.generation(link.object) {
            Ok(generation) if generation == link.generation => Ok(()),
            Ok(_) | Err(StoreError::NoSuchObject(_)) => Err(Stop::Stale(link.object)),
            Err(error) => Err(Stop::Failed(error.into())),
        }
    }
}

/// Whether a visit of a tree goes on.
fn outcome_of(outcome: &Found<ControlFlow<()>>) -> ControlFlow<()> {
    match outcome {
        Ok(go_on) => *go_on,
        Err(_) => ControlFlow::Break(()),
    }
}

/// What an entry of the tree of `of` names.
pub(crate) fn link_of(of: ObjectId, item: &[u8]) -> Result<Link> {
    match Item::decode(item) {
        Some(Item::Link(link)) => Ok(link),
        _ => Err(Error::Damaged(of)),
    }
}

#[cfg(test)]
mod tests {
    use nacre_testkit::damage::two_copies;
    use nacre_types::ObjectId;

    use crate::{Error, OpenOptions, Pool, Transaction};

    /// As if somebody else repaired it between the look and the repair.
    #[test]
    fn what_was_damaged_and_is_whole_is_looked_at_once_more() {
        let files = two_copies();
        let pool = Pool::open(files.file("a"), OpenOptions::default()).unwrap();
        let damaged = |id| Error::Damaged(ObjectId(id));
        // Each of several things was.
        let mut looks = 0;
        let found = pool.repeated(|| {
            looks += 1;
            match looks < 5 {
                true => Err(damaged(looks).into()),
                false => Ok(looks),
            }
        });
        assert_eq!(found.unwrap(), 5);
        // What stays damaged is an error.
        let mut looks = 0;
        let found = pool.repeated::<()>(|| {
            looks += 1;
            Err(damaged(1).into())
        });
        assert!(matches!(found, Err(Error::Damaged(ObjectId(1)))));
        assert_eq!(looks, 2);
        pool.close().unwrap();
    }

    #[test]
    fn a_transaction_that_met_what_is_whole_now_is_done() {
        let files = two_copies();
        let pool = Pool::open(files.file("a"), OpenOptions::default()).unwrap();
        let mut t = Transaction::new();
        t.create_collection(b"c");
        pool.run_again(Error::Damaged(ObjectId::ROOT), &t).unwrap();
        assert!(pool.has_collection(b"c").unwrap());
        pool.close().unwrap();
    }
}
