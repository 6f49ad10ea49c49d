//! Every front end of a damaged pool: none may panic, and whoever refuses must say what is damaged
//! and where.

use std::collections::{BTreeSet, HashSet};

use nacre_fs::{
    AllocateMode, Cred, FileType, Fs, FsError, InodeRef, RenameFlags, Seek, WriteAt, XattrFlags,
};
use nacre_objects::Pool;
use nacre_store::Store;
use nacre_store::check::check;
use nacre_testkit::pool::PRIVATE;
use nacre_testkit::random::Random;
use nacre_types::FileOffset;
use nacre_volume::Volume;

use crate::canary::{self, Trust};
use crate::damage::{inflict, inflict_bytes, inflict_only};
use crate::keyed::{self, Judged, KnownObject};
use crate::place::{located, names_place};
use crate::pool::{Known, Prepared, pattern};
use crate::repair::Repair;
use crate::site::Damage;
use crate::tally::{Tally, find, see};

/// More inodes than a walk will meet in a pool that is not a graph.
const MAX_INODES: usize = 4000;
const MAX_ENTRIES: usize = 4000;
/// Of the many names in one directory, so many are looked at.
const NAMES_COMPARED: usize = 4;

/// What chooses the damage.
#[derive(Clone, Copy)]
enum Choice<'p> {
    Random,
    Only(&'p str),
    Bytes(&'p [u8], bool),
}

/// One case: a pool, damaged, and all that is tried on it.
pub struct Case<'p> {
    prepared: &'p Prepared,
    /// Makes the same damage again.
    origin: Random,
    random: Random,
    choice: Choice<'p>,
    trust: Trust,
    damage: Damage,
    /// Paths that the damage cannot have reached.
    untouched: Vec<(&'p [u8], &'p Known)>,
    /// Objects of collections that it cannot have reached.
    untouched_objects: Vec<&'p KnownObject>,
    tally: &'p mut Tally,
}

impl<'p> Case<'p> {
    /// The case with this number.
    pub fn new(
        prepared: &'p Prepared,
        seed: u64,
        number: u64,
        trust: Trust,
        tally: &'p mut Tally,
    ) -> Case<'p> {
        Case {
            prepared,
            origin: Random::new(seed, number),
            random: Random::new(!seed, number),
            choice: Choice::Random,
            trust,
            damage: Damage::default(),
            untouched: Vec::new(),
            untouched_objects: Vec::new(),
            tally,
        }
    }

    /// Damages the pool and tries everything. An error is a finding.
    pub fn run(mut self) -> Result<(), String> {
        let volume = self.prepared.volume()?;
        self.damage = self.inflict(&volume);
        self.run_on(volume)
    }

    /// As [`Case::run`] with one kind of damage, called `name`.
    pub fn run_only(mut self, name: &'p str) -> Result<bool, String> {
        let volume = self.prepared.volume()?;
        self.choice = Choice::Only(name);
        self.damage = self.inflict(&volume);
        if self.damage.ranges.is_empty() {
            return Ok(false);
        }
        self.run_on(volume).map(|()| true)
    }

    /// As [`Case::run`] with damage that `bytes` describe, with right checksums if `sealed`.
    pub fn run_bytes(mut self, bytes: &'p [u8], sealed: bool) -> Result<(), String> {
        let volume = self.prepared.volume()?;
        self.choice = Choice::Bytes(bytes, sealed);
        self.damage = self.inflict(&volume);
        self.run_on(volume)
    }

    fn inflict(&mut self, volume: &Volume) -> Damage {
        let random = &mut self.origin.clone();
        match self.choice {
            Choice::Random => inflict(self.prepared, volume, random),
            Choice::Only(name) => inflict_only(self.prepared, volume, random, name),
            Choice::Bytes(bytes, sealed) => {
                inflict_bytes(self.prepared, volume, random, bytes, sealed)
            }
        }
    }

    fn run_on(mut self, volume: Volume) -> Result<(), String> {
        self.tally.cases += 1;
        let hit = self.prepared.objects_in(&self.damage.ranges);
        if !self.damage.pervasive {
            self.untouched = untouched(self.prepared, &hit);
            self.untouched_objects = untouched_objects(self.prepared, &hit);
        }
        canary::trust(self.trust, self.prepared, &volume);
        let done = self.tour(volume, hit.contains(&None));
        let done = done.and_then(|refused| self.repair(refused));
        done.map_err(|why| format!("{why}\n    damage: {}", self.damage.text))
    }

    /// The pool once more, with the same damage, repaired.
    fn repair(&mut self, refused: bool) -> Result<(), String> {
        let volume = self.prepared.volume()?;
        self.inflict(&volume);
        if self.damage.forged {
            // Of two who claim a unit one keeps it, and nobody can tell which one is right.
            self.untouched.clear();
            self.untouched_objects.clear();
        }
        let mut repair = Repair {
            untouched: &self.untouched,
            untouched_objects: &self.untouched_objects,
            refused,
            random: &mut self.random,
            tally: self.tally,
        };
        repair.run(volume)
    }

    /// Goes through all front ends; true when attaching refuses.
    fn tour(&mut self, volume: Volume, global: bool) -> Result<bool, String> {
        let store = match Store::attach(volume, &PRIVATE) {
            Ok(store) => store,
            Err(error) => {
                self.tally.refused += 1;
                names_place(&error)?;
                return match global {
                    true => Ok(true),
                    false => Err(format!(
                        "attach refuses for the damage of one object: {error}"
                    )),
                };
            }
        };
        self.tally.quarantined += u64::from(!store.is_writable());
        self.notice(&store)?;
        let pool = Pool::of(store);
        self.compare_objects(&pool)?;
        let fs = Fs::new(pool.into_store());
        self.compare(&fs)?;
        self.walk(&fs)?;
        if fs.store().is_writable() {
            self.change(&fs)?;
        }
        let pool = Pool::of(fs.into_store());
        self.tour_objects(&pool)?;
        self.tally.problems += check(pool.store(), &mut |_| {}).problems.len() as u64;
        let detached = pool.into_store().detach();
        detached.map_err(|e| format!("detach: {e}"))?;
        Ok(false)
    }

    /// Checks the pool; damage that breaks a rule must be found.
    fn notice(&mut self, store: &Store) -> Result<(), String> {
        let report = check(store, &mut |_| {});
        let found = report.problems.len() + store.report().problems;
        self.tally.problems += found as u64;
        self.tally.unnoticed += u64::from(found == 0);
        if self.damage.must_report && (found == 0 || self.trust == Trust::Blind) {
            return Err("check finds nothing".into());
        }
        if store.report().problems > 0 && report.problems.is_empty() {
            return Err("the scan met problems that check does not find".into());
        }
        match report
            .problems
            .iter()
            .find(|p| p.object.is_none() && p.place.is_none())
        {
            Some(vague) if !vague.what.contains("marked") && !vague.what.contains("offset") => {
                Err(format!("check does not say where: {vague}"))
            }
            _ => Ok(()),
        }
    }

    /// Files that the damage did not touch read as before.
    fn compare(&mut self, fs: &Fs) -> Result<(), String> {
        for (path, known) in &self.untouched {
            let name = || String::from_utf8_lossy(path).into_owned();
            let seen = see(fs, path).map_err(|e| format!("undamaged {:?}: {e}", name()))?;
            if seen != known.seen.bytes {
                return Err(format!("undamaged {:?} reads otherwise", name()));
            }
            self.tally.compared += 1;
        }
        Ok(())
    }

    /// Objects that the damage did not touch are as before.
    fn compare_objects(&mut self, pool: &Pool) -> Result<(), String> {
        keyed::compare(pool, &self.untouched_objects)?;
        self.tally.compared += self.untouched_objects.len() as u64;
        Ok(())
    }

    /// Looks at all collections and objects, and changes some.
    fn tour_objects(&mut self, pool: &Pool) -> Result<(), String> {
        if self.prepared.keyed.is_empty() {
            return Ok(());
        }
        let tally = &mut *self.tally;
        let mut judge = |answer: nacre_objects::Result<()>| -> Judged {
            let Err(error) = answer else { return Ok(()) };
            tally.errors += 1;
            keyed::located(&error)
        };
        keyed::walk(pool, &mut judge)?;
        match pool.store().is_writable() {
            true => keyed::change(pool, &mut self.random, &mut judge),
            false => Ok(()),
        }
    }

    /// Looks at everything that can be reached.
    fn walk(&mut self, fs: &Fs) -> Result<(), String> {
        let mut todo = vec![fs.root()];
        let mut seen = HashSet::new();
        while let Some(node) = todo.pop() {
            if !seen.insert(node.ino) || seen.len() > MAX_INODES {
                continue;
            }
            let kind = self
                .try_one(fs.getattr(node))?
                .and_then(|stat| stat.file_type());
            self.look_at(fs, node)?;
            if kind != Some(FileType::Directory) {
                continue;
            }
            let mut names = Vec::new();
            let listed = fs.readdir(node, 0, &mut |group| {
                names.extend(group.iter().map(|entry| entry.name.to_vec()));
                names.len() < MAX_ENTRIES
            });
            self.try_one(listed)?;
            self.try_one(fs.path_of(node.ino))?;
            for name in names.iter().filter(|name| !name.starts_with(b".")) {
                let found = fs.lookup(&Cred::root(), node, name);
                todo.extend(self.try_one(found)?.map(|found| found.node));
            }
        }
        // Numbers that no entry names.
        for number in 0..600 {
            if let Ok(node) = fs.inode(nacre_types::Ino(number))
                && seen.insert(node.ino)
            {
                self.look_at(fs, node)?;
            }
        }
        Ok(())
    }

    fn look_at(&mut self, fs: &Fs, node: InodeRef) -> Result<(), String> {
        let mut buffer = vec![0; 16_384];
        let size = self.try_one(fs.size(node))?.unwrap_or(0);
        for at in [0, size / 2, size.saturating_sub(5000), u64::MAX >> 1] {
            let read = fs.read_noatime(node, FileOffset(at), buffer.as_mut_slice().into());
            self.try_one(read)?;
        }
        for what in [Seek::Data, Seek::Hole] {
            self.try_one(fs.seek(node, what, 0))?;
            self.try_one(fs.seek(node, what, size / 2))?;
        }
        self.try_one(fs.readlink(node, &mut buffer))?;
        let listed = self.try_one(fs.list_xattr(&Cred::root(), node, &mut buffer))?;
        let names = buffer[..listed.unwrap_or(0).min(buffer.len())].to_vec();
        for name in names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            let mut value = vec![0; 70_000];
            self.try_one(fs.get_xattr(&Cred::root(), node, name, &mut value))?;
        }
        Ok(())
    }

    /// Changes damaged and undamaged places.
    fn change(&mut self, fs: &Fs) -> Result<(), String> {
        let paths: Vec<&[u8]> = self.prepared.known.keys().map(Vec::as_slice).collect();
        for step in 0..24 {
            let path = paths[self.random.below(paths.len() as u64) as usize];
            let Some(node) = self.try_one(find(fs, path))? else {
                continue;
            };
            let other = paths[self.random.below(paths.len() as u64) as usize];
            let other = self.try_one(find(fs, other))?.unwrap_or(fs.root());
            let parent = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
            let dir = self
                .try_one(find(fs, &path[..parent]))?
                .unwrap_or(fs.root());
            let name = path[parent..].strip_prefix(b"/").unwrap_or(&path[parent..]);
            self.change_inode(fs, node, other)?;
            self.change_names(fs, dir, name, node, other, step)?;
        }
        Ok(())
    }

    fn change_inode(&mut self, fs: &Fs, node: InodeRef, other: InodeRef) -> Result<(), String> {
        let cred = &Cred::root();
        let at = self.random.below(1 << 22);
        let bytes = pattern(at, 1 + self.random.below(9000) as usize);
        if self.try_one(fs.pin(node))?.is_none() {
            return Ok(());
        }
        match self.random.below(8) {
            0 => drop(self.try_one(fs.write(cred, node, WriteAt::Append, bytes[..].into()))?),
            1 | 2 => {
                let at = WriteAt::Offset(FileOffset(at));
                self.try_one(fs.write(cred, node, at, bytes[..].into()))?;
            }
            3 => drop(self.try_one(fs.set_size(cred, node, at))?),
            4 => {
                let punch = AllocateMode::PunchHole;
                self.try_one(fs.allocate(cred, node, punch, at / 2, at))?;
            }
            5 => drop(self.try_one(fs.clone_range(cred, (other, 0), (node, 0), 0))?),
            6 => {
                let flags = XattrFlags::empty();
                let name = b"user.attribute 7";
                self.try_one(fs.set_xattr(cred, node, name, &bytes, flags))?;
                self.try_one(fs.remove_xattr(cred, node, b"user.long"))?;
            }
            _ => drop(self.try_one(fs.chmod(cred, node, 0o755))?),
        }
        self.try_one(fs.fsync(node))?;
        self.try_one(fs.unpin(node.ino)).map(drop)
    }

    fn change_names(
        &mut self,
        fs: &Fs,
        dir: InodeRef,
        name: &[u8],
        node: InodeRef,
        other: InodeRef,
        step: u64,
    ) -> Result<(), String> {
        let cred = &Cred::root();
        let fresh = format!(
            "fresh {step} {}",
            "f".repeat(self.random.below(200) as usize)
        );
        let fresh = fresh.as_bytes();
        match self.random.below(7) {
            0 => drop(self.try_one(fs.unlink(cred, dir, name))?),
            1 => drop(self.try_one(fs.rmdir(cred, dir, name))?),
            2 => drop(self.try_one(fs.mkdir(cred, dir, fresh, 0o700))?),
            3 => drop(self.try_one(fs.link(cred, node, dir, fresh))?),
            4 => {
                let flags = RenameFlags::empty();
                self.try_one(fs.rename(cred, dir, name, other, fresh, flags))?;
            }
            5 => {
                let made = self.try_one(fs.create(cred, dir, fresh, 0o600))?;
                if let Some(made) = made {
                    self.try_one(fs.unpin(made.ino))?;
                }
            }
            _ => drop(self.try_one(fs.symlink(cred, dir, fresh, name))?),
        }
        Ok(())
    }

    /// An error is fine if it says what is damaged and where.
    fn try_one<T>(&mut self, result: nacre_fs::Result<T>) -> Result<Option<T>, String> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(FsError::Corrupt(text)) => {
                self.tally.errors += 1;
                located(&text).map(|()| None)
            }
            Err(_) => {
                self.tally.errors += 1;
                Ok(None)
            }
        }
    }
}

/// Paths none of whose objects was hit.
fn untouched<'p>(
    prepared: &'p Prepared,
    hit: &BTreeSet<Option<u64>>,
) -> Vec<(&'p [u8], &'p Known)> {
    let mut wide = 0;
    let mut paths = Vec::new();
    for (path, known) in &prepared.known {
        wide += usize::from(path.starts_with(b"wide/"));
        let few = !path.starts_with(b"wide/") || wide <= NAMES_COMPARED;
        if few && !known.objects.iter().any(|id| hit.contains(&Some(*id))) {
            paths.push((path.as_slice(), known));
        }
    }
    paths
}

/// Objects none of whose onodes was hit.
fn untouched_objects<'p>(
    prepared: &'p Prepared,
    hit: &BTreeSet<Option<u64>>,
) -> Vec<&'p KnownObject> {
    let is_hit = |id: &u64| hit.contains(&Some(*id));
    let all = prepared.keyed.iter();
    all.filter(|object| !object.onodes.iter().any(is_hit))
        .collect()
}
