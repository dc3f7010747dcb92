//! The facts of one request are equal through every protocol that the server and its tools read.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use proptest::prelude::*;
use serde_json::to_string;
use tidegate_http::HttpFacts;
use tidegate_lab::replay::{LineReader, LogFormat};
use tidegate_rules::envoy::EntryFacts;
use tidegate_rules::{Fact, Facts, Request};

use crate::api::with_facts as with_json;
use crate::resp::with_facts as with_words;

/// A request as its client writes it.
#[derive(Clone, Debug)]
struct WrittenRequest {
    method: String,
    target: String,
    /// Stated next to the headers, in protocols with a field for it.
    host: Option<String>,
    headers: Vec<(String, String)>,
}

const FACTS: [Fact<'static>; 14] = [
    Fact::Method,
    Fact::Path,
    Fact::Host,
    Fact::Header("host"),
    Fact::Header("Host"),
    Fact::Header("x-a"),
    Fact::Header("X-A"),
    Fact::Header("cookie"),
    Fact::Query("k"),
    Fact::Query("K"),
    Fact::Query("a_b"),
    Fact::Cookie("a"),
    Fact::Cookie("A"),
    Fact::Header("x-none"),
];

type Seen = Vec<Vec<String>>;

fn seen(facts: &dyn Facts) -> Seen {
    FACTS.iter().map(|fact| facts.values(*fact).iter().map(ToString::to_string).collect()).collect()
}

impl WrittenRequest {
    fn by_hand(&self) -> Seen {
        let request = Request::new(&self.method, &self.target);
        let request = self.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        seen(&self.host.iter().fold(request, |request, host| request.host(host)))
    }

    fn header_map(&self) -> HeaderMap {
        let pair = |(name, value): &(String, String)| {
            (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
        };
        self.headers.iter().map(pair).collect()
    }

    /// Facts as the gateway reads them; `None` if it rejects the target.
    fn over_http(&self) -> Option<Seen> {
        let target: Uri = self.target.parse().ok()?;
        let (method, headers): (Method, _) = (self.method.parse().unwrap(), self.header_map());
        let facts = HttpFacts::new(&method, &target, &headers);
        Some(seen(&self.host.iter().fold(facts, |facts, host| facts.host(host))))
    }

    /// Facts as forward-auth reads them.
    fn on_behalf(&self) -> Seen {
        let (auth, headers) = (Uri::from_static("/v1/auth"), self.header_map());
        let facts = HttpFacts::new(&Method::GET, &auth, &headers).method(&self.method).target(&self.target);
        seen(&self.host.iter().fold(facts, |facts, host| facts.host(host)))
    }

    /// The members of a JSON object, for the HTTP API and for logs.
    fn members(&self) -> String {
        let text = |text: &str| to_string(text).unwrap();
        let headers: Vec<String> =
            self.headers.iter().map(|(name, value)| format!("{}:{}", text(name), text(value))).collect();
        let host = self.host.as_ref().map(|host| format!(r#","host":{}"#, text(host))).unwrap_or_default();
        format!(
            r#""method":{},"path":{}{host},"headers":{{{}}}"#,
            text(&self.method),
            text(&self.target),
            headers.join(",")
        )
    }

    fn as_json(&self) -> Seen {
        with_json(&format!("{{{}}}", self.members()), seen)
    }

    fn in_log(&self) -> Seen {
        let line = format!(r#"{{"time":"2026-11-17T09:00:00Z",{}}}"#, self.members());
        seen(&LineReader::new(LogFormat::Jsonl).read(&line).unwrap())
    }

    fn as_words(&self) -> Seen {
        let mut words = vec!["method", &self.method, "path", &self.target];
        words.extend(self.host.iter().flat_map(|host| ["host", host]));
        words.extend(self.headers.iter().flat_map(|(name, value)| ["header", name, value]));
        with_words(&words, seen)
    }

    fn as_descriptor(&self) -> Seen {
        let names: Vec<String> = self.headers.iter().map(|(name, _)| format!("header:{name}")).collect();
        let mut entries = vec![("method", self.method.as_str()), ("path", &self.target)];
        entries.extend(self.host.iter().map(|host| ("host", host.as_str())));
        entries.extend(names.iter().map(String::as_str).zip(self.headers.iter().map(|(_, value)| value.as_str())));
        seen(&EntryFacts::new(&entries))
    }
}

fn target() -> impl Strategy<Value = String> {
    let start = prop_oneof![
        4 => Just("/"),
        1 => Just("http://T.example:81"),
        1 => Just("http://me@[::1]:81/"),
        1 => Just("https://t.example/"),
    ];
    let rest = "(/|//|/\\.\\./|%2e|%2F|%6B|%00|a|b|\\?|&|\\?k=|&K=|&%6b=|&k\\[\\]=|a\\.b=|=|;|;k=|#|\\+|:){0,12}";
    (start, rest).prop_map(|(start, rest)| format!("{start}{rest}"))
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[aA][.:]?(example)?\\.?(:[0-9]{0,4})?",
        "\\[::1\\](:80)?",
        Just("2001:db8::1".to_owned()),
        Just(" h.example:80 ".to_owned()),
        Just("h.example:x".to_owned()),
    ]
}

fn header() -> impl Strategy<Value = (String, String)> {
    prop_oneof![
        3 => ("[xX]-[aA]", "[ \t]?[a-b]{0,2}[ \t]?"),
        3 => ("[cC]ookie", "([aA]|b|c d) ?= ?\"?(1|%31|x y)?\"?(; ?([aA]|b)=(2|\"3\"|=)){0,2};?"),
        1 => (Just("Host".to_owned()), host()),
    ]
}

proptest! {
    #[test]
    fn every_protocol_carries_the_same_facts(
        method in prop_oneof![Just("GET"), Just("get"), Just("POST"), Just("M-SEARCH")],
        target in target(),
        host in proptest::option::of(host()),
        headers in proptest::collection::vec(header(), 0..5),
    ) {
        let written = WrittenRequest { method: method.to_owned(), target, host, headers };
        let wanted = written.by_hand();
        if let Some(seen) = written.over_http() {
            prop_assert_eq!(seen, wanted.clone(), "HTTP");
        }
        prop_assert_eq!(written.on_behalf(), wanted.clone(), "forward-auth");
        prop_assert_eq!(written.as_json(), wanted.clone(), "HTTP API");
        prop_assert_eq!(written.in_log(), wanted.clone(), "log");
        prop_assert_eq!(written.as_words(), wanted.clone(), "Redis");
        prop_assert_eq!(written.as_descriptor(), wanted, "Envoy");
    }
}
