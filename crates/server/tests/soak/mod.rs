//! The short form of `make bench ONLY=soak`, which runs for half a minute.
#![allow(clippy::disallowed_methods, reason = "real programs, in real time")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures for people")]

mod clients;
mod processes;
mod run;

use std::path::Path;
use std::time::Duration;

#[test]
#[ignore = "long: make nightly"]
fn mixed_load_with_faults_leaks_nothing_and_admits_nothing_beyond_its_bounds() {
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    // Each fault once. The lateness of decisions depends more on the machine than on the server here.
    let findings = run::run(program, Duration::from_secs(25), Duration::from_secs(1), Duration::from_secs(30));
    assert_eq!(findings.wrong(), Vec::<String>::new(), "{findings:#?}");
    assert!(findings.faults.len() >= 4 && findings.reloads > 3, "{findings:#?}");
    assert!(findings.admitted > 100 && findings.admitted < findings.questions, "{findings:#?}");
    assert!(findings.fullest() > 0.2, "nothing came near its bound: {findings:#?}");
    assert_eq!(findings.late, 0, "a decision hung: {findings:#?}");
}
