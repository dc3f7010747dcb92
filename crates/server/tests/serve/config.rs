//! Settings: their sources, and errors in them.

use serde_json::Value;

use crate::support::{folder, tidegate};

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run(files: &[(&str, &str)], variables: &[(&str, &str)], args: &[&str]) -> Ran {
    let folder = folder(files);
    let output = tidegate(folder.path()).args(args).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A setting's value and source.
fn setting(ran: &Ran, name: &str) -> (String, String) {
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let all: Value = serde_json::from_str(&ran.out).unwrap();
    let found = all.as_array().unwrap().iter().find(|setting| setting["name"] == name).unwrap();
    let value: Vec<&str> = found["value"].as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect();
    (value.join(","), found["from"].as_str().unwrap().to_owned())
}

const FILE: &str = "api:\n  listen: 127.0.0.1:1111\n  connections: 7\nlog: { level: warn, format: json }\n";
const JSON: [&str; 5] = ["config", "--format", "json", "--config", "t.yaml"];

#[test]
fn a_setting_that_every_listener_reads_is_complained_of_once() {
    let ran = run(&[], &[], &["serve", "--limits-stop-time", "10"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.err.matches("error: ").count(), 1, "{}", ran.err);
    assert!(ran.err.contains("--limits-stop-time") && ran.err.contains("add a unit: `10s`"), "{}", ran.err);
}

#[test]
fn a_flag_counts_before_a_variable_before_the_file_before_the_default() {
    let variables = [("TIDEGATE_API_LISTEN", "127.0.0.1:2222"), ("TIDEGATE_LOG_LEVEL", "debug")];
    let ran = run(&[("t.yaml", FILE)], &variables, &[&JSON[..], &["--api-listen", "127.0.0.1:3333"]].concat());
    let is = |name, value: &str, from: &str| assert_eq!(setting(&ran, name), (value.to_owned(), from.to_owned()));
    is("api.listen", "127.0.0.1:3333", "--api-listen");
    is("log.level", "debug", "TIDEGATE_LOG_LEVEL");
    is("log.format", "json", "t.yaml:4:29");
    is("api.connections", "7", "t.yaml:3:16");
    is("api.tls", "off", "default");
}

#[test]
fn the_file_may_be_named_by_a_variable_and_lists_have_commas() {
    let variables = [("TIDEGATE_CONFIG", "t.yaml"), ("TIDEGATE_TRUSTED_PROXIES", "10.0.0.0/8, 192.0.2.7")];
    let ran = run(&[("t.yaml", FILE)], &variables, &["config", "--format", "json"]);
    assert_eq!(setting(&ran, "api.connections").0, "7");
    assert_eq!(setting(&ran, "trusted_proxies").0, "10.0.0.0/8,192.0.2.7");
}

#[test]
fn secrets_are_not_shown() {
    let file = "store:\n  redis:\n    urls: redis://me:hunter2@127.0.0.1:6379\n    password: hunter3\n";
    for format in ["text", "json"] {
        let ran = run(&[("t.yaml", file)], &[], &["config", "--config", "t.yaml", "--format", format]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(!ran.out.contains("hunter"), "{}", ran.out);
        assert!(ran.out.contains("redis://(hidden)@127.0.0.1:6379"), "{}", ran.out);
    }
}

#[test]
fn the_short_form_of_the_store_is_shown_as_the_settings_that_it_sets() {
    let json = ["config", "--format", "json"];
    for (url, kind, primary) in [
        ("redis://me:hunter2@10.0.0.1", "redis", ""),
        ("cluster://me:hunter2@10.0.0.1,10.0.0.2", "cluster", ""),
        ("sentinel://me:hunter2@10.0.0.1,10.0.0.2/first", "sentinel", "first"),
    ] {
        let ran = run(&[], &[], &[&json[..], &["--redis", url]].concat());
        assert!(!ran.out.contains("hunter2"), "{}", ran.out);
        let shown = url.replace("me:hunter2", "(hidden)");
        assert_eq!(setting(&ran, "store.kind"), (kind.to_owned(), "--redis".to_owned()));
        assert_eq!(setting(&ran, "store.redis.urls"), (shown, "--redis".to_owned()));
        assert_eq!(setting(&ran, "store.redis.primary").0, primary);
    }
    let ran = run(&[], &[("TIDEGATE_REDIS", "redis://10.0.0.1")], &["config", "--changed"]);
    assert!(
        ran.out.lines().any(|line| line.starts_with("store.kind ") && line.ends_with("TIDEGATE_REDIS")),
        "{}",
        ran.out
    );
    // Settings of their own that come from a later layer are in force instead.
    let variables = [("TIDEGATE_REDIS", "redis://10.0.0.1")];
    let ran =
        run(&[], &variables, &[&json[..], &["--store-kind", "cluster", "--store-redis-urls", "redis://b"]].concat());
    assert_eq!(setting(&ran, "store.kind"), ("cluster".to_owned(), "--store-kind".to_owned()));
    assert_eq!(setting(&ran, "store.redis.urls"), ("redis://b".to_owned(), "--store-redis-urls".to_owned()));
}

#[test]
fn everything_that_is_wrong_is_said_at_once_with_its_place() {
    let file = "api:\n  listen: 8080\n  tls: on\nstore: { kind: reddis }\ntrusted_proxies: [10.0.0.0/8, 10.0.0.1/8]\n";
    let variables = [("TIDEGATE_LOG_FORMAT", "jsn")];
    let ran = run(&[("t.yaml", file)], &variables, &["config", "--config", "t.yaml", "--limits-header-time", "soon"]);
    assert_eq!(ran.code, Some(1));
    for said in [
        "`api.listen`: `8080` is neither an address with a port nor `off`",
        "--> t.yaml:2:11",
        "write `127.0.0.1:8080`",
        "--> t.yaml:3:8",
        "set `tls.certificate` and `tls.key`",
        "--> t.yaml:4:16",
        "did you mean `redis`?",
        "--> t.yaml:5:31",
        "write `10.0.0.0/8`",
        "--> TIDEGATE_LOG_FORMAT",
        "did you mean `json`?",
        "--> --limits-header-time",
        "`soon` is not a duration",
    ] {
        assert!(ran.err.contains(said), "{said}\n\n{}", ran.err);
    }
}

#[test]
fn names_that_mean_nothing_come_with_what_was_meant() {
    let file = "api:\n  lisen: 127.0.0.1:1\nstorage: {}\nlog: json\nrules: { a: b }\n";
    let ran = run(&[("t.yaml", file)], &[], &["serve", "--config", "t.yaml"]);
    assert_eq!(ran.code, Some(1));
    for said in [
        "`api` has no `lisen`\n --> t.yaml:2:3",
        "did you mean `listen`?",
        "the configuration has no `storage`\n --> t.yaml:3:1",
        "`log` must be a map, found text",
        "`rules` must be text, found a map",
    ] {
        assert!(ran.err.contains(said), "{said}\n\n{}", ran.err);
    }
    let ran = run(&[], &[("TIDEGATE_API_LISTN", "x"), ("TIDEGATE_SERVICE_PORT", "80")], &["config"]);
    assert!(ran.err.contains("TIDEGATE_API_LISTN is not a setting: did you mean TIDEGATE_API_LISTEN?"), "{}", ran.err);
    assert!(!ran.err.contains("SERVICE_PORT"), "{}", ran.err);
    let ran = run(&[], &[], &["serve", "--config", "none.yaml"]);
    assert!(ran.err.contains("the configuration cannot be read") && ran.err.contains("tidegate init"), "{}", ran.err);
}

#[test]
fn stores_that_cannot_be_are_refused() {
    for (settings, said) in [
        ("kind: redis\n  redis: { urls: http://a }", "write one such as `redis://127.0.0.1:6379`"),
        ("kind: redis\n  redis: { urls: [redis://a, redis://b] }", "`store.kind: cluster`"),
        ("kind: sentinel", "set `store.redis.primary`"),
        ("kind: redis\n  redis: { ca: none.pem }", "`none.pem` cannot be read"),
        ("kind: redis\n  redis: { prefix: 'a{b}' }", "leave braces out"),
        ("kind: redis\n  redis: { deadline: 2h }", "`2h` is out of range"),
        ("kind: redis\n  redis: { user: me }", "a user is given, but no password"),
        ("keys: 3", "write 1000 to"),
    ] {
        let ran = run(&[("t.yaml", &format!("store:\n  {settings}\n"))], &[], &["config", "--config", "t.yaml"]);
        assert_eq!(ran.code, Some(1), "{settings}");
        assert!(ran.err.contains(said), "{said}\n\n{}", ran.err);
        assert!(ran.err.contains("--> t.yaml:") || ran.err.contains("--> default"), "{}", ran.err);
    }
}

#[test]
fn init_writes_files_that_work_and_writes_over_none() {
    let folder = folder(&[]);
    let run = |args: &[&str]| tidegate(folder.path()).args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let first = run(&["init", "new"]);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    assert!(text(&first.stdout).contains("tidegate serve --config new/tidegate.yaml"));
    let shown = |path: &str| text(&run(&["config", "--format", "json", "--config", path]).stdout);
    let rules = folder.path().join("new/rules.yaml");
    assert_eq!(run(&["check", rules.to_str().unwrap()]).status.code(), Some(0));
    let values = |shown: &str| -> Vec<(Value, Value)> {
        let all: Vec<Value> = serde_json::from_str(shown).unwrap();
        all.into_iter().map(|setting| (setting["name"].clone(), setting["value"].clone())).collect()
    };
    let defaults = values(&text(&run(&["config", "--format", "json"]).stdout));

    // The commented values are the defaults.
    let written = std::fs::read_to_string(folder.path().join("new/tidegate.yaml")).unwrap();
    let names: Vec<String> = defaults.iter().map(|(name, _)| name.as_str().unwrap().to_owned()).collect();
    let is_setting = |line: &str| {
        let name = line.trim_start().strip_prefix("# ").and_then(|line| line.split_once(": ")).map(|(name, _)| name);
        name.is_some_and(|name| names.iter().any(|known| known.rsplit('.').next() == Some(name)))
    };
    let uncomment = |line: &str| if is_setting(line) { line.replacen("# ", "", 1) } else { line.to_owned() };
    let whole: Vec<String> = written.lines().map(uncomment).collect();
    std::fs::write(folder.path().join("whole.yaml"), whole.join("\n")).unwrap();
    let shown = shown("whole.yaml");
    let all: Vec<Value> = serde_json::from_str(&shown).unwrap();
    assert!(all.iter().all(|setting| setting["from"].as_str().unwrap().starts_with("whole.yaml:")), "{shown}");
    for ((name, default), (_, value)) in defaults.iter().zip(values(&shown)) {
        let is_unset = default.as_array().unwrap().is_empty();
        assert!(is_unset || *default == value, "{name}: {default} {value}");
    }

    let second = run(&["init", "new"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("already exists and was not changed"));
    // Existing rules are kept.
    let own = "rules: [{ id: own, limit: 1/s }]\n";
    std::fs::remove_file(folder.path().join("new/tidegate.yaml")).unwrap();
    std::fs::write(&rules, own).unwrap();
    let third = run(&["init", "new"]);
    assert_eq!(third.status.code(), Some(0), "{}", text(&third.stderr));
    assert!(text(&third.stdout).contains("kept: new/rules.yaml"), "{}", text(&third.stdout));
    assert_eq!(std::fs::read_to_string(&rules).unwrap(), own);
}

#[test]
fn listeners_that_other_machines_reach_are_warned_of() {
    let open = ["config", "--admin-listen", "0.0.0.0:9600", "--resp-listen"];
    let warned = |more: &[&str]| {
        let ran = run(&[], &[], &[&open[..], more].concat());
        let said = ran.out + &ran.err;
        ["`admin.listen` can be reached", "`resp.listen` can be reached"].map(|warning| said.contains(warning))
    };
    assert_eq!(warned(&["0.0.0.0:6380"]), [true, true]);
    assert_eq!(warned(&["0.0.0.0:6380", "--resp-password", "hunter2hunter2"]), [true, false]);
    assert_eq!(warned(&["127.0.0.1:6380"]), [true, false]);
}

#[test]
fn settings_without_effect_are_warned_of() {
    let warned = |args: &[&str], warning: &str| {
        let ran = run(&[], &[], &[&["config"], args].concat());
        (ran.out + &ran.err).contains(warning)
    };
    let log = "`access_log.path` has no effect while `access_log.format` is off";
    assert!(warned(&["--access-log-path", "access.log"], log));
    assert!(!warned(&["--access-log-path", "access.log", "--access-log-format", "json"], log));
    let redis = ["--redis", "redis://127.0.0.1:1"];
    assert!(warned(&[&redis[..], &["--store-file", "state"]].concat(), "`store.file` has no effect"));
    assert!(!warned(&["--store-file", "state"], "no effect"));
    assert!(warned(&["--store-save-every", "1s"], "`store.save_every` has no effect without `store.file`"));
    let gateway = "the gateway is off: `gateway.shedding` is set, but neither `gateway.upstream` nor `gateway.routes`";
    assert!(warned(&["--gateway-shedding", "enforce"], gateway));
    assert!(!warned(&["--gateway-shedding", "enforce", "--gateway-upstream", "http://127.0.0.1:1"], "gateway is off"));
}

#[test]
fn redis_is_named_by_one_url_of_any_kind() {
    let cases = [
        ("redis://127.0.0.1:6379", 0),
        ("redis://127.0.0.1:6379,127.0.0.1:6380", 0),
        ("cluster://127.0.0.1:7000", 0),
        ("sentinel://127.0.0.1:26379,127.0.0.1:26380/mymaster", 0),
        ("sentinel://127.0.0.1:26379", 1),
        ("127.0.0.1:6379", 1),
    ];
    for (url, code) in cases {
        let ran = run(&[], &[], &["config", "--redis", url]);
        assert_eq!(ran.code, Some(code), "{url}: {}", ran.err);
        assert_eq!(run(&[], &[("TIDEGATE_REDIS_URL", url)], &["config"]).code, Some(code), "{url}");
    }
    let ran = run(&[], &[], &["config", "--redis", "127.0.0.1:6379"]);
    assert!(ran.err.contains("write `redis://127.0.0.1:6379`"), "{}", ran.err);
}

#[test]
fn the_upper_layer_says_where_redis_is_and_one_layer_says_it_once() {
    let file = "store: { kind: cluster }\n";
    let ran = run(&[("t.yaml", file)], &[], &["config", "--config", "t.yaml", "--redis", "redis://127.0.0.1:1/3"]);
    assert_eq!(ran.code, Some(0), "a cluster has no database 3: {}", ran.err);
    let ran = run(&[], &[("TIDEGATE_REDIS", "nonsense")], &["config", "--store-kind", "memory"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let ran = run(&[], &[], &["config", "--redis", "redis://127.0.0.1", "--store-kind", "redis"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("remove `store.kind` and `store.redis.urls`"), "{}", ran.err);
}

#[test]
fn settings_with_short_names_have_regular_ones_too() {
    let variables = [("TIDEGATE_GATEWAY_UPSTREAM", "http://127.0.0.1:1"), ("TIDEGATE_GATEWAY_LISTEN", "127.0.0.1:2")];
    let ran = run(&[], &variables, &["config", "--format", "json", "--gateway-listen", "127.0.0.1:3"]);
    assert_eq!(setting(&ran, "gateway.upstream").0, "http://127.0.0.1:1");
    assert_eq!(setting(&ran, "gateway.listen"), ("127.0.0.1:3".to_owned(), "--gateway".to_owned()));
}

#[test]
fn a_flag_alone_is_true() {
    let ran = run(&[], &[], &["config", "--format", "json", "--gateway-via", "--headers-ietf", "false"]);
    assert_eq!(setting(&ran, "gateway.via").0, "true");
    assert_eq!(setting(&ran, "headers.ietf").0, "false");
}

#[test]
fn config_reports_what_the_server_could_not_use() {
    for (args, said) in [
        (&["--log-level", "verbose"][..], "`verbose` is not a log level"),
        (&["--log-level", "inof,tidegate_redis=debug"], "write error, warn, info"),
        (&["--rules", "nofile.yaml"], "`nofile.yaml` cannot be read"),
        (&["--rules", "broken.yaml"], "--> broken.yaml:1:"),
        (&["--api-tls", "on", "--tls-certificate", "c.pem", "--tls-key", "nokey.pem"], "--> --tls-key"),
        (&["--trusted-proxies", "here"], "neither an address nor a network"),
    ] {
        let files = [("broken.yaml", "rules: [{ id: a, limit: many }]"), ("c.pem", "")];
        let ran = run(&files, &[], &[&["config"], args].concat());
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{said}: {}", ran.err);
        assert!(ran.err.matches("write one such as `10.0.0.0/8`").count() <= 1, "{}", ran.err);
    }
}

#[test]
fn only_what_is_set_is_shown_if_asked_for() {
    let ran = run(&[("t.yaml", FILE)], &[], &["config", "--changed", "--config", "t.yaml"]);
    assert_eq!(ran.out.lines().count(), 4, "{}", ran.out);
}
