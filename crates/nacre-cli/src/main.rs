//! The program `nacre`: makes, inspects, checks and uses pools.
#![forbid(unsafe_code)]

mod arguments;
mod attached;
mod bench;
mod commands;
mod emulated;
mod every;
mod failure;
mod long_lock;
mod mode;
mod ourselves;
mod output;
mod page;
mod parallel;
mod plot;
mod processor_time;
mod scratch;
mod size;
mod tree_path;
mod users;
mod wish;

use arguments::{Arguments, Command, command};
use std::process::ExitCode;

fn main() -> ExitCode {
    nacre_media::fault::install_handler();
    nacre_media::survive_limit();
    nacre_session::report_stalls(|pid| eprintln!("nacre: {}", nacre_session::stall_text(pid)));
    nacre_volume::report_waits_for_locks(long_lock::wait);
    ourselves::take_name();
    let arguments = Arguments::read();
    let done = match arguments.command {
        Command::Create(arguments) => commands::create::run(&arguments),
        Command::Info(arguments) => commands::info::run(&arguments),
        Command::Check(arguments) => commands::check::run(&arguments),
        Command::Scrub(arguments) => commands::scrub::run(&arguments),
        Command::Trim(arguments) => commands::trim::run(&arguments),
        Command::Grow(arguments) => commands::grow::run(&arguments),
        Command::Device(arguments) => commands::device::run(&arguments),
        Command::Delete(arguments) => commands::delete::run(&arguments),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Mount(arguments) => commands::mount::run(&arguments),
        Command::Umount(arguments) => commands::mount::run_umount(&arguments),
        Command::Wear(arguments) => commands::wear::run(&arguments),
        Command::Emulate(arguments) => commands::emulate::run(&arguments),
        Command::Calibrate(arguments) => commands::calibrate::run(&arguments),
        Command::Model(arguments) => commands::model::run(&arguments),
        Command::Fileserver(arguments) => commands::fileserver::run(&arguments),
        Command::Experiments(arguments) => commands::experiments::run(&arguments),
        Command::Ls(arguments) => commands::ls::run(&arguments),
        Command::Cat(arguments) => commands::cat::run(&arguments),
        Command::Cp(arguments) => commands::cp::run(&arguments),
        Command::Mv(arguments) => commands::mv::run(&arguments),
        Command::Rm(arguments) => commands::rm::run(&arguments),
        Command::Mkdir(arguments) => commands::mkdir::run(&arguments),
        Command::Clone(arguments) => commands::clone::run(&arguments),
        Command::Snapshot(arguments) => commands::snapshot::run(&arguments),
        Command::Sync(arguments) => commands::sync::run(&arguments),
        Command::Objects(arguments) => commands::objects::run(&arguments),
        Command::Export(arguments) => commands::export::run(&arguments),
        Command::Import(arguments) => commands::import::run(&arguments),
        Command::List(arguments) => commands::list::run(&arguments),
        Command::Top(arguments) => commands::top::run(&arguments),
        Command::Plans(arguments) => commands::plans::run(&arguments),
        Command::Completions(arguments) => commands::completions::run(&arguments, command()),
        Command::Man(arguments) => commands::completions::run_man(&arguments, command()),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::BenchWorker(arguments) => bench::worker::run(&arguments),
        Command::BenchDiskWorker(arguments) => bench::disk::worker::run(&arguments),
        Command::BenchCount(arguments) => bench::count::run(&arguments),
    };
    done.unwrap_or_else(|failure| {
        output::tell(&failure);
        failure.exit_code()
    })
}
