//! The published experiments, as work for the model.

use crate::commands::fileserver;
use crate::commands::model::cells::{self, Cell};
use crate::commands::model::plural;
use crate::failure::Result;
use nacre_emulator::Profile;
use nacre_emulator::model::{Operation, Outcome, Pattern, Workload, probe, simulate};
use serde::Serialize;
use std::collections::BTreeSet;

const FAST_2020: &str = "Yang et al., An Empirical Guide to the Behavior and Use of Scalable \
    Persistent Memory, FAST 2020";
const GRANULARITY: &str = "A strategy of data accessing granularity for NVMM file systems, 2021";
const BANDWIDTH: &str = include_str!("../../../../../docs/emulation/data/bandwidth.csv");
const FENCES: &str = include_str!("../../../../../docs/emulation/data/fence_interval.csv");
const THREADS: &str = include_str!("../../../../../docs/emulation/data/threads_one_dimm.csv");
/// The operations of FAST 2020, for the shell.
const OPERATIONS: &str = "load ntstore flush";
/// The last level of the second study's processor.
const CACHE: u64 = 13_750 << 10;
const MIB: u64 = 1 << 20;

/// A question, what others found, and how the model is asked.
#[derive(Serialize)]
pub struct Experiment {
    pub name: String,
    pub title: String,
    pub source: &'static str,
    /// What gives the model's figures again, one by one: shell commands that run as they stand.
    pub command: String,
    pub x: &'static str,
    pub y: &'static str,
    /// The x axis doubles with each step.
    #[serde(skip)]
    pub doubling: bool,
    #[serde(skip)]
    pub trials: Vec<Trial>,
}

/// One point of an experiment.
pub struct Trial {
    pub series: String,
    pub x: f64,
    pub published: f64,
    pub run: Run,
}

/// How a point is found.
pub enum Run {
    /// What comes out of a workload.
    Simulate(Workload, Device, fn(&Outcome) -> f64),
    /// Percent of the bandwidth of another workload.
    Percent(Workload, Workload, Device),
    /// Write amplification of a region that is written by half lines.
    Probe(u64),
    /// Percent of the bandwidth without a policy, of a file server with so many threads that do
    /// something else for so many ns before each call.
    FileServer(u32, u32),
}

/// What differs from the profile.
#[derive(Clone, Copy)]
pub struct Device {
    modules: u32,
    cache: Option<u64>,
}

impl Device {
    const fn of(modules: u32) -> Self {
        Self {
            modules,
            cache: None,
        }
    }

    fn profile(self, profile: &Profile) -> Profile {
        let mut profile = profile.clone();
        profile.layout.modules = self.modules;
        profile.processor.cache = self.cache.unwrap_or(profile.processor.cache);
        profile
    }
}

impl Trial {
    /// The model's figure.
    pub fn model(&self, profile: &Profile) -> Result<f64> {
        let bandwidth = |device: Device, workload: &Workload| {
            simulate(&device.profile(profile), workload).bandwidth
        };
        Ok(match &self.run {
            Run::Simulate(workload, device, of) => {
                of(&simulate(&device.profile(profile), workload))
            }
            Run::Percent(workload, base, device) => {
                100.0 * bandwidth(*device, workload) / bandwidth(*device, base)
            }
            Run::Probe(region) => probe(profile, *region),
            Run::FileServer(threads, think) => {
                let two = Device::of(2).profile(profile);
                100.0 + fileserver::gain_by_model(&two, *threads, *think)?
            }
        })
    }
}

/// All experiments, in the order of the report.
pub fn all() -> Vec<Experiment> {
    let (cells, _) = cells::read(BANDWIDTH);
    let mut all = vec![threads(), fences(), region()];
    let mut kinds: Vec<(Pattern, u32, u64)> = Vec::new();
    for cell in &cells {
        if !kinds.contains(&kind(cell)) {
            kinds.push(kind(cell));
        }
    }
    all.extend(kinds.iter().map(|kind| bandwidth(&cells, *kind)));
    all.extend([amplification(&cells), cut(), large_reads(), file_server()]);
    all
}

fn kind(cell: &Cell) -> (Pattern, u32, u64) {
    (cell.workload.pattern, cell.modules, cell.workload.access)
}

const fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Load | Operation::Read => "load",
        Operation::NtStore => "ntstore",
        Operation::StoreFlush => "flush",
    }
}

const fn pattern_name(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Random => "random",
        Pattern::Sequential | Pattern::Halves(_) => "sequential",
    }
}

/// The figures of a table's lines; comments and headings have none.
fn lines_of(table: &str) -> impl Iterator<Item = Vec<f64>> {
    table.lines().filter_map(|line| {
        let fields = line.split(',').map(str::parse);
        fields.collect::<std::result::Result<Vec<f64>, _>>().ok()
    })
}

/// The command once for each value of `$name`.
fn for_each(name: &str, values: &str, command: &str) -> String {
    format!("for {name} in {values}; do {command}; done")
}

/// The places on the x axis, with commas between.
fn places(trials: &[Trial]) -> String {
    let places: BTreeSet<u64> = trials.iter().map(|trial| trial.x as u64).collect();
    let places: Vec<String> = places.iter().map(u64::to_string).collect();
    places.join(",")
}

/// A series for each column behind the first, which is the x axis.
fn series(
    table: &str,
    columns: &[(usize, Operation)],
    workload: impl Fn(Operation, f64) -> Workload,
) -> Vec<Trial> {
    let mut trials = Vec::new();
    for &(column, operation) in columns {
        for line in lines_of(table) {
            let run = Run::Simulate(workload(operation, line[0]), Device::of(1), |it| {
                it.bandwidth
            });
            trials.push(Trial {
                series: operation_name(operation).into(),
                x: line[0],
                published: line[column],
                run,
            });
        }
    }
    trials
}

fn threads() -> Experiment {
    use Operation::{Load, NtStore, StoreFlush};
    let columns = [(1, Load), (2, NtStore), (3, StoreFlush)];
    let workload = |operation, threads: f64| {
        Workload::new(operation, Pattern::Sequential, 256, threads as u32)
    };
    let trials = series(THREADS, &columns, workload);
    let command = format!(
        "nacre model --operation $o --pattern sequential --access 256 --modules 1 --threads {}",
        places(&trials)
    );
    Experiment {
        name: "threads".into(),
        title: "How many threads one module serves: sequential accesses of 256 B".into(),
        source: FAST_2020,
        command: for_each("o", OPERATIONS, &command),
        x: "threads",
        y: "GB/s",
        doubling: false,
        trials,
    }
}

fn fences() -> Experiment {
    let columns = [(3, Operation::NtStore), (1, Operation::StoreFlush)];
    let workload = |operation, bytes: f64| {
        let mut workload = Workload::new(operation, Pattern::Sequential, 4096, 1);
        workload.fence = bytes as u64;
        workload
    };
    let trials = series(FENCES, &columns, workload);
    let command = format!(
        "nacre model --operation $o --pattern sequential --access 4K --modules 1 --threads 1 \
        --fence {}",
        places(&trials)
    );
    Experiment {
        name: "fences".into(),
        title: "What it costs to wait after every so many bytes: one thread, one module".into(),
        source: FAST_2020,
        command: for_each("o", "ntstore flush", &command),
        x: "bytes from one fence to the next",
        y: "GB/s",
        doubling: true,
        trials,
    }
}

/// The knee was published as a region, "1 up to 18 KiB, rising from 20 KiB towards 2".
fn region() -> Experiment {
    let published = [(8_u32, 1.0), (16, 1.0), (18, 1.0), (64, 2.0), (128, 2.0)];
    let trials = published.map(|(kib, published)| Trial {
        series: "write amplification".into(),
        x: f64::from(kib) * 1024.0,
        published,
        run: Run::Probe(u64::from(kib) << 10),
    });
    Experiment {
        name: "buffer".into(),
        title: "How much a module's buffer holds: a region written by half lines".into(),
        source: FAST_2020,
        command: "nacre model --probe 8K,16K,18K,64K,128K".into(),
        x: "bytes of the region",
        y: "bytes written by the cells over bytes stored",
        doubling: true,
        trials: trials.into(),
    }
}

fn bandwidth(cells: &[Cell], kind_of: (Pattern, u32, u64)) -> Experiment {
    let (pattern, modules, access) = kind_of;
    let name = pattern_name(pattern);
    let cells = cells.iter().filter(|cell| kind(cell) == kind_of);
    let trial = |cell: &Cell| Trial {
        series: operation_name(cell.workload.operation).into(),
        x: f64::from(cell.workload.threads),
        published: cell.gb_s,
        run: Run::Simulate(cell.workload, Device::of(modules), |it| it.bandwidth),
    };
    let trials: Vec<Trial> = cells.map(trial).collect();
    let command = format!(
        "nacre model --operation $o --pattern {name} --access {access} --modules {modules} \
        --threads {}",
        places(&trials)
    );
    Experiment {
        name: format!("{name}-{access}-{modules}"),
        title: format!(
            "Bandwidth: {name} accesses of {access} B, {}",
            plural(modules, "module")
        ),
        source: FAST_2020,
        command: for_each("o", OPERATIONS, &command),
        x: "threads",
        y: "GB/s",
        doubling: false,
        trials,
    }
}

fn amplification(cells: &[Cell]) -> Experiment {
    let trial = |cell: &Cell| {
        let Workload {
            operation,
            pattern,
            access,
            threads,
            ..
        } = cell.workload;
        let (operation, pattern) = (operation_name(operation), pattern_name(pattern));
        Some(Trial {
            series: format!("{operation} {pattern} {access} {}", cell.modules),
            x: f64::from(threads),
            published: cell.ewr?,
            run: Run::Simulate(cell.workload, Device::of(cell.modules), |it| it.ewr),
        })
    };
    Experiment {
        name: "ewr".into(),
        title: "Effective write ratio: bytes stored over bytes that the cells write".into(),
        source: FAST_2020,
        command: "nacre model --compare docs/emulation/data/bandwidth.csv".into(),
        x: "threads",
        y: "EWR",
        doubling: false,
        trials: cells.iter().filter_map(trial).collect(),
    }
}

/// Stores of 4 MiB, cut at 256 B, against whole ones.
fn cut() -> Experiment {
    let whole = |threads| Workload::new(Operation::NtStore, Pattern::Random, 4 * MIB, threads);
    let pieces = |threads| Workload {
        fence: 256,
        ..whole(threads)
    };
    let trial = |modules, (threads, published)| Trial {
        series: plural(modules, "module"),
        x: f64::from(threads),
        published,
        run: Run::Percent(pieces(threads), whole(threads), Device::of(modules)),
    };
    let points = [(1, 80.0), (20, 180.0)];
    let trials = [1, 2].map(|modules| points.map(|point| trial(modules, point)));
    Experiment {
        name: "cut".into(),
        title: "Stores of 4 MiB cut at 256 B, against whole ones".into(),
        source: GRANULARITY,
        command: for_each(
            "n",
            "1 2",
            "nacre model --access 4M --fence 0,256 --threads 1,20 --modules $n",
        ),
        x: "threads",
        y: "percent of the bandwidth of whole stores",
        doubling: false,
        trials: trials.into_iter().flatten().collect(),
    }
}

/// Reads of 4 MiB against 256 KiB with many threads: buffers no longer fit in the cache.
fn large_reads() -> Experiment {
    let read =
        |access, threads| Workload::new(Operation::Read, Pattern::Sequential, access, threads);
    let device = Device {
        modules: 6,
        cache: Some(CACHE),
    };
    let trials = [8, 20].map(|threads| Trial {
        series: "4 MiB".into(),
        x: f64::from(threads),
        published: 78.9,
        run: Run::Percent(read(4 * MIB, threads), read(256 << 10, threads), device),
    });
    Experiment {
        name: "large-reads".into(),
        title: "Reads of 4 MiB at a time, against 256 KiB".into(),
        source: GRANULARITY,
        command: "nacre model --operation read --pattern sequential --access 256K,4M \
            --threads 8,20 --modules 6 --cache 13.75M"
            .into(),
        x: "threads",
        y: "percent of the bandwidth of smaller reads",
        doubling: false,
        trials: trials.into(),
    }
}

/// Published are two kernel file systems, PMFS with 130.1 and NOVA with 125.1, but not the time
/// that they take before each call.
fn file_server() -> Experiment {
    let trials = [0_u32, 5000, 20_000].map(|think| Trial {
        series: "optane:2".into(),
        x: f64::from(think) / 1000.0,
        published: 127.6,
        run: Run::FileServer(20, think),
    });
    Experiment {
        name: "fileserver".into(),
        title: "A file server of 20 threads on two modules, with the policy optane:2 (published: \
            mean of PMFS, 130.1, and NOVA, 125.1)"
            .into(),
        source: GRANULARITY,
        command: for_each(
            "ns",
            "0 5000 20000",
            "nacre fileserver --model optane-100 --modules 2 --threads 20 --think $ns",
        ),
        x: "time elsewhere before each call, us",
        y: "percent of the bandwidth without a policy",
        doubling: false,
        trials: trials.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{BTreeSet, all};

    #[test]
    fn every_published_figure_is_asked_for() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names.len(), all.len(), "names are unique");
        let of = |start: &str| {
            let fitting = all.iter().filter(|it| it.name.starts_with(start));
            fitting.map(|it| it.trials.len()).sum::<usize>()
        };
        assert_eq!(of("random") + of("sequential"), 265, "all of bandwidth.csv");
        assert_eq!((of("ewr"), of("threads"), of("fences")), (50, 72, 42));
        let figures = all.iter().flat_map(|it| &it.trials);
        assert!(figures.map(|it| it.published).all(|it| it > 0.0));
    }

    #[test]
    fn commands_run_as_they_stand() {
        let all = all();
        for command in all.iter().map(|it| it.command.as_str()) {
            let place_holder = ["|", "..", "(", "<"]
                .iter()
                .find(|it| command.contains(**it));
            assert_eq!(place_holder, None, "{command}");
        }
        let threads = all.iter().find(|it| it.name == "sequential-256-1").unwrap();
        assert_eq!(
            threads.command,
            "for o in load ntstore flush; do nacre model --operation $o --pattern sequential \
             --access 256 --modules 1 --threads 1,2,3,4,6,8; done"
        );
    }
}
