use tidegate_core::Micros;
use tidegate_rules::{Fact, Facts};
use tidegate_test_support::fuzz::{target, text};

use super::*;

/// All lines of a file, parsed in the format that is detected; `Err` for lines that are not requests.
fn lines(text: &'static str, format: LogFormat) -> Vec<Result<Seen, LineError>> {
    assert_eq!(LogFormat::detect(text.lines()), Some(format));
    let mut reader = LineReader::new(format);
    let mut lines = text.lines();
    if reader.begin(lines.clone().next().unwrap()).unwrap() {
        lines.next();
    }
    lines.map(|line| reader.read(line).map(|entry| Seen::of(&entry))).collect()
}

/// The facts of an entry, as rules see them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    millis: u64,
    address: String,
    method: String,
    path: String,
    host: String,
    user: String,
    agent: String,
    tenant: String,
    took: Option<Micros>,
}

impl Seen {
    fn of(entry: &AccessEntry<'_>) -> Seen {
        let fact = |fact| entry.get(fact).unwrap_or_default().into_owned();
        Seen {
            millis: entry.at.as_micros() / 1_000,
            address: entry.address.map(|address| address.to_string()).unwrap_or_default(),
            method: fact(Fact::Method),
            path: fact(Fact::Path),
            host: fact(Fact::Host),
            user: fact(Fact::User),
            agent: fact(Fact::Header("User-Agent")),
            tenant: fact(Fact::Header("X-Tenant")),
            took: entry.took,
        }
    }
}

const SECOND: u64 = 1_794_736_375_000;

fn paths(lines: &[Result<Seen, LineError>]) -> Vec<Option<&str>> {
    lines.iter().map(|line| line.as_ref().ok().map(|seen| seen.path.as_str())).collect()
}

const PATHS: [Option<&str>; 10] = [
    Some("/"),
    Some("/search"),
    Some("/caf%C3%A9"),
    Some("/v6"),
    Some("/login"),
    Some("/a\"b"),
    None,
    Some("/x"),
    Some("/sp ace"),
    Some("/old"),
];

#[test]
fn nginx_combined() {
    let lines = lines(include_str!("../../../tests/data/nginx-combined.log"), LogFormat::Combined);
    assert_eq!(paths(&lines), PATHS);
    assert_eq!(lines[6], Err(LineError::BadRequest));
    let ann = Seen {
        millis: SECOND,
        address: "203.0.113.7".into(),
        method: "GET".into(),
        path: "/search".into(),
        user: "ann".into(),
        agent: "curl/7.88.1".into(),
        ..Seen::default()
    };
    assert_eq!(lines[1], Ok(ann));
    let quoted = lines[2].as_ref().unwrap();
    assert_eq!(quoted.agent, "a \"quoted\" \\ agent é");
    let v6 = lines[3].as_ref().unwrap();
    assert_eq!(v6.address, "2001:db8::7");
    let absolute = lines[7].as_ref().unwrap();
    assert_eq!((absolute.host.as_str(), absolute.agent.as_str()), ("abs.example", ""));
}

#[test]
fn common_has_no_agent_and_a_virtual_host_may_stand_in_front() {
    let common = lines(include_str!("../../../tests/data/nginx-common.log"), LogFormat::Combined);
    assert_eq!(paths(&common), PATHS);
    assert!(common.iter().flatten().all(|seen| seen.agent.is_empty()));
    let vhost = lines(include_str!("../../../tests/data/nginx-vhost.log"), LogFormat::Combined);
    assert_eq!(paths(&vhost), PATHS);
    let hosts: Vec<_> =
        vhost.iter().flatten().map(|seen| (seen.host.as_str(), seen.address.as_str())).take(4).collect();
    let first = ("192.0.2.80", "203.0.113.7");
    assert_eq!(hosts, [first, first, first, ("shop.example", "2001:db8::7")]);
    assert_eq!(vhost[1].as_ref().unwrap().user, "ann");
}

#[test]
fn nginx_json() {
    let lines = lines(include_str!("../../../tests/data/nginx.json"), LogFormat::NginxJson);
    assert_eq!(paths(&lines), PATHS);
    let quoted = Seen {
        millis: SECOND + 621,
        address: "203.0.113.7".into(),
        method: "GET".into(),
        path: "/caf%C3%A9".into(),
        host: "192.0.2.80".into(),
        agent: "a \"quoted\" \\ agent é".into(),
        tenant: "acme".into(),
        took: Some(Micros::ZERO),
        ..Seen::default()
    };
    assert_eq!(lines[2], Ok(quoted));
    let line = include_str!("../../../tests/data/nginx.json").lines().nth(2).unwrap();
    let reader = LineReader::new(LogFormat::NginxJson);
    let entry = reader.read(line).unwrap();
    assert_eq!(entry.get(Fact::Cookie("session")).as_deref(), Some("s1"));
    assert_eq!(entry.get(Fact::Query("x")).as_deref(), Some("\""));
    assert!(!entry.whole_second, "the finest of the times counts");
}

#[test]
fn caddy_json() {
    let lines = lines(include_str!("../../../tests/data/caddy.json"), LogFormat::CaddyJson);
    let first = Seen {
        millis: SECOND + 597,
        address: "203.0.113.7".into(),
        method: "GET".into(),
        path: "/search".into(),
        host: "shop.example".into(),
        user: "ann".into(),
        agent: "curl/8.5.0".into(),
        tenant: "acme".into(),
        took: Some(Micros::new(929)),
    };
    assert_eq!(lines[0], Ok(first));
    let second = lines[1].as_ref().unwrap();
    assert_eq!((second.path.as_str(), second.host.as_str()), ("/a\"bé", "[2001:db8::1]"));
    assert_eq!((second.user.as_str(), second.took), ("", Some(Micros::new(1_500_000))));
    let third = lines[2].as_ref().unwrap();
    assert_eq!((third.millis, third.address.as_str()), (SECOND + 2_250, "203.0.113.7"));
}

#[test]
fn envoy_json() {
    let lines = lines(include_str!("../../../tests/data/envoy.json"), LogFormat::EnvoyJson);
    let first = lines[0].as_ref().unwrap();
    assert_eq!(
        (first.millis, first.address.as_str(), first.host.as_str()),
        (SECOND + 597, "203.0.113.7", "shop.example")
    );
    assert_eq!(first.took, Some(Micros::from_millis(4)));
    let second = lines[1].as_ref().unwrap();
    assert_eq!((second.address.as_str(), second.path.as_str()), ("2001:db8::7", "/v1/a\"b"));
    assert_eq!(second.agent, "a \"quoted\" \\ agent");
}

#[test]
fn our_own_as_a_table_and_as_json() {
    let csv = lines(include_str!("../../../tests/data/own.csv"), LogFormat::Csv);
    let jsonl = lines(include_str!("../../../tests/data/own.jsonl"), LogFormat::Jsonl);
    assert_eq!(csv, jsonl);
    assert_eq!(csv[0].as_ref().unwrap().tenant, "acme");
    assert_eq!(csv[1].as_ref().unwrap().path, "/a,b");
    assert_eq!(csv[2].as_ref().unwrap().user, "bob");
    let reader = LineReader::new(LogFormat::Jsonl);
    let line = include_str!("../../../tests/data/own.jsonl").lines().next().unwrap();
    let entry = reader.read(line).unwrap();
    let fact = |fact| entry.get(fact).unwrap_or_default().into_owned();
    assert_eq!([fact(Fact::ApiKey), fact(Fact::Tier), fact(Fact::Claim("org"))], ["k_1", "paid", "staff"]);
    assert_eq!((entry.hits(), entry.took), (Some(5), Some(Micros::new(12_500))));
}

#[test]
fn a_duration_of_zero_is_a_duration() {
    let mut csv = LineReader::new(LogFormat::Csv);
    csv.begin("time,duration_ms").unwrap();
    let took = |reader: &LineReader, line: &str| reader.read(line).unwrap().took;
    assert_eq!(took(&csv, "10.5,0"), Some(Micros::ZERO));
    assert_eq!(took(&csv, "10.5,"), None);
    let jsonl = LineReader::new(LogFormat::Jsonl);
    assert_eq!(took(&jsonl, "{\"time\": 10.5, \"duration_ms\": 0}"), Some(Micros::ZERO));
    assert_eq!(took(&jsonl, "{\"time\": 10.5}"), None);
}

#[test]
fn broken_lines_say_why() {
    use LineError::*;
    let combined = LineReader::new(LogFormat::Combined);
    for (line, problem) in [
        ("nonsense", NoTime),
        ("203.0.113.7 - - [yesterday] \"GET / HTTP/1.1\" 200 2", BadTime),
        ("203.0.113.7 - - [15/Nov/2026:09:52:55 +0000] 200 2", NoRequest),
        ("203.0.113.7 - - [15/Nov/2026:09:52:55 +0000] \"-\" 400 0", BadRequest),
        ("203.0.113.7 - - [15/Nov/2026:09:52:55 +0000] \"\" 400 0", BadRequest),
        ("203.0.113.7 - - [15/Nov/2026:09:52:55 +0000] \"GET / HTT", OpenQuote),
        ("203.0.113.7 - - [15/Nov/2026:09:52:55 +0000] \"GET / HTTP/1.1\" 200 2 \"open", OpenQuote),
        ("203.0.113.7 - - [15/Nov/2026:09:5", NoTime),
    ] {
        assert_eq!(combined.read(line).map(|entry| entry.at), Err(problem), "{line}");
    }
    let json = LineReader::new(LogFormat::NginxJson);
    for (line, problem) in [
        ("", NotJson),
        ("[]", NotJson),
        ("{", NotJson),
        ("{\"time\":1", NotJson),
        ("{\"time\":1} trailing", NotJson),
        ("{\"time\":1,\"request\":{\"a\":[1,2}", NotJson),
        ("{}", NoTime),
        ("{\"time\":\"soon\",\"uri\":\"/\"}", BadTime),
        ("{\"time\":1}", NoRequest),
        ("{\"time\":1,\"request\":\"rubbish\"}", BadRequest),
    ] {
        assert_eq!(json.read(line).map(|entry| entry.at), Err(problem), "{line}");
    }
    let mut csv = LineReader::new(LogFormat::Csv);
    assert_eq!(csv.begin("when,address"), Err(UnknownColumn("when".into())));
    let open_quote = "time,address,\"cost";
    assert_eq!(LogFormat::detect([open_quote]), Some(LogFormat::Csv));
    assert_eq!(csv.begin(open_quote), Err(OpenQuote));
    csv.begin("time,address,cost").unwrap();
    for (line, problem) in
        [("1,192.0.2.1", MissingCells), ("soon,192.0.2.1,1", BadTime), ("1,a,many", BadCost), ("1,\"a,1", OpenQuote)]
    {
        assert_eq!(csv.read(line).map(|entry| entry.at), Err(problem), "{line}");
    }
    let own = LineReader::new(LogFormat::Jsonl);
    assert_eq!(own.read("{\"time\":1,\"cost\":\"many\"}").map(|entry| entry.at), Err(BadCost));
}

/// Any line is either a request or an error, and a line is valid in the format detected from it.
#[test]
fn any_line_is_a_request_or_not() {
    const WORDS: [&str; 32] = [
        "[",
        "]",
        "\"",
        "\\",
        " ",
        "-",
        "203.0.113.7",
        "é",
        "{",
        "}",
        ":",
        ",",
        "\"time\":",
        "1",
        "GET / HTTP/1.1",
        "15/Nov/2026:09:52:55 +0000",
        "\"request\":",
        "\u{1F980}",
        "\\x",
        "null",
        "2026-11-15T09:52:55.123Z",
        "\"ts\":",
        "\"uri\":\"/\"",
        "\"headers\":{",
        "\"start_time\":",
        "\"method\":\"GET\"",
        "\"path\":",
        "1794736375.123",
        "http://a/b",
        "\\u00e9",
        "\"cost\":",
        "\t",
    ];
    target!("access-log").for_each(|bytes: &[u8]| {
        let text = text(bytes, &WORDS);
        let line = String::from_utf8_lossy(&text);
        let mut readers = LogFormat::ALL.map(LineReader::new);
        for reader in &mut readers {
            let _ = reader.begin("time,address,path,header:X");
            if let Ok(entry) = reader.read(&line) {
                for fact in
                    [Fact::Path, Fact::Host, Fact::Header("x"), Fact::Cookie("x"), Fact::Claim("x"), Fact::Query("x")]
                {
                    let known = entry.get(fact).map_or(0, |value| value.len());
                    assert!(known <= 4 * line.len() + 1, "{line}");
                }
            }
        }
        if let Some(format @ (LogFormat::Combined | LogFormat::Csv)) = LogFormat::detect([&*line]) {
            let mut reader = LineReader::new(format);
            match reader.begin(line.trim()) {
                Ok(is_head) => assert!(is_head || reader.read(line.trim()).is_ok(), "{line}"),
                // A table with a wrong header is an error, and is not taken for another format.
                Err(error) => {
                    assert!(matches!(error, LineError::UnknownColumn(_) | LineError::OpenQuote), "{line}: {error}");
                }
            }
        }
    });
}
