//! What the figures were measured on, and what else it was doing.

use crate::processor_time::{self, Of, TICKS_PER_SECOND};
use serde::Serialize;
use std::fs;
use std::thread::available_parallelism;
use std::time::Instant;

/// Above this load average of the last minute, or this part of the processors used by others,
/// figures are not to be trusted.
const IDLE_LOAD: f64 = 0.5;
const IDLE_OTHERS: f64 = 0.02;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub kernel: String,
    /// Load average of the last minute, before the first measurement.
    pub load_before: f64,
    pub load_after: f64,
    /// Part of all processors' time that others used meanwhile.
    pub used_by_others: f64,
}

impl Machine {
    pub fn now() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            processor: model(&info),
            processors: available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_string(),
            load_before: load(),
            ..Machine::default()
        }
    }

    /// Why the figures will be doubtful, if it was busy before.
    pub fn warning_before(&self) -> Option<String> {
        (self.load_before >= IDLE_LOAD).then(|| {
            let load = self.load_before;
            format!("the machine is not idle (load {load:.2}): do not trust these figures")
        })
    }

    /// Why the figures are doubtful, if they are.
    pub fn warning(&self) -> Option<String> {
        let others = (self.used_by_others >= IDLE_OTHERS).then(|| {
            let part = self.used_by_others * 100.0;
            format!("others used {part:.0} % of the machine: do not trust these figures")
        });
        others.or_else(|| self.warning_before())
    }
}

/// Watches what others do from now on.
pub struct Watch {
    start: Instant,
    busy: f64,
    own: f64,
}

impl Watch {
    pub fn start() -> Watch {
        Watch {
            start: Instant::now(),
            busy: busy_seconds(),
            own: own_seconds(),
        }
    }

    /// Notes what happened since. Children must have ended.
    pub fn stop(&self, machine: &mut Machine) {
        let own = own_seconds() - self.own;
        let others = busy_seconds() - self.busy - own;
        let all = self.start.elapsed().as_secs_f64() * machine.processors as f64;
        machine.used_by_others = (others / all).clamp(0.0, 1.0);
        machine.load_after = load();
    }
}

fn model(info: &str) -> String {
    let line = info.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or_else(
        || "unknown".to_string(),
        |(_, name)| name.trim().to_string(),
    )
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    first_number(&text)
}

fn first_number(text: &str) -> f64 {
    let word = text.split_whitespace().next();
    word.and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Time that all processors were not idle.
fn busy_seconds() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&text) / TICKS_PER_SECOND
}

fn busy_ticks(stat: &str) -> f64 {
    let fields = numbers(stat.lines().next().unwrap_or(""));
    // The fourth and fifth are idle and waiting; the ninth and tenth are part of the first two.
    let busy = fields.iter().enumerate();
    busy.filter(|(index, _)| !matches!(index, 3 | 4 | 8..))
        .map(|(_, ticks)| ticks)
        .sum()
}

/// Time of this process and its children that ended.
fn own_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    processor_time::seconds(&text, Of::AndChildren)
}

fn numbers(line: &str) -> Vec<f64> {
    line.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Machine, busy_ticks, model};

    #[test]
    fn processor_time_is_read() {
        let stat = "cpu  100 1 20 9000 50 2 3 4 7 8\ncpu0 1 2 3\n";
        assert_eq!(busy_ticks(stat), 130.0);
        assert_eq!(model("vendor_id : x\nmodel name\t: Fast One\n"), "Fast One");
    }

    #[test]
    fn a_busy_machine_is_told() {
        let mut machine = Machine::default();
        assert_eq!(machine.warning(), None);
        machine.used_by_others = 0.3;
        assert!(machine.warning().is_some_and(|text| text.contains("30 %")));
        assert_eq!(machine.warning_before(), None);
        machine.load_before = 4.0;
        let before = machine.warning_before();
        assert!(before.is_some_and(|text| text.contains("4.00")));
    }
}
