//! Look-ups in the index equal the evaluation of every rule.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::Config;
use tidegate_rules::{Mode, Request, RuleSet, Switches};

use tidegate_test_support::times;

use crate::rules::support::{ids, rules};

/// A rule as text, alone and among others.
#[derive(Clone, Debug)]
struct Written {
    conditions: String,
    stop: bool,
    mode: Mode,
    replaces: Vec<usize>,
}

impl Written {
    /// The text of the rule with this number. Alone, it has no other rules to replace.
    fn text(&self, number: usize, among: usize) -> String {
        let replaces: Vec<String> = self
            .replaces
            .iter()
            .filter(|other| **other < among && **other != number)
            .map(|other| format!("r{other}"))
            .collect();
        format!(
            "- {{ id: r{number}, limit: 1/s, match: {{ {} }}, stop: {}, mode: {}, replaces: [{}] }}\n",
            self.conditions,
            self.stop,
            self.mode,
            replaces.join(", ")
        )
    }
}

const METHODS: [&str; 3] = ["GET", "POST", "put"];
const HOSTS: [&str; 5] = ["a.com", "x.a.com", "y.x.a.com", "b.com", "A.com."];
const WORDS: [&str; 4] = ["a", "b", "ab", ""];
const ADDRESSES: [&str; 6] = ["10.0.0.1", "10.0.0.2", "10.1.0.1", "::ffff:10.0.0.1", "2001:db8::1", "2001:db8:1::1"];
const NETWORKS: [&str; 7] =
    ["10.0.0.1", "10.0.0.0/16", "10.0.0.0/8", "0.0.0.0/0", "2001:db8::/32", "2001:db8::1", "'::/0'"];
const PATHS: [&str; 16] = [
    "/", "/a", "/b", "/a/b", "/a/*", "'/{x}'", "'/{x}/b'", "/**", "/a/**", "/**/b", "/**/a/**", "/a*", "/*b/a", "/*/*",
    "/a/**/b", "/**/a/b",
];

fn values(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    let word = select(words).prop_map(|word| format!("'{word}'"));
    prop_oneof![
        4 => word.clone(),
        2 => prop::collection::vec(word.clone(), 1..3).prop_map(|words| format!("[{}]", words.join(", "))),
        1 => word.clone().prop_map(|word| format!("{{ not: {word} }}")),
        1 => Just("'*a'".to_owned()),
        1 => Just("['*.a.com', b]".to_owned()),
        1 => Just("'*.a.com'".to_owned()),
        1 => Just("{ regex: 'a.*' }".to_owned()),
        1 => any::<bool>().prop_map(|present| format!("{{ present: {present} }}")),
    ]
}

fn listed(items: &'static [&'static str]) -> impl Strategy<Value = String> {
    let list = prop::collection::vec(select(items), 1..3).prop_map(|items| format!("[{}]", items.join(", ")));
    prop_oneof![4 => list.clone(), 1 => list.prop_map(|list| format!("{{ not: {list} }}"))]
}

fn condition() -> impl Strategy<Value = (&'static str, String)> {
    prop_oneof![
        4 => listed(&PATHS).prop_map(|value| ("path", value)),
        2 => listed(&NETWORKS).prop_map(|value| ("address", value)),
        1 => values(&METHODS).prop_map(|value| ("method", value)),
        2 => values(&HOSTS).prop_map(|value| ("host", value)),
        1 => values(&WORDS).prop_map(|value| ("user", value)),
        1 => values(&WORDS).prop_map(|value| ("tier", value)),
        1 => values(&WORDS).prop_map(|value| ("header", format!("{{ X: {value} }}"))),
        1 => values(&WORDS).prop_map(|value| ("query", format!("{{ q: {value} }}"))),
        1 => values(&WORDS).prop_map(|value| ("descriptor", format!("{{ d: {value} }}"))),
    ]
}

fn written() -> impl Strategy<Value = Written> {
    let conditions = prop::collection::vec(condition(), 0..4).prop_map(|conditions| {
        let once: std::collections::BTreeMap<_, _> = conditions.into_iter().collect();
        once.into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ")
    });
    let mode = prop_oneof![6 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Off)];
    let replaces = prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(0_usize..8, 1..3)];
    (conditions, prop::bool::weighted(0.15), mode, replaces).prop_map(|(conditions, stop, mode, replaces)| Written {
        conditions,
        stop,
        mode,
        replaces,
    })
}

/// A request, and the same request with only one of its headers.
#[derive(Clone, Debug)]
struct GeneratedRequest {
    request: Request,
    with_one: Vec<Request>,
}

fn sent() -> impl Strategy<Value = GeneratedRequest> {
    (request(), prop::collection::vec(select(&WORDS[..]), 0..3)).prop_map(|(request, headers)| GeneratedRequest {
        with_one: headers.iter().map(|header| request.clone().header("X", header)).collect(),
        request: headers.iter().fold(request, |request, header| request.header("X", header)),
    })
}

fn request() -> impl Strategy<Value = Request> {
    let path = prop::collection::vec(select(&["a", "b", "ab", "ba", "x", "..", ""][..]), 0..5);
    let maybe = |words: &'static [&'static str]| prop::option::of(select(words));
    (
        select(&METHODS[..]),
        path,
        maybe(&HOSTS),
        maybe(&ADDRESSES),
        [maybe(&WORDS), maybe(&WORDS), maybe(&WORDS), maybe(&WORDS)],
    )
        .prop_map(|(method, path, host, address, [user, tier, query, descriptor])| {
            let query = query.map_or(String::new(), |query| format!("?q={query}"));
            let mut request = Request::new(method, &format!("/{}{query}", path.join("/")));
            request = host.into_iter().fold(request, Request::host);
            request = address.into_iter().fold(request, |request, address| request.address(address.parse().unwrap()));
            request = user.into_iter().fold(request, Request::user);
            request = tier.into_iter().fold(request, Request::tier);
            descriptor.into_iter().fold(request, |request, value| request.descriptor("d", value))
        })
}

/// The rules that should be found: each held against the request by itself, then what stops and what replaces. Of several
/// headers, any makes a rule match, and it takes all of them for a rule to keep others out.
fn naive(written: &[Written], alone: &[RuleSet], sent: &GeneratedRequest) -> Vec<String> {
    let matches = |number: usize, request: &Request| !alone[number].matching(request).rules.is_empty();
    let keeps_others_out = |number: usize| {
        written[number].mode == Mode::Enforce && sent.with_one.iter().all(|request| matches(number, request))
    };
    let mut found: Vec<usize> = Vec::new();
    for (number, rule) in written.iter().enumerate() {
        let any = sent.with_one.iter().any(|request| matches(number, request));
        if any || (sent.with_one.is_empty() && matches(number, &sent.request)) {
            found.push(number);
            if rule.stop && keeps_others_out(number) {
                break;
            }
        }
    }
    let replaced = |number: &usize| {
        found.iter().any(|by| by != number && keeps_others_out(*by) && written[*by].replaces.contains(number))
    };
    found.iter().filter(|number| !replaced(number)).map(|number| format!("r{number}")).collect()
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(times(400)) })]

    #[test]
    fn the_index_finds_what_a_scan_finds(
        written in prop::collection::vec(written(), 1..9),
        requests in prop::collection::vec(sent(), 20),
    ) {
        let text = |rule: (usize, &Written)| rule.1.text(rule.0, written.len());
        let together = rules(&format!("rules:\n{}", written.iter().enumerate().map(text).collect::<String>()));
        // The same rules with other modes in the file, switched to these modes.
        let mut switches = Switches::new();
        let mut elsewise = "rules:\n".to_owned();
        for (number, rule) in written.iter().enumerate() {
            switches.switch(&format!("r{number}"), Some(rule.mode));
            let mode = if rule.mode == Mode::Enforce { Mode::Off } else { Mode::Enforce };
            elsewise += &Written { mode, ..rule.clone() }.text(number, written.len());
        }
        let switched = rules(&elsewise).with_switches(switches);
        let alone: Vec<RuleSet> = written.iter().enumerate()
            .map(|(number, rule)| rules(&format!("rules:\n{}", rule.text(number, 0))))
            .collect();
        for sent in &requests {
            let (request, expected) = (&sent.request, naive(&written, &alone, sent));
            prop_assert_eq!(ids(&together.matching(request)), &expected[..], "{:?}", request);
            prop_assert_eq!(ids(&switched.matching(request)), &expected[..], "switched {:?}", request);
            let explained = together.explain(request);
            let explained: Vec<&str> = explained.matched().map(|rule| rule.id.as_str()).collect();
            prop_assert_eq!(explained, &expected[..], "explained {:?}", request);
        }
    }
}
