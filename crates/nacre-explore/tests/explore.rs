//! The canaries are found, and a short exploration finds nothing else.

use nacre_explore::campaign::{self, Limits};
use nacre_explore::{canary, workload};

#[test]
fn planted_bugs_are_found_and_the_store_has_none() {
    let worlds = workload::prepare().unwrap();
    canary::run(&worlds, 1).unwrap();
    let limits = Limits {
        images: Some(2500),
        ..Limits::default()
    };
    let outcome = campaign::run(&worlds, limits, 1).unwrap();
    if let Some(violation) = outcome.tally.violations.first() {
        panic!("{violation}");
    }
    let (states, nested) = (outcome.tally.states.len(), outcome.tally.nested);
    assert!(
        states > 10 && nested > 10,
        "{states} states, {nested} nested"
    );
}
