//! The command line.

use crate::{bench, commands};
use clap::{Parser, Subcommand, ValueEnum};
use nacre_store::WriteMode;

const EXAMPLES: &str = "\
Start here:
  nacre run -- bash                          a shell in which /nacre is a file system in memory
  nacre create --size 10G my.pool            make a pool of your own
  nacre run --pool my.pool -- bash           a shell in which /nacre is that pool
  nacre cp -r src my.pool:/                  copy into it from outside
  nacre info my.pool                         what it is, how full it is, what it survives

Exit status: 0 done; 1 failed; 2 wrong usage. `nacre run` gives the program's own status,
128 + N if signal N ended it, 125 if Nacre failed, 126 or 127 if the program cannot be started.";

/// Runs unmodified programs on non-volatile memory, without a system call for each I/O
#[derive(Debug, Parser)]
#[command(name = "nacre", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Create(commands::create::Arguments),
    Info(commands::info::Arguments),
    Check(commands::check::Arguments),
    Grow(commands::grow::Arguments),
    Delete(commands::delete::Arguments),
    Run(commands::run::Arguments),
    Wear(commands::wear::Arguments),
    Emulate(commands::emulate::Arguments),
    Calibrate(commands::calibrate::Arguments),
    Model(commands::model::Arguments),
    Fileserver(commands::fileserver::Arguments),
    Ls(commands::ls::Arguments),
    Cat(commands::cat::Arguments),
    Cp(commands::cp::Arguments),
    Bench(bench::Arguments),
    BenchWorker(bench::worker::Arguments),
    BenchCount(bench::count::Arguments),
}

/// What a write call promises when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Durable when the call returns
    Direct,
    /// Durable when the call returns, and all or nothing
    Atomic,
}

impl Mode {
    pub fn write_mode(self) -> WriteMode {
        match self {
            Mode::Direct => WriteMode::Direct,
            Mode::Atomic => WriteMode::Atomic,
        }
    }

    pub fn name(mode: WriteMode) -> &'static str {
        match mode {
            WriteMode::Direct => "direct",
            WriteMode::Atomic => "atomic",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arguments, Command};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_teaches_by_examples() {
        for command in Arguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            assert!(
                help.contains("nacre "),
                "{} has no example",
                command.get_name()
            );
        }
    }

    #[test]
    fn a_programs_options_are_its_own() {
        let program = |line: &[&str]| {
            let line = ["nacre", "run"].iter().chain(line);
            let Command::Run(run) = Arguments::parse_from(line).command else {
                panic!("not run");
            };
            run.program
        };
        let expected = ["ls", "--color", "--pool"];
        assert_eq!(
            program(&["--pool", "p", "--", "ls", "--color", "--pool"]),
            expected
        );
        assert_eq!(
            program(&["--pool", "p", "ls", "--color", "--pool"]),
            expected
        );
        assert_eq!(program(&["ls", "-l", "--", "-x"]), ["ls", "-l", "--", "-x"]);
        assert_eq!(program(&["--wear", "ls"]), ["ls"]);
    }
}
