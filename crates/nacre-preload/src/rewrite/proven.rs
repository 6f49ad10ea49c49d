//! Plans of the C library and the dynamic linker that a process has proven, handed to those that
//! start after it, with the text of the C library as it has patched it.
//!
//! `nacre run` makes a file in memory and names it in the environment. The first process fills and
//! seals it: nobody can change it any more. It is believed if it is sealed and belongs to the one
//! user that all ids of this process name.
//!
//! An installation may have made the same file beside this library (D60). Who could change it could
//! change the library.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nacre_runtime::{installed_plans, one_user};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FlockOperation, Mode, OFlags, SealFlags};
use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::arch::x86_64::patch::{self, Image, ImageFile};
use crate::rewrite::elf::{self, Module};
use crate::rewrite::plan::{PatchPlan, Site};
use crate::rewrite::plan_file::Key;
use crate::runtime::PAGE;
use crate::runtime::environment::Environment;
use crate::runtime::kernel;

/// Names the file, as `/proc/PID/fd/N`.
const SETTING: &str = "NACRE_PLANS";
const MAGIC: u64 = u64::from_le_bytes(*b"NacrePv3");
const LEN_MAX: usize = 64 << 20;
/// Libraries with fewer calls are patched as quickly as mapped.
const IMAGE_SITES: usize = 8;
const ID: usize = 20;

/// In front of the sites of each module, behind which it says of each where its stub has its
/// `syscall`, if there is an image.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: u64,
    key: Key,
    /// Which build of this library has made the image.
    by: [u8; ID],
    padding: u32,
    sites: u64,
    /// Where in the file the image is, whole pages; 0: none.
    image: u64,
}

const _: () = assert!(size_of::<Head>() == 72);

/// The plans of a sealed file.
pub struct Proven {
    bytes: &'static [u8],
    file: OwnedFd,
}

/// What a sealed file says of a module.
pub struct Known<'p> {
    /// Where its calls are.
    pub plan: PatchPlan,
    /// It as it was patched.
    pub image: Option<ImageFile<'p, OwnedFd>>,
}

/// This library's build, if it has a name.
fn own_id() -> Option<[u8; ID]> {
    elf::own_build_id().try_into().ok()
}

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
        Proven::read(file(environment)?)
    }

    fn read(file: OwnedFd) -> Option<Proven> {
        let sealed = fs::fcntl_get_seals(&file).ok()?.contains(all_seals());
        sealed.then(|| Proven::map(file))?
    }

    /// The plans that were installed beside this library, if this build of it made them and they
    /// are of the C library and the dynamic linker that this process has.
    pub fn installed<'m>(
        environment: &Environment,
        mut modules: impl Iterator<Item = &'m Module>,
    ) -> Option<Proven> {
        let library = Path::new(OsStr::from_bytes(&environment.library));
        let proven = Proven::map(installed_plans(library)?)?;
        modules
            .all(|module| proven.has_own(module))
            .then_some(proven)
    }

    fn map(file: OwnedFd) -> Option<Proven> {
        let len = usize::try_from(fs::fstat(&file).ok()?.st_size).ok()?;
        (1..=LEN_MAX).contains(&len).then_some(())?;
        // SAFETY: a fresh mapping that stays for good; of a file that can neither change nor
        // shrink, as it is sealed, or that only those can change who can change this library.
        let bytes = unsafe {
            let none = core::ptr::null_mut();
            let at = mmap(none, len, ProtFlags::READ, MapFlags::PRIVATE, &file, 0).ok()?;
            core::slice::from_raw_parts(at.cast::<u8>(), len)
        };
        Some(Proven { bytes, file })
    }

    /// What is known of a module.
    pub fn find(&self, module: &Module) -> Option<Known<'_>> {
        let (head, sites, natives) = self.entry(module)?;
        let plan = PatchPlan {
            sites: Cow::Borrowed(sites),
            refused: Vec::new(),
        };
        let image = self.image(module, &plan, &head, natives);
        Some(Known { plan, image })
    }

    /// Whether this build of the library has said something of a module.
    fn has_own(&self, module: &Module) -> bool {
        let by = self.entry(module).map(|(head, ..)| head.by);
        by.is_some() && by == own_id()
    }

    fn entry(&self, module: &Module) -> Option<(Head, &'static [Site], &'static [u8])> {
        let wanted = Key::of(module)?;
        let mut rest = self.bytes;
        loop {
            let (head, behind) = Head::read_from_prefix(rest).ok()?;
            (head.magic == MAGIC).then_some(())?;
            let count = usize::try_from(head.sites).ok()?;
            let (sites, behind) = <[Site]>::ref_from_prefix_with_elems(behind, count).ok()?;
            let behind = behind.get(padding(size_of_val(sites))..)?;
            let natives = if head.image == 0 { 0 } else { count };
            let (natives, behind) = behind.split_at_checked(natives)?;
            if head.key == wanted {
                return Some((head, sites, natives));
            }
            rest = behind.get(padding(natives.len())..)?;
        }
    }

    fn image(
        &self,
        module: &Module,
        plan: &PatchPlan,
        head: &Head,
        natives: &'static [u8],
    ) -> Option<ImageFile<'_, OwnedFd>> {
        let at = usize::try_from(head.image).ok()?;
        let end = at.checked_add(patch::image_len(module, plan))?;
        let fits = at != 0 && at.is_multiple_of(PAGE) && end <= self.bytes.len();
        let known = Some(head.by) == own_id();
        (fits && known).then_some(ImageFile {
            file: &self.file,
            at: head.image,
            natives,
        })
    }
}

/// Bytes behind so many that make the next head aligned.
fn padding(len: usize) -> usize {
    len.next_multiple_of(align_of::<Head>()) - len
}

/// Plans that this process has proven itself, for others.
#[derive(Default)]
pub struct Found(Vec<One>);

struct One {
    key: Key,
    module: Module,
    plan: PatchPlan,
    image: Option<Image>,
}

impl Found {
    /// Adds a plan that was applied. `whole`: the text had been that of its file before.
    pub fn add(&mut self, module: Module, plan: PatchPlan, whole: bool) {
        let image = (whole && plan.sites.len() >= IMAGE_SITES && own_id().is_some())
            .then(|| patch::image_of(&module, &plan));
        if let Some(key) = Key::of(&module) {
            let image = image.flatten();
            self.0.push(One {
                key,
                module,
                plan,
                image,
            });
        }
    }

    /// Hands them to processes that start from now on, if nobody else has. Failure costs time only.
    /// `adopt`: this process uses the images, too.
    pub fn hand_on(&self, environment: &Environment, adopt: bool) {
        if !self.0.is_empty()
            && let Some(file) = file(environment)
            && self.fill(&file).is_some()
            && adopt
        {
            for (one, at) in self.placed().filter(|(one, _)| one.image.is_some()) {
                patch::adopt_image(&one.module, &one.plan, &file, at as u64);
            }
        }
    }

    /// Each with the place of its image.
    fn placed(&self) -> impl Iterator<Item = (&One, usize)> {
        let heads: usize = self.0.iter().map(One::head_len).sum();
        self.0
            .iter()
            .scan(heads.next_multiple_of(PAGE), |next, one| {
                let at = *next;
                *next += one.image.as_ref().map_or(0, Image::len);
                Some((one, at))
            })
    }

    fn fill(&self, file: impl AsFd) -> Option<()> {
        let images = self.0.iter().filter_map(|one| one.image.as_ref());
        let heads: usize = self.0.iter().map(One::head_len).sum();
        let len = images.map(Image::len).sum::<usize>() + heads.next_multiple_of(PAGE);
        // More would be a signal to the program.
        (len as u64 <= kernel::limit(libc::RLIMIT_FSIZE as usize)).then_some(())?;
        fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        // Whoever died in the middle has left it unsealed.
        fs::ftruncate(&file, 0).ok()?;
        let mut all = Vec::with_capacity(heads);
        for (one, at) in self.placed() {
            one.write_head(&mut all, at);
            if let Some(image) = &one.image {
                put(&file, image.code, at)?;
                put(&file, image.text, at + image.code.len())?;
            }
        }
        put(&file, &all, 0)?;
        fs::fcntl_add_seals(&file, all_seals()).ok()
    }
}

fn put(file: impl AsFd, bytes: &[u8], at: usize) -> Option<()> {
    let written = io::pwrite(file, bytes, at as u64).ok()?;
    (written == bytes.len()).then_some(())
}

impl Image {
    fn len(&self) -> usize {
        self.code.len() + self.text.len()
    }
}

impl One {
    fn head_len(&self) -> usize {
        let sites = self.plan.sites.as_bytes().len();
        let natives = self.image.as_ref().map_or(0, |image| image.natives.len());
        size_of::<Head>() + sites + padding(sites) + natives + padding(natives)
    }

    fn write_head(&self, to: &mut Vec<u8>, image_at: usize) {
        let head = Head {
            magic: MAGIC,
            key: self.key,
            by: own_id().unwrap_or_default(),
            padding: 0,
            sites: self.plan.sites.len() as u64,
            image: self.image.as_ref().map_or(0, |_| image_at as u64),
        };
        to.extend(head.as_bytes());
        let natives = self.image.as_ref().map_or(&[][..], |image| image.natives);
        for part in [self.plan.sites.as_bytes(), natives] {
            to.extend(part);
            to.extend(&[0; align_of::<Head>()][..padding(part.len())]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, ImageFile, Key, One, PAGE, Proven, all_seals, patch};
    use crate::arch::x86_64::relocate::plan;
    use crate::rewrite::elf::Module;
    use crate::rewrite::plan::PatchPlan;
    use rustix::fd::OwnedFd;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use rustix::io::pwrite;

    fn file() -> OwnedFd {
        memfd_create("plans", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap()
    }

    fn copy(file: &OwnedFd) -> OwnedFd {
        file.try_clone().unwrap()
    }

    fn copied(plan: &PatchPlan) -> PatchPlan {
        PatchPlan {
            sites: plan.sites.clone(),
            refused: Vec::new(),
        }
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
        let given = [module(1), module(2)].into_iter().zip(&plans);
        given.for_each(|(module, plan)| found.add(module, copied(plan), true));
        assert!(Proven::read(copy(&file)).is_none());
        found.fill(&file).unwrap();
        let proven = Proven::read(copy(&file)).unwrap();
        for (module, plan) in modules.iter().zip(&plans) {
            assert_eq!(
                proven.find(module).map(|known| known.plan).as_ref(),
                Some(plan)
            );
        }
        assert!(proven.find(&module(3)).is_none());
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
            assert!(Proven::read(copy(&file)).is_none(), "{missing:?}");
        }
    }

    #[test]
    fn nonsense_holds_no_plan() {
        for len in [1, 31, 48, 64, 4096] {
            let file = file();
            pwrite(&file, &vec![0xff; len], 0).unwrap();
            fcntl_add_seals(&file, all_seals()).unwrap();
            assert!(
                Proven::read(copy(&file))
                    .unwrap()
                    .find(&module(1))
                    .is_none()
            );
        }
    }

    /// A library of eight calls, which returns the last one's result negated, that passes for libc.
    fn library() -> Module {
        let call = [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x48, 0xf7, 0xd8];
        // So large that the code of two does not overlap, either.
        let code = [&call.repeat(8)[..], &[0xc3; 16 * PAGE]].concat();
        let mut module = Module::of_code(&code);
        module.essential = true;
        module
    }

    fn run(module: &Module) -> i64 {
        // SAFETY: the code is a function without arguments, executable once it is patched.
        let function: extern "C" fn() -> i64 = unsafe { core::mem::transmute(module.base) };
        function()
    }

    #[test]
    fn a_library_runs_as_another_process_has_patched_it_and_nothing_of_it_is_copied() {
        let (file, first, second) = (file(), library(), library());
        let made = plan(&first, |_| true);
        patch::apply(&first, &made).unwrap();
        // This library has no build id in its tests.
        let one = One {
            key: Key::of(&first).unwrap(),
            image: patch::image_of(&first, &made),
            plan: copied(&made),
            module: first,
        };
        assert!(one.image.is_some());
        let found = Found(vec![one]);
        found.fill(&file).unwrap();
        for (one, at) in found.placed() {
            patch::adopt_image(&one.module, &one.plan, &file, at as u64);
            assert_eq!(run(&one.module), -i64::from(std::process::id()));
        }
        let proven = Proven::read(copy(&file)).unwrap();
        let known = proven.find(&second).unwrap();
        let natives = found.0[0].image.as_ref().unwrap().natives;
        let at = found.placed().next().unwrap().1 as u64;
        let image = ImageFile {
            file: &file,
            at,
            natives,
        };
        patch::apply_image(&second, &known.plan, &image).expect("nothing else lies there");
        assert_eq!(run(&second), -i64::from(std::process::id()));
        for module in [&found.0[0].module, &second] {
            assert!(patch::is_unchanged(module), "pages of a file");
            assert_eq!(module.bytes(5, 1), Some(&[0xe9][..]), "a jump");
        }
        assert!(
            patch::apply_image(&second, &known.plan, &image).is_none(),
            "taken"
        );
    }

    #[test]
    fn the_image_of_another_build_is_not_used() {
        let (file, library) = (file(), library());
        let made = plan(&library, |_| true);
        patch::apply(&library, &made).unwrap();
        let mut head = Vec::new();
        let one = One {
            key: Key::of(&library).unwrap(),
            image: patch::image_of(&library, &made),
            plan: made,
            module: library,
        };
        one.write_head(&mut head, PAGE);
        // The tests have no build id; one of zeros is another's.
        pwrite(&file, &head, 0).unwrap();
        pwrite(&file, &vec![0xcc; 16 * PAGE], PAGE as u64).unwrap();
        fcntl_add_seals(&file, all_seals()).unwrap();
        let proven = Proven::read(file).unwrap();
        let known = proven.find(&one.module).unwrap();
        assert!(known.plan.sites.len() == 8 && known.image.is_none());
    }

    #[test]
    fn text_that_somebody_has_changed_is_noticed() {
        let library = library();
        // What is mapped of no file is not the text of a file.
        assert!(!patch::is_unchanged(&library));
    }
}
