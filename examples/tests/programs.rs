//! Every program runs, succeeds and prints the expected lines.

use std::process::Command;

#[track_caller]
fn runs(program: &str, says: &[&str]) {
    let output = Command::new(program).output().expect("the program starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{complained}");
    for line in says {
        assert!(printed.contains(line), "{line:?} is not in\n{printed}{complained}");
    }
}

#[test]
fn quickstart_shows_each_kind_of_answer_and_where_to_go_next() {
    let says = [
        "allowed                  2 of 3 left",
        "denied, retry in ",
        "never, at most 3 fit",
        "shaper 3/min          yes  in 20 s",
        "docs/choosing-an-algorithm.md",
    ];
    runs(env!("CARGO_BIN_EXE_quickstart"), &says);
}

#[test]
fn three_limits_names_the_one_that_denied() {
    let says = ["denied by user-second: 10/s", "denied by tenant-minute: 25/min", "Denied requests were not charged."];
    runs(env!("CARGO_BIN_EXE_three_limits"), &says);
}

#[test]
fn llm_budget_settles_at_the_real_cost() {
    let says = ["9520 tokens left   after a call estimated at 2000 that used 480", "5620 tokens left"];
    runs(env!("CARGO_BIN_EXE_llm_budget"), &says);
}

#[test]
fn concurrency_guard_gets_every_slot_back() {
    let says = ["12 exports done, at most 3 at once", "after an export that panicked 3 of 3 slots are free"];
    runs(env!("CARGO_BIN_EXE_concurrency_guard"), &says);
}

#[test]
fn shaping_really_paces() {
    runs(env!("CARGO_BIN_EXE_shaping"), &["queue full", "and none before its turn."]);
}

#[test]
fn axum_service_settles_its_reservations_and_denies() {
    runs(env!("CARGO_BIN_EXE_axum_service"), &["GET /ask  200 OK", "\"budget/tokens\";r=580", "GET /     429"]);
}

#[test]
fn llm_service_settles_every_budget_at_the_answers_usage() {
    runs(env!("CARGO_BIN_EXE_llm_service"), &["\"model/tokens\";r=7850", "429 Too Many Requests"]);
}

#[test]
fn tonic_service_sends_retry_info() {
    runs(env!("CARGO_BIN_EXE_tonic_service"), &["Serving", "ResourceExhausted: Too many requests.", "RetryInfo:"]);
}

#[test]
fn hyper_service_denies_with_a_problem() {
    runs(env!("CARGO_BIN_EXE_hyper_service"), &["200 OK  hello", "429 Too Many Requests  {\"type\""]);
}

#[test]
fn clients_are_not_denied() {
    runs(env!("CARGO_BIN_EXE_client_hyper"), &["30 calls, 0 denied", "\"requests\" allows"]);
    runs(env!("CARGO_BIN_EXE_client_reqwest"), &["30 calls, 0 denied"]);
    runs(env!("CARGO_BIN_EXE_client_tonic"), &["5 calls"]);
}
