use serde_json::json;
use tidegate_test_redis::Server as Redis;

use crate::browser::Browser;
use crate::serving::{Server, until};

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
fn a_running_server_is_looked_at_and_operated() {
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

    // A rule that is switched off lets everything through.
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
    // The file that cannot be used is found by itself too, and so is the next.
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
    // The row of one limit names the rule that it would switch, and its other limits.
    browser.choose("[data-rule='llm/tokens'] [data-switch=llm]", "shadow");
    let asked = browser.text("dialog[open]");
    assert!(asked.contains("This switches the whole rule llm: llm/requests, llm/tokens."), "{asked}");
    browser.click("dialog[open] [data-agree=no]");
    browser.until("no dialog", "return document.querySelector('dialog') === null || null");
    browser.until("nothing switched", &tag("enforce"));
    // So does the kill switch.
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
fn a_server_that_goes_away_is_said_to_have() {
    let (mut server, admin) = started();
    let browser = Browser::open();
    // As the server's own banner links to it.
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
fn on_the_operators_door_runs_take_the_token() {
    let (_server, admin) = started();
    let browser = Browser::open();
    browser.go_to_lab(&format!("{admin}/lab/?limit=5/s&traffic=steady+10/s&for=4s&speed=max"));
    browser.click("#run");
    browser.until("a refusal", "return document.getElementById('problem').textContent.includes('token') || null");
    browser.go_to_lab(&format!("{admin}/lab/?limit=5/s&traffic=steady+10/s&for=4s&speed=max#token={TOKEN}"));
    // The page is the same, so only the hash has changed: it is loaded anew. The old one is still there for a moment, and must not
    // be taken for the new one.
    browser.js("delete document.documentElement.dataset.ready; location.reload(); return null");
    until("the page", || browser.js("return document.documentElement?.dataset.ready").as_str().map(drop));
    browser.click("#run");
    browser.until_ended(40);
    assert_eq!(browser.shown(0), [40, 24, 16]);
}

#[test]
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
    // What the last column says in the rows of a key: what is left among the busiest, nothing in words among the denied.
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

#[test]
fn the_last_hour_is_kept_when_the_page_is_reloaded() {
    let (server, admin) = started();
    let browser = Browser::open();
    // A file of the same origin that runs no script: two hours, half an hour and ten minutes ago something was seen.
    browser.go(&format!("{admin}/lab/style.css"));
    browser.js("const now = Date.now();
         const seen = [[now - 7_200_000, 9, 0], [now - 1_800_000, 50, 5], [now - 600_000, 20, 0]];
         sessionStorage.setItem('tidegate-live-hour', JSON.stringify(seen));");
    browser.go_to_lab(&format!("{admin}/lab/#token={TOKEN}"));
    browser.until("the server", "return document.getElementById('live-status')?.dataset.state === 'running' || null");
    ask(&server, "/search", 5);
    browser.until("the present", "return document.querySelector('canvas.pulse').dataset.columns > 0 || null");
    let columns = "return Number(document.querySelector('canvas.pulse').dataset.columns)";
    let two_minutes = browser.js(columns).as_u64().unwrap();
    browser.choose("#span", "15 minutes");
    browser.until("ten minutes ago", &format!("const n = {}; return n >= 2 || null", &columns[7..]));
    browser.choose("#span", "1 hour");
    // The present may be in two columns by now; what is older than an hour is in none.
    // Half an hour ago is in the middle of the chart.
    browser.until(
        "values under the pointer",
        "const chart = document.querySelector('canvas.pulse');
         const { left, top, width } = chart.getBoundingClientRect();
         for (let x = width * 0.4; x < width * 0.65; x += 1) {
           chart.dispatchEvent(new PointerEvent('pointermove', { clientX: left + x, clientY: top + 20, bubbles: true }));
           if (chart.dataset.readout?.includes('50/s allowed; 5/s denied')) return true;
         }
         return null",
    );
    let hour = browser.until("half an hour ago", &format!("const n = {}; return n >= 3 ? n : null", &columns[7..]));
    assert!(two_minutes < 60 && hour.as_u64().unwrap() <= 4, "{two_minutes} {hour}");

    browser.go(&format!("{admin}/lab/style.css"));
    let kept =
        browser.js("return JSON.parse(sessionStorage.getItem('tidegate-live-hour')).map(([, allowed]) => allowed)");
    let kept = kept.as_array().unwrap();
    assert!(kept.len() >= 3 && kept[..2] == [json!(50), json!(20)], "{kept:?}");
    // Chromium asks for an icon of a page that does not name one.
    browser.assert_quiet(|message| message.contains("favicon.ico"));
}
