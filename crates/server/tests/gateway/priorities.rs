//! The priority header that upstreams receive.

use crate::gateway::peers::{Gateway, Upstream};

const RULES: &str = "
rules:
  - { id: everyone, limit: 1000000/s }
  - { id: batch, match: { path: /batch }, limit: 1000000/s, priority: low }
";

/// The priority that the upstream receives for a request to this path, with this header.
fn told(gateway: &Gateway, upstream: &Upstream, path: &str, said: Option<&str>) -> Option<String> {
    let header = said.map(|said| format!("X-Priority: {said}"));
    let args: Vec<&str> = header.iter().flat_map(|header| ["-H", header]).collect();
    assert_eq!(gateway.curl(path, &args).status, 200);
    let head = upstream.last().to_ascii_lowercase();
    let told: Vec<&str> = head.lines().filter_map(|line| line.strip_prefix("x-priority: ")).collect();
    assert!(told.len() <= 1, "{head}");
    told.first().map(|&told| told.to_owned())
}

#[test]
fn rules_come_before_what_trusted_proxies_say_and_clients_have_no_say() {
    let upstream = Upstream::saying("hello");
    let listening = ["--gateway-priority-header", "X-Priority"];
    let trusting = Gateway::start(RULES, &[&upstream.url()], &listening);
    let strangers = [&listening[..], &["--trusted-proxies", "192.0.2.1"]].concat();
    let wary = Gateway::start(RULES, &[&upstream.url()], &strangers);
    let deaf = Gateway::start(RULES, &[&upstream.url()], &[]);
    for (path, said, by_trusting, by_wary, by_deaf) in [
        ("/", None, None, None, None),
        ("/", Some("critical"), Some("critical"), None, Some("critical")),
        ("/batch", Some("critical"), Some("low"), Some("low"), Some("critical")),
        ("/batch", None, Some("low"), Some("low"), None),
    ] {
        for (gateway, expected) in [(&trusting, by_trusting), (&wary, by_wary), (&deaf, by_deaf)] {
            assert_eq!(told(gateway, &upstream, path, said).as_deref(), expected, "{path} {said:?}");
        }
    }
}

#[test]
fn nobody_names_away_what_a_rule_says() {
    let upstream = Upstream::saying("hello");
    for trusted in [&[][..], &["--trusted-proxies", "192.0.2.1"]] {
        let args = [&["--gateway-priority-header", "X-Priority"], trusted].concat();
        let gateway = Gateway::start(RULES, &[&upstream.url()], &args);
        for names in ["X-Priority", "close, x-priority", "X-Priority, X-Forwarded-For, X-Forwarded-Host"] {
            let connection = format!("Connection: {names}");
            assert_eq!(gateway.curl("/batch", &["-H", &connection]).status, 200);
            let head = upstream.last().to_ascii_lowercase();
            for line in
                ["x-priority: low", "x-forwarded-for: 127.0.0.1", "x-forwarded-proto: http", "x-forwarded-host: "]
            {
                assert_eq!(head.lines().filter(|known| known.starts_with(line)).count(), 1, "{names}: {head}");
            }
        }
    }
}
