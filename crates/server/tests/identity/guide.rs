//! Tests of the examples in the guide.

use std::path::Path;

use super::*;

use crate::support;
use crate::support::certificates;

/// The guide's blocks in a language.
fn blocks(language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/identity.md");
    let text = std::fs::read_to_string(path).unwrap();
    let begin = format!("```{language}\n");
    text.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The configuration and the rules of the first example, for an issuer and an upstream of this test.
fn example(upstream: &Files) -> [(&'static str, String); 2] {
    let mut yaml = blocks("yaml").into_iter();
    let configuration = yaml
        .next()
        .unwrap()
        .replace("127.0.0.1:8000", "127.0.0.1:0")
        .replace("http://127.0.0.1:3000", &upstream.url(""))
        .replace("https://login.example.com/.well-known/jwks.json", &upstream.url("/jwks.json"))
        .replace("https://login.example.com/", "https://issuer.example/")
        .replace("https://api.example.com", "api");
    [("tidegate.yaml", configuration), ("rules.yaml", yaml.next().unwrap())]
}

#[test]
fn the_first_example_limits_each_user_by_tier_and_strangers_by_address() {
    let upstream = Files::start(&[("index.html", "hello"), ("jwks.json", &jwks("old"))]);
    let files = example(&upstream);
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let server = Server::start(&files, &["--config", "tidegate.yaml"]);
    until("keys", || (status(&server, token("rs256")) == 200).then_some(()));
    let told =
        |headers: &[(&str, &str)]| ask(&server, headers).header("ratelimit-policy").unwrap_or_default().to_owned();
    let (alice, bob) = (bearer(token("rs256")), bearer(token("es256")));
    assert!(told(&[(alice.0, &alice.1)]).contains("\"per-user\";q=50"), "{}", told(&[(alice.0, &alice.1)]));
    assert!(told(&[(bob.0, &bob.1)]).contains("\"per-user\";q=200"), "bob has the plan gold");
    assert!(told(&[]).contains("\"anonymous\";q=10"), "{}", told(&[]));
    assert!(!server.log().contains("keyed by"), "{}", server.log());
}

#[test]
fn explain_says_what_a_token_yields_or_why_it_is_invalid() {
    let upstream = Files::start(&[("index.html", "hello"), ("jwks.json", &jwks("old"))]);
    let files = example(&upstream);
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let folder = folder(&files);
    let explain = |token: &str, more: &[&str]| {
        let args = ["explain", "rules.yaml", "--config", "tidegate.yaml", "--request", "GET /", "--jwt", token];
        let output = support::tidegate(folder.path()).args(args).args(more).output().unwrap();
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (is_valid, text) = explain(token("es256"), &[]);
    assert!(is_valid, "{text}");
    for line in ["token    valid", "user     bob", "tier     gold", "claim    org = acme", "user bob"] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    for (name, reason) in [
        ("expired", "the token has expired"),
        ("wrong_audience", "for another audience"),
        ("confused", "key is not known"),
        ("none", "algorithm is not accepted"),
        ("stranger", "signature is wrong"),
    ] {
        let (is_valid, text) = explain(MADE["tokens"]["invalid"][name].as_str().unwrap(), &[]);
        assert!(!is_valid && text.contains("token    invalid") && text.contains(reason), "{name}: {text}");
    }
    let (_, json) = explain(token("es256"), &["--format", "json"]);
    drop(upstream);
    let (is_valid, unverified) = explain(token("es256"), &[]);
    assert!(!is_valid && unverified.contains("token    not verified: there are no keys"), "{unverified}");
    assert!(unverified.contains("cannot be fetched") && unverified.contains("responds with 503"), "{unverified}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["token"]["valid"], &json["token"]["user"]), (&true.into(), &"bob".into()));
}

#[test]
fn every_configuration_in_the_guide_can_be_read() {
    let (trusted, clients) = (certificates::authority("servers"), certificates::authority("clients"));
    let (certificate, key) = certificates::issued(&trusted);
    let is_rules = |block: &String| block.starts_with("rules:\n") || block.starts_with("tiers:\n");
    for block in blocks("yaml").into_iter().filter(|block| !is_rules(block)) {
        let files = [
            ("tidegate.yaml", &*block),
            ("rules.yaml", RULES),
            ("server.pem", &*certificate),
            ("server-key.pem", &*key),
            ("clients.pem", &*clients.pem()),
        ];
        let folder = folder(&files);
        let output = support::tidegate(folder.path()).args(["config", "--config", "tidegate.yaml"]).output().unwrap();
        assert!(output.status.success(), "{block}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}
