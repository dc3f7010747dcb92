//! The admin API answers as the guide to operating shows.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::docs::guide::{Guide, guide};
use crate::docs::sessions::{OPS, TOKEN};
use crate::support::{Answer, Server, until};

const LOGIN: &str = r#"{"path":"/login","address":"203.0.113.7"}"#;
const MISTAKE: &str = "rules:\n  - { id: login, key: adress, limit: 5/min }\n";

/// Specificity of a pattern such as `store.*`, `*.listen` or `region` for a setting; `None` if it does not match.
fn specificity(pattern: &str, setting: &str) -> Option<u8> {
    let (is_match, specificity) = match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => (setting.ends_with(end), 2),
        (None, Some(section)) => (setting.starts_with(section), 1),
        (None, None) => (setting == pattern, 3),
    };
    is_match.then_some(specificity)
}

#[test]
fn the_guide_says_of_every_setting_whether_a_reload_applies_it() {
    let guide = guide("operating.md");
    let (_, section) = guide.prose.split_once("\n## Reloading the configuration\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let (applied, others) = section.split_once("\nAll other settings need a restart.").unwrap();
    let cells = applied.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    let applied: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let items = others.lines().filter(|line| line.starts_with("- "));
    let others: Vec<&str> = items.flat_map(|item| item.split('`').skip(1).step_by(2)).collect();
    let reference = crate::docs::tidegate(&["config", "--reference"]);
    let rows: Vec<&str> = reference.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(rows.len() > 100);
    for row in rows {
        let name = row.split('`').nth(1).unwrap();
        let highest = |patterns: &[&str]| patterns.iter().filter_map(|pattern| specificity(pattern, name)).max();
        let (is_applied, needs_restart) = (highest(&applied), highest(&others));
        assert_ne!(is_applied, needs_restart, "{name}");
        assert_eq!(needs_restart > is_applied, row.starts_with(&format!("| `{name}` \\* |")), "{name}");
    }
}

/// A server with the rules of the guide, and what it was asked.
struct Asked(Server);

impl Asked {
    fn ask(&self, request: &str, body: &str) -> Value {
        let (method, path) = request.split_once(' ').unwrap();
        let answer = self.send(method, path, body, &[("authorization", &format!("Bearer {TOKEN}"))]);
        answer.good()
    }

    fn send(&self, method: &str, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        let url = format!("http://{}{path}", self.0.listener("Admin"));
        match method {
            "GET" => self.0.get_from(&url, headers),
            _ => self.0.post_to(&url, &[headers, &[("content-type", "application/json")]].concat(), body),
        }
    }

    fn check(&self, body: &str, times: usize) {
        (0..times).for_each(|_| drop(self.0.check(body)));
    }
}

/// Names of members, with those above them. Items of a list count as one.
fn members(value: &Value, above: &str, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(name, value)| {
            names.insert(format!("{above}.{name}"));
            members(value, &format!("{above}.{name}"), names);
        }),
        Value::Array(items) => items.iter().for_each(|item| members(item, above, names)),
        _ => {}
    }
}

fn members_of(value: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    members(value, "", &mut names);
    names
}

/// The documents in the JSON block after a line that begins with this request.
fn documents(guide: &Guide, begin: &str) -> Vec<Value> {
    let block = guide.labelled("json").find(|block| block.starts_with(begin)).unwrap_or_else(|| panic!("no {begin}"));
    serde_json::Deserializer::from_str(block).into_iter().map(Result::unwrap).collect()
}

#[test]
fn the_admin_api_answers_as_its_guide_shows() {
    let guide = guide("operating.md");
    let files = [("ops.yaml", OPS), ("rules.yaml", OPS)];
    let server = Asked(Server::start(&files, &["--rules", "ops.yaml", "--admin-token", TOKEN]));
    let shown = |begin: &str| documents(&guide, begin).remove(0);

    let refused = server.send("GET", "/v1/rules", "", &[]);
    let block = guide.labelled("text").find(|block| block.starts_with("HTTP/1.1 401")).unwrap();
    let (head, body) = block.split_once("\n\n").unwrap();
    assert_eq!((refused.status, refused.body.as_str()), (401, body));
    assert_eq!(head.lines().nth(1).unwrap().strip_prefix("www-authenticate: "), refused.header("www-authenticate"));

    assert_eq!(server.ask("GET /v1/rules", ""), shown("{\"generation\":1,\"rules\":["));
    server.check(LOGIN, 12);
    server.check(r#"{"path":"/search","user":"alice"}"#, 8);
    let view = until("the traffic of a second", || {
        let view = server.ask("GET /v1/view", "");
        let is_whole = view["denied"]["total"] == 7 && view["traffic"]["total"] == 20 && view["denials"][0].is_object();
        is_whole.then_some(view)
    });
    assert_eq!(members_of(&view), members_of(&shown("{\"at_ms\"")));
    let top = server.ask("GET /v1/keys/top?by=denials&most=3", "");
    assert_eq!(top["keys"], shown("{\"seconds\"")["keys"]);
    let configuration = server.ask("GET /v1/config", "");
    let first = shown("[{\"name\":\"rules\"");
    assert_eq!(configuration.as_array().unwrap()[..first.as_array().unwrap().len()], *first.as_array().unwrap());

    assert_eq!(server.ask("POST /v1/rules/reload", ""), shown("{\"generation\":2,\"rules\":2"));
    assert_eq!(server.ask("POST /v1/rules/validate", MISTAKE), shown("{\"usable\":false"));
    let mut modes = server.ask("POST /v1/modes", r#"{"rule":"login","mode":"shadow","for":"15min"}"#);
    assert_eq!(server.ask("GET /v1/modes", ""), modes);
    let mut switched = shown("{\"generation\":3,\"all\"");
    for answer in [&mut modes, &mut switched] {
        assert!(answer["rules"][0]["until"].take().is_u64());
    }
    assert_eq!(modes, switched);

    let key = r#"{"rule":"login","key":["203.0.113.7"]}"#;
    let [peeked, forgotten] = &documents(&guide, "{\"rule\":\"login\",\"generation\"")[..] else { panic!() };
    // A token that has come back since is spent.
    server.check(LOGIN, 6);
    let peek = server.ask("POST /v1/keys/peek", key);
    assert_eq!((members_of(&peek), &peek["allowed"]), (members_of(peeked), &peeked["allowed"]));
    assert_eq!(server.ask("POST /v1/keys/reset", key), *forgotten);
}
