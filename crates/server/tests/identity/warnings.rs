//! Warnings about rules that no request can satisfy, and about missing rules.

use super::*;

use crate::support;

const RULES: &str = "
rules:
  - { id: per-user, key: user, limit: 3/min }
  - { id: per-org, key: 'claim:org', limit: 100/min }
  - { id: per-address, key: address, limit: 100/min }
";

#[test]
fn a_gateway_says_at_its_start_and_with_new_rules_which_need_what_it_cannot_know() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let server = gateway(&upstream, RULES, &[], &["--admin-open-metrics", "true"]);
    let log = until("both warnings", || Some(server.log()).filter(|log| log.contains("per-org")));
    assert!(log.contains("rule `per-user` is keyed by `user`") && log.contains("auth.jwt.jwks_url"), "{log}");
    assert!(!log.contains("per-address"), "{log}");
    assert_eq!([0; 4].map(|_| ask(&server, &[]).status), [200, 200, 200, 429]);
    assert_eq!(metric(&server, "tidegate_requests_without_key_total{rule=\"per-user\"}"), 4);
    assert_eq!(metric(&server, "tidegate_requests_without_key_total{rule=\"per-address\"}"), 0);
    std::fs::write(server.path("rules.yaml"), "rules: [{ id: newcomer, key: api_key, limit: 3/min }]").unwrap();
    until("a further warning", || server.log().contains("rule `newcomer` is keyed by `api_key`").then_some(()));
}

#[test]
fn operators_who_reload_the_rules_are_warned_as_well() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let server = gateway(&upstream, RULES, &[], &["--admin-token", "an-operators-token"]);
    let warned = |times: usize| {
        let log = server.log();
        (log.matches("rule `per-user` is keyed by `user`").count() == times).then_some(())
    };
    until("the warning at the start", || warned(1));
    let url = format!("http://{}/v1/rules/reload", server.listener("Admin"));
    let headers = [("authorization", "Bearer an-operators-token"), ("content-type", "application/json")];
    assert_eq!(server.post_to(&url, &headers, "").good()["generation"], 2);
    until("the second warning", || warned(2));
}

#[test]
fn a_gateway_that_verifies_tokens_has_nothing_to_warn_of() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let files = [("jwks.json", &*jwks("old"))];
    let args = ["--auth-jwt-jwks-file", "jwks.json", "--auth-jwt-audience", "api", "--log-level", "info"];
    let server = gateway(&upstream, RULES, &files, &args);
    assert_eq!(status(&server, token("rs256")), 200);
    assert!(!server.log().contains("keyed by"), "{}", server.log());
}

#[test]
fn check_warns_of_the_same_for_the_configuration_that_it_is_given() {
    let files = [
        ("rules.yaml", RULES),
        ("gateway.yaml", "gateway: { upstream: ['http://127.0.0.1:3000'] }"),
        ("api.yaml", "api: { listen: 127.0.0.1:8080 }"),
        (
            "jwt.yaml",
            "gateway: { upstream: ['http://127.0.0.1:3000'] }\nauth: { jwt: { jwks_file: jwks.json, audience: [api] } }",
        ),
        ("broken.yaml", "gateway: { upstram: 7 }"),
        ("jwks.json", &*jwks("old")),
    ];
    let folder = folder(&files);
    let check = |with: &[&str]| {
        let output = support::tidegate(folder.path()).args(["check", "rules.yaml"]).args(with).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), text)
    };
    let (is_good, text) = check(&["--with", "gateway.yaml"]);
    assert!(is_good && text.contains("2 warnings") && text.contains("rules.yaml:3:5"), "{text}");
    for with in [&[][..], &["--with", "api.yaml"], &["--with", "jwt.yaml"]] {
        let (is_good, text) = check(with);
        assert!(is_good && !text.contains("warning"), "{with:?}: {text}");
    }
    assert!(!check(&["--with", "broken.yaml"]).0);
}

#[test]
fn a_gateway_without_rules_limits_nothing_and_says_so() {
    let upstream = Files::start(&[("index.html", "hello"), ("login", "hello")]);
    let server = Server::start(&[], &["--gateway", "127.0.0.1:0", "--upstream", &upstream.url("")]);
    assert!(server.banner.contains("0 rules, so NOTHING IS LIMITED"), "{}", server.banner);
    assert!(
        server.banner.contains("--rules rules.yaml") && !server.banner.contains("example rules"),
        "{}",
        server.banner
    );
    let url = format!("http://{}/login", gateway_address(&server));
    for _ in 0..12 {
        assert_eq!(get(&url, &[]).status, 200);
    }
    let without = Server::start(&[], &[]);
    assert!(without.banner.contains("example rules: use your own"), "{}", without.banner);
}

#[test]
fn a_server_without_a_gateway_does_not_warn_of_facts() {
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml", "--gateway", "off"]);
    // Callers of the HTTP API send the facts.
    assert_eq!(server.check(r#"{"user":"alice"}"#)["allowed"], true);
    assert!(!server.log().contains("keyed by"), "{}", server.log());
}
