//! The command line.

use crate::{bench, commands};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::env;
use std::ffi::OsString;

const EXAMPLES: &str = "\
A pool is a file system in a file, on a disk or in a memory device. Programs see it as a folder.

Start here:
  nacre run -- bash                          a shell in which /nacre is a file system in memory
  nacre create --size 10G my.pool            make a pool of your own
  nacre run --pool my.pool -- bash           a shell in which /nacre is that pool
  nacre mount my.pool ~/p                    the same files for every other program
  nacre cp -r src my.pool:/                  copy into it from outside
  nacre info my.pool                         what it is, how full it is, what it survives
  nacre top                                  what pools in use and their programs are doing

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
    Run(commands::run::Arguments),
    Create(commands::create::Arguments),
    Info(commands::info::Arguments),
    List(commands::list::Arguments),
    Top(commands::top::Arguments),
    Mount(commands::mount::Arguments),
    Umount(commands::mount::UmountArguments),
    Ls(commands::ls::Arguments),
    Cat(commands::cat::Arguments),
    Cp(commands::cp::Arguments),
    Mv(commands::mv::Arguments),
    Rm(commands::rm::Arguments),
    Mkdir(commands::mkdir::Arguments),
    Export(commands::export::Arguments),
    Import(commands::import::Arguments),
    Clone(commands::clone::Arguments),
    Snapshot(commands::snapshot::Arguments),
    Sync(commands::sync::Arguments),
    Check(commands::check::Arguments),
    Scrub(commands::scrub::Arguments),
    Trim(commands::trim::Arguments),
    Grow(commands::grow::Arguments),
    Device(commands::device::Arguments),
    Delete(commands::delete::Arguments),
    Objects(commands::objects::Arguments),
    Bench(bench::Arguments),
    BenchWorker(bench::worker::Arguments),
    BenchDiskWorker(bench::disk::worker::Arguments),
    BenchCount(bench::count::Arguments),
    Wear(commands::wear::Arguments),
    Emulate(commands::emulate::Arguments),
    Calibrate(commands::calibrate::Arguments),
    Model(commands::model::Arguments),
    Fileserver(commands::fileserver::Arguments),
    Experiments(commands::experiments::Arguments),
    Plans(commands::plans::Arguments),
    Completions(commands::completions::Arguments),
    Man(commands::completions::ManArguments),
}

impl Arguments {
    /// Reads this process's command line; ends the process if it asks for help or is wrong.
    pub fn read() -> Arguments {
        if let Some(run) = run_alone(env::args_os()) {
            return run;
        }
        let parsed = command().try_get_matches();
        let parsed = parsed.and_then(|matches| Arguments::from_arg_matches(&matches));
        parsed.unwrap_or_else(|error| {
            if error.kind() != ErrorKind::ValueValidation {
                error.exit();
            }
            eprint!("{}", plainly(&error.render().to_string()));
            std::process::exit(error.exit_code());
        })
    }
}

/// `nacre run` of a command line in order. To describe all other commands takes longer than to read
/// it, and it is what starts most. `None`: another command, or a line that is to be answered.
fn run_alone(line: impl Iterator<Item = OsString>) -> Option<Arguments> {
    let line: Vec<OsString> = line.skip(1).collect();
    (line.first()? == "run").then_some(())?;
    let command = commands::run::Arguments::augment_args(clap::Command::new("run"));
    let matches = command.try_get_matches_from(line).ok()?;
    let run = commands::run::Arguments::from_arg_matches(&matches).ok()?;
    let command = Command::Run(run);
    Some(Arguments { command })
}

/// The definition, with texts that are wrapped where they are shown and nowhere else.
pub fn command() -> clap::Command {
    let mut command = Arguments::command();
    let names: Vec<String> = command
        .get_subcommands()
        .map(|one| one.get_name().to_string())
        .collect();
    for name in names {
        command = command.mut_subcommand(name, unwrapped);
    }
    unwrapped(command)
}

fn unwrapped(command: clap::Command) -> clap::Command {
    let text = command
        .get_after_help()
        .map(|text| joined(&text.to_string()));
    match text {
        Some(text) => command.after_help(text),
        None => command,
    }
}

/// Joins the lines of paragraphs, but not of examples, which are indented or stand behind a colon.
fn joined(text: &str) -> String {
    let mut out = String::new();
    let mut open = false;
    for line in text.lines() {
        let prose = !line.is_empty() && !line.starts_with(' ');
        if !out.is_empty() {
            out.push(if open && prose { ' ' } else { '\n' });
        }
        out.push_str(line);
        open = prose && !line.ends_with(':');
    }
    out
}

/// Errors of Rust's own parsers as sentences.
fn plainly(text: &str) -> String {
    const SENTENCES: [(&str, &str); 5] = [
        (
            "invalid digit found in string",
            "write a whole number, for example 8",
        ),
        (
            "cannot parse integer from empty string",
            "write a whole number, for example 8",
        ),
        (
            "number too large to fit in target type",
            "the number is too large",
        ),
        (
            "number too small to fit in target type",
            "the number is too small",
        ),
        ("invalid float literal", "write a number, for example 0.5"),
    ];
    let replace = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    SENTENCES.iter().fold(text.to_string(), replace)
}

#[cfg(test)]
mod tests {
    use super::{Arguments, Command, command, plainly, run_alone};
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

    /// A line that ends early, although the next word would have fitted.
    fn broken_twice(help: &str, width: usize) -> Option<String> {
        let lines: Vec<&str> = help.lines().collect();
        let prose = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        let early = |pair: &&[&str]| {
            let next = pair[1].split(' ').next().unwrap_or_default();
            prose(pair[0]) && prose(pair[1]) && pair[0].len() + 1 + next.len() <= width
        };
        lines.windows(2).find(early).map(|pair| pair.join(" | "))
    }

    #[test]
    fn help_is_wrapped_once() {
        for width in [60, 80, 100] {
            for one in command().get_subcommands_mut() {
                let help = one.clone().term_width(width).render_long_help().to_string();
                assert_eq!(
                    broken_twice(&help, width),
                    None,
                    "{} at {width}",
                    one.get_name()
                );
            }
        }
        assert!(broken_twice("a line\nand more", 80).is_some(), "the canary");
    }

    #[test]
    fn wrong_numbers_are_told_in_sentences() {
        for line in [
            ["nacre", "bench", "--rounds", "x"],
            ["nacre", "bench", "--rounds", ""],
        ] {
            let error = Arguments::try_parse_from(line).expect_err("no number");
            let text = plainly(&error.render().to_string());
            assert!(text.contains("write a whole number"), "{text}");
        }
    }

    #[test]
    fn a_run_is_read_alone_as_among_all_commands() {
        let alone = |line: &[&str]| {
            let line = ["nacre"].iter().chain(line).map(Into::into);
            run_alone(line).map(|read| format!("{read:?}"))
        };
        for line in [
            &["run"][..],
            &["run", "ls", "-l", "--", "-x"],
            &[
                "run",
                "--pool",
                "p",
                "--mount=/m",
                "-q",
                "--wear",
                "--",
                "ls",
                "--pool",
            ],
            &[
                "run",
                "--emulate",
                "a",
                "--emulate",
                "b",
                "--size",
                "2G",
                "sh",
                "--help",
            ],
        ] {
            let all = Arguments::parse_from(["nacre"].iter().chain(line));
            assert_eq!(alone(line), Some(format!("{all:?}")), "{line:?}");
        }
        for line in [
            &[][..],
            &["ls", "run"],
            &["--help"],
            &["run", "--help"],
            &["run", "-h"],
            &["run", "--size", "x"],
            &["run", "--nothing"],
            &["run", "--keep"],
            &["run", "--version"],
        ] {
            assert_eq!(alone(line), None, "{line:?}");
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
