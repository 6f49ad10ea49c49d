//! Patch plans kept between processes: disassembling a libc takes longer than a program may take to
//! start.
//!
//! All plans of a user are in one file of bounded size in a folder of the user's own. It holds only
//! where calls are: whoever loads a plan proves each site again from the text that it has mapped,
//! and makes the code from there.

use nacre_runtime::{Folder, one_user};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io;
use std::cell::OnceCell;
use std::os::unix::ffi::OsStrExt;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::entry::table::CLASSES;
use crate::rewrite::elf::Module;
use crate::rewrite::plan::{Hint, PatchPlan};
use crate::runtime::environment::Environment;

/// Changes with the rules by which plans are made, and with the file.
const RULES: u32 = 7;
const NAME: &str = "plans";
/// Plans in the file. The oldest one makes room.
const PLANS: usize = 256;
const ID: usize = 20;
/// Programs in Rust make some hundred calls without libc. What a plan leaves over is a hole.
const ROOM: usize = 16 << 10;
/// Sites of a plan that is kept.
const SITES_MAX: usize = ROOM / size_of::<Hint>();
const DIRECTORY: usize = PLANS * size_of::<PlanEntry>();

/// What a plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Key {
    /// Build id, or [`Module::sum`].
    id: [u8; ID],
    /// All else.
    version: u32,
}

/// What the file begins with: one for each plan, of which number `i` is at `DIRECTORY + i * ROOM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PlanEntry {
    key: Key,
    /// Grows with each plan; 0: unused.
    age: u32,
    sites: u32,
}

type Directory = [PlanEntry; PLANS];

/// The file with the plans of this process's user.
pub struct PlanFile {
    fd: OwnedFd,
}

/// The plans that are kept, for several modules: the file is opened, and its beginning read, when
/// the first one asks.
pub struct KeptPlans<'e> {
    environment: &'e Environment,
    opened: OnceCell<Option<(PlanFile, Box<Directory>)>>,
}

impl KeptPlans<'_> {
    pub fn of(environment: &Environment) -> KeptPlans<'_> {
        KeptPlans {
            environment,
            opened: OnceCell::new(),
        }
    }

    /// Where the calls of a module are said to be. Nothing of it is proven.
    pub fn load(&self, module: &Module) -> Option<Vec<Hint>> {
        let opened = self.opened.get_or_init(|| {
            let file = PlanFile::open(self.environment, false)?;
            let directory = file.directory()?;
            Some((file, directory))
        });
        let (file, directory) = opened.as_ref()?;
        file.load(directory, module)
    }
}

/// The folder with the file: of the user's cache, or else of what lasts until the system ends. A
/// cache in a pool is not there yet.
fn folder(environment: &Environment, make: bool) -> Option<Vec<u8>> {
    let is_there = |home: &&Vec<u8>| fs::access(home.as_slice(), fs::Access::EXISTS).is_ok();
    if let Some(home) = environment.cache_home.as_ref().filter(is_there) {
        return Some([home, b"/nacre".as_slice()].concat());
    }
    let found = match make {
        true => Folder::make_of_user().ok()?,
        false => Folder::of_user().ok()??,
    };
    Some(found.path().as_os_str().as_bytes().to_vec())
}

/// Nobody but the user can have written it.
fn is_private(stat: &Stat, kind: FileType, user: u32) -> bool {
    let others = Mode::WGRP | Mode::WOTH;
    FileType::from_raw_mode(stat.st_mode) == kind
        && stat.st_uid == user
        && !Mode::from_raw_mode(stat.st_mode).intersects(others)
}

impl PlanFile {
    /// The file, for a process that is one user in every respect; None if there is none that is the
    /// user's alone.
    pub fn open(environment: &Environment, make: bool) -> Option<PlanFile> {
        let user = one_user()?;
        PlanFile::open_in(&folder(environment, make)?, user, make)
    }

    fn open_in(path: &[u8], user: u32, make: bool) -> Option<PlanFile> {
        if make {
            let _ = fs::mkdir(path, Mode::RWXU);
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = fs::open(path, flags, Mode::empty()).ok()?;
        let stat = fs::fstat(&folder).ok()?;
        is_private(&stat, FileType::Directory, user).then_some(())?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let made = OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = match fs::openat(&folder, NAME, flags, mode) {
            Err(io::Errno::NOENT) if make => {
                let fd = fs::openat(&folder, NAME, flags | made, mode).ok()?;
                remove_old(&folder, user);
                fd
            }
            fd => fd.ok()?,
        };
        let stat = fs::fstat(&fd).ok()?;
        let own = is_private(&stat, FileType::RegularFile, user) && stat.st_nlink == 1;
        own.then_some(PlanFile { fd })
    }

    fn directory(&self) -> Option<Box<Directory>> {
        let mut directory: Box<Directory> = Directory::new_box_zeroed().ok()?;
        read(&self.fd, directory.as_mut_bytes(), 0)?;
        Some(directory)
    }

    fn load(&self, directory: &Directory, module: &Module) -> Option<Vec<Hint>> {
        let wanted = Key::of(module)?;
        let i = directory.iter().position(|entry| entry.is_for(wanted))?;
        let sites = usize::try_from(directory[i].sites).ok()?;
        (sites <= SITES_MAX).then_some(())?;
        let mut hints = vec![Hint::new_zeroed(); sites];
        let done = read(&self.fd, hints.as_mut_bytes(), place(i))?;
        (done == hints.as_bytes().len()).then_some(hints)
    }

    /// Keeps a plan. Failure costs time only, so it is not reported.
    pub fn save(&self, module: &Module, plan: &PatchPlan) {
        if plan.sites.len() <= SITES_MAX
            && fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            self.write(module, plan);
            let _ = fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }

    fn write(&self, module: &Module, plan: &PatchPlan) -> Option<()> {
        let directory = self.directory()?;
        let key = Key::of(module)?;
        let same = directory.iter().position(|other| other.is_for(key));
        let oldest = (0..PLANS).min_by_key(|&i| directory[i].age);
        let i = same.or(oldest)?;
        let newest = directory.iter().map(|entry| entry.age).max();
        let entry = PlanEntry {
            key,
            age: newest.unwrap_or(0).checked_add(1)?,
            sites: u32::try_from(plan.sites.len()).ok()?,
        };
        let hints: Vec<Hint> = plan.sites.iter().map(Hint::of).collect();
        let at = (i * size_of::<PlanEntry>()) as u64;
        // Whoever reads meanwhile finds none.
        io::pwrite(&self.fd, PlanEntry::new_zeroed().as_bytes(), at).ok()?;
        let whole = io::pwrite(&self.fd, hints.as_bytes(), place(i)).ok()?;
        (whole == hints.as_bytes().len()).then_some(())?;
        io::pwrite(&self.fd, entry.as_bytes(), at).ok().map(drop)
    }
}

/// Where the sites of plan `i` are.
fn place(i: usize) -> u64 {
    (DIRECTORY + i * ROOM) as u64
}

fn read(fd: impl AsFd, into: &mut [u8], at: u64) -> Option<usize> {
    match into.len() {
        0 => Some(0),
        _ => io::pread(fd, into, at).ok(),
    }
}

impl PlanEntry {
    fn is_for(&self, key: Key) -> bool {
        self.age != 0 && self.key == key
    }
}

impl Key {
    /// Of a module as it is mapped.
    pub fn of(module: &Module) -> Option<Key> {
        let mut id = [0; ID];
        let (_, len) = module.text;
        match module.build_id.get(..module.build_id.len().min(ID)) {
            None | Some([]) => {
                id[..4].copy_from_slice(&module.sum()?.to_be_bytes());
            }
            Some(first) => id[..first.len()].copy_from_slice(first),
        }
        let words = [
            RULES,
            u32::try_from(len).ok()?,
            module.layout,
            u32::from(module.essential),
            nacre_types::crc32c(&module.build_id),
        ];
        let crate_version = env!("CARGO_PKG_VERSION").as_bytes();
        let all = [words.as_bytes(), &CLASSES, crate_version].concat();
        let version = nacre_types::crc32c(&all);
        Some(Key { id, version })
    }
}

/// Removes the files, one for each plan, that earlier versions kept in the folder or in the folder
/// of all run-time names.
fn remove_old(folder: &OwnedFd, user: u32) {
    remove_all(folder, format!("plan-{user}-").as_bytes(), user);
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Ok(shared) = fs::open(nacre_runtime::base(), flags, Mode::empty()) {
        remove_all(&shared, format!("nacre-plan-{user}-").as_bytes(), user);
    }
}

fn remove_all(folder: &OwnedFd, prefix: &[u8], user: u32) {
    let Ok(entries) = Dir::read_from(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let old = name.to_bytes().starts_with(prefix);
        let stat = old.then(|| fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW));
        let own = |stat: Stat| is_private(&stat, FileType::RegularFile, user);
        if stat.is_some_and(|stat| stat.is_ok_and(own)) {
            let _ = fs::unlinkat(folder, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NAME, PLANS, PlanEntry, PlanFile, ROOM, SITES_MAX};
    use crate::arch::x86_64::relocate::{plan, prove};
    use crate::rewrite::elf::Module;
    use crate::rewrite::plan::{Hint, PatchPlan};
    use crate::runtime::environment::Environment;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    const CODE: [u8; 11] = [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x48, 0xf7, 0xd8, 0xc3];

    fn module() -> (Module, PatchPlan) {
        let module = Module::of_code(&CODE);
        let plan = plan(&module, |_| true);
        (module, plan)
    }

    fn own(folder: &Path) -> u32 {
        std::fs::metadata(folder).unwrap().uid()
    }

    fn open(folder: &tempfile::TempDir, make: bool) -> Option<PlanFile> {
        let path = folder.path().join("nacre");
        PlanFile::open_in(path.as_os_str().as_bytes(), own(folder.path()), make)
    }

    fn loaded(file: &PlanFile, module: &Module) -> Option<Vec<Hint>> {
        file.load(&*file.directory()?, module)
    }

    fn hints(plan: &PatchPlan) -> Vec<Hint> {
        plan.sites.iter().map(Hint::of).collect()
    }

    #[test]
    fn what_was_saved_is_loaded_and_proven() {
        let (module, plan) = module();
        let folder = tempfile::tempdir().unwrap();
        assert!(open(&folder, false).is_none());
        let file = open(&folder, true).unwrap();
        assert_eq!(loaded(&file, &module), None);
        file.save(&module, &plan);
        let kept = loaded(&open(&folder, false).unwrap(), &module).unwrap();
        assert_eq!(kept, hints(&plan));
        assert_eq!(prove(&module, &kept, |_| true), Some(plan));
    }

    #[test]
    fn plans_are_kept_elsewhere_where_the_cache_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut environment = Environment::default();
        let missing = folder.path().join("in/a/pool");
        environment.cache_home = Some(missing.as_os_str().as_bytes().to_vec());
        assert!(PlanFile::open(&environment, true).is_some());
        assert!(PlanFile::open(&environment, false).is_some());
        assert!(!missing.exists());
    }

    #[test]
    fn what_was_planned_by_other_rules_is_not_loaded() {
        let (mut module, plan) = module();
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder, true).unwrap();
        file.save(&module, &plan);
        module.essential = true;
        assert_eq!(loaded(&file, &module), None);
        module.essential = false;
        module.layout ^= 1;
        assert_eq!(loaded(&file, &module), None);
        module.layout ^= 1;
        module.build_id.push(0);
        assert_eq!(loaded(&file, &module), None);
        module.build_id.pop();
        assert!(loaded(&file, &module).is_some());
    }

    #[test]
    fn no_doctored_plan_is_proven() {
        let (module, plan) = module();
        let good = hints(&plan);
        for bit in 0..8 * size_of::<Hint>() {
            let mut bad = good.clone();
            zerocopy::IntoBytes::as_mut_bytes(&mut bad[0])[bit / 8] ^= 1 << (bit % 8);
            // More registers may be kept than must be.
            let harmless = Hint { wide: 1, ..good[0] };
            let proven = prove(&module, &bad, |_| true).is_some();
            assert_eq!(proven, bad[0] == harmless, "bit {bit}");
        }
        assert_eq!(prove(&module, &[good[0], good[0]], |_| true), None);
        let mut other = CODE;
        other[6] = 0x0b;
        assert_eq!(prove(&Module::of_code(&other), &good, |_| true), None);
    }

    #[test]
    fn the_file_does_not_grow_and_the_oldest_plan_makes_room() {
        let (mut module, plan) = module();
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder, true).unwrap();
        let id = |i: usize| vec![i as u8, (i >> 8) as u8, 7];
        for i in 0..=PLANS {
            module.build_id = id(i);
            file.save(&module, &plan);
            file.save(&module, &plan);
        }
        let kept = |module: &Module| loaded(&file, module).is_some();
        assert!(kept(&module));
        module.build_id = id(0);
        assert!(!kept(&module));
        module.build_id = id(1);
        assert!(kept(&module));
        let files: Vec<_> = folder.path().join("nacre").read_dir().unwrap().collect();
        assert_eq!(files.len(), 1);
        let size = files[0].as_ref().unwrap().metadata().unwrap().len();
        assert!(size <= (PLANS * (size_of::<PlanEntry>() + ROOM)) as u64);
        let many = PatchPlan {
            sites: vec![plan.sites[0]; SITES_MAX + 1].into(),
            refused: Vec::new(),
        };
        file.save(&module, &many);
        assert_eq!(loaded(&file, &module), Some(hints(&plan)));
    }

    #[test]
    fn a_damaged_file_gives_nothing_that_is_proven_but_the_plan() {
        let (module, plan) = module();
        let folder = tempfile::tempdir().unwrap();
        open(&folder, true).unwrap().save(&module, &plan);
        let path = folder.path().join("nacre").join(NAME);
        let good = std::fs::read(&path).unwrap();
        let used = (0..good.len()).filter(|&at| good[at] != 0 || at < size_of::<PlanEntry>());
        for at in used {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                std::fs::write(&path, &bad).unwrap();
                let kept = loaded(&open(&folder, false).unwrap(), &module);
                let proven = kept.and_then(|kept| prove(&module, &kept, |_| true));
                let harmless = |proven: PatchPlan| proven.sites.is_empty() || proven == plan;
                assert!(proven.is_none_or(harmless), "byte {at}");
            }
        }
    }

    #[test]
    fn what_is_not_the_users_alone_is_not_read() {
        let (module, plan) = module();
        let folder = tempfile::tempdir().unwrap();
        open(&folder, true).unwrap().save(&module, &plan);
        let path = folder.path().join("nacre");
        let file = path.join(NAME);
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        for (what, bad, good) in [(&file, 0o622, 0o600), (&path, 0o777, 0o700)] {
            mode(what, bad);
            assert!(open(&folder, true).is_none(), "{what:?}");
            mode(what, good);
            assert!(open(&folder, false).is_some());
        }
        let (name, user) = (path.as_os_str().as_bytes(), own(folder.path()));
        assert!(PlanFile::open_in(name, user + 1, true).is_none());
        std::fs::hard_link(&file, folder.path().join("link")).unwrap();
        assert!(open(&folder, true).is_none());
        std::fs::rename(folder.path().join("link"), folder.path().join("moved")).unwrap();
        std::fs::remove_file(&file).unwrap();
        symlink(folder.path().join("moved"), &file).unwrap();
        assert!(open(&folder, true).is_none());
    }

    #[test]
    fn files_of_earlier_versions_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nacre");
        let user = own(folder.path());
        std::fs::create_dir(&path).unwrap();
        let old = path.join(format!("plan-{user}-0123"));
        let other = path.join("another");
        std::fs::write(&old, "").unwrap();
        std::fs::write(&other, "").unwrap();
        assert!(open(&folder, true).is_some());
        assert!(!old.exists() && other.exists());
    }
}
