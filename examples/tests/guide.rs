//! Tests of the guide to choosing an algorithm: its notation parses, and its traces match the engine's answers.
//!
//! The guide's fenced blocks are labelled. `limits` holds a limit on each line, `largest` those that could not be larger,
//! `not-limits` an invalid text with its error, `trace` a limit's answers over time (see [`Trace`]), and
//! `greedy` the most that a greedy client gets. Its Rust snippets are documentation tests of this package.

use std::sync::Arc;

use tidegate_core::{Charge, Decision, Gate, Key, Limit, ManualClock, MemoryStore, Micros, NotationError, Outcome};
use tidegate_core::{RuleId, Timestamp};

const GUIDE: &str = include_str!("../../docs/choosing-an-algorithm.md");

/// The start of traces: the midnight at which 2026 begins, aligned with minutes, hours and days.
const START: Timestamp = Timestamp::from_secs(1_767_225_600);

/// The lines of all blocks with this label, block by block.
fn blocks(label: &str) -> Vec<Vec<&'static str>> {
    let mut blocks = Vec::new();
    let mut lines = GUIDE.lines();
    while let Some(line) = lines.next() {
        let Some(opened) = line.strip_prefix("```") else { continue };
        let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        if opened == label {
            blocks.push(block);
        }
    }
    assert!(!blocks.is_empty(), "the guide has no block labelled {label}");
    blocks
}

/// The texts between backticks that look like limits: rates or numbers of slots.
fn limits_in_prose() -> impl Iterator<Item = &'static str> {
    let prose = GUIDE.split("```").step_by(2).flat_map(str::lines);
    let marked = prose.flat_map(|line| line.split('`').skip(1).step_by(2));
    marked.filter(|text| {
        let first_digit = text.find(|c: char| c.is_ascii_digit());
        let rate = text.find('/').zip(first_digit).is_some_and(|(slash, digit)| digit < slash);
        rate || first_digit.is_some() && text.starts_with("concurrent")
    })
}

/// The cells of a line, separated by at least two spaces.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

fn limit(notation: &str) -> Limit {
    notation.parse().unwrap_or_else(|error: NotationError| panic!("{}", error.pointer()))
}

/// Parses a span such as `1min 30s`, the sum of its parts.
fn span(text: &str) -> Micros {
    let micros = text.split_whitespace().map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let unit = match &part[digits..] {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "min" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            _ => panic!("{part:?} in {text:?} is not a span"),
        };
        number(&part[..digits]) * unit
    });
    Micros::new(micros.sum())
}

fn number(text: &str) -> u64 {
    text.replace('_', "").parse().unwrap_or_else(|_| panic!("{text:?} is not a number"))
}

/// One key under one limit, which may change. Each line has a time, an action, and a part of the engine's answer:
///
/// ```text
/// limit    5/min
/// 0s       take 1        allowed, 4 left
/// 0s       take 1 ×4     allowed, 0 left       (the last of the answers; all of them have the same outcome)
/// 0s       take 1        denied, retry after 12s
/// ```
struct Trace {
    clock: ManualClock,
    store: Arc<MemoryStore<ManualClock>>,
    gate: Option<Gate<ManualClock>>,
}

impl Trace {
    fn new() -> Trace {
        let clock = ManualClock::at(START);
        Trace { store: Arc::new(MemoryStore::with_clock(clock.clone())), clock, gate: None }
    }

    fn run(&mut self, line: &str) {
        match cells(line)[..] {
            ["limit", notation, ..] => {
                self.gate = Some(Gate::in_store(Arc::clone(&self.store), "guide", limit(notation)));
            }
            [at, what, claims] => {
                self.clock.set(START + span(at));
                let decision = self.act(what);
                for claim in claims.split(", ") {
                    assert!(holds(claim, &decision), "{line:?}: {claim:?} is not so, but {decision:?}");
                }
            }
            _ => panic!("{line:?} is not a line of a trace"),
        }
    }

    fn act(&self, what: &str) -> Decision {
        let gate = self.gate.as_ref().expect("a trace begins with its limit");
        match what.split(' ').collect::<Vec<_>>()[..] {
            ["take", cost] => gate.check_cost("key", number(cost)),
            ["take", cost, times] => {
                let times = number(times.trim_start_matches('×'));
                let mut answers = (0..times).map(|_| gate.check_cost("key", number(cost)));
                let first = answers.next().expect("at least once");
                answers.fold(first, |before, next| {
                    assert_eq!(before.is_allowed(), next.is_allowed(), "{what:?}: not all alike");
                    next
                })
            }
            ["peek"] => gate.peek("key"),
            ["penalize", cost] => gate.penalize("key", number(cost)),
            ["credit", cost] => gate.credit("key", number(cost)),
            _ => panic!("{what:?} cannot be done"),
        }
    }
}

/// Whether a decision matches a claim.
fn holds(claim: &str, decision: &Decision) -> bool {
    let words = |prefix: &str| claim.strip_prefix(prefix);
    match decision.outcome {
        Outcome::Allow { delay } if claim == "allowed" => delay.is_zero(),
        Outcome::Allow { delay } if claim.starts_with("allowed after ") => {
            words("allowed after ").map(span) == Some(delay)
        }
        Outcome::Deny { .. } if claim == "denied" => true,
        Outcome::Deny { retry_after } if claim.starts_with("retry ") => {
            words("retry after ").map(span) == Some(retry_after)
        }
        Outcome::TooLarge { .. } if claim == "never" => true,
        Outcome::TooLarge { max } if claim.starts_with("at most ") => words("at most ").map(number) == Some(max),
        _ if claim.ends_with(" left") => claim.strip_suffix(" left").map(number) == Some(decision.remaining),
        _ if claim.starts_with("full in ") => words("full in ").map(span) == Some(decision.reset_after),
        _ => false,
    }
}

#[test]
fn every_notation_in_the_guide_is_a_limit() {
    let listed = blocks("limits").concat().into_iter().filter_map(|line| cells(line).first().copied());
    for notation in listed.chain(limits_in_prose()) {
        assert_eq!(limit(notation), limit(&limit(notation).to_string()), "{notation}");
    }
}

#[test]
fn every_limit_that_the_guide_calls_the_largest_is() {
    for notation in blocks("largest").concat() {
        limit(notation);
        let numbers = notation.split(|c: char| !c.is_ascii_digit() && c != '_');
        let largest = numbers.max_by_key(|digits| digits.len()).expect("a limit has a number");
        let one_more = notation.replace(largest, &(number(largest) + 1).to_string());
        assert!(one_more.parse::<Limit>().is_err(), "{one_more} is a limit too");
    }
}

#[test]
fn every_refusal_in_the_guide_matches_the_parser() {
    for block in blocks("not-limits") {
        let error = block[0].parse::<Limit>().expect_err(block[0]);
        assert_eq!(error.pointer(), block.join("\n"));
    }
}

#[test]
fn every_trace_in_the_guide_matches_the_engine() {
    for block in blocks("trace") {
        let mut trace = Trace::new();
        for line in block.into_iter().filter(|line| !line.is_empty()) {
            trace.run(line);
        }
    }
}

#[test]
fn a_greedy_client_gets_as_much_as_the_guide_states() {
    for line in blocks("greedy").concat().into_iter().skip(1) {
        let [notation, in_a_minute, in_a_second] = cells(line)[..] else { panic!("{line:?} is not a row") };
        let taken = takings(&limit(notation));
        assert_eq!(number(in_a_minute), most_within(&taken, span("1min")), "{notation}: in a minute");
        assert_eq!(number(in_a_second), most_within(&taken, span("1s")), "{notation}: in a second");
    }
}

/// Takes as much as possible a millisecond before a minute ends, and then every millisecond for three minutes.
fn takings(limit: &Limit) -> Vec<(Timestamp, u64)> {
    let mut state = limit.fresh();
    let mut taken = Vec::new();
    for millis in 0..180_000 {
        let now = START + span("59s 999ms") + Micros::from_millis(millis);
        let cost = limit.evaluate(&state, 0, now).remaining;
        if cost > 0 && limit.decide(&mut state, cost, now).is_allowed() {
            taken.push((now, cost));
        }
    }
    taken
}

/// The maximum within any span of this length, which excludes its start.
fn most_within(taken: &[(Timestamp, u64)], length: Micros) -> u64 {
    let ending_at = |end: Timestamp| taken.iter().filter(move |(at, _)| *at <= end && *at + length > end);
    taken.iter().map(|(end, _)| ending_at(*end).map(|(_, cost)| cost).sum()).max().unwrap_or(0)
}

#[test]
fn a_small_state_takes_as_many_bytes_as_the_guide_says() {
    let clock = ManualClock::at(START);
    let (store, rule, per_hour) = (MemoryStore::with_clock(clock), RuleId::new("guide"), limit("100/h"));
    for number in 0..1_000_000 {
        let key = Key::of([format!("client {number}")]);
        store.decide(&[Charge::new(&rule, &key, &per_hour)]).expect("nothing is reserved");
    }
    let bytes_a_key = store.stats().table_bytes / store.stats().keys;
    assert!((40..=43).contains(&bytes_a_key), "{bytes_a_key}");
}
