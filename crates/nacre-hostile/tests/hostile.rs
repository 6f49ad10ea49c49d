//! The planted readers are found, and a short run finds nothing else.

use std::process::Command;

#[test]
fn planted_readers_are_found_and_nacre_answers_with_errors() {
    let run = Command::new(env!("CARGO_BIN_EXE_nacre-hostile"))
        .args(["--cases", "500", "--seed", "1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}");
    assert_eq!(text.matches("canary").count(), 5, "{text}");
}
