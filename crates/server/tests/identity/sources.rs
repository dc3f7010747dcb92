//! Sources of the user, and their precedence.

use std::process::Command;

use super::*;
use crate::support::certificates::{authority, issued};

const KEYS: [&str; 6] =
    ["--auth-jwt-jwks-file", "jwks.json", "--auth-jwt-secret-file", "secret", "--auth-jwt-tier-claim", "plan"];

fn with_keys(upstream: &Files, rules: &str, args: &[&str]) -> Server {
    let files = [("jwks.json", &*jwks("old")), ("secret", MADE["secret"].as_str().unwrap())];
    gateway(upstream, rules, &files, &[&KEYS[..], args].concat())
}

#[test]
fn each_user_has_a_limit_of_their_own_by_the_tier_in_the_token() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let server = with_keys(&upstream, RULES, &[]);
    for (name, allowed) in [("rs256", 2), ("es256", 3), ("eddsa", 2), ("hs256", 2)] {
        for request in 0..=allowed {
            let expected = if request < allowed { 200 } else { 429 };
            assert_eq!(status(&server, token(name)), expected, "{name}, request {request}");
        }
    }
    assert_eq!(status(&server, token("no_kid")), 429, "another token of the same user");
    assert_eq!(upstream.asked("/index.html"), 9);
}

#[test]
fn public_keys_may_come_as_pem() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let files = [("issuer.pem", MADE["pem"].as_str().unwrap())];
    let server = gateway(&upstream, RULES, &files, &["--auth-jwt-public-key-file", "issuer.pem"]);
    assert_eq!(status(&server, token("rs256")), 200);
    assert_eq!(status(&server, token("es256")), 401);
}

#[test]
fn claims_are_facts() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let server = with_keys(&upstream, "rules: [{ id: per-org, key: 'claim:org', limit: 3/h }]", &[]);
    let statuses = ["rs256", "es256", "rs256", "es256"].map(|name| status(&server, token(name)));
    assert_eq!(statuses, [200, 200, 200, 429], "alice and bob are of one organisation");
}

#[test]
fn a_token_may_stand_in_a_cookie_or_in_another_header() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let cookie = with_keys(&upstream, RULES, &["--auth-jwt-cookie", "session", "--auth-jwt-required", "true"]);
    let value = format!("a=1; session={}", token("rs256"));
    assert_eq!(ask(&cookie, &[("Cookie", &value)]).status, 200);
    let missing = ask(&cookie, &[]);
    assert_eq!((missing.status, missing.header("www-authenticate")), (401, Some("Bearer")));
    let header = with_keys(&upstream, RULES, &["--auth-jwt-header", "X-Token", "--auth-jwt-required", "true"]);
    assert_eq!(ask(&header, &[("X-Token", token("rs256"))]).status, 200);
    assert_eq!(status(&header, token("rs256")), 401);
}

const PROXY: [&str; 4] = ["--auth-user-header", "X-User", "--auth-tier-header", "X-Tier"];

#[test]
fn only_a_trusted_proxy_sets_the_user_by_a_header() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let args = [&PROXY[..], &["--trusted-proxies", "192.0.2.1"]].concat();
    let server = with_keys(&upstream, RULES, &args);
    for request in 0..4 {
        let user = format!("made-up-{request}");
        let expected = if request < 2 { 200 } else { 429 };
        let answer = ask(&server, &[("X-User", &user), ("X-Tier", "gold")]);
        assert_eq!(answer.status, expected, "all without a token are one");
    }
}

#[test]
fn a_token_counts_before_the_header_of_a_trusted_proxy() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let server = with_keys(&upstream, RULES, &PROXY);
    let (name, value) = bearer(token("rs256"));
    for request in 0..3 {
        let user = format!("user-{request}");
        let expected = if request < 2 { 200 } else { 429 };
        // The tier in the token applies: `free`, which allows two.
        assert_eq!(ask(&server, &[(name, &value), ("X-User", &user), ("X-Tier", "gold")]).status, expected);
    }
    let statuses = [0; 4].map(|_| ask(&server, &[("X-User", "zoe"), ("X-Tier", "gold")]).status);
    assert_eq!(statuses, [200, 200, 200, 429], "without a token, the proxy's word counts");
}

#[test]
fn the_name_of_basic_authentication_counts_only_if_it_is_asked_for() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let (ann, bob) = (("Authorization", "Basic YW5uOng="), ("Authorization", "Basic Ym9iOng="));
    let off = gateway(&upstream, RULES, &[], &[]);
    assert_eq!([ann, ann, bob].map(|header| ask(&off, &[header]).status), [200, 200, 429]);
    let on = gateway(&upstream, RULES, &[], &["--auth-basic", "true"]);
    assert_eq!([ann, ann, ann, bob].map(|header| ask(&on, &[header]).status), [200, 200, 429, 200]);
}

#[test]
fn the_name_in_a_client_certificate_is_the_user() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let (trusted, clients) = (authority("servers"), authority("clients"));
    let (certificate, key) = issued(&trusted);
    let files = [("server.pem", &*certificate), ("key.pem", &*key), ("clients.pem", &*clients.pem())];
    let args = [
        "--gateway-tls=mutual",
        "--tls-certificate=server.pem",
        "--tls-key=key.pem",
        "--tls-client-ca=clients.pem",
        "--auth-client-certificate=common_name",
    ];
    let server = gateway(&upstream, RULES, &files, &args);
    let ask = |name: &str| {
        let mut params = rcgen::CertificateParams::new(vec!["client.example".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate().unwrap();
        let folder = folder(&[
            ("client.pem", &params.signed_by(&key, &clients).unwrap().pem()),
            ("client-key.pem", &key.serialize_pem()),
            ("ca.pem", &trusted.pem()),
        ]);
        let asked = Command::new("curl")
            .args(["-s", "-i", "--http1.1", "--cacert", "ca.pem", "--cert", "client.pem", "--key", "client-key.pem"])
            .arg(format!("https://{}/index.html", gateway_address(&server)))
            .current_dir(folder.path())
            .output();
        answer(&String::from_utf8(asked.unwrap().stdout).unwrap()).status
    };
    assert_eq!(["ann", "ann", "ann", "bob"].map(ask), [200, 200, 429, 200]);
}

/// An upstream may use another identity than the one that is charged.
#[test]
fn two_identities_in_one_request_are_refused() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let (alice, bob) = (token("rs256"), token("es256"));
    let session = |token: &str| format!("session={token}");
    let (of_alice, basic) = (format!("Bearer {alice}"), "Basic YWxpY2U6c2VjcmV0");
    for on_invalid in ["refuse", "anonymous"] {
        let args = ["--auth-jwt-cookie", "session", "--auth-basic", "true", "--auth-jwt-on-invalid", on_invalid];
        let server = with_keys(&upstream, RULES, &args);
        let refused = ask(&server, &[("Authorization", &of_alice), ("Cookie", &session(bob))]);
        assert_eq!(refused.status, 401, "{on_invalid}");
        assert_eq!(ask(&server, &[("Authorization", &of_alice), ("Cookie", &session(alice))]).status, 200);
        for lines in [[of_alice.as_str(), basic], [basic, &of_alice]] {
            let both = lines.map(|line| ("Authorization", line));
            assert_eq!(ask(&server, &both).status, 400, "{on_invalid}: {lines:?}");
        }
    }
    let tokens = with_keys(&upstream, RULES, &["--auth-jwt-on-invalid", "anonymous"]);
    assert_eq!(ask(&tokens, &[("Authorization", basic), ("Authorization", &of_alice)]).status, 401);
    assert_eq!(upstream.asked("/index.html"), 2);
}
