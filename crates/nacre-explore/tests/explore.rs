//! The canaries are found, and a short exploration finds nothing else.

use nacre_explore::campaign::{self, Limits};
use nacre_explore::{canary, workload};

#[test]
fn planted_bugs_are_found_and_the_store_has_none() {
    let base = workload::prepare().unwrap();
    canary::run(&base, 1).unwrap();
    let limits = Limits {
        images: Some(4000),
        ..Limits::default()
    };
    let outcome = campaign::run(&base, limits, 1).unwrap();
    assert!(outcome.tally.states.len() > 50);
    assert!(outcome.tally.nested > 10);
    if let Some(violation) = outcome.tally.violations.first() {
        panic!("{violation}");
    }
}
