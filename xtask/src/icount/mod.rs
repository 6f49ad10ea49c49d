//! `icount`: what calls cost in instructions, on an emulated NVDIMM, beside the kernel's DAX file
//! systems.
//!
//! The virtual machine runs without hardware help and its clock counts executed instructions, of
//! programs and kernel together. So the figures repeat to about one percent on any machine, under
//! any load, and can guard against regressions where times cannot.

mod figures;

pub use figures::Figures;
use figures::{GROWTH_MAX, NACRE};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use crate::target_folder;
use crate::vm::{self, Vm};

pub const USAGE: &str = "\
usage: cargo xtask icount [--gate | --record]

Boots a virtual machine whose clock counts instructions and prints what each call costs there on a
pool on /dev/dax0.0, on ext4-dax, xfs-dax and tmpfs.
  --gate    measure the pool only; fail if a row grew by more than 3 % over docs/icount.tsv
  --record  put what was measured into docs/icount.tsv
Figures are compared if the same compiler made them. The machine is that of tests/vm/boot.sh; the
environment variable NACRE_VM_WORK names a folder for what it keeps.
";

const KERNEL: &str = include_str!("kernel.sh");
const POOL: &str = include_str!("pool.sh");
const RECORD: &str = "docs/icount.tsv";
const SECONDS_MAX: u64 = 900;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Show,
    Gate,
    Record,
}

/// Why there are no figures.
enum Failure {
    /// There is no virtual machine here: nothing was measured, nothing is wrong.
    NoMachine,
    Broken(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Broken(error.to_string())
    }
}

pub fn run(root: &Path, options: &[String]) -> ExitCode {
    let purpose = match options {
        [] => Purpose::Show,
        [one] if one == "--gate" => Purpose::Gate,
        [one] if one == "--record" => Purpose::Record,
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match measure_and_conclude(root, purpose) {
        Ok(is_fine) => ExitCode::from(u8::from(!is_fine)),
        Err(Failure::NoMachine) => {
            eprintln!("icount: NOT MEASURED");
            ExitCode::from(if purpose == Purpose::Gate { 0 } else { 2 })
        }
        Err(Failure::Broken(text)) => {
            eprintln!("icount: {text}");
            ExitCode::from(2)
        }
    }
}

/// What a shape of a folder or the guest's kernel added by chance does not come twice: the gate
/// measures once more before it fails, and judges the lower figure of each row.
fn measure_and_conclude(root: &Path, purpose: Purpose) -> Result<bool, Failure> {
    let found = measure(root, purpose)?;
    let is_fine = conclude(root, purpose, &found)?;
    if is_fine || purpose != Purpose::Gate {
        return Ok(is_fine);
    }
    println!("icount: measured once more");
    let again = measure(root, purpose)?.lowest_with(&found);
    conclude(root, purpose, &again)
}

fn measure(root: &Path, purpose: Purpose) -> Result<Figures, Failure> {
    if !vm::is_available(root).map_err(Failure::Broken)? {
        return Err(Failure::NoMachine);
    }
    let work = vm::work(root);
    build(root)?;
    let share = share(&work, &target_folder(root).join("release"))?;
    let script = work.join("icount.sh");
    fs::write(&script, guest_script(purpose))?;
    let machine = Vm {
        mode: "icount",
        share: &share,
        script: &script,
        limit: SECONDS_MAX,
    };
    let output = machine.command(root).output()?;
    let console = String::from_utf8_lossy(&output.stdout);
    if !console.contains("VM-DONE rc=0") {
        let text = format!("the virtual machine did not finish; its console said:\n{console}");
        return Err(Failure::Broken(text));
    }
    let text = fs::read_to_string(share.join("figures.tsv"))?;
    let mut figures = Figures::parse(&text).map_err(Failure::Broken)?;
    figures.compiler = compiler(root)?;
    Ok(figures)
}

fn compiler(root: &Path) -> Result<String, Failure> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let said = Command::new(rustc).current_dir(root).arg("-V").output()?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_string())
}

fn build(root: &Path) -> Result<(), Failure> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let status = Command::new(cargo)
        .current_dir(root)
        .args([
            "build",
            "--release",
            "--quiet",
            "-p",
            "nacre-cli",
            "-p",
            "nacre-preload",
        ])
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Broken("the build failed".to_string()))
    }
}

/// The folder that the virtual machine sees, with the programs to be measured in it.
fn share(work: &Path, built: &Path) -> Result<PathBuf, Failure> {
    let share = work.join("share");
    let programs = share.join("bin");
    fs::create_dir_all(&programs)?;
    for name in ["nacre", "libnacre_preload.so"] {
        fs::copy(built.join(name), programs.join(name))?;
    }
    fs::write(share.join("figures.tsv"), "")?;
    Ok(share)
}

fn guest_script(purpose: Purpose) -> String {
    let kernel = if purpose == Purpose::Gate { "" } else { KERNEL };
    format!(
        "set -e\ncp -r /tmp/share/bin /run/programs\nexport PATH=/run/programs:$PATH\nfigures=/tmp/share/figures.tsv\n{kernel}{POOL}"
    )
}

/// Whether all is as it should be.
fn conclude(root: &Path, purpose: Purpose, found: &Figures) -> Result<bool, Failure> {
    let path = root.join(RECORD);
    match purpose {
        Purpose::Show => {
            print!("{}", found.table());
            Ok(true)
        }
        Purpose::Record => {
            print!("{}", found.table());
            fs::write(&path, found.to_string())?;
            Ok(true)
        }
        Purpose::Gate => {
            let text = fs::read_to_string(&path)?;
            let recorded = Figures::parse(&text).map_err(Failure::Broken)?;
            Ok(gate(&recorded, found))
        }
    }
}

fn gate(recorded: &Figures, found: &Figures) -> bool {
    let findings = found.compare(recorded);
    findings.iter().for_each(|finding| println!("{finding}"));
    println!(
        "icount: {} rows on {NACRE}, {} findings (a row may grow by {:.0} %; \
         if it must grow, `cargo xtask icount --record`, and say why)",
        found.rows(),
        findings.len(),
        (GROWTH_MAX - 1.0) * 100.0
    );
    if found.compiler == recorded.compiler {
        return findings.is_empty();
    }
    println!(
        "icount: not judged: built by {}, the recorded ones by {}",
        found.compiler, recorded.compiler
    );
    found.canary().is_none()
}
