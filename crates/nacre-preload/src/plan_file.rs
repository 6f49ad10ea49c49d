//! Patch plans kept in files: disassembling a libc takes longer than a program may take to start.
//!
//! A plan is only read from a file of the same user that nobody else can write, made by the same
//! version of this library; before it is applied, each window's bytes are compared.

use rustix::fs::{self, Mode, OFlags};
use rustix::io;
use std::io::IoSliceMut;
use zerocopy::{FromZeros, IntoBytes};

use crate::elf::Module;
use crate::environment::Environment;
use crate::plan::{PatchPlan, Site};
use crate::table::CLASSES;

const MAGIC: u64 = u64::from_le_bytes(*b"NacrePl3");
const HEADER: usize = 32;
const SITES_MAX: usize = 4096;

/// Where the plan of a module is kept. It is known by its build id, or else by its code.
pub fn path(module: &Module, environment: &Environment) -> Option<Vec<u8>> {
    let id = match module.build_id.as_slice() {
        [] => nacre_types::crc32c(module.bytes(module.text.0, module.text.1)?)
            .to_be_bytes()
            .to_vec(),
        id => id.to_vec(),
    };
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let uid = rustix::process::geteuid().as_raw();
    Some(match &environment.cache_home {
        Some(home) => [home, format!("/nacre/plan-{uid}-{id}").as_bytes()].concat(),
        None => format!("/dev/shm/nacre-plan-{uid}-{id}").into_bytes(),
    })
}

/// Size of the text and everything else that a plan depends on beside the build id.
fn version(module: &Module) -> [u8; 16] {
    let crate_version = env!("CARGO_PKG_VERSION").as_bytes();
    let table = nacre_types::crc32c(&[CLASSES.as_slice(), crate_version].concat());
    let site = size_of::<Site>() as u32;
    let words = [
        module.text.1 as u64 | u64::from(module.essential) << 63,
        u64::from(table) << 32 | u64::from(site ^ module.layout),
    ];
    let mut version = [0; 16];
    version.copy_from_slice(words.as_bytes());
    version
}

/// Reads the plan of a module; None if there is none that can be trusted.
pub fn load(path: &[u8], module: &Module) -> Option<PatchPlan> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = fs::open(path, flags, Mode::empty()).ok()?;
    let stat = fs::fstat(&fd).ok()?;
    let own = stat.st_uid == rustix::process::geteuid().as_raw();
    let private = stat.st_mode & 0o022 == 0 && stat.st_mode & 0o170_000 == 0o100_000;
    let len = usize::try_from(stat.st_size).ok()?;
    let sites = len.checked_sub(HEADER)? / size_of::<Site>();
    if !own || !private || sites > SITES_MAX || len != HEADER + sites * size_of::<Site>() {
        return None;
    }
    let mut header = [0; HEADER];
    let mut sites = vec![Site::new_zeroed(); sites];
    let mut parts = [&mut header[..], sites.as_mut_bytes()].map(IoSliceMut::new);
    if io::readv(&fd, &mut parts).ok()? != len {
        return None;
    }
    let sound = header[..8] == MAGIC.to_le_bytes()
        && header[8..24] == version(module)
        && header[24..28] == nacre_types::crc32c(sites.as_bytes()).to_le_bytes();
    sound.then(|| PatchPlan {
        sites,
        refused: Vec::new(),
    })
}

/// Keeps a plan. Failure costs time only, so it is not reported.
pub fn save(path: &[u8], module: &Module, plan: &PatchPlan) {
    let _ = try_save(path, module, plan);
}

fn try_save(path: &[u8], module: &Module, plan: &PatchPlan) -> io::Result<()> {
    let body = plan.sites.as_bytes();
    let check = nacre_types::crc32c(body).to_le_bytes();
    let bytes = [
        &MAGIC.to_le_bytes(),
        &version(module)[..],
        &check,
        &[0; 4],
        body,
    ]
    .concat();
    if let Some(slash) = path.iter().rposition(|&byte| byte == b'/') {
        let _ = fs::mkdir(&path[..slash], Mode::from_raw_mode(0o700));
    }
    let fresh = [path, format!(".{}", crate::kernel::getpid()).as_bytes()].concat();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let fd = fs::open(fresh.as_slice(), flags, Mode::from_raw_mode(0o600))?;
    let written = io::write(&fd, &bytes);
    if written == Ok(bytes.len()) && fs::rename(fresh.as_slice(), path).is_ok() {
        return Ok(());
    }
    fs::unlink(fresh.as_slice())
}

#[cfg(test)]
mod tests {
    use super::{load, save};
    use crate::arch::x86_64::relocate::plan;
    use crate::elf::Module;
    use crate::plan::PatchPlan;

    fn module() -> (Module, PatchPlan) {
        let code = [0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0x48, 0xf7, 0xd8, 0xc3];
        let module = Module::of_code(&code);
        let plan = plan(&module, |_| true);
        (module, plan)
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn bytes(path: &std::path::Path) -> &[u8] {
        std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let (module, plan) = module();
        let folder = folder();
        let path = folder.path().join("plan");
        assert_eq!(load(bytes(&path), &module), None);
        save(bytes(&path), &module, &plan);
        assert_eq!(load(bytes(&path), &module), Some(plan));
    }

    #[test]
    fn what_was_planned_by_other_rules_is_not_loaded() {
        let (mut module, plan) = module();
        let folder = folder();
        let path = folder.path().join("plan");
        save(bytes(&path), &module, &plan);
        module.essential = true;
        assert_eq!(load(bytes(&path), &module), None);
        module.essential = false;
        module.layout ^= 1;
        assert_eq!(load(bytes(&path), &module), None);
    }

    #[test]
    fn a_changed_file_is_not_trusted() {
        let (module, plan) = module();
        let folder = folder();
        let path = folder.path().join("plan");
        save(bytes(&path), &module, &plan);
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            // Bytes 28 to 31 are padding.
            assert_eq!(
                load(bytes(&path), &module).is_some(),
                (28..32).contains(&at),
                "byte {at}"
            );
        }
        std::fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert_eq!(load(bytes(&path), &module), None);
    }

    #[test]
    fn a_file_that_others_can_write_is_not_trusted() {
        use std::os::unix::fs::PermissionsExt;
        let (module, plan) = module();
        let folder = folder();
        let path = folder.path().join("plan");
        save(bytes(&path), &module, &plan);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o622)).unwrap();
        assert_eq!(load(bytes(&path), &module), None);
    }
}
