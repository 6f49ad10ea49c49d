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
    let mut pages: Vec<clap::Command> = command
        .get_subcommands()
        .filter(|one| !one.is_hide_set())
        .cloned()
        .collect();
    pages.retain(|one| one.get_name() != "help");
    pages.push(command);
    for command in pages {
        let name = command
            .get_display_name()
            .unwrap_or(command.get_name())
            .to_string();
        output::save(&folder.join(format!("{name}.1")), page(command)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn page(command: clap::Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let name = command
        .get_display_name()
        .unwrap_or(command.get_name())
        .to_string();
    let man = Man::new(command).title(name).manual("Nacre");
    man.render(&mut text)
        .map_err(|error| Failure::io("manual page", error))?;
    Ok(text)
}
