//! Complete files, as used in practice.

use std::path::PathBuf;

use tidegate_rules::envoy::Metadata;
use tidegate_rules::{Request, RuleSet, load};

use super::{entries, found, ruling};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/envoy").join(name)
}

fn loaded(names: &[&str]) -> RuleSet {
    let paths: Vec<PathBuf> = names.iter().map(|name| path(name)).collect();
    let loaded = load(&paths).unwrap_or_else(|findings| panic!("{findings}"));
    assert_eq!(loaded.warnings.0, [], "{}", loaded.warnings);
    loaded.rules
}

#[test]
fn an_edge_proxy() {
    let rules = loaded(&["edge.yaml"]);
    let domain = rules.domain("edge").unwrap();
    for (asked, expected) in [
        ("remote_address=192.0.2.1", "10/second"),
        ("remote_address=203.0.113.66", "0/second"),
        ("remote_address=198.51.100.7", "whitelisted"),
        ("authenticated=false", "-"),
        ("authenticated=true path=/", "-"),
        ("authenticated=false path=/api/v1/search", "1000/minute"),
        ("authenticated=false path=/", "60/minute"),
    ] {
        assert_eq!(ruling(domain, asked), expected, "{asked}");
    }
    found(domain, "authenticated=false path=/", |found| assert!(found.unwrap().shadow_mode()));
    found(domain, "authenticated=false path=/api/1/search", |found| assert!(!found.unwrap().shadow_mode()));
}

#[test]
fn messages_to_numbers() {
    let rules = loaded(&["messaging.yaml"]);
    let domain = rules.domain("messaging").unwrap();
    let asked = [
        entries("message_type=transactional to_number=2061111111"),
        entries("to_number=2061111111"),
        entries("to_number=2065550123"),
        entries("message_type=marketing to_number=2065550123"),
    ];
    let all = domain.find_all(asked.iter().map(Vec::as_slice));
    let replaced: Vec<bool> = all.iter().map(|found| found.as_ref().unwrap().replaced).collect();
    assert_eq!(replaced, [false, true, false, true]);
    let first = all[0].as_ref().unwrap();
    assert_eq!(first.name(), "transactional");
    assert_eq!(first.replaces().collect::<Vec<_>>(), ["every_message"]);
    assert_eq!(first.metric(), "messaging.message_type_transactional.to_number_2061111111");
    assert_eq!(ruling(domain, "to_number=2065550123"), "unlimited");
    assert_eq!(ruling(domain, "message_type=transactional to_number=1"), "50/day");
}

#[test]
fn language_models_with_our_fields() {
    let rules = loaded(&["models.yaml"]);
    let domain = rules.domain("models").unwrap();
    found(domain, "tenant=acme model=large-2", |found| {
        let found = found.unwrap();
        assert!(found.quota_mode());
        assert_eq!(found.metric(), "models.tenant_acme.model_large*");
        assert_eq!(found.charge(1).unwrap().limit.to_string(), "20000/5min burst 4000");
        let service = Metadata::Map(vec![
            ("service".to_owned(), Metadata::Text("small".to_owned())),
            ("weight".to_owned(), Metadata::Number(1.5)),
        ]);
        let regions = Metadata::List(["eu", "us"].map(|region| Metadata::Text(region.to_owned())).into());
        let expected = Metadata::Map(vec![("fallback".to_owned(), service), ("regions".to_owned(), regions)]);
        assert_eq!(found.metadata(), Some(&expected));
    });
    found(domain, "tenant=acme model=small", |found| {
        assert_eq!(found.unwrap().charge(1).unwrap().limit.to_string(), "sliding 3000/week");
    });
}

#[test]
fn lines_may_end_as_on_windows() {
    let rules = loaded(&["windows.yaml"]);
    assert_eq!(ruling(rules.domain("windows").unwrap(), "client=café"), "30/month");
}

#[test]
fn a_domain_goes_on_in_another_file() {
    let rules = loaded(&["internal-1.yaml", "internal-2.yaml"]);
    let domain = rules.domain("internal").unwrap();
    assert_eq!(domain.name(), "internal");
    assert_eq!(ruling(domain, "ldap=x"), "unlimited");
    assert_eq!(ruling(domain, "azure=x"), "100/minute");
}

#[test]
fn the_same_descriptor_in_two_files_is_an_error_that_names_both() {
    // No file is read twice, so a second copy is needed.
    let folder = std::env::temp_dir().join(format!("tidegate-envoy-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let text = std::fs::read_to_string(path("internal-2.yaml")).unwrap();
    std::fs::write(folder.join("a.yaml"), &text).unwrap();
    std::fs::write(folder.join("b.yaml"), &text).unwrap();
    let findings = load(std::slice::from_ref(&folder)).unwrap_err();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(findings.0.len(), 1, "{findings}");
    let finding = &findings.0[0];
    assert!(finding.place.to_string().ends_with("b.yaml:3:10"), "{findings}");
    assert_eq!(finding.problem, "a second descriptor `internal.azure`");
    assert!(finding.help.as_ref().unwrap().contains("a.yaml:3:10"), "{findings}");
}

#[test]
fn a_folder_of_both_kinds_of_files_loads_together() {
    let rules = loaded(&[""]);
    let names: Vec<&str> = rules.domains().map(tidegate_rules::envoy::Domain::name).collect();
    assert_eq!(names, ["edge", "internal", "messaging", "models", "windows"]);
    assert_eq!(rules.rules().len(), 1);
    let request = Request::new("POST", "/login");
    assert_eq!(rules.matching(&request).rules[0].rule.id(), "login");
    assert!(rules.domain("unknown").is_none());
}
