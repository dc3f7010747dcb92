use serde_json::json;
use tidegate_core::Micros;
use tidegate_test_support::redis::Server as Redis;

use crate::admin::support as operating;
use crate::support::browser::Browser;
use crate::support::{Server, until};

const TOKEN: &str = "an-operators-token";
const RULES: &str = "\
rules:
  - { id: login, match: { path: /login }, key: address, limit: 5/day }
  - { id: search, match: { path: /search }, key: address, limit: 1000/day }
";

fn started() -> (Server, String) {
    let arguments = ["--rules", "rules.yaml"];
    let server = Server::start_with(&[("rules.yaml", RULES)], &arguments, &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
    let (_, rest) = server.banner.split_once("\n  Admin ").unwrap_or_else(|| panic!("{}", server.banner));
    let admin = rest.lines().next().unwrap().trim().to_owned();
    (server, admin)
}

fn ask(server: &Server, path: &str, times: usize) -> usize {
    let body = json!({ "method": "POST", "path": path, "address": "203.0.113.7" }).to_string();
    (0..times).filter(|_| server.check(&body)["allowed"] == false).count()
}

#[test]
fn a_running_server_is_shown_and_operated() {
    let (server, admin) = started();
    let browser = Browser::open();
    browser.go_to_lab(&format!("{admin}/lab/#live"));
    browser.write("#token", "not-the-operators-token");
    browser.click(".token button");
    browser.until(
        "a refusal",
        "return document.getElementById('token-error')?.textContent.includes('does not accept') || null",
    );
    browser.write("#token", TOKEN);
    browser.click(".token button");
    browser.until("the server", "return document.getElementById('live-status')?.dataset.state === 'running' || null");
    assert_eq!(ask(&server, "/login", 12), 7);
    ask(&server, "/search", 40);
    browser.until(
        "denials",
        "const row = document.querySelector('[data-rule=login]'); return row?.cells[5].textContent === '7' || null",
    );
    browser.until("the feed", "return document.querySelectorAll('.feed tbody code').length > 0 || null");
    browser.until("headroom", "return document.body.textContent.includes('960 of 1 k') || null");

    // A rule that is switched off allows all requests.
    browser.choose("[data-switch=login]", "off");
    browser.click("dialog[open] [data-agree=yes]");
    browser
        .until("the switch", "return document.querySelector('[data-rule=login] .tag')?.textContent === 'off' || null");
    assert_eq!(ask(&server, "/login", 3), 0);
    browser.until(
        "the banner",
        "return document.getElementById('switched').textContent === 'Switched: login to off, until it is taken back.' || null",
    );

    browser.click("#reload");
    browser.until(
        "a reload",
        "return document.querySelector('.notes').textContent.includes('Read again: 2 rules') || null",
    );
    std::fs::write(server.path("rules.yaml"), "rules: [{ id: login, key: address, limit: 5/parsec }]").unwrap();
    browser.click("#reload");
    browser.until(
        "findings",
        "return document.querySelector('.notes .bad')?.textContent.includes('is not a limit') || null",
    );
    // An invalid file is detected by itself too, and so is the corrected one.
    std::fs::write(server.path("rules.yaml"), "rules: [{ id: login, key: adress, limit: 5/day }]").unwrap();
    browser.until(
        "word of the file",
        "return document.querySelector('.notes [data-note=reload]')?.textContent.includes('adress') || null",
    );
    for _ in 0..6 {
        ask(&server, "/search", 60);
        ask(&server, "/login", 9);
        browser.draw();
    }
    browser.screenshot("live");
    browser.assert_quiet(|message| message.contains("401 (Unauthorized)") || message.contains("422 (Unprocessable"));
}

#[test]
#[ignore = "long: make nightly"]
fn a_switch_that_does_more_than_its_row_says_is_asked_about() {
    const RULES: &str = "\
rules:
  - { id: llm, key: address, limits: [{ name: requests, limit: 5/day }, { name: tokens, limit: 9/day }] }
";
    let server =
        Server::start_with(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"], &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
    let (_, rest) = server.banner.split_once("\n  Admin ").unwrap_or_else(|| panic!("{}", server.banner));
    let admin = rest.lines().next().unwrap().trim().to_owned();
    ask(&server, "/", 3);
    let browser = Browser::open();
    browser.go_to_lab(&format!("{admin}/lab/#live"));
    browser.write("#token", TOKEN);
    browser.click(".token button");
    browser.until("both limits", "return document.querySelectorAll('tr[data-rule]').length === 2 || null");
    let tag = |mode: &str| {
        format!(
            "const tags = [...document.querySelectorAll('tr[data-rule] .tag')].map((tag) => tag.textContent); \
             return (tags.length === 2 && tags.every((tag) => tag === '{mode}')) || null"
        )
    };
    // The dialog for one limit names the rule that would be switched, and its other limits.
    browser.choose("[data-rule='llm/tokens'] [data-switch=llm]", "shadow");
    let asked = browser.text("dialog[open]");
    assert!(asked.contains("This switches the whole rule llm: llm/requests, llm/tokens."), "{asked}");
    browser.click("dialog[open] [data-agree=no]");
    browser.until("no dialog", "return document.querySelector('dialog') === null || null");
    browser.until("nothing switched", &tag("enforce"));
    // The kill switch asks for confirmation too.
    browser.choose("[data-switch='']", "off");
    assert!(browser.text("dialog[open]").contains("kill switch"));
    browser.click("dialog[open] [data-agree=yes]");
    browser.until("all off", &tag("off"));
    browser.until(
        "the banner",
        "return document.getElementById('switched').textContent.startsWith('Switched: all rules to off') || null",
    );
    browser.choose("[data-switch='']", "as written");
    browser.until("all as written", &tag("enforce"));
    browser.until("no banner", "return document.getElementById('switched').hidden || null");
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn a_server_that_is_gone_is_reported() {
    let (mut server, admin) = started();
    let browser = Browser::open();
    // The link in the server's banner.
    browser.go_to_lab(&format!("{admin}/lab/#token={TOKEN}"));
    assert!(!browser.url().contains(TOKEN), "{}", browser.url());
    browser.click("#tab-live");
    browser.until("the server", "return document.getElementById('live-status')?.dataset.state === 'running' || null");
    server.signal(rustix::process::Signal::TERM);
    assert!(server.ended().success());
    browser.until("word of it", "return document.getElementById('live-status').dataset.state === 'lost' || null");
    browser.assert_quiet(|message| message.contains("net::ERR_"));
}

#[test]
#[ignore = "long: make nightly"]
fn runs_on_the_admin_listener_take_the_token() {
    let (_server, admin) = started();
    let browser = Browser::open();
    browser.go_to_lab(&format!("{admin}/lab/?limit=5/s&traffic=steady+10/s&for=4s&speed=max"));
    browser.click("#run");
    browser.until("a refusal", "return document.getElementById('problem').textContent.includes('token') || null");
    browser.go_to_lab(&format!("{admin}/lab/?limit=5/s&traffic=steady+10/s&for=4s&speed=max#token={TOKEN}"));
    // Only the fragment of the URL has changed, so the page must be reloaded. Removing the marker prevents the old page
    // from being taken for the new one.
    browser.js("delete document.documentElement.dataset.ready; location.reload(); return null");
    until("the page", || browser.js("return document.documentElement?.dataset.ready").as_str().map(drop));
    browser.click("#run");
    browser.until_ended(40);
    assert_eq!(browser.shown(0), [40, 24, 16]);
}

#[test]
#[ignore = "long: make nightly"]
fn a_rate_that_adapts_is_shown_beside_its_rule() {
    const RULES: &str = "\
rules: [{ id: api, adapt: { between: 100/s..1000/s, on: errors > 5% } }]
";
    let server =
        Server::start_with(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"], &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
    let (_, rest) = server.banner.split_once("\n  Admin ").unwrap_or_else(|| panic!("{}", server.banner));
    let admin = rest.lines().next().unwrap().trim().to_owned();
    server.check(&json!({ "path": "/" }).to_string());
    let browser = Browser::open();
    browser.go_to_lab(&format!("{admin}/lab/#live"));
    browser.write("#token", TOKEN);
    browser.click(".token button");
    browser.until(
        "the rate",
        "return document.querySelector('[data-rule=api]')?.textContent.includes('at 1000/s of 1000/s') || null",
    );
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn the_headroom_of_a_key_is_its_own_however_it_is_shown() {
    const RULES: &str = "\
rules:
  - { id: long, match: { path: /long }, key: user, limit: log 2/day }
  - { id: hidden, match: { path: /hidden }, key: api_key, limit: log 2/day }
";
    let server =
        Server::start_with(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"], &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
    let (_, rest) = server.banner.split_once("\n  Admin ").unwrap_or_else(|| panic!("{}", server.banner));
    let admin = rest.lines().next().unwrap().trim().to_owned();
    for _ in 0..9 {
        server.check(&json!({ "path": "/long", "user": "u".repeat(200) }).to_string());
        server.check(&json!({ "path": "/hidden", "api_key": "k_1" }).to_string());
    }
    let browser = Browser::open();
    browser.go_to_lab(&format!("{admin}/lab/#live"));
    browser.write("#token", TOKEN);
    browser.click(".token button");
    // The last column of a key's rows: the remaining amount among the busiest keys, and no text among the denied ones.
    let said = |key: &str| {
        format!(
            "const rows = [...document.querySelectorAll('tr')].filter((row) => row.cells[0].textContent.startsWith('{key}')); \
             const said = rows.map((row) => row.cells[3]?.textContent ?? '').filter((text) => text !== '');"
        )
    };
    browser.until("what is left", &format!("{} return said.includes('0 of 2') || null", said("uuu")));
    browser.until("the hidden key", &format!("{} return said.includes('0 of 2') || null", said("#")));
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn keys_of_envoy_and_of_cl_throttle_are_shown() {
    const EDGE: &str = "\
domain: edge
descriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 9 } }]
";
    let arguments = ["--rules", "edge.yaml"];
    let server = Server::start_with(&[("edge.yaml", EDGE)], &arguments, &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
    let (_, rest) = server.banner.split_once("\n  Admin ").unwrap_or_else(|| panic!("{}", server.banner));
    let admin = rest.lines().next().unwrap().trim().to_owned();
    let envoy = format!("http://{}/json", server.listener("Envoy"));
    let descriptors =
        json!({ "domain": "edge", "descriptors": [{ "entries": [{ "key": "user", "value": "alice" }] }] });
    let client = redis::Client::open(format!("redis://{}/", server.listener("Redis"))).unwrap();
    let mut connection = client.get_connection().unwrap();
    for _ in 0..2 {
        assert_eq!(
            server.post_to(&envoy, &[("content-type", "application/json")], &descriptors.to_string()).status,
            200
        );
        let _: Vec<i64> = redis::cmd("CL.THROTTLE").arg("bob").arg(4).arg(9).arg(3600).query(&mut connection).unwrap();
    }
    let browser = Browser::open();
    browser.go_to_lab(&format!("{admin}/lab/#live"));
    browser.write("#token", TOKEN);
    browser.click(".token button");
    let last = |key: &str, text: &str| {
        format!(
            "const rows = [...document.querySelectorAll('tr')].filter((row) => row.cells[0].textContent === '{key}'); \
             return rows.some((row) => row.cells[3]?.textContent === '{text}') || null"
        )
    };
    browser.until("the headroom of a descriptor", &last("alice", "7 of 9"));
    browser.until("the key of a command", &last("bob", "limit in each command"));
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn the_keys_that_redis_is_called_for_are_shown() {
    const RULES: &str = "\
rules:
  - { id: login, match: { path: /login }, key: address, limit: 5/day }
";
    let redis = Redis::start();
    let arguments = ["--rules", "rules.yaml", "--store-kind", "redis", "--store-redis-urls", &redis.url()];
    let server = Server::start_with(&[("rules.yaml", RULES)], &arguments, &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
    let (_, rest) = server.banner.split_once("\n  Admin ").unwrap_or_else(|| panic!("{}", server.banner));
    let admin = rest.lines().next().unwrap().trim().to_owned();
    let browser = Browser::open();
    browser.go_to_lab(&format!("{admin}/lab/#live"));
    browser.write("#token", TOKEN);
    browser.click(".token button");
    ask(&server, "/login", 12);
    browser.until(
        "the key",
        "const row = document.querySelector('[data-hot]'); return row?.cells[0].textContent === '203.0.113.7' || null",
    );
    browser.until(
        "the leases",
        "return document.getElementById('tier').textContent.includes('0 held of 0 leased keys.') || null",
    );
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn the_shares_of_the_servers_region_are_shown() {
    const RULES: &str = "{ regions: { eu: 60%, us: 40% }, rules: [{ id: login, key: address, limit: 5/day }] }";
    const RECORD: &str = r#"{"format":1,"region":"eu","born":1,"version":4,
        "shares":{"":{"share":450000,"floor":50000,"arrivals":[]}},
        "outgoing":[{"to":"us","number":1,"rule":"","amount":150000}]}"#;
    let redis = Redis::start();
    redis.run::<()>(&["SET", "tidegate:{#steering}:regions", RECORD]);
    let arguments = ["--rules", "rules.yaml", "--region", "eu", "--redis", &redis.url()];
    let server = Server::start_with(&[("rules.yaml", RULES)], &arguments, &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
    let (_, rest) = server.banner.split_once("\n  Admin ").unwrap_or_else(|| panic!("{}", server.banner));
    let admin = rest.lines().next().unwrap().trim().to_owned();
    let browser = Browser::open();
    browser.go_to_lab(&format!("{admin}/lab/#live"));
    browser.write("#token", TOKEN);
    browser.click(".token button");
    browser.until(
        "the record",
        "const told = document.getElementById('region')?.textContent; \
         return told === 'eu, record 4. 15% on the way to us.' || null",
    );
    browser.until(
        "the shares",
        "const row = document.getElementById('region').closest('.card').querySelector('tbody tr'); \
         return [...row.cells].map((cell) => cell.textContent).join(' ') === 'all rules 45% 5% 15% 0' || null",
    );
    browser.assert_quiet(|_| false);
}

/// Whether the chart has this text under the pointer at these shares of its width.
fn under_the_pointer(text: &str, from: f64, to: f64) -> String {
    format!(
        "const chart = document.querySelector('canvas.pulse');
         const {{ left, top, width }} = chart.getBoundingClientRect();
         for (let x = width * {from}; x < width * {to}; x += 1) {{
           chart.dispatchEvent(new PointerEvent('pointermove', {{ clientX: left + x, clientY: top + 20, bubbles: true }}));
           if (chart.dataset.readout?.includes('{text}')) return true;
         }}
         return null"
    )
}

#[test]
#[ignore = "long: make nightly"]
fn a_page_that_is_opened_late_shows_what_was_decided_before() {
    let server = operating::Server::start();
    let operate = |seconds: u64, requests: usize| {
        for _ in 0..seconds {
            server.requests("203.0.113.7", requests);
            server.clock.advance(Micros::from_secs(1));
            server.state.tick();
        }
    };
    server.state.tick();
    // Two are allowed in a day. Of the two hours, the first is forgotten.
    operate(3_600, 7);
    operate(1_800, 0);
    operate(60, 5);
    operate(1_740, 0);

    let browser = Browser::open();
    let lab = server.url(&format!("/lab/#token={}", operating::TOKEN));
    // The live view is the first one that a server's page shows.
    browser.go_to_lab(&lab);
    browser.until("the server", "return document.getElementById('live-status')?.dataset.state === 'running' || null");
    let columns = |least: u64| {
        format!(
            "const n = Number(document.querySelector('canvas.pulse').dataset.columns); return n >= {least} ? n : null"
        )
    };
    browser.until("two minutes", &columns(110));
    browser.choose("#span", "1 hour");
    browser.until("an hour", &columns(110));
    // Half an hour ago is in the middle of the chart.
    browser.until("half an hour ago", &under_the_pointer("0/s allowed; 5/s denied", 0.4, 0.65));
    let forgotten = browser.js(&under_the_pointer("7/s denied", 0.0, 1.0));
    assert!(forgotten.is_null(), "the hour before the last one is forgotten");
    browser.assert_quiet(|_| false);
}
