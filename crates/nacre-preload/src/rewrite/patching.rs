//! Which system calls are intercepted: those of the program and its libraries at start, those of
//! libraries that are loaded later as soon as their code is mapped, and before any of it can have
//! run.
//!
//! Few make calls other than through libc. Plans say so, too: searching a large text at each start
//! would take too long.

use libc::{MAP_ANONYMOUS, MAP_PRIVATE, MAP_TYPE, PROT_EXEC, PROT_READ};

use crate::arch::x86_64::{
    patch::{self, PatchError},
    relocate,
};
use crate::entry::call::Call;
use crate::entry::table;
use crate::rewrite::elf::{self, Module};
use crate::rewrite::elf_file::ElfFile;
use crate::rewrite::plan::PatchPlan;
use crate::rewrite::plan_file::{KeptPlans, PlanFile};
use crate::rewrite::proven::{Found, Proven};
use crate::runtime::environment::{self, Environment};
use crate::runtime::log;

/// Up to so many bytes of code are searched at each start. For more there is a plan, even if it is
/// empty.
const SEARCHED_MAX: usize = 64 << 10;

/// What the program starts with, and the places for the code of what is patched, which nobody else
/// gets meanwhile.
pub struct Modules {
    all: Vec<Module>,
    places: Vec<patch::KeptRoom>,
}

/// Finds out what the program starts with. `hold`: pools are mapped before it is patched.
pub fn modules(hold: bool) -> Modules {
    let all = elf::modules();
    let held = all.iter().filter(|module| hold && module.essential);
    let places = held.filter_map(patch::hold).collect();
    Modules { all, places }
}

/// Intercepts the calls of all that the program starts with.
pub fn patch_all(environment: &Environment, modules: Modules) -> Result<(), String> {
    let Modules { all, places } = modules;
    drop(places);
    let debug = environment.setting("NACRE_DEBUG").is_some();
    let essential = all.iter().filter(|module| module.essential);
    let proven = Proven::installed(environment, essential)
        .or_else(|| Proven::open(environment))
        .filter(|_| !debug);
    let kept = KeptPlans::of(environment);
    let mut found = Found::default();
    let images = takes_images(environment);
    let is_whole = |module: &Module| !environment.may_be_debugged() || patch::is_unchanged(module);
    for module in all {
        let known = proven.as_ref().and_then(|proven| proven.find(&module));
        let outcome = match known {
            Some(known) => match known.image.filter(|_| images && is_whole(&module)) {
                Some(image) if patch::apply_image(&module, &known.plan, &image).is_some() => Ok(()),
                _ => patch::apply(&module, &known.plan),
            },
            None => {
                let whole = module.essential && patch::is_unchanged(&module);
                match patch(&module, environment, &kept, |look| look(&module)) {
                    Ok(plan) if module.essential => {
                        found.add(module, plan, whole);
                        continue;
                    }
                    made => made.map(drop),
                }
            }
        };
        match outcome {
            Err(error) if module.essential => {
                return Err(format!("cannot intercept the calls of libc: {error}"));
            }
            Err(error) => not_patched(&module, &error),
            Ok(()) => {}
        }
    }
    if proven.is_none() {
        found.hand_on(environment, images);
    }
    Ok(())
}

/// Whether libc may be mapped as it was patched by another process. What looks on from outside
/// (perf, uprobes) then does not know its text by its file, and Valgrind not at all.
fn takes_images(environment: &Environment) -> bool {
    !environment.in_valgrind && environment.setting("NACRE_PATCH") != Some(b"copy")
}

fn relocated(module: &Module) -> PatchPlan {
    relocate::plan(module, table::served)
}

/// Calls that cannot be intercepted go to the kernel, as those of programs that are not served at
/// all.
fn not_patched(module: &Module, error: &PatchError) {
    if log::enabled() {
        let base = module.base;
        log::note(&format!(
            "calls of the library at {base:#x} not patched: {error}"
        ));
    }
}

/// Applies the plan that is kept for a module, or a new one. `whole`: looks at the module with all
/// of its segments.
fn patch(
    module: &Module,
    environment: &Environment,
    kept: &KeptPlans<'_>,
    whole: impl Fn(&dyn Fn(&Module) -> Option<PatchPlan>) -> Option<PatchPlan>,
) -> Result<PatchPlan, PatchError> {
    let small = module.text.1 <= SEARCHED_MAX;
    if small && !module.may_call() {
        return Ok(PatchPlan::default());
    }
    let debug = environment.setting("NACRE_DEBUG").is_some();
    if !debug && let Some(proven) = proven(module, kept, &whole) {
        patch::apply(module, &proven)?;
        return Ok(proven);
    }
    let plan = match small || module.may_call() {
        true => whole(&|all| Some(relocated(all))).ok_or(PatchError::WrongPlan)?,
        false => PatchPlan::default(),
    };
    if module.essential && plan.sites.is_empty() {
        return Err(PatchError::NoCalls);
    }
    // What has no build id may be known by its code, which is about to change.
    if let Some(file) = PlanFile::open(environment, true) {
        file.save(module, &plan);
    }
    patch::apply(module, &plan)?;
    if debug {
        report(module, &plan);
    }
    Ok(plan)
}

/// The plan that is kept, if all of it is true of this text.
fn proven(
    module: &Module,
    kept: &KeptPlans<'_>,
    whole: impl Fn(&dyn Fn(&Module) -> Option<PatchPlan>) -> Option<PatchPlan>,
) -> Option<PatchPlan> {
    let kept = kept.load(module)?;
    if kept.is_empty() {
        return (!module.essential).then(PatchPlan::default);
    }
    whole(&|all| relocate::prove(all, &kept, table::served))
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
    let whole = |look: &dyn Fn(&Module) -> Option<PatchPlan>| file.with_image(look)?;
    let environment = environment::get();
    let kept = KeptPlans::of(environment);
    if let Err(error) = patch(&module, environment, &kept, whole) {
        not_patched(&module, &error);
    }
}

#[cfg(test)]
mod tests {
    use super::{KeptPlans, patch, proven, relocated};
    use crate::arch::x86_64::relocate::prove;
    use crate::entry::table;
    use crate::rewrite::elf::{self, Module};
    use crate::rewrite::plan::Hint;
    use crate::runtime::environment::Environment;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_program_without_build_id_is_planned_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut environment = Environment::default();
        let cache = [b"XDG_CACHE_HOME=", folder.path().as_os_str().as_bytes()].concat();
        environment.take(&cache);
        let call = [0xb8, 3, 0, 0, 0, 0x0f, 0x05, 0x48, 0xf7, 0xd8, 0xc3];
        let program = || {
            let mut module = Module::of_code(&call);
            module.build_id.clear();
            module
        };
        let kept = |module: &Module| {
            let plans = KeptPlans::of(&environment);
            proven(module, &plans, |look| look(module))
        };
        assert_eq!(kept(&program()), None);
        let first = program();
        let none = KeptPlans::of(&environment);
        let made = patch(&first, &environment, &none, |look| look(&first)).unwrap();
        assert_eq!(made.sites.len(), 1);
        assert_ne!(first.bytes(0, call.len()), Some(&call[..]), "it is patched");
        assert_eq!(kept(&program()), Some(made));
    }

    #[test]
    fn plans_of_this_process_are_proven_again() {
        let mut sites = 0;
        for module in elf::modules() {
            let plan = relocated(&module);
            let hints: Vec<Hint> = plan.sites.iter().map(Hint::of).collect();
            let proven = prove(&module, &hints, table::served);
            let proven = proven.expect("its own plan").sites;
            assert!(proven == plan.sites, "the library at {:#x}", module.base);
            sites += proven.len();
            for i in 0..hints.len() {
                let mut bad = hints.clone();
                bad[i].window += 1;
                assert!(prove(&module, &bad[i..=i], table::served).is_none());
            }
        }
        assert!(sites > 200, "{sites}");
    }
}
