//! Executing the operations of a transaction in one transaction of the store.

mod few;
mod keys;
mod objects;
mod values;

use nacre_store::keyed::layout::{Kind, Link};
use nacre_store::{ObjectGuard, StoreError, Tx, WriteMode};
use nacre_types::ObjectId;
use smallvec::SmallVec;

use crate::error::{Error, Result, shown};
use crate::pool::{Pool, new_object};
use crate::read::link_of;
use crate::transaction::{Name, Operation, Transaction, accepted, at};
use few::{ByName, Few};

/// A transaction under way. Locks are taken in this order: registry, collections by number, then
/// what only the holder of a collection's lock changes, in any order.
pub(crate) struct Run<'s, 't> {
    // Ends before the locks go.
    tx: Tx<'s>,
    pool: &'s Pool,
    guards: Guards<'s>,
    held: Few<ObjectId>,
    /// Onodes whose trees differ from the medium.
    changed: Few<ObjectId>,
    registry: Option<Link>,
    collections: ByName<'t, Link>,
    /// Memory for values.
    item: Vec<u8>,
    /// The object that was found last: several operations in a row change the same one as a rule.
    found: Option<(Name<'t>, Link)>,
}

/// Few transactions change more than four objects.
type Guards<'s> = SmallVec<[ObjectGuard<'s>; 4]>;

impl Pool {
    /// Does all operations or none. Durable on return, on a disk too; an error means that nothing
    /// happened, but for a failure of the device: then the operations may be done, and not durable.
    pub fn commit(&self, transaction: &Transaction<'_>) -> Result<()> {
        accepted(transaction)?;
        self.refuse_to_forked()?;
        if transaction.is_empty() {
            return Ok(());
        }
        self.look_at_copies();
        if let Err(error) = self.run(transaction) {
            self.run_again(error, transaction)?;
        }
        // The transaction is done, whatever becomes of this; who comes next hears of a failure.
        let _ = self.store.gather_some();
        Ok(())
    }

    /// Does once more what found no room, or damage, if something helps.
    #[cold]
    pub(crate) fn run_again(&self, mut error: Error, transaction: &Transaction<'_>) -> Result<()> {
        let mut met = None;
        while is_full(&error) && self.store.make_room()? || self.repairs(&error, &mut met) {
            match self.run(transaction) {
                Ok(()) => return Ok(()),
                Err(other) => error = other,
            }
        }
        Err(self.blamed(error))
    }

    fn run(&self, transaction: &Transaction<'_>) -> Result<()> {
        let mut run = self.begin(transaction)?;
        for (number, operation) in transaction.operations.iter().enumerate() {
            run.execute(operation).map_err(|error| at(number, error))?;
        }
        let Run { tx, guards, .. } = run;
        tx.commit()?;
        drop(guards);
        if self.store.mode() == WriteMode::Cached {
            self.store.commit()?;
        }
        Ok(())
    }

    /// Takes the locks of the collections that a transaction uses.
    fn begin<'t>(&self, transaction: &'t Transaction<'_>) -> Result<Run<'_, 't>> {
        let operations = &transaction.operations;
        let changes_registry = operations.iter().any(Operation::changes_registry);
        let registry = match changes_registry && self.store.is_writable() {
            true => Some(self.make_registry()?),
            false => self.registry()?,
        };
        let mut guards = Guards::new();
        if let Some(registry) = registry.filter(|_| changes_registry) {
            guards.push(self.store.lock(registry.object)?);
        }
        let mut names = ByName::default();
        for operation in operations {
            for name in operation.collections().into_iter().flatten() {
                names.insert(name, ());
            }
        }
        let (collections, locked) = self.lock_collections(&names)?;
        guards.extend(locked);
        let mut tx = self.store.begin()?;
        tx.allow_any_size();
        tx.place_entries();
        Ok(Run {
            tx,
            pool: self,
            held: guards.iter().map(ObjectGuard::id).collect(),
            guards,
            changed: Few::default(),
            registry,
            collections,
            item: Vec::new(),
            found: None,
        })
    }

    /// Locks those of these collections that exist. They do as long as their locks are held.
    fn lock_collections<'t>(
        &self,
        names: &ByName<'t, ()>,
    ) -> Result<(ByName<'t, Link>, Guards<'_>)> {
        loop {
            let mut found = ByName::default();
            for (name, ()) in names.iter() {
                match self.collection_link(name) {
                    Ok(link) => drop(found.insert(name, link)),
                    Err(Error::NoSuchCollection(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            let ids: SmallVec<[ObjectId; 4]> = found.iter().map(|(_, link)| link.object).collect();
            let guards = self.store.lock_many(&ids)?;
            // A collection keeps its name as long as it exists.
            if found.iter().all(|(_, link)| self.is_there(link)) {
                return Ok((found, guards));
            }
        }
    }
}

impl<'t> Run<'_, 't> {
    fn execute(&mut self, operation: &'t Operation<'_>) -> Result<()> {
        match operation {
            Operation::CreateCollection(name) => self.create_collection(name),
            Operation::RemoveCollection(name) => self.remove_collection(name),
            Operation::Rename(from, to) => self.rename(from, to),
            Operation::Split(from, to, which) => {
                self.move_objects(from, to, &|key| which.select(key))
            }
            Operation::Merge(from, to) => {
                if from == to {
                    return Err(Error::Invalid("a collection cannot be merged into itself"));
                }
                self.move_objects(from, to, &|_| true)?;
                self.remove_collection(from)
            }
            Operation::IfExists(inner) => match inner.object() {
                Some(object) if self.find(object)?.is_none() => Ok(()),
                _ => self.execute(inner),
            },
            other => self.change_object(other),
        }
    }

    fn collection(&self, name: &[u8]) -> Result<Link> {
        let known = self.collections.get(name);
        known.ok_or_else(|| Error::NoSuchCollection(shown(name)))
    }

    /// Locks what the transaction may change, once.
    fn lock(&mut self, id: ObjectId) -> Result<()> {
        if !self.tx.is_created(id) && self.held.insert(id) {
            self.guards.push(self.pool.store.lock(id)?);
        }
        Ok(())
    }

    /// A link that the holder of the lock above it has found names what exists.
    fn follow(&mut self, of: ObjectId, item: &[u8], wanted: Kind) -> Result<Link> {
        let link = link_of(of, item)?;
        self.lock(link.object)?;
        let store = &self.pool.store;
        let is_created = self.tx.is_created(link.object);
        if !is_created && store.generation(link.object)? != link.generation {
            // One of both is damaged: the other one is repaired by who hears of the error.
            store.repair_object_copies(of);
            return Err(Error::Damaged(link.object));
        }
        match link.kind == wanted {
            true => Ok(link),
            false => Err(Error::Damaged(of)),
        }
    }

    fn create_onode(&mut self, kind: Kind) -> Result<Link> {
        let object = self.tx.create(&new_object(kind))?;
        self.changed.insert(object);
        Ok(Link {
            object,
            generation: self.tx.generation(object)?,
            kind,
        })
    }

    fn create_collection(&mut self, name: &'t [u8]) -> Result<()> {
        let registry = self.registry.ok_or(StoreError::ReadOnly)?;
        if self.collections.get(name).is_some() {
            return Err(Error::Exists("collection", shown(name)));
        }
        let link = self.create_onode(Kind::Collection)?;
        self.insert_key(registry.object, name, &link.encode())?;
        self.collections.insert(name, link);
        Ok(())
    }

    fn remove_collection(&mut self, name: &[u8]) -> Result<()> {
        let registry = self.registry.ok_or(StoreError::ReadOnly)?;
        self.found = None;
        let link = self.collection(name)?;
        if !self.is_empty(link.object)? {
            return Err(Error::NotEmpty(shown(name)));
        }
        self.remove_key(registry.object, name)?;
        self.tx.remove(link.object)?;
        self.collections.remove(name);
        Ok(())
    }

    fn find(&mut self, target: impl Into<Name<'t>>) -> Result<Option<Link>> {
        let target = target.into();
        if let Some((known, link)) = self.found
            && known == target
        {
            return Ok(Some(link));
        }
        let collection = self.collection(target.collection)?;
        let Some(item) = self.find_link(collection.object, target.object)? else {
            return Ok(None);
        };
        let link = self.follow(collection.object, &item, Kind::Object)?;
        self.found = Some((target, link));
        Ok(Some(link))
    }

    fn existing(&mut self, target: impl Into<Name<'t>>) -> Result<Link> {
        let target = target.into();
        self.find(target)?.ok_or_else(|| target.missing())
    }

    fn find_or_create(&mut self, target: impl Into<Name<'t>>) -> Result<Link> {
        let target = target.into();
        match self.find(target)? {
            Some(link) => Ok(link),
            None => self.create_object(target),
        }
    }

    fn create_object(&mut self, target: impl Into<Name<'t>>) -> Result<Link> {
        let target = target.into();
        let collection = self.collection(target.collection)?;
        let link = self.create_onode(Kind::Object)?;
        self.insert_key(collection.object, target.object, &link.encode())?;
        Ok(link)
    }

    fn rename(&mut self, from: impl Into<Name<'t>>, to: impl Into<Name<'t>>) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        let link = self.existing(from)?;
        self.found = None;
        if self.find(to)?.is_some() {
            return Err(Error::Exists("object", shown(to.object)));
        }
        let (source, target) = (
            self.collection(from.collection)?,
            self.collection(to.collection)?,
        );
        self.remove_key(source.object, from.object)?;
        self.insert_key(target.object, to.object, &link.encode())?;
        Ok(())
    }

    fn move_objects(
        &mut self,
        from: &[u8],
        to: &[u8],
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<()> {
        self.found = None;
        let (source, target) = (self.collection(from)?, self.collection(to)?);
        let mut next = Vec::new();
        while let Some((key, item)) = self.next_key(source.object, &next)? {
            next.clear();
            next.extend_from_slice(&key);
            next.push(0);
            if !wanted(&key) || source == target {
                continue;
            }
            if self.find_key(target.object, &key)?.is_some() {
                return Err(Error::Exists("object", shown(&key)));
            }
            self.remove_key(source.object, &key)?;
            self.insert_key(target.object, &key, &item)?;
        }
        Ok(())
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error.cause(), Error::Store(StoreError::NoSpace))
}
