use tempfile::tempdir;

use crate::admin::support::{RULES, Server};

#[test]
fn the_rules_in_force_are_shown() {
    let server = Server::start();
    let shown = server.get("/v1/rules").good();
    assert_eq!(shown["generation"], 1);
    let login = &shown["rules"][0];
    assert_eq!((&login["id"], &login["mode"], &login["line"]), (&"login".into(), &"enforce".into(), &2.into()));
    assert_eq!((&login["key"][0]["name"], &login["limits"][0]["limit"]), (&"address".into(), &"2/day".into()));
    assert_eq!(shown["rules"][1]["key"][0]["secret"], true);
}

#[test]
fn a_candidate_is_judged_line_by_line_and_changes_nothing() {
    let server = Server::start();
    let good = server.post("/v1/rules/validate", RULES).good();
    assert_eq!((&good["usable"], &good["rules"], &good["errors"]), (&true.into(), &2.into(), &0.into()));
    let bad =
        server.post("/v1/rules/validate", "rules:\n  - { id: a, limit: 5/parsec }\n  - { id: a, limit: 1/s }\n").good();
    assert_eq!((&bad["usable"], &bad["rules"]), (&false.into(), &serde_json::Value::Null));
    let finding = &bad["findings"][0];
    assert_eq!(
        (&finding["file"], &finding["line"], &finding["severity"]),
        (&"candidate".into(), &2.into(), &"error".into())
    );
    assert!(finding["column"].as_u64().unwrap() > 10, "{finding}");
    server.post("/v1/rules/validate", "").good();
    assert_eq!(server.engine.limiter().rules().number, 1);
}

#[test]
fn files_are_read_again_when_asked_and_a_broken_one_changes_nothing() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, RULES).unwrap();
    let server = Server::of_files(std::slice::from_ref(&file));
    std::fs::write(&file, "rules: [{ id: only, limit: 5/s }]").unwrap();
    let reloaded = server.post("/v1/rules/reload", "").good();
    assert_eq!((&reloaded["generation"], &reloaded["rules"]), (&2.into(), &1.into()));
    assert_eq!(server.get("/v1/rules").good()["rules"][0]["id"], "only");

    std::fs::write(&file, "rules: [{ id: only, limit: 5/parsec }]").unwrap();
    let problem = server.post("/v1/rules/reload", "").problem(422);
    assert_eq!((&problem["findings"][0]["line"], &problem["findings"][0]["column"]), (&1.into(), &30.into()));
    assert_eq!(server.get("/v1/rules").good()["generation"], 2);
    let metrics = server.get("/metrics").text;
    assert!(metrics.contains("tidegate_rules_reloads_total{result=\"success\"} 1\n"), "{metrics}");
    assert!(metrics.contains("tidegate_rules_reloads_total{result=\"failure\"} 1\n"));
    assert!(metrics.contains("tidegate_rules_last_reload_successful 0\n"));
}

#[test]
fn a_folder_without_files_has_no_rules_only_if_none_are_required() {
    let folder = tempdir().unwrap();
    let server = |is_required: bool| {
        Server::with(|settings| {
            settings.rules = vec![folder.path().to_owned()];
            settings.rules_required = is_required;
        })
    };
    let problem = server(true).post("/v1/rules/reload", "").problem(422);
    assert_eq!(problem["findings"][0]["problem"], "the folder has no YAML file", "{problem}");
    let reloaded = server(false).post("/v1/rules/reload", "").good();
    assert_eq!((&reloaded["generation"], &reloaded["rules"]), (&2.into(), &0.into()));
}

#[test]
fn rules_that_come_from_no_file_cannot_be_read_again() {
    let problem = Server::start().post("/v1/rules/reload", "").problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("--rules"));
}

#[test]
fn rules_show_what_clients_see_of_them() {
    let server = Server::ruled_by(
        "rules: [{ id: a, limit: 5/h, show: false, problem: abnormal-usage, status: 403 }, { id: b, limit: 5/h }]",
    );
    let rules = server.get("/v1/rules").good()["rules"].clone();
    assert_eq!((&rules[0]["problem"], &rules[0]["status"]), (&"abnormal-usage".into(), &403.into()), "{rules}");
    assert_eq!((&rules[1]["problem"], &rules[1]["status"]), (&"quota-exceeded".into(), &serde_json::Value::Null));
    assert_eq!((&rules[0]["limits"][0]["show"], &rules[1]["limits"][0]["show"]), (&false.into(), &true.into()));
}
