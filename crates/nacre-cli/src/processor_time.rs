//! Time of processors that processes took, as /proc/PID/stat tells it.

/// Ticks of the clock in which Linux counts processor time for programs.
pub const TICKS_PER_SECOND: f64 = 100.0;

/// What a process took.
#[derive(Clone, Copy)]
pub enum Of {
    Itself,
    /// With its children that ended.
    AndChildren,
}

/// Seconds that the text of such a file tells; 0 if it tells none.
pub fn seconds(stat: &str, of: Of) -> f64 {
    let times = match of {
        Of::Itself => 2,
        Of::AndChildren => 4,
    };
    // The name may contain spaces and ends with the last parenthesis.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields = rest.split_whitespace().skip(11).take(times);
    let ticks = fields.filter_map(|word| word.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::{Of, seconds};

    #[test]
    fn times_of_program_and_kernel_are_found_behind_any_name() {
        let stat = "17 (a (b) c) S 1 17 17 0 -1 4194304 500 600 0 0 11 22 33 44 20 0 1 0 5 6";
        assert_eq!(seconds(stat, Of::AndChildren), 1.10);
        assert_eq!(seconds(stat, Of::Itself), 0.33);
        assert_eq!(seconds("", Of::Itself), 0.0);
    }
}
