//! Responses by the gateway instead of the service: pages, JSON, statuses, and CORS.

use rustix::process::Signal;

use crate::gateway::peers::{Gateway, NO_RULES, Nobody, Upstream, python};
use crate::support::browser::Browser;
use crate::support::ran::Ran;
use crate::support::{Server, folder, tidegate, until};

const ONE: &str = "rules: [{ id: few, key: address, limit: log 1/h }]";
const BROWSER: &str = "accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
const APP: &str = "https://app.example.com";

/// A gateway whose next request is denied.
fn spent(files: &[(&str, &str)], args: &[&str]) -> Gateway {
    let upstream = Upstream::saying("hello");
    let gateway = Gateway::with_files(files, &[&upstream.url()], args);
    assert_eq!(gateway.curl("/", &[]).status, 200);
    gateway
}

#[test]
fn browsers_get_a_page_and_programs_a_problem() {
    let gateway = spent(&[("rules.yaml", ONE)], &[]);
    let page = gateway.curl("/", &["-H", BROWSER]);
    assert_eq!(page.status, 429);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.header("retry-after").is_some() && page.header("ratelimit").is_some(), "{page:?}");
    assert!(page.body.contains("<h1>Too Many Requests</h1>") && page.body.contains("Try again in"), "{page:?}");
    for program in ["accept: */*", "accept: application/json", "accept;"] {
        let problem = gateway.curl("/", &["-H", program]);
        assert_eq!(problem.header("content-type"), Some("application/problem+json"), "{program}");
        assert_eq!(problem.json()["violated-policies"][0], "few");
        assert_eq!(problem.header("vary"), Some("accept"));
    }
    assert_eq!(page.header("vary"), Some("accept"));
}

#[test]
fn a_browser_shows_the_page() {
    let gateway = spent(&[("rules.yaml", ONE)], &[]);
    let browser = Browser::open();
    browser.go(&gateway.url("/"));
    assert_eq!(browser.text("h1"), "Too Many Requests");
    assert_eq!(browser.js("return document.title"), "Too Many Requests");
    assert_eq!(browser.js("return document.documentElement.lang"), "en");
    assert_eq!(browser.js("return document.querySelectorAll('main h1, main p').length"), 2);
}

#[test]
fn a_failure_is_a_page_too() {
    let nobody = Nobody::anywhere();
    let gateway = Gateway::start(NO_RULES, &[&nobody.url()], &[]);
    let page = gateway.curl("/", &["-H", BROWSER]);
    assert_eq!((page.status, page.header("content-type")), (502, Some("text/html; charset=utf-8")));
    assert!(page.body.contains("<h1>Bad Gateway</h1>"), "{page:?}");
    let problem = gateway.curl("/", &[]);
    assert_eq!((problem.status, problem.header("vary")), (502, Some("accept")));
    assert_eq!(problem.json()["fault"], "upstream");
}

#[test]
fn without_pages_everyone_gets_json() {
    let gateway = spent(&[("rules.yaml", ONE)], &["--denial-html", "false"]);
    let denied = gateway.curl("/", &["-H", BROWSER]);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("vary"), None);
}

#[test]
fn templates_say_what_their_owner_wrote_and_a_reload_takes_new_ones() {
    let html = "<h1>{{status}}</h1><p title=\"{{rule}}\">{{rule}} {{request_id}}</p>";
    let json = r#"{"error": {"code": "slow_down", "rule": {{rule}}, "text": "Wait {{retry_after}} s", "wait": {{retry_after}}}}"#;
    let files = [("rules.yaml", ONE), ("denied.html", html), ("denied.json", json)];
    let args = ["--denial-html-template", "denied.html", "--denial-json-template", "denied.json"];
    let gateway = spent(&files, &[&args[..], &["--denial-json-type", "application/json"]].concat());
    let page = gateway.curl("/", &["-H", BROWSER, "-H", "x-request-id: abc-1"]);
    assert_eq!(page.body, "<h1>429</h1><p title=\"few\">few abc-1</p>");
    let hostile = gateway.curl("/", &["-H", BROWSER, "-H", "x-request-id: <script>"]);
    assert!(!hostile.body.contains("script"), "{hostile:?}");
    let script = "import json, sys, urllib.request, urllib.error\n\
                  try:\n    urllib.request.urlopen(sys.argv[1])\n\
                  except urllib.error.HTTPError as e:\n    \
                  error = json.load(e)['error']\n    \
                  print(e.code, e.headers['content-type'], error['code'], error['rule'], error['text'] == f\"Wait {error['wait']} s\", \
                  abs(int(e.headers['retry-after']) - error['wait']) < 2)";
    assert_eq!(python(script, &[&gateway.url("/")]), "429 application/json slow_down few True True");

    let template = gateway.server.path("denied.html");
    std::fs::write(&template, "<h1>\n  {{rul}}</h1>").unwrap();
    gateway.server.signal(Signal::HUP);
    until("the mistake in the log", || gateway.server.log().contains("denied.html:2:3").then_some(()));
    assert!(gateway.server.log().contains("did you mean `rule`?"), "{}", gateway.server.log());
    assert!(gateway.curl("/", &["-H", BROWSER]).body.starts_with("<h1>429</h1>"));
    std::fs::write(&template, "<p>Later.</p>").unwrap();
    gateway.server.signal(Signal::HUP);
    until("the new page", || (gateway.curl("/", &["-H", BROWSER]).body == "<p>Later.</p>").then_some(()));
}

#[test]
fn mistakes_are_told_at_the_start_with_their_places() {
    let file = "\
denial:
  html_template: denied.html
  json_template: denied.json
cors:
  origins: ['https://a.example/', 'null', '*']
  credentials: true
";
    let files = [("t.yaml", file), ("denied.html", "<p>\n<a href={{rule}}>"), ("denied.json", "{\"a\": {{rule}},\n}")];
    let folder = folder(&files);
    let ran = Ran(tidegate(folder.path()).args(["config", "--config", "t.yaml"]).output().unwrap());
    let told = ran.bad();
    for expected in [
        "denied.html:2:9: a placeholder within a tag that is not in quotes",
        "t.yaml:2:18",
        "denied.json:2:1: this is not JSON: key must be a string",
        "`https://a.example/` is more than an origin",
        "`null` is the origin of every sandboxed page",
        "`*` allows every origin, which is not possible with credentials",
        "t.yaml:5:",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
}

#[test]
fn a_rule_says_the_status_of_its_denials() {
    let rules = "\
rules:
  - { id: shop, match: { path: /shop }, key: address, limit: log 1/h, status: 503 }
  - { id: all, key: address, limit: log 2/h }
";
    let upstream = Upstream::saying("hello");
    let gateway = Gateway::start(rules, &[&upstream.url()], &[]);
    assert_eq!(gateway.curl("/shop", &[]).status, 200);
    let busy = gateway.curl("/shop", &[]);
    assert_eq!((busy.status, busy.json()["status"].as_u64()), (503, Some(503)));
    assert_eq!(busy.header("cache-control"), Some("no-store"));
    assert!(busy.header("retry-after").is_some());
    assert_eq!(gateway.curl("/", &[]).status, 200);
    assert_eq!(gateway.curl("/", &[]).status, 429);
}

#[test]
fn scripts_of_allowed_origins_may_read_the_gateways_own_answers() {
    let nobody = Nobody::anywhere();
    let args = ["--cors-origins", APP, "--gateway-routes", &format!("/gone {}", nobody.url())];
    let gateway = spent(&[("rules.yaml", ONE)], &args);
    for (path, status) in [("/", 429), ("/a%2fb", 400)] {
        let answer = gateway.curl(path, &["-H", &format!("origin: {APP}")]);
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), Some(APP), "{path}");
        assert!(answer.header("access-control-expose-headers").is_some_and(|all| all.contains("retry-after")));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
        for stranger in ["https://evil.example", "null"] {
            let answer = gateway.curl(path, &["-H", &format!("origin: {stranger}")]);
            assert_eq!(answer.header("access-control-allow-origin"), None, "{path}");
            assert!(answer.head.contains("vary: origin"), "{answer:?}");
        }
        assert!(gateway.curl(path, &[]).head.contains("vary: origin"));
    }
    let gateway = Gateway::start(NO_RULES, &[&nobody.url()], &["--cors-origins", APP]);
    let answer = gateway.curl("/", &["-H", &format!("origin: {APP}")]);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (502, Some(APP)));
}

#[test]
fn a_services_response_is_shared_only_as_the_service_says() {
    const PLAIN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
    const SHARED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\naccess-control-allow-origin: *\r\n\r\nhi";
    for (response, is_shared) in [(PLAIN, false), (SHARED, true)] {
        let upstream = Upstream::start(move |taken| {
            taken.request()?;
            taken.write(response)
        });
        let rules = "rules: [{ id: all, key: address, limit: 9/h }]";
        let gateway = Gateway::start(rules, &[&upstream.url()], &["--cors-origins", APP]);
        let answer = gateway.curl("/", &["-H", &format!("origin: {APP}")]);
        assert_eq!(answer.header("access-control-allow-origin"), is_shared.then_some("*"));
        assert_eq!(answer.header("access-control-expose-headers").is_some(), is_shared, "{answer:?}");
    }
}

#[test]
fn preflights_of_allowed_origins_are_not_limited_unless_told() {
    let preflight = |origin: &str| {
        ["-X", "OPTIONS", "-H", &format!("origin: {origin}"), "-H", "access-control-request-method: PUT"]
            .map(str::to_owned)
    };
    let ask = |gateway: &Gateway, origin: &str| {
        let args = preflight(origin);
        gateway.curl("/", &args.each_ref().map(String::as_str)).status
    };
    let gateway = spent(&[("rules.yaml", ONE)], &["--cors-origins", APP]);
    assert_eq!((ask(&gateway, APP), ask(&gateway, "https://evil.example")), (200, 429));
    assert_eq!(gateway.curl("/", &["-X", "OPTIONS", "-H", &format!("origin: {APP}")]).status, 429);
    let limited = spent(&[("rules.yaml", ONE)], &["--cors-origins", APP, "--cors-limit-preflights", "true"]);
    assert_eq!(ask(&limited, APP), 429);
    let without = spent(&[("rules.yaml", ONE)], &[]);
    assert_eq!(ask(&without, APP), 429);
}

#[test]
fn a_page_of_another_origin_reads_a_denial_with_fetch() {
    let page = Upstream::start(|taken| {
        taken.request()?;
        taken.write("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 12\r\n\r\n<p>page</p>\n")
    });
    let gateway = spent(&[("rules.yaml", ONE)], &["--cors-origins", &page.url()]);
    let closed = spent(&[("rules.yaml", ONE)], &[]);
    let browser = Browser::open();
    browser.go(&page.url());
    let fetch = |url: String| {
        browser.js(&format!(
            "window.told = null; fetch('{url}', {{ headers: {{ 'X-Any': '1' }}, method: 'GET' }}) \
             .then(async r => {{ window.told = [r.status, r.headers.get('retry-after') !== null, \
             r.headers.get('ratelimit') !== null, (await r.json()).status]; }}, e => {{ window.told = ['failed']; }});"
        ));
        browser.until("an answer", "return window.told")
    };
    // A custom header causes a preflight, which the upstream does not answer for any origin.
    assert_eq!(fetch(gateway.url("/")), serde_json::json!(["failed"]));
    let simple = |url: String| {
        browser.js(&format!(
            "window.told = null; fetch('{url}').then(async r => {{ window.told = [r.status, \
             r.headers.get('retry-after') !== null, r.headers.get('ratelimit') !== null, (await r.json()).status]; }}, \
             e => {{ window.told = ['failed']; }});"
        ));
        browser.until("an answer", "return window.told")
    };
    assert_eq!(simple(gateway.url("/")), serde_json::json!([429, true, true, 429]));
    assert_eq!(simple(closed.url("/")), serde_json::json!(["failed"]));
}

#[test]
fn forward_auth_answers_alike() {
    let rules = "\
rules:
  - { id: shop, match: { path: /shop }, key: address, limit: log 1/h, status: 403 }
  - { id: all, match: { path: / }, key: address, limit: log 1/h }
";
    let server = Server::start(&[("rules.yaml", rules)], &["--rules", "rules.yaml", "--cors-origins", APP]);
    let ask = |form: &str, path: &str, method: &str, more: &[(&str, &str)]| {
        let nginx = [("x-original-method", method), ("x-original-uri", path)];
        let others = [("x-forwarded-method", method), ("x-forwarded-uri", path), ("x-forwarded-host", "a.example")];
        let said: &[(&str, &str)] = if form.ends_with("nginx") { &nginx } else { &others };
        server.get_with(form, &[said, more].concat())
    };
    assert_eq!(ask("/v1/auth", "/", "GET", &[]).status, 200);
    let page = ask("/v1/auth", "/", "GET", &[("accept", "text/html"), ("origin", APP)]);
    assert_eq!((page.status, page.header("content-type")), (429, Some("text/html; charset=utf-8")));
    assert_eq!(page.header("access-control-allow-origin"), Some(APP));
    let preflight = [("origin", APP), ("access-control-request-method", "PUT")];
    assert_eq!(ask("/v1/auth", "/", "OPTIONS", &preflight).status, 200);
    assert_eq!(ask("/v1/auth", "/", "GET", &preflight).status, 429);

    assert_eq!(ask("/v1/auth/nginx", "/shop", "GET", &[]).status, 200);
    let denied = ask("/v1/auth/nginx", "/shop", "GET", &[]);
    assert_eq!((denied.status, denied.header("x-tidegate-status")), (403, Some("403")));
}
