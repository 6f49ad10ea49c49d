//! `nacre calibrate`: in which sizes a device likes to be written and read, and how fast it is.

mod grid;
mod measure;
mod show;

use crate::failure::{Failure, Result};
use crate::users::take_alone;
use crate::{output, size};
use clap::Args;
use grid::{Case, Direction, Grid, GridPlan};
use nacre_emulator::Profile;
use nacre_emulator::model::{Operation, Pattern, Workload, simulate};
use nacre_volume::{Access, DeviceInfo, FlushMethod, Granularity, Policy, Volume};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  nacre calibrate my.pool                        measure, choose, and remember it in the pool
  nacre calibrate --dry-run --svg heat.svg my.pool
  nacre calibrate --model optane-100 my.pool     what the model of a device would choose, to emulate it
  nacre calibrate --model dram --model optane-100 my.pool      of two devices that are emulated each
  nacre calibrate --margin 25 my.pool            cut only where that gains a quarter

Run it on an idle machine, with nobody using the pool. It stores to reserved bytes of each device only and
reads its data; contents do not change. Where a pool has several devices, files lie on the faster ones for
the most part, as long as there is room. Whole requests stay whole unless every measurement of some size of
pieces was faster than every one of whole requests, and by the margin in the middle.";

/// Percent that pieces must gain, if not told.
const MARGIN: u32 = 10;

/// Measure the best sizes of reads and writes of a pool's devices, and remember them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Any device of the pool
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// Ask the model of a device instead of measuring: shipped profile, or path of a TOML file;
    /// once for all devices, or once for each
    #[arg(long, value_name = "PROFILE")]
    model: Vec<String>,
    /// Percent that pieces must gain at least
    #[arg(long, value_name = "PERCENT", default_value_t = MARGIN)]
    margin: u32,
    /// Fewer and shorter measurements
    #[arg(long)]
    quick: bool,
    /// Change nothing in the pool
    #[arg(long)]
    dry_run: bool,
    /// Write a heat map of the gains of each device; further devices get a number before the
    /// extension
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    devices: Vec<DeviceReport>,
    stored: bool,
}

#[derive(Serialize)]
struct DeviceReport {
    path: PathBuf,
    granularity: String,
    /// At which it stores and loads everything once.
    mb_s: u32,
    grid: Grid,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let models = arguments.model.iter().map(|name| Ok(Profile::load(name)?));
    let models: Vec<Profile> = models.collect::<Result<_>>()?;
    if arguments.margin > 1000 {
        let text = format!("--margin {}: give 0 to 1000 percent", arguments.margin);
        return Err(Failure::Usage(text));
    }
    let access = if arguments.dry_run && !models.is_empty() {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    let volume = Volume::open(&arguments.pool, access)?;
    let grids = match models.is_empty() {
        true => measured(arguments, &volume)?,
        false => asked(arguments, &models, volume.devices().len())?,
    };
    // Who uses copies changes their labels, too.
    if !models.is_empty() && !arguments.dry_run && volume.has_copies() {
        take_alone(&arguments.pool, &volume)?;
    }
    report(arguments, &volume, grids)
}

fn measured(arguments: &Arguments, volume: &Volume) -> Result<Vec<Grid>> {
    take_alone(&arguments.pool, volume)?;
    refuse_unfit(volume)?;
    let plan = GridPlan::measured(arguments.quick, arguments.margin);
    let measure = |(number, device): (usize, &DeviceInfo)| {
        let site = measure::Site::new(volume, number, arguments.quick)?;
        let name = device.path.display().to_string();
        fill(&plan, name, |case| site.measure(case))
    };
    volume.devices().iter().enumerate().map(measure).collect()
}

/// What the models say, the only one or each its device's.
fn asked(arguments: &Arguments, models: &[Profile], devices: usize) -> Result<Vec<Grid>> {
    if models.len() > 1 && models.len() != devices {
        let text = "--model: give one for all devices, or one for each, in their order";
        return Err(Failure::Usage(text.into()));
    }
    let ask = |model| ask_model(model, arguments.quick, arguments.margin);
    let grids: Vec<Grid> = models.iter().map(ask).collect::<Result<_>>()?;
    Ok(grids.into_iter().cycle().take(devices).collect())
}

/// What is written through the page cache has no pieces.
fn refuse_unfit(volume: &Volume) -> Result<()> {
    let cached = |device: &DeviceInfo| device.flush == FlushMethod::Msync;
    match volume.devices().iter().find(|device| cached(device)) {
        Some(device) => Err(Failure::Usage(format!(
            "{}: {} has no granularity to measure; leave its policy at none, or use NVM, or memory",
            device.path.display(),
            device.kind
        ))),
        None => Ok(()),
    }
}

fn fill(plan: &GridPlan, name: String, mut ask: impl FnMut(&Case) -> Result<f64>) -> Result<Grid> {
    let bar = output::bar(
        plan.samples(),
        &format!("measuring {name}"),
        output::Counted::Steps,
    );
    let grid = plan.fill(name, |case| {
        bar.inc(1);
        ask(case)
    });
    bar.finish_and_clear();
    grid
}

fn ask_model(profile: &Profile, quick: bool, margin: u32) -> Result<Grid> {
    let plan = GridPlan::modelled(quick, margin);
    fill(&plan, profile.name.clone(), |case| {
        Ok(modelled(profile, case))
    })
}

/// What the model of a device chooses, for who plays with the model.
pub fn choice_of_model(profile: &Profile) -> Result<Granularity> {
    Ok(ask_model(profile, false, MARGIN)?.granularity(1))
}

/// The model's bandwidth, GB/s.
fn modelled(profile: &Profile, case: &Case) -> f64 {
    simulate(profile, &workload(case)).bandwidth
}

fn workload(case: &Case) -> Workload {
    let operation = match case.direction {
        Direction::Write => Operation::NtStore,
        Direction::Read => Operation::Load,
    };
    let mut workload = Workload::new(operation, Pattern::Random, case.bytes, case.threads);
    if case.direction == Direction::Write {
        workload.fence = if case.piece == 0 {
            case.bytes
        } else {
            case.piece
        };
    }
    workload
}

fn report(arguments: &Arguments, volume: &Volume, grids: Vec<Grid>) -> Result<ExitCode> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(1, |since| since.as_secs());
    let chosen: Vec<Granularity> = grids.iter().map(|grid| grid.granularity(now)).collect();
    if !arguments.dry_run {
        Volume::store_granularity(&arguments.pool, |index, before| {
            chosen.get(index).copied().unwrap_or(before)
        })?;
    }
    if let Some(path) = &arguments.svg {
        for (number, grid) in grids.iter().enumerate() {
            let path = output::numbered(path, number);
            output::save(&path, show::svg(grid))?;
        }
    }
    let devices = volume.devices().into_iter().zip(&chosen).zip(grids);
    let devices = devices.map(|((device, granularity), grid)| DeviceReport {
        path: device.path,
        granularity: granularity.policy.to_string(),
        mb_s: granularity.speed,
        grid,
    });
    let report = Report {
        devices: devices.collect(),
        stored: !arguments.dry_run,
    };
    if arguments.json {
        output::json(&report)?;
    } else {
        output::write(describe(&report).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    for device in &report.devices {
        text.push_str(&show::text(&device.grid));
        let choice = if device.granularity == Policy::None.to_string() {
            "do not cut: nothing gains enough beyond noise"
        } else {
            "cut as above where a size stands"
        };
        let stored = if report.stored {
            "remembered"
        } else {
            "not stored"
        };
        let path = device.path.display();
        text.push_str(&format!(
            "{path}: {choice} (granularity {}, {stored}); {} to store and load\n",
            device.granularity,
            size::rate(device.mb_s).unwrap_or("unknown".into())
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grid::{Case, Direction, GridPlan};
    use super::{modelled, workload};
    use nacre_emulator::Profile;
    use nacre_emulator::model::simulate_for;
    use nacre_volume::{Granularity, Policy};

    fn plan() -> GridPlan {
        let mut plan = GridPlan::modelled(true, 10);
        plan.threads = vec![1, 16];
        plan.writes = vec![4 << 20];
        plan.reads = Vec::new();
        plan
    }

    #[test]
    fn the_models_of_devices_choose_what_suits_them() {
        let optane = Profile::load("optane-100").unwrap();
        let grid = plan().fill("o".into(), |case| Ok(modelled(&optane, case)));
        let table = grid.unwrap().granularity(1);
        assert_eq!(table.policy, Policy::Calibrated);
        assert!(
            (8..=9).contains(&table.writes.0[4][7]),
            "{:?}",
            table.writes
        );
        assert_eq!(table.writes.0[0][7], 0, "one thread is left alone");
        let dram = Profile::load("dram").unwrap();
        let grid = plan().fill("d".into(), |case| Ok(modelled(&dram, case)));
        assert_eq!(grid.unwrap().granularity(1).policy, Policy::None);
    }

    /// If pieces did not reach the model, Optane would be left alone too.
    #[test]
    fn canary_a_model_that_is_asked_without_pieces_chooses_none() {
        let optane = Profile::load("optane-100").unwrap();
        let grid = plan().fill("o".into(), |case| {
            let whole = Case { piece: 0, ..*case };
            assert_eq!(case.direction, Direction::Write);
            Ok(modelled(&optane, &whole))
        });
        assert_eq!(grid.unwrap().granularity(1).policy, Policy::None);
    }

    /// Nanoseconds that are simulated. Where there are many modules the bandwidth of a shorter time
    /// depends on the places that happen to be chosen.
    fn duration(modules: u16) -> f64 {
        400_000.0 * f64::from(modules.min(5))
    }

    /// The gains of what a policy chooses over whole requests and over the best fixed size, as
    /// factors, for each cell of a grid.
    fn gains(modules: u16, piece: impl Fn(u32, u64) -> u64) -> Vec<(String, f64, f64)> {
        let mut profile = Profile::load("optane-100").unwrap();
        profile.layout.modules = u32::from(modules);
        let mut cells = Vec::new();
        for threads in [1, 2, 3, 4, 7, 8, 10, 12, 24] {
            for bytes in [1 << 10, 4 << 10, 16 << 10, 256 << 10, 4 << 20] {
                let rate = |piece| {
                    let direction = Direction::Write;
                    let case = Case {
                        direction,
                        threads,
                        bytes,
                        piece,
                    };
                    simulate_for(&profile, &workload(&case), duration(modules)).bandwidth
                };
                let sizes = [0, 256, 512, 1024];
                let rates = sizes.map(|piece| if piece < bytes { rate(piece) } else { 0.0 });
                let chosen = piece(threads, bytes);
                let place = sizes.iter().position(|&size| size == chosen).unwrap();
                let best = rates.iter().copied().fold(0.0, f64::max);
                let name = format!("{modules} modules, {threads} threads, {bytes} B: {chosen}");
                cells.push((name, rates[place] / rates[0], rates[place] / best));
            }
        }
        cells
    }

    /// No cell may lose 2 % against whole requests, or 5 % against the best fixed size.
    #[test]
    fn what_the_optane_policy_cuts_never_loses_on_the_model() {
        let of_policy = |modules| {
            let policy = Granularity {
                policy: Policy::Optane { modules },
                ..Granularity::default()
            };
            gains(modules, |threads, bytes| {
                policy.stored_piece(threads, bytes)
            })
        };
        let cells: Vec<_> = [1, 2, 6].into_iter().flat_map(of_policy).collect();
        for (name, whole, best) in &cells {
            println!("{name}: {whole:.3} of whole, {best:.3} of the best");
        }
        let losing = cells.iter().find(|(_, whole, _)| *whole < 0.98);
        assert!(losing.is_none(), "{losing:?}");
        let poor = cells.iter().find(|(_, _, best)| *best < 0.95);
        assert!(poor.is_none(), "{poor:?}");
    }

    /// The canary of the test before.
    #[test]
    fn a_policy_that_always_cuts_is_seen_to_lose() {
        let cells = gains(2, |_, _| 256);
        assert!(cells.iter().any(|(_, whole, _)| *whole < 0.90));
    }
}
