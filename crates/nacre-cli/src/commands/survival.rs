//! What pools survive, in words.

use nacre_volume::Survives;

/// Says plainly what all that is stored survives.
pub fn survival(survives: Survives) -> String {
    let kinds = [
        ("the death of processes (kill -9)", survives.process_death),
        ("a crash or restart of the system", survives.kernel_crash),
        ("a power cut", survives.power_loss),
    ];
    let list = |wanted: bool| {
        let chosen = kinds.iter().filter(|(_, survives)| *survives == wanted);
        chosen.map(|(kind, _)| *kind).collect::<Vec<_>>().join(", ")
    };
    match (list(true), list(false)) {
        (good, bad) if bad.is_empty() => format!("survives  {good}"),
        (good, bad) if good.is_empty() => format!("does NOT survive {bad}"),
        (good, bad) => format!("survives  {good}\ndoes NOT survive {bad}"),
    }
}

#[cfg(test)]
mod tests {
    use super::survival;
    use nacre_volume::Survives;

    #[test]
    fn survival_is_plain() {
        let memory = Survives {
            process_death: true,
            kernel_crash: false,
            power_loss: false,
        };
        let text = survival(memory);
        assert!(text.starts_with("survives  the death of processes"));
        assert!(text.ends_with("does NOT survive a crash or restart of the system, a power cut"));
        let all = Survives {
            kernel_crash: true,
            power_loss: true,
            ..memory
        };
        assert!(!survival(all).contains("NOT"));
    }
}
