//! Headers that upstreams receive, and headers that they do not receive.

use crate::gateway::peers::{Gateway, NO_RULES, Nginx, Upstream};

/// The values of a field in a head.
fn values<'h>(head: &'h str, name: &str) -> Vec<&'h str> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

#[test]
fn hop_by_hop_headers_are_removed() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x-inner\r\nX-Inner: 1\r\nKeep-Alive: timeout=9\r\nX-Outer: 1\r\n\r\nok")
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
    let got = gateway.raw(
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Secret, host, x-forwarded-for\r\nX-Secret: 1\r\nKeep-Alive: 5\r\n\
          Proxy-Connection: keep-alive\r\nTE: gzip, trailers\r\nUpgrade: h2c\r\nX-Kept: 1\r\n\r\n",
    );
    assert!(got.contains("x-outer: 1") && !got.contains("x-inner") && !got.contains("keep-alive"), "{got}");
    let head = upstream.last();
    for gone in ["connection", "x-secret", "keep-alive", "proxy-connection", "upgrade"] {
        assert_eq!(values(&head, gone), Vec::<&str>::new(), "{head}");
    }
    assert_eq!((values(&head, "x-kept"), values(&head, "te")), (vec!["1"], vec!["trailers"]));
    // Headers written by the gateway cannot be removed by `Connection`.
    assert_eq!((values(&head, "host"), values(&head, "x-forwarded-for")), (vec!["a"], vec!["127.0.0.1"]));
}

#[test]
fn whom_a_request_comes_from_is_said_by_the_rules_by_which_it_is_believed() {
    let upstream = Upstream::saying("ok");
    let claims = [
        "-H",
        "X-Forwarded-For: 198.51.100.1, 203.0.113.7",
        "-H",
        "X-Forwarded-Proto: https",
        "-H",
        "Forwarded: for=192.0.2.60",
        "-H",
        "X-Forwarded-Host: elsewhere",
        "-H",
        "Host: here",
    ];
    let told = |args: &[&str]| {
        let gateway = Gateway::start(NO_RULES, &[&upstream.url()], args);
        assert_eq!(gateway.curl("/", &claims).status, 200);
        let head = upstream.last();
        ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded", "host"]
            .map(|name| values(&head, name).join("|"))
    };
    let trusted = told(&[]);
    assert_eq!(trusted, ["198.51.100.1, 203.0.113.7, 127.0.0.1", "https", "elsewhere", "", "here"]);
    let stranger = told(&["--trusted-proxies", "192.0.2.1"]);
    assert_eq!(stranger, ["127.0.0.1", "http", "here", "", "here"]);
    let forwarded = told(&["--forwarding-header", "forwarded"]);
    let list = "for=192.0.2.60, for=127.0.0.1;host=\"here\";proto=http";
    assert_eq!(forwarded, ["192.0.2.60", "https", "elsewhere", list, "here"]);
    let stranger = told(&["--forwarding-header", "forwarded", "--trusted-proxies", "192.0.2.1"]);
    assert_eq!(stranger, ["127.0.0.1", "http", "here", "for=127.0.0.1;host=\"here\";proto=http", "here"]);
}

#[test]
fn headers_of_trusted_proxies_are_not_forwarded_for_others() {
    let upstream = Upstream::saying("ok");
    let named = ["--auth-user-header", "X-User", "--auth-tier-header", "X-Tier", "--auth-api-key-header", "X-Key"];
    let claims = [
        "X-User: admin",
        "X_User: admin",
        "X-Tier: gold",
        "X-Key: k",
        "X-Real-IP: 192.0.2.60",
        "X_Forwarded_For: 192.0.2.60",
        "X-Forwarded-Port: 1",
        "X-Original-URL: /admin",
    ];
    let args: Vec<&str> = claims.iter().flat_map(|claim| ["-H", claim]).collect();
    let told = |more: &[&str]| {
        let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[&named[..], more].concat());
        assert_eq!(gateway.curl("/", &args).status, 200);
        let head = upstream.last();
        let names = claims.map(|claim| claim.split(':').next().unwrap());
        names.into_iter().filter(|name| !values(&head, name).is_empty()).collect::<Vec<_>>()
    };
    let trusted = told(&["--gateway-underscores", "true"]);
    assert_eq!(trusted.len(), claims.len(), "{trusted:?}");
    let dashed: Vec<&str> = trusted.into_iter().filter(|name| !name.contains('_')).collect();
    assert_eq!(told(&[]), dashed, "a name with an underscore could pass for another");
    let strangers = ["--trusted-proxies", "192.0.2.1"];
    assert_eq!(told(&strangers), [""; 0]);
    // A client's own API key header is kept.
    assert_eq!(told(&[&strangers[..], &["--gateway-api-key-header", "X-Key"]].concat()), ["X-Key"]);
}

#[test]
fn the_host_may_be_the_upstreams_own_and_via_may_be_said() {
    let upstream = Upstream::saying("ok");
    let gateway =
        Gateway::start(NO_RULES, &[&upstream.url()], &["--gateway-keep-host", "false", "--gateway-via", "true"]);
    let got = gateway.curl("/", &["-H", "Host: here"]);
    assert_eq!(got.header("via"), Some("1.1 tidegate"));
    let head = upstream.last();
    assert_eq!(values(&head, "host"), [upstream.address.to_string()]);
    assert_eq!((values(&head, "via"), values(&head, "x-forwarded-host")), (vec!["1.1 tidegate"], vec!["here"]));
}

#[test]
fn a_client_behind_nginx_is_the_one_that_is_limited() {
    let upstream = Upstream::saying("ok");
    let rules = "rules: [{ id: each, key: address, limit: log 1/h }]";
    let gateway = Gateway::start(rules, &[&upstream.url()], &[]);
    let nginx = Nginx::start(
        &format!(
            "server {{ listen 127.0.0.1:PORT; location / {{ proxy_pass http://{}; proxy_http_version 1.1;
             proxy_set_header X-Forwarded-For $http_x_client; }} }}",
            gateway.address
        ),
        &[],
    );
    let ask = |client: &str| crate::gateway::peers::curl(&nginx.url(), &["-H", &format!("X-Client: {client}")]).status;
    assert_eq!([ask("203.0.113.1"), ask("203.0.113.1"), ask("203.0.113.2")], [200, 429, 200]);
}

#[test]
fn no_spelling_of_a_path_dodges_its_rule() {
    let upstream = Upstream::saying("ok");
    let rules = "rules: [{ id: login, match: { path: /login }, limit: log 1/h }]";
    let gateway = Gateway::start(rules, &[&upstream.url()], &[]);
    let ask = |target: &str| {
        let got = gateway.raw(format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes());
        got.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(ask("//login?x=%2e"), "200");
    assert!(upstream.last().starts_with("GET /login?x=%2e HTTP/1.1\r\n"), "{}", upstream.last());
    let dodges = [
        "/login",
        "/./login",
        "/%2e/login",
        "/x/../login",
        "/x/%2E%2e/login",
        "/%6cogin",
        "/login/",
        "/login//",
        "///login?y",
    ];
    for dodge in dodges {
        assert_eq!(ask(dodge), "429", "{dodge}");
    }
    // A target in absolute form is the same target.
    assert_eq!(ask("http://a/login"), "429");
    for ambiguous in ["/login%2f", "/%2flogin", "/login;x", "/x/..%5clogin", "/login%00"] {
        assert_eq!(ask(ambiguous), "400", "{ambiguous}");
    }
    for (other, forwarded) in [("/Login", "/Login"), ("/a//b/./c?d=e//f", "/a/b/c?d=e//f")] {
        assert_eq!(ask(other), "200", "{other}");
        assert!(upstream.last().starts_with(&format!("GET {forwarded} HTTP/1.1\r\n")), "{}", upstream.last());
    }
    assert_eq!(ask("http://a/whole?x"), "200");
    assert!(upstream.last().starts_with("GET /whole?x HTTP/1.1\r\n"), "{}", upstream.last());
}

#[test]
fn a_host_that_servers_read_differently_reaches_no_upstream() {
    let upstream = Upstream::saying("ok");
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
    for host in [
        "api.example.com:80:90",
        "[api.example.com]",
        "b,api.example.com",
        "api.example.com,b",
        "u@api.example.com",
        "api.example.com/",
        "api.example.com?",
        "api.example.com#",
        "api.example.com\\",
        "api%2eexample.com",
        "api.example.com:8o",
        "",
    ] {
        let got = gateway.raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        assert!(got.starts_with("HTTP/1.1 400 "), "{host}: {got}");
        // Otherwise the rest of an ambiguous request might be taken for the next one.
        assert!(got.to_ascii_lowercase().contains("\r\nconnection: close\r\n"), "{host}: {got}");
    }
    assert_eq!(upstream.heads(), Vec::<String>::new());
    for host in ["api.example.com", "api.example.com:8000", "API.example.com.", "my_service", "[::1]:80", "127.0.0.1"] {
        let got = gateway.raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes());
        assert!(got.starts_with("HTTP/1.1 200 "), "{host}: {got}");
    }
}

#[test]
fn only_options_asks_for_the_server_as_a_whole() {
    let upstream = Upstream::saying("ok");
    for policy in ["canonical", "strict", "as-is"] {
        let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &["--gateway-paths", policy]);
        let ask = |method: &str| {
            gateway.raw(format!("{method} * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
        };
        let before = upstream.heads().len();
        for method in ["GET", "POST", "options", "MADE-UP"] {
            let got = ask(method);
            assert!(got.starts_with("HTTP/1.1 400 "), "{method}, {policy}: {got}");
        }
        assert_eq!(upstream.heads().len(), before, "{policy}");
        let got = ask("OPTIONS");
        assert!(got.starts_with("HTTP/1.1 200 "), "{policy}: {got}");
        assert!(upstream.last().starts_with("OPTIONS * HTTP/1.1\r\n"), "{}", upstream.last());
    }
}
