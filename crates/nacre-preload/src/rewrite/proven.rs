//! Plans of the C library and the dynamic linker that a process has proven, handed to those that
//! start after it.
//!
//! `nacre run` makes a file in memory and names it in the environment. The first process fills and
//! seals it: nobody can change it any more. It is believed if it is sealed and belongs to the one
//! user that all ids of this process name.

use std::borrow::Cow;

use nacre_runtime::one_user;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FlockOperation, Mode, OFlags, SealFlags};
use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::rewrite::elf::Module;
use crate::rewrite::plan::{PatchPlan, Site};
use crate::rewrite::plan_file::Key;
use crate::runtime::environment::Environment;

/// Names the file, as `/proc/PID/fd/N`.
const SETTING: &str = "NACRE_PLANS";
const MAGIC: u64 = u64::from_le_bytes(*b"NacrePv1");
const LEN_MAX: usize = 1 << 20;

/// In front of the sites of each module.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: u64,
    key: Key,
    sites: u64,
}

/// The plans of a sealed file.
pub struct Proven(&'static [u8]);

fn file(environment: &Environment) -> Option<OwnedFd> {
    let path = environment.setting(SETTING)?;
    let user = one_user()?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let path = path.starts_with(b"/proc/").then_some(path)?;
    let file = fs::open(path, flags, Mode::empty()).ok()?;
    let stat = fs::fstat(&file).ok()?;
    (stat.st_uid == user && stat.st_nlink == 0).then_some(file)
}

fn all_seals() -> SealFlags {
    SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE
}

impl Proven {
    /// The plans that this process is told of, if nobody else can have made or changed them.
    pub fn open(environment: &Environment) -> Option<Proven> {
        Proven::read(&file(environment)?)
    }

    fn read(file: &OwnedFd) -> Option<Proven> {
        let sealed = fs::fcntl_get_seals(file).ok()?.contains(all_seals());
        let len = usize::try_from(fs::fstat(file).ok()?.st_size).ok()?;
        (sealed && (1..=LEN_MAX).contains(&len)).then_some(())?;
        // SAFETY: a fresh mapping that stays for good; of a file that can neither change nor
        // shrink, as it is sealed.
        let bytes = unsafe {
            let none = core::ptr::null_mut();
            let at = mmap(none, len, ProtFlags::READ, MapFlags::PRIVATE, file, 0).ok()?;
            core::slice::from_raw_parts(at.cast::<u8>(), len)
        };
        Some(Proven(bytes))
    }

    /// The plan of a module.
    pub fn plan(&self, module: &Module) -> Option<PatchPlan> {
        let wanted = Key::of(module)?;
        let mut rest = self.0;
        loop {
            let (head, behind) = Head::read_from_prefix(rest).ok()?;
            (head.magic == MAGIC).then_some(())?;
            let count = usize::try_from(head.sites).ok()?;
            let (sites, behind) = <[Site]>::ref_from_prefix_with_elems(behind, count).ok()?;
            if head.key == wanted {
                return Some(PatchPlan {
                    sites: Cow::Borrowed(sites),
                    refused: Vec::new(),
                });
            }
            rest = behind.get(padding(count)..)?;
        }
    }
}

/// Bytes behind so many sites that make the next head aligned.
fn padding(sites: usize) -> usize {
    (sites * size_of::<Site>()).next_multiple_of(align_of::<Head>()) - sites * size_of::<Site>()
}

/// Plans that this process has proven itself, for others.
#[derive(Default)]
pub struct Found(Vec<u8>);

impl Found {
    /// Adds a plan.
    pub fn add(&mut self, module: &Module, plan: &PatchPlan) {
        if let Some(key) = Key::of(module) {
            let (magic, sites) = (MAGIC, plan.sites.len() as u64);
            let head = Head { magic, key, sites };
            self.0.extend(head.as_bytes());
            self.0.extend(plan.sites.as_bytes());
            self.0.extend(&[0; 8][..padding(plan.sites.len())]);
        }
    }

    /// Hands them to processes that start from now on, if nobody else has. Failure costs time only.
    pub fn hand_on(&self, environment: &Environment) {
        if !self.0.is_empty()
            && let Some(file) = file(environment)
        {
            self.fill(file);
        }
    }

    fn fill(&self, file: impl AsFd) -> Option<()> {
        fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        // Whoever died in the middle has left it unsealed.
        fs::ftruncate(&file, 0).ok()?;
        let written = io::pwrite(&file, &self.0, 0).ok()?;
        (written == self.0.len()).then_some(())?;
        fs::fcntl_add_seals(&file, all_seals()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, Proven, all_seals};
    use crate::arch::x86_64::relocate::plan;
    use crate::rewrite::elf::Module;
    use rustix::fd::OwnedFd;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use rustix::io::pwrite;

    fn file() -> OwnedFd {
        memfd_create("plans", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap()
    }

    fn module(last: u8) -> Module {
        let call = [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x48, 0xf7, 0xd8, 0xc3];
        let mut module = Module::of_code(&call);
        module.build_id = vec![1, last];
        module
    }

    #[test]
    fn what_was_handed_on_is_found() {
        let file = file();
        let modules = [module(1), module(2)];
        let plans = modules.each_ref().map(|module| plan(module, |_| true));
        let mut found = Found::default();
        modules
            .iter()
            .zip(&plans)
            .for_each(|(module, plan)| found.add(module, plan));
        assert!(Proven::read(&file).is_none());
        found.fill(&file).unwrap();
        let proven = Proven::read(&file).unwrap();
        for (module, plan) in modules.iter().zip(&plans) {
            assert_eq!(proven.plan(module).as_ref(), Some(plan));
        }
        assert!(proven.plan(&module(3)).is_none());
        assert!(found.fill(&file).is_none(), "it is sealed");
    }

    #[test]
    fn what_can_still_be_changed_is_not_believed() {
        let seals = [
            SealFlags::SEAL,
            SealFlags::SHRINK,
            SealFlags::GROW,
            SealFlags::WRITE,
        ];
        for missing in seals {
            let file = file();
            pwrite(&file, &[0; 64], 0).unwrap();
            fcntl_add_seals(&file, all_seals() - missing).unwrap();
            assert!(Proven::read(&file).is_none(), "{missing:?}");
        }
    }

    #[test]
    fn nonsense_holds_no_plan() {
        for len in [1, 31, 48, 64, 4096] {
            let file = file();
            pwrite(&file, &vec![0xff; len], 0).unwrap();
            fcntl_add_seals(&file, all_seals()).unwrap();
            assert!(Proven::read(&file).unwrap().plan(&module(1)).is_none());
        }
    }
}
