//! `nacre emulate -- PROGRAM`: a program that uses libpmem, on the device of a profile.

use crate::commands::run::{preload, supervisor};
use crate::commands::wear::{Outputs, show};
use crate::failure::{Failure, Result};
use crate::size;
use clap::Args;
use nacre_emulator::{CounterPlace, Emulation, Profile, Settings};
use nacre_runtime::Folder;
use nacre_volume::Owner;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Where the program's processes find settings and counters.
const VARIABLE: &str = "NACRE_EMULATION";
/// Makes libpmem take any mapped file for persistent memory.
const FORCE: &str = "PMEM_IS_PMEM_FORCE";

/// Run a program that uses libpmem
#[derive(Debug, Args)]
pub struct Program {
    /// Be as slow as this device: a shipped profile (see `nacre model --show`), or path of a TOML
    /// file
    #[arg(long, value_name = "PROFILE", default_value = "optane-100")]
    profile: String,
    /// Count what is written by granules of so many bytes
    #[arg(long, value_name = "BYTES", value_parser = size::parse, num_args = 0..=1, require_equals = true, default_value = "4096", default_missing_value = "4096")]
    wear: u64,
    /// Count only, without delays
    #[arg(long)]
    no_delays: bool,
    #[command(flatten)]
    outputs: Outputs,
    /// Program and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The file with settings and counters; gone when this is.
struct Counters {
    path: PathBuf,
    emulation: Emulation,
}

impl Drop for Counters {
    fn drop(&mut self) {
        self.emulation.end_use();
        if let Err(error) = self.emulation.remove() {
            eprintln!("nacre: {error}");
        }
    }
}

impl Program {
    /// Runs it to its end, and reports on standard error.
    pub fn run(&self) -> Result<ExitCode> {
        let Some((name, words)) = self.program.split_first() else {
            return Err(Failure::Usage(
                "give a program: nacre emulate --profile optane-100 -- PROGRAM; or `nacre emulate verify`".to_owned(),
            ));
        };
        let before_start = |error: Failure| Failure::BeforeStart(error.into());
        let counters = self.counters().map_err(before_start)?;
        let library = preload::PMEM.find().map_err(before_start)?;
        let mut command = Command::new(name);
        command
            .args(words)
            .env("LD_PRELOAD", preload::environment(&library))
            .env(VARIABLE, &counters.path);
        if std::env::var_os(FORCE).is_none() {
            command.env(FORCE, "1");
        }
        let status = supervisor::keep(command, &name.to_string_lossy(), &[])?;
        let wear = counters.emulation.wear();
        let wear = wear.map_err(|errno| Failure::io(counters.path.display(), errno))?;
        let text = if wear.written.is_empty() {
            b"nacre: nothing was made durable by libpmem; is the program linked with it? (libpmem2 and own instructions are not seen)\n".to_vec()
        } else {
            show(&wear, &self.outputs, Vec::new())?
        };
        let _nobody_reads = std::io::stderr().lock().write_all(&text);
        Ok(status)
    }

    fn counters(&self) -> Result<Counters> {
        let settings = Settings {
            profile: &Profile::load(&self.profile)?,
            delays: !self.no_delays,
            wear: Some(self.wear),
        };
        let folder = Folder::make_of_user()?;
        let owner = Owner {
            uid: folder.trust().uid,
            gid: rustix::process::getegid().as_raw(),
            mode: 0o600,
        };
        let name = format!("program-{}.emulation", std::process::id());
        let place = CounterPlace::below(folder, &name);
        let emulation = Emulation::create_for_files(place, &settings, owner)?;
        emulation.begin_use();
        Ok(Counters {
            path: emulation.path(),
            emulation,
        })
    }
}
