//! Fuzz targets: JSON, events and forwarding headers, compared with independent parsers.

use std::fmt;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tidegate_core::time::MAX_EXACT;
use tidegate_http::{CostFinder, EventFinder, FieldFinder, ForwardingHeader, TrustedProxies};
use tidegate_rules::{BodyNumber, FieldPath};
use tidegate_test_support::fuzz::{in_pieces, target, text};

const PATHS: [&str; 6] = ["n", "a.n", "a.b.n", "a.b", "usage.total_tokens", "é"];

const WORDS: [&str; 34] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"n\"",
    "\"a\"",
    "\"b\"",
    "\"N\"",
    "\"\\u006e\"",
    "\"usage\"",
    "\"total_tokens\"",
    "\"é\"",
    "12",
    "5e2",
    "-0.5e3",
    "null",
    "true",
    "\"500\"",
    "\"",
    "\\",
    "data: ",
    "data:",
    "\n",
    "\n\n",
    "\r",
    "\r\n",
    "[DONE]",
    "{\"n\":",
    "{\"a\":{\"n\":",
    "\u{feff}",
    "NaN",
    " ",
];

fn paths() -> Vec<FieldPath> {
    PATHS.map(|path| path.parse().unwrap()).to_vec()
}

/// The number at each path, as text.
fn by_serde(value: &Value) -> Vec<Option<String>> {
    let at = |path: &FieldPath| path.keys().try_fold(value, |value, key| value.as_object()?.get(key)).cloned();
    paths().iter().map(|path| at(path).filter(Value::is_number).map(|number| number.to_string())).collect()
}

fn are_found(found: &[Option<String>]) -> Vec<bool> {
    found.iter().map(Option::is_some).collect()
}

fn by_finder(pieces: &[&[u8]]) -> Vec<Option<String>> {
    let mut finder = FieldFinder::new(&paths());
    pieces.iter().for_each(|piece| finder.feed(piece));
    (0..PATHS.len()).map(|field| finder.found(field).map(str::to_owned)).collect()
}

/// Whether a number is short enough to be found.
fn has_long_number(bytes: &[u8]) -> bool {
    let is_of_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    bytes.split(|byte| !is_of_number(byte)).any(|number| number.len() > 64)
}

/// The result does not depend on the pieces, and equals serde's wherever serde can parse the input.
#[test]
fn numbers_in_json_are_found_where_serde_finds_them() {
    target!("json").for_each(|bytes: &[u8]| {
        let bytes = text(bytes, &WORDS);
        let whole = by_finder(&[&bytes]);
        for pieces in in_pieces(&bytes) {
            assert_eq!(by_finder(&pieces), whole);
        }
        if let Ok(object @ Value::Object(_)) = serde_json::from_slice(&bytes)
            && !has_long_number(&bytes)
        {
            assert_eq!(are_found(&by_serde(&object)), are_found(&whole), "{}", bytes.escape_ascii());
        }
    });
}

/// The data of each event, and whether a line is the end marker of some streams, by the HTML standard.
fn events_by_the_book(text: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let text = text.iter().map(|byte| char::from(*byte)).collect::<String>().replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut data, mut is_done) = (Vec::new(), Vec::<String>::new(), false);
    let Some((whole_lines, _)) = text.rsplit_once('\n') else { return (events, is_done) };
    for line in whole_lines.split('\n') {
        if line.is_empty() {
            let lines = std::mem::take(&mut data);
            if !lines.is_empty() {
                events.push(lines.join("\n").chars().map(|char| char as u8).collect());
            }
        } else if let Some(value) = line.strip_prefix("data:") {
            let value = value.strip_prefix(' ').unwrap_or(value);
            is_done |= value == "[DONE]";
            data.push(value.to_owned());
        } else if line == "data" {
            data.push(String::new());
        }
    }
    (events, is_done)
}

#[test]
fn numbers_in_events_are_found_as_the_standard_reads_events() {
    target!("events").for_each(|bytes: &[u8]| {
        let bytes = [&text(bytes, &WORDS)[..], b"\n\n"].concat();
        let found = |pieces: &[&[u8]]| {
            let mut finder = EventFinder::new(&paths());
            pieces.iter().for_each(|piece| finder.feed(piece));
            let found: Vec<_> = (0..PATHS.len()).map(|field| finder.found(field).map(str::to_owned)).collect();
            (found, finder.is_done())
        };
        let whole = found(&[&bytes]);
        for pieces in in_pieces(&bytes) {
            assert_eq!(found(&pieces), whole, "{}", bytes.escape_ascii());
        }
        let (events, is_done) = events_by_the_book(&bytes);
        assert_eq!(is_done, whole.1, "{}", bytes.escape_ascii());
        if has_long_number(&bytes) {
            return;
        }
        let mut expected = vec![false; PATHS.len()];
        for event in &events {
            match serde_json::from_slice(event) {
                Ok(object @ Value::Object(_)) => {
                    let fields = are_found(&by_serde(&object));
                    expected.iter_mut().zip(fields).for_each(|(known, found)| *known |= found);
                }
                // The finder accepts some input that serde does not, and several objects in one event.
                _ if event.trim_ascii().starts_with(b"{") => return,
                _ => {}
            }
        }
        assert_eq!(are_found(&whole.0), expected, "{}", bytes.escape_ascii());
    });
}

/// JSON with repeated keys, which a map would drop.
#[derive(Debug)]
enum Json {
    Number(f64),
    Text(String),
    Object(Vec<(String, Json)>),
    Other,
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Json, D::Error> {
        struct AsItIs;
        impl<'de> Visitor<'de> for AsItIs {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
                Ok(Json::Other)
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Other)
            }

            #[allow(clippy::cast_precision_loss)]
            fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
                Ok(Json::Number(number as f64))
            }

            #[allow(clippy::cast_precision_loss)]
            fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
                Ok(Json::Number(number as f64))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
                Ok(Json::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Json, E> {
                Ok(Json::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
                while items.next_element::<Json>()?.is_some() {}
                Ok(Json::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Json, A::Error> {
                let mut all = Vec::new();
                while let Some(field) = fields.next_entry()? {
                    all.push(field);
                }
                Ok(Json::Object(all))
            }
        }
        from.deserialize_any(AsItIs)
    }
}

/// A model of an upstream's JSON parser.
#[derive(Clone, Copy, Debug)]
struct Upstream {
    duplicates: Duplicates,
    /// Go and .NET accept `N` for `n`.
    ignores_case: bool,
    /// Python's Pydantic, PHP and JavaScript accept `"5"` for 5.
    reads_text: bool,
    reads_last_document: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duplicates {
    First,
    Last,
    /// Go decodes all values into one struct.
    Merge,
}

impl Upstream {
    fn all() -> impl Iterator<Item = Upstream> {
        let duplicates = [Duplicates::First, Duplicates::Last, Duplicates::Merge];
        duplicates.into_iter().flat_map(|duplicates| {
            (0..8).map(move |bits| Upstream {
                duplicates,
                ignores_case: bits & 1 != 0,
                reads_text: bits & 2 != 0,
                reads_last_document: bits & 4 != 0,
            })
        })
    }

    /// The number that the parser finds in a field.
    fn number(self, value: &Json, keys: &[&str]) -> Option<f64> {
        let Some((key, rest)) = keys.split_first() else {
            return match value {
                Json::Number(number) => Some(*number),
                Json::Text(text) if self.reads_text => text.trim().parse().ok(),
                Json::Text(_) | Json::Object(_) | Json::Other => None,
            };
        };
        let Json::Object(fields) = value else { return None };
        let is_key = |known: &str| known == *key || self.ignores_case && known.to_lowercase() == key.to_lowercase();
        let mut values = fields.iter().filter(|(known, _)| is_key(known)).map(|(_, value)| value);
        match self.duplicates {
            Duplicates::First => self.number(values.next()?, rest),
            Duplicates::Last => self.number(values.next_back()?, rest),
            Duplicates::Merge => values.rev().find_map(|value| self.number(value, rest)),
        }
    }
}

/// The cost that a rule charges.
fn charged(found: Option<BodyNumber>, otherwise: u64) -> u64 {
    match found {
        Some(BodyNumber::Exact(number)) => number.max(1),
        Some(BodyNumber::AtMost(number)) => number.max(otherwise),
        None => otherwise,
    }
}

fn costs(pieces: &[&[u8]]) -> Vec<Option<BodyNumber>> {
    let mut finder = CostFinder::new(&paths());
    pieces.iter().for_each(|piece| finder.feed(piece));
    (0..PATHS.len()).map(|field| finder.found(field)).collect()
}

/// No upstream's parser finds more in a body than is charged.
#[test]
fn no_upstream_finds_more_in_a_body_than_is_charged() {
    target!("request-body").for_each(|bytes: &[u8]| {
        let bytes = text(bytes, &WORDS);
        let whole = costs(&[&bytes]);
        for pieces in in_pieces(&bytes) {
            assert_eq!(costs(&pieces), whole, "{}", bytes.escape_ascii());
        }
        if let Ok(text) = std::str::from_utf8(&bytes)
            && text.starts_with(['{', ' ', '\n'])
            && text.len() >= 4
            && text.bytes().all(|byte| (1..0x80).contains(&byte))
        {
            let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
            assert_eq!(costs(&[&utf16]), whole, "{text}");
        }
        let body = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        let documents: Vec<_> = serde_json::Deserializer::from_slice(body).into_iter::<Json>().collect();
        for upstream in Upstream::all() {
            let document = match (&documents[..], upstream.reads_last_document) {
                ([Ok(first), ..], false) => first,
                ([.., Ok(last)], true) => last,
                _ => continue,
            };
            for ((path, found), otherwise) in PATHS.iter().zip(&whole).flat_map(|field| [(field, 1), (field, 1_000)]) {
                let keys: Vec<&str> = path.split('.').collect();
                let number = upstream.number(document, &keys).filter(|number| *number >= 0.0);
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let served = number.map_or(otherwise, |number| (number.ceil() as u64).min(MAX_EXACT));
                let charged = charged(*found, otherwise);
                assert!(charged >= served, "{path}: {charged} < {served}, {upstream:?}: {}", bytes.escape_ascii());
            }
        }
    });
}

/// A trusted proxy appends the client's address to the header that the client sent. No client header changes the
/// client's address: it is the appended one, or the proxy's.
#[test]
fn no_forwarding_header_makes_a_client_somebody_else() {
    const WORDS: [&str; 24] = [
        "for=",
        "For=",
        "by=",
        "\"",
        "\\",
        ",",
        ";",
        "=",
        "198.51.100.1",
        "10.0.0.9",
        "[2001:db8::1]",
        ":4711",
        "unknown",
        "_hidden",
        "::ffff:10.0.0.9",
        " ",
        "\t",
        "%eth0",
        "for=198.51.100.1",
        "\"[2001:db8::1]:1\"",
        "proto=http",
        ", ",
        "[",
        "]",
    ];
    let proxy: IpAddr = "10.0.0.1".parse().unwrap();
    let seen: IpAddr = "203.0.113.7".parse().unwrap();
    let x_forwarded_for = HeaderName::from_static("x-forwarded-for");
    let headers = [
        (ForwardingHeader::XForwardedFor, x_forwarded_for, &b"203.0.113.7"[..]),
        (ForwardingHeader::Forwarded, http::header::FORWARDED, b"for=203.0.113.7"),
    ];
    target!("forwarded").for_each(|bytes: &[u8]| {
        let sent = text(bytes, &WORDS);
        for (header, name, added) in &headers {
            let client = |lines: &[&[u8]]| {
                let mut headers = HeaderMap::new();
                for line in lines {
                    headers.append(name.clone(), HeaderValue::from_bytes(line).ok()?);
                }
                Some(TrustedProxies::parse(["10.0.0.0/8"], *header).unwrap().client(proxy, &headers))
            };
            let on_its_own_line = client(&[&sent, added]);
            assert!(on_its_own_line.is_none_or(|client| client == seen), "{header:?}: {}", sent.escape_ascii());
            let behind_it = client(&[&[&sent, &b", "[..], added].concat()]);
            // An open quotation by the client encloses the proxy's element.
            let may_be_proxy = *header == ForwardingHeader::Forwarded && sent.contains(&b'"');
            let is_right = |client| client == seen || may_be_proxy && client == proxy;
            assert!(behind_it.is_none_or(is_right), "{header:?}: {}", sent.escape_ascii());
        }
    });
}
