//! What pools survive, in words.

use nacre_volume::Survives;

/// From when on what is stored survives as much as its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SafeFrom {
    /// The return of the call that stores it.
    Return,
    /// The return of a sync.
    Sync,
    /// When the pool, which is in memory, was saved to its disk.
    Save,
}

/// Says plainly what all that is stored survives, and from when on.
pub fn survival(survives: Survives, from: SafeFrom) -> String {
    let kinds = [
        ("the death of processes (kill -9)", survives.process_death),
        ("a crash or restart of the system", survives.kernel_crash),
        ("a power cut", survives.power_loss),
    ];
    let list = |wanted: bool| {
        let chosen = kinds.iter().filter(|(_, survives)| *survives == wanted);
        chosen.map(|(kind, _)| *kind).collect::<Vec<_>>()
    };
    let (good, bad) = (list(true), list(false).join(", "));
    let good = match (good.split_first(), from) {
        (Some((first, later)), SafeFrom::Sync) if !later.is_empty() => {
            format!("{first}; once synced also {}", later.join(", "))
        }
        (Some((first, later)), SafeFrom::Save) if !later.is_empty() => {
            format!("{first}; once saved also {}", later.join(", "))
        }
        _ => good.join(", "),
    };
    match (good, bad) {
        (good, bad) if bad.is_empty() => format!("survives  {good}"),
        (good, bad) if good.is_empty() => format!("does NOT survive {bad}"),
        (good, bad) => format!("survives  {good}\ndoes NOT survive {bad}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{SafeFrom, survival};
    use nacre_volume::Survives;

    const MEMORY: Survives = Survives {
        process_death: true,
        kernel_crash: false,
        power_loss: false,
    };
    const DISK: Survives = Survives {
        process_death: true,
        kernel_crash: true,
        power_loss: true,
    };

    #[test]
    fn survival_is_plain() {
        let text = survival(MEMORY, SafeFrom::Return);
        assert!(text.starts_with("survives  the death of processes"));
        assert!(text.ends_with("does NOT survive a crash or restart of the system, a power cut"));
        assert!(!survival(DISK, SafeFrom::Return).contains("NOT"));
    }

    #[test]
    fn what_was_not_synced_is_not_said_to_survive_a_power_cut() {
        let text = survival(DISK, SafeFrom::Sync);
        assert!(
            text.contains("(kill -9); once synced also a crash"),
            "{text}"
        );
        let text = survival(DISK, SafeFrom::Save);
        assert!(
            text.contains("(kill -9); once saved also a crash"),
            "{text}"
        );
        let plain = survival(MEMORY, SafeFrom::Return);
        assert_eq!(survival(MEMORY, SafeFrom::Sync), plain);
    }
}
