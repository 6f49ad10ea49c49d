//! Whose system calls are intercepted: those of the program and its libraries at start, those of libraries that are loaded
//! later as soon as their code is mapped, and before any of it can have run.
//!
//! Few make calls other than through libc. Plans say so, too: searching a large text at each start would take too long.

use libc::{MAP_ANONYMOUS, MAP_PRIVATE, MAP_TYPE, PROT_EXEC, PROT_READ};

use crate::arch::x86_64::{
    patch::{self, PatchError},
    relocate,
};
use crate::call::Call;
use crate::elf::{self, Module};
use crate::elf_file::ElfFile;
use crate::environment::{self, Environment};
use crate::plan::PatchPlan;
use crate::{log, plan_file, table};

/// Up to so many bytes of code are searched at each start. For more there is a plan, even if it is empty.
const SEARCHED_MAX: usize = 64 << 10;

/// Intercepts the calls of all that the program starts with.
pub fn patch_all(environment: &Environment) -> Result<(), String> {
    for module in elf::modules() {
        let patched = patch(&module, environment, || Some(relocated(&module)));
        match patched {
            Err(error) if module.essential => {
                return Err(format!("cannot intercept the calls of libc: {error}"));
            }
            Err(error) => not_patched(&module, &error),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn relocated(module: &Module) -> PatchPlan {
    relocate::plan(module, table::served)
}

/// Calls that cannot be intercepted go to the kernel, as those of programs that are not served at all.
fn not_patched(module: &Module, error: &PatchError) {
    if log::enabled() {
        let base = module.base;
        log::note(&format!(
            "calls of the library at {base:#x} not patched: {error}"
        ));
    }
}

/// Applies the plan that is kept for a module, or a new one.
fn patch(
    module: &Module,
    environment: &Environment,
    plan: impl FnOnce() -> Option<PatchPlan>,
) -> Result<(), PatchError> {
    let small = module.text.1 <= SEARCHED_MAX;
    if small && !module.may_call() {
        return Ok(());
    }
    let debug = environment.setting("NACRE_DEBUG").is_some();
    let path = plan_file::path(module, environment);
    let kept = path.as_ref().filter(|_| !debug);
    let kept = kept.and_then(|path| plan_file::load(path, module));
    if let Some(kept) = kept.filter(|kept| !(module.essential && kept.sites.is_empty())) {
        match patch::apply(module, &kept) {
            Err(PatchError::WrongPlan) => {}
            outcome => return outcome,
        }
    }
    let plan = match small || module.may_call() {
        true => plan().ok_or(PatchError::WrongPlan)?,
        false => PatchPlan::default(),
    };
    if module.essential && plan.sites.is_empty() {
        return Err(PatchError::NoCalls);
    }
    patch::apply(module, &plan)?;
    if let Some(path) = path {
        plan_file::save(&path, module, &plan);
    }
    if debug {
        report(module, &plan);
    }
    Ok(())
}

fn report(module: &Module, plan: &PatchPlan) {
    let (base, count) = (module.base, plan.sites.len());
    log::note(&format!("library at {base:#x}: {count} calls patched"));
    for refused in &plan.refused {
        let (at, number, why) = (refused.at, refused.number, refused.why);
        log::note(&format!("call {number} at {at:#x} not patched: {why:?}"));
    }
}

/// Whether a call of mmap may make a library's code executable.
pub fn loads_code(c: &Call<'_>) -> bool {
    let (protection, flags) = (c.int(2), c.int(3));
    protection == PROT_READ | PROT_EXEC
        && flags & MAP_ANONYMOUS == 0
        && flags & MAP_TYPE == MAP_PRIVATE
}

/// Intercepts the calls of a library whose code such a call has mapped at `address`.
#[cold]
pub fn patch_mapped(c: &Call<'_>, address: usize) {
    let file = ElfFile::open(c.vfs(), c.int(4));
    let mapped = file.and_then(|file| Some((file.module_at(address, c.arg(1), c.arg(5))?, file)));
    let Some((module, file)) = mapped else {
        return;
    };
    let plan = || file.with_image(relocated);
    if let Err(error) = patch(&module, environment::get(), plan) {
        not_patched(&module, &error);
    }
}
