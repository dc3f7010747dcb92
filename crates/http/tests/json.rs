//! Finds numbers in JSON that arrives in pieces, with the same result as serde_json for any pieces.

use proptest::prelude::*;
use serde_json::{Map, Value};
use tidegate_http::{CostFinder, EventFinder, FieldFinder};
use tidegate_rules::{BodyNumber, FieldPath};

fn paths() -> Vec<FieldPath> {
    ["n", "a.n", "a.b.n", "a.b", "usage.total_tokens", "é"].map(|path| path.parse().unwrap()).to_vec()
}

/// The number at each path, as text.
fn by_serde(value: &Value) -> Vec<Option<String>> {
    let at = |path: &FieldPath| path.keys().try_fold(value, |value, key| value.as_object()?.get(key)).cloned();
    paths().iter().map(|path| at(path).filter(Value::is_number).map(|number| number.to_string())).collect()
}

/// The number at each path, from the finder fed in pieces that end at these offsets.
fn by_finder(text: &[u8], cuts: &[usize]) -> Vec<Option<String>> {
    let mut finder = FieldFinder::new(&paths());
    pieces(text, cuts).for_each(|piece| finder.feed(piece));
    (0..paths().len()).map(|field| finder.found(field).map(str::to_owned)).collect()
}

fn pieces<'t>(text: &'t [u8], cuts: &[usize]) -> impl Iterator<Item = &'t [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    (1..cuts.len()).map(move |end| &text[cuts[end - 1]..cuts[end]])
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(vec!["n", "a", "b", "usage", "total_tokens", "é"]).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => prop::sample::select(vec!["", "\"", "\\", "a.n", "}", "{\"n\":1}"]).prop_map(str::to_owned),
    ]
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(Value::from("{\"n\": 1, \"a\": [")),
    ];
    let deeper = |inner: BoxedStrategy<Value>| {
        prop_oneof![
            3 => prop::collection::vec((key(), inner.clone()), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::from),
        ]
    };
    leaf.prop_recursive(5, 60, 5, move |inner| deeper(inner.boxed()))
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::vec((key(), json()), 0..6).prop_map(|fields| Value::Object(fields.into_iter().collect()))
}

proptest! {
    #[test]
    fn any_pieces_of_any_object_give_what_serde_finds(
        object in object(), pretty: bool, cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        let text = if pretty { serde_json::to_vec_pretty(&object) } else { serde_json::to_vec(&object) }.unwrap();
        prop_assert_eq!(by_finder(&text, &cuts), by_serde(&object));
        let each: Vec<usize> = (0..text.len()).collect();
        prop_assert_eq!(by_finder(&text, &each), by_serde(&object), "byte by byte");
    }

    /// Fields are repeated, which a map cannot contain.
    #[test]
    fn of_a_field_that_comes_twice_the_last_counts(
        fields in prop::collection::vec((key(), json()), 0..8), cuts in prop::collection::vec(any::<usize>(), 0..4),
    ) {
        let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{}: {value}", Value::from(&**key))).collect();
        let text = format!("{{{}}}", fields.join(" , "));
        let object: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(by_finder(text.as_bytes(), &cuts), by_serde(&object), "{}", text);
    }

    #[test]
    fn of_several_objects_the_last_number_counts(
        objects in prop::collection::vec(object(), 1..5), cuts in prop::collection::vec(any::<usize>(), 0..4),
    ) {
        let lines: String = objects.iter().map(|object| format!("{object}\n")).collect();
        let each = objects.iter().map(by_serde);
        let last = each.reduce(|sum, next| next.into_iter().zip(sum).map(|(next, before)| next.or(before)).collect());
        prop_assert_eq!(by_finder(lines.as_bytes(), &cuts), last.unwrap());
    }

    /// The same objects as data of events, with other lines between and any line endings.
    #[test]
    fn of_several_events_the_last_number_counts(
        objects in prop::collection::vec((object(), any::<bool>(), any::<bool>()), 1..5),
        end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let mut text = String::new();
        for (object, pretty, named) in &objects {
            let json = if *pretty { serde_json::to_string_pretty(object) } else { serde_json::to_string(object) }.unwrap();
            if *named {
                text += &format!("event: data: 7{end}: a comment{end}database: {{\"n\": 7}}{end}");
            }
            for line in json.lines() {
                text += &format!("data:{}{line}{end}", if *named { " " } else { "" });
            }
            text += end;
        }
        let last = objects.iter().map(|(object, ..)| by_serde(object));
        let last = last.reduce(|sum, next| next.into_iter().zip(sum).map(|(next, before)| next.or(before)).collect());
        let mut finder = EventFinder::new(&paths());
        pieces(text.as_bytes(), &cuts).for_each(|piece| finder.feed(piece));
        let found: Vec<_> = (0..paths().len()).map(|field| finder.found(field).map(str::to_owned)).collect();
        prop_assert_eq!(found, last.unwrap(), "{:?}", text);
    }
}

#[test]
fn keys_can_be_escaped() {
    let text = br#"{"\u0061": {"\u006e": 3, "\"": 4}, "usage\n": {}, "\u00e9": 5, "\ud800": 6}"#;
    assert_eq!(by_finder(text, &[]), [None, Some("3"), None, None, None, Some("5")].map(|n| n.map(str::to_owned)));
}

#[test]
fn input_without_an_object_has_no_numbers() {
    for text in [
        "",
        "5",
        "[{\"n\": 5}]",
        "\"{}\"",
        "n=5",
        "{\"n\": 5",
        "{\"n\": 5 \"a\"",
        "{\"n\" 5}",
        "{n: 5}",
        "\0\0\0\0\x05",
        "{\"n\": 5, \"b\": !}",
    ] {
        let mut finder = FieldFinder::new(&paths());
        finder.feed(text.as_bytes());
        assert_eq!(finder.found(0), None, "{text}");
    }
}

#[test]
fn an_event_that_is_no_json_says_nothing_and_the_next_one_does() {
    let mut finder = EventFinder::new(&paths());
    finder.feed(b"data: {\"n\": 1}\n\ndata: {\"n\": 2\n\ndata: hello\n\n: {\"n\": 9}\ndata\ndata:\n\n");
    assert_eq!((finder.found(0), finder.is_done()), (Some("1"), false));
    finder.feed(b"data: [DONE] not yet\n\ndata: {\"n\": 3}\n\ndata: [DONE]\n\n");
    assert_eq!((finder.found(0), finder.is_done()), (Some("3"), true));
}

#[test]
fn a_number_without_end_is_no_number() {
    let mut finder = FieldFinder::new(&paths());
    finder.feed(b"{\"n\": ");
    for _ in 0..10_000 {
        finder.feed(&[b'9'; 100]);
    }
    finder.feed(b", \"a\": {\"n\": 1}}");
    assert_eq!((finder.found(0), finder.found(1)), (None, Some("1")));
}

/// The numbers of a request in `n` and `a.n`.
fn costs(text: &[u8]) -> [Option<BodyNumber>; 2] {
    let mut finder = CostFinder::new(&["n", "a.n"].map(|path| path.parse().unwrap()));
    finder.feed(text);
    [finder.found(0), finder.found(1)]
}

#[test]
fn a_number_counts_however_long_the_text_behind_it_is() {
    for (behind, times) in
        [("\\n", 200), ("\\n", 192), (" x", 200), ("x", 1_000), ("\\u0020", 65), ("é", 300), ("\\ud83d\\ude00", 40)]
    {
        for shift in ["", " ", "  ", "   "] {
            let text = format!(r#"{{"n": "{shift}100000 {}"}}"#, behind.repeat(times));
            // Never less than the real number, even if the truncated text could be part of a longer number.
            let found = costs(text.as_bytes())[0].map(BodyNumber::largest);
            assert!(found >= Some(100_000), "{behind} {times} {shift:?}: {found:?}");
        }
    }
}

#[test]
fn the_largest_of_repeated_numbers_in_a_request_counts() {
    use BodyNumber::{AtMost, Exact};
    for (text, found) in [
        (&br#"{"n": 5}"#[..], [Some(Exact(5)), None]),
        (br#"{"n": 5, "n": 1, "n": 3}"#, [Some(Exact(5)), None]),
        (br#"{"n": 5}{"n": 1}"#, [Some(AtMost(5)), None]),
        (br#"{"n": 5} trailing"#, [Some(AtMost(5)), None]),
        (br#"{"n": 5, "x": "#, [Some(AtMost(5)), None]),
        (br#"{"n": 5, "n": null}"#, [Some(AtMost(5)), None]),
        (br#"{"N": 5}"#, [Some(AtMost(5)), None]),
        (br#"{"\u004e": 5}"#, [Some(AtMost(5)), None]),
        (br#"{"a": {"n": 5}}"#, [None, Some(Exact(5))]),
        (br#"{"a": {"n": 5, "n": 6}}"#, [None, Some(Exact(6))]),
        (br#"{"a": {"n": 5}, "a": {"n": 1}}"#, [None, Some(AtMost(5))]),
        (br#"{"a": {"n": 5}, "a": {}}"#, [None, Some(AtMost(5))]),
        (br#"{"a": {"n": 5}, "a": 7}"#, [None, Some(AtMost(5))]),
        (br#"{"A": {"n": 5}}"#, [None, Some(AtMost(5))]),
        (br#"{"n": "5"}"#, [Some(AtMost(5)), None]),
        (br#"{"n": "\u0035"}"#, [Some(AtMost(5)), None]),
        (br#"{"n": "+1_000.5 tokens"}"#, [Some(AtMost(1_001)), None]),
        (br#"{"n": "0x1F4"}"#, [Some(AtMost(500)), None]),
        (br#"{"n": 0x10}"#, [Some(AtMost(16)), None]),
        (br#"{"n": -5}"#, [None; 2]),
        (br#"{"n": -5, "n": 2}"#, [Some(AtMost(2)), None]),
        (br#"{"n": 1.5e3}"#, [Some(Exact(1_500)), None]),
        (br#"{"n": NaN, "a": {"n": 1}}"#, [None, Some(Exact(1))]),
        (br#"{"n": "five"}"#, [None; 2]),
        (b"", [None; 2]),
        (b"[{\"n\": 5}]", [None; 2]),
        // Some parsers read all documents of a body and take the last.
        (br#"1{"n": 5}"#, [Some(AtMost(5)), None]),
        (br#"null {"n": 5}"#, [Some(AtMost(5)), None]),
        (br#""{\""{"n": 5}"#, [Some(AtMost(5)), None]),
        (br#"[[{"n": 7}], "]"] {"a": {"n": 5}}"#, [None, Some(AtMost(5))]),
        (br#"{"n": 5}[{}]{"n": 6}"#, [Some(AtMost(6)), None]),
        (br#"{"n": 5} 1"#, [Some(AtMost(5)), None]),
        (br#"]{"n": 5}"#, [None; 2]),
    ] {
        assert_eq!(costs(text), found, "{}", String::from_utf8_lossy(text));
    }
    let digits = "1".repeat(500);
    for text in [format!("{{\"n\": {digits}}}"), format!("{{\"n\": \"{digits}\"}}")] {
        assert_eq!(costs(text.as_bytes())[0].map(BodyNumber::largest), Some(u64::MAX), "{text}");
    }
    assert_eq!(costs(format!("{{\"n\": \"{}\"}}", "x".repeat(500)).as_bytes()), [None; 2]);
}
