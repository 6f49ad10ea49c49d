//! `nacre device`: the devices of a pool.

mod add;
mod copies;
mod leaving;
mod list;
mod named;
mod own;
mod rebalance;
mod rebuild;
mod rebuilt;
mod remove;
mod replace;

use crate::failure::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  nacre device list my.pool                          sizes, what of them is used, how data is spread
  nacre device add --size 10G my.pool /mnt/more/c    what is written next goes there, too
  nacre device add --behind --size 1T my.pool cold   a file on a disk, for what is cold
  nacre device rebalance my.pool                     what was written before, too
  nacre device remove my.pool /mnt/more/c            what it holds moves to the others first
  nacre device add --copy my.pool /ssd2/b.pool       it holds the same: one of both may be lost
  nacre device replace my.pool /dev/dax1.0 /dev/dax2.0  with copies: a new one for another
  nacre device rebuild my.pool                       with copies: one that was missing is back";

/// Show and change the devices of a pool
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    List(list::Arguments),
    Add(add::Arguments),
    Rebalance(rebalance::Arguments),
    Remove(remove::Arguments),
    Replace(replace::Arguments),
    Rebuild(rebuild::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.what {
        What::List(arguments) => list::run(arguments),
        What::Add(arguments) => add::run(arguments),
        What::Rebalance(arguments) => rebalance::run(arguments),
        What::Remove(arguments) => remove::run(arguments),
        What::Replace(arguments) => replace::run(arguments),
        What::Rebuild(arguments) => rebuild::run(arguments),
    }
}
