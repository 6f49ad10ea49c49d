//! `nacre completions` and `nacre man`: what is generated from the command line's definition.

use crate::failure::{Failure, Result};
use crate::output;
use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre completions bash >~/.local/share/bash-completion/completions/nacre
  nacre completions zsh >~/.zfunc/_nacre
  nacre completions fish >~/.config/fish/completions/nacre.fish";

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

/// Of the whole program, which is `program`.
pub fn run(arguments: &Arguments, mut program: clap::Command) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "nacre", &mut text);
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

const MAN_EXAMPLES: &str = "\
Examples:
  nacre man | man -l -                       this program's page
  nacre man --all ~/.local/share/man/man1    all pages, as files";

/// Print the manual page, or write the pages of all commands
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct ManArguments {
    /// Write one file for each command into DIR
    #[arg(long, value_name = "DIR")]
    all: Option<PathBuf>,
}

pub fn run_man(arguments: &ManArguments, mut command: clap::Command) -> Result<ExitCode> {
    command.build();
    let Some(folder) = &arguments.all else {
        output::write(&page(command)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let failed = |error| Failure::io(folder.display(), error);
    fs::create_dir_all(folder).map_err(failed)?;
    for command in with_subcommands(command) {
        let name = name_of(&command);
        output::save(&folder.join(format!("{name}.1")), page(command)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A command and all below it that have a page.
fn with_subcommands(command: clap::Command) -> Vec<clap::Command> {
    let has_page = |one: &&clap::Command| !one.is_hide_set() && one.get_name() != "help";
    let below = command.get_subcommands().filter(has_page).cloned();
    let mut all: Vec<clap::Command> = below.flat_map(with_subcommands).collect();
    all.push(command);
    all
}

fn name_of(command: &clap::Command) -> String {
    let name = command.get_display_name().unwrap_or(command.get_name());
    name.to_string()
}

fn page(mut command: clap::Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let usage = command.render_usage().to_string();
    let name = name_of(&command);
    let man = Man::new(command).title(name).manual("Nacre");
    man.render(&mut text)
        .map_err(|error| Failure::io("manual page", error))?;
    Ok(set_out(&String::from_utf8_lossy(&text), &usage).into_bytes())
}

/// A page as clap_mangen makes it, but with the values of arguments in the synopsis, and with
/// examples that are no paragraph.
fn set_out(page: &str, usage: &str) -> String {
    let sections = page
        .split(SECTION)
        .map(|section| match section.split_once('\n') {
            Some(("SYNOPSIS", _)) => as_it_is("SYNOPSIS", &usage.replace('-', "\\-")),
            Some(("EXTRA", text)) => as_it_is("EXAMPLES", text.trim_start_matches("Examples:\n")),
            _ => section.to_owned(),
        });
    let sections: Vec<String> = sections.collect();
    sections.join(SECTION)
}

const SECTION: &str = "\n.SH ";

fn as_it_is(title: &str, text: &str) -> String {
    let text = text.trim_start_matches("Usage: ").trim_end();
    format!("{title}\n.nf\n{text}\n.fi")
}
