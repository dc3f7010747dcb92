//! Invalid tokens.

use super::*;

use crate::support;

const CHECKS: [&str; 8] = [
    "--auth-jwt-jwks-file",
    "jwks.json",
    "--auth-jwt-secret-file",
    "secret",
    "--auth-jwt-issuer",
    "https://issuer.example/",
    "--auth-jwt-audience",
    "api",
];

fn checking(upstream: &Files, rules: &str, args: &[&str]) -> Server {
    let files = [("jwks.json", &*jwks("old")), ("secret", MADE["secret"].as_str().unwrap())];
    gateway(upstream, rules, &files, &[&CHECKS[..], args].concat())
}

fn invalid() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = MADE["tokens"]["invalid"].as_object().unwrap();
    all.iter().map(|(name, token)| (name.as_str(), token.as_str().unwrap()))
}

#[test]
fn an_invalid_token_is_refused_and_its_request_goes_no_further() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let server = checking(&upstream, RULES, &["--admin-open-metrics", "true"]);
    for (name, token) in invalid() {
        let (header, value) = bearer(token);
        let answer = ask(&server, &[(header, &value)]);
        assert_eq!(answer.status, 401, "{name}: {answer:?}");
        assert!(answer.header("www-authenticate").unwrap().starts_with(r#"Bearer error="invalid_token""#), "{name}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{name}");
        assert!(answer.json()["detail"].as_str().unwrap().contains("token"), "{name}");
    }
    let two = [bearer(token("rs256")), bearer(token("es256"))];
    let two = ask(&server, &[(two[0].0, &two[0].1), (two[1].0, &two[1].1)]);
    assert!(two.header("www-authenticate").unwrap().contains("invalid_request"), "{two:?}");
    assert_eq!((two.status, upstream.asked("/index.html")), (401, 0));
    for (name, least) in [("expired", 1), ("signature", 3), ("issuer", 3), ("audience", 2), ("too_long", 1)] {
        let counted = metric(&server, &format!("tidegate_jwt_tokens_total{{result=\"{name}\"}}"));
        assert!(counted >= least, "{name}: {counted}");
    }
    assert_eq!(status(&server, token("rs256")), 200);
}

#[test]
fn an_invalid_token_counts_as_none_if_the_operator_says_so() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let server = checking(&upstream, RULES, &["--auth-jwt-on-invalid", "anonymous"]);
    let statuses: Vec<u16> = invalid().map(|(_, token)| status(&server, token)).collect();
    assert_eq!(statuses[..3], [200, 200, 429], "they share one limit with those who have no token");
    assert!(statuses[3..].iter().all(|status| *status == 429), "{statuses:?}");
    assert_eq!(ask(&server, &[]).status, 429);
    assert_eq!(status(&server, token("rs256")), 200);
}

#[test]
fn a_grpc_call_with_an_invalid_token_is_unauthenticated() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let server = checking(&upstream, RULES, &[]);
    let (name, value) = bearer("garbage");
    let answer = ask(&server, &[(name, &value), ("Content-Type", "application/grpc")]);
    assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("16")));
}

#[test]
fn settings_that_make_no_sense_are_refused_with_what_to_write() {
    let folder = folder(&[("short", "secret"), ("empty.json", "{}"), ("rules.yaml", RULES)]);
    for (args, said) in [
        (&["--auth-jwt-secret-file", "short"][..], "the minimum is 32"),
        (&["--auth-jwt-jwks-file", "empty.json"], "not a JSON Web Key Set"),
        (&["--auth-jwt-jwks-file", "nowhere.json"], "cannot be read"),
        (&["--auth-jwt-public-key-file", "short"], "openssl pkey -pubout"),
        (&["--auth-jwt-jwks-url", "issuer.example"], "https://login.example.com"),
        (&["--auth-jwt-algorithms", "none"], "without a signature"),
        (&["--auth-jwt-algorithms", "RS265"], "write one of `RS256`"),
        (&["--auth-jwt-issuer", "https://issuer.example/"], "auth.jwt.jwks_url"),
        (&["--auth-jwt-required", "true"], "no keys to verify tokens with"),
        (&["--auth-jwt-required", "true", "--auth-jwt-on-invalid", "anonymous"], "on_invalid: refuse"),
        (&["--auth-client-certificate", "dns"], "gateway.tls: mutual"),
    ] {
        let output = support::tidegate(folder.path()).arg("config").args(args).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(said), "{args:?}: {text}");
    }
}
