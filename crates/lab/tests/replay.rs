//! Replays of complete logs with complete rules.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use tidegate_core::contract::seed::seed;
use tidegate_core::{ManualClock, MemoryStore, Micros, Timestamp};
use tidegate_lab::random::Random;
use tidegate_lab::replay::{
    self, Input, LogFormat, ReadError, Replay, ReplayReport, ReplaySettings, SuggestionSettings,
};
use tidegate_rules::{Limiter, Request, RuleSet};

const RULES: &str = "\
rules:
  - { id: everyone, key: address, limit: 5/s burst 8 }
  - { id: login, match: { method: POST, path: /login }, key: address, limit: log 3/min }
  - { id: tenants, match: { header: { X-Tenant: { present: true } } }, key: 'header:X-Tenant', limit: fixed 40/min }
  - { id: stricter, match: { path: /search }, key: user, limit: 1/s, mode: shadow }
  - { id: nobody, match: { path: /nowhere }, limit: 1/s }
";

fn rules(text: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", text).unwrap_or_else(|findings| panic!("{findings}")).rules
}

fn input(log: impl Into<Vec<u8>>) -> Input {
    Input::from_reader("access.log", std::io::Cursor::new(log.into())).unwrap()
}

fn replayed(rules_text: &str, log: impl Into<Vec<u8>>) -> ReplayReport {
    let mut replay = Replay::of(rules(rules_text));
    replay.read(input(log), |_| {}).unwrap();
    replay.report(10)
}

/// Requests of a small fictional site.
struct Made {
    micros: u64,
    address: String,
    method: &'static str,
    path: &'static str,
    user: Option<&'static str>,
    tenant: Option<&'static str>,
}

fn made(count: usize) -> Vec<Made> {
    let mut random = Random::seeded(seed(11));
    let mut micros = 1_794_736_375_000_000;
    let mut pick = |of: usize| usize::try_from(random.below(of as u64)).unwrap();
    (0..count)
        .map(|_| {
            micros += pick(60_000) as u64;
            Made {
                micros,
                address: ["203.0.113.7", "203.0.113.8", "2001:db8::7", "2001:db8::8"][pick(4)].to_owned(),
                method: ["GET", "POST"][pick(2)],
                path: ["/", "/login", "/search?q=tea", "//login/"][pick(4)],
                user: [None, Some("ann"), Some("bob")][pick(3)],
                tenant: [None, None, Some("acme")][pick(3)],
            }
        })
        .collect()
}

fn as_csv(requests: &[Made]) -> String {
    let mut log = "time,address,method,path,user,header:X-Tenant\n".to_owned();
    for made in requests {
        let Made { micros, address, method, path, user, tenant } = made;
        let (user, tenant) = (user.unwrap_or_default(), tenant.unwrap_or_default());
        writeln!(log, "{}.{:06},{address},{method},{path},{user},{tenant}", micros / 1_000_000, micros % 1_000_000)
            .unwrap();
    }
    log
}

#[test]
fn a_replay_decides_as_the_limiter_does() {
    let requests = made(5_000);
    let clock = ManualClock::default();
    let limiter = Limiter::with_clock(rules(RULES), MemoryStore::with_clock(clock.clone()), clock.clone());
    let decided = requests.iter().map(|made| {
        clock.set(Timestamp::from_micros(made.micros));
        let mut request = Request::new(made.method, made.path).address(made.address.parse().unwrap());
        request = made.user.iter().fold(request, |request, user| request.user(user));
        request = made.tenant.iter().fold(request, |request, tenant| request.header("x-tenant", tenant));
        (clock_micros(&clock), limiter.check_now(&request).is_allowed())
    });
    let decided: Vec<(u64, bool)> = decided.collect();
    let mut replay = Replay::of(rules(RULES));
    let mut replayed = Vec::new();
    let tell = |_: &replay::AccessEntry<'_>, at: Timestamp, admitted| replayed.push((at.as_micros(), admitted));
    replay.read_each(input(as_csv(&requests)), |_| {}, tell).unwrap();
    assert_eq!(replayed, decided);
    let outcome = replay.report(10).outcome;
    assert_eq!(outcome.admitted, decided.iter().filter(|(_, admitted)| *admitted).count() as u64);
    assert!(outcome.admitted > 500 && outcome.denied > 500, "{outcome:?}");
    assert_eq!(outcome.idle_rules, ["nobody"]);
    let shadow = outcome.limits.iter().find(|limit| limit.id == "stricter").unwrap();
    assert!(shadow.denied > 0 && shadow.mode == "shadow");
}

fn clock_micros(clock: &ManualClock) -> u64 {
    tidegate_core::Clock::now(clock).as_micros()
}

#[test]
fn the_report_says_who_when_and_how_long() {
    let mut log = "time,address\n".to_owned();
    for second in [0, 1, 2, 3, 4, 70, 71, 72, 73] {
        writeln!(log, "{}.5,192.0.2.1", 1_000_000_000 + second).unwrap();
    }
    writeln!(log, "1000000080.5,192.0.2.2").unwrap();
    let outcome = replayed("rules: [{ id: login, key: address, limit: log 2/min }]", log).outcome;
    assert_eq!((outcome.requests, outcome.admitted, outcome.denied), (10, 5, 5));
    assert_eq!((outcome.denied_keys, outcome.keys_short_by), (1, 0));
    let key = &outcome.keys[0];
    assert_eq!((key.key.as_str(), key.limit.as_str(), key.denied, key.longest_streak), ("192.0.2.1", "login", 5, 3));
    assert_eq!((key.first, key.last), (1_000_000_002_500_000, 1_000_000_073_500_000));
    let streak = outcome.streak.unwrap();
    assert_eq!((streak.denied, streak.from, streak.to), (3, 1_000_000_002_500_000, 1_000_000_004_500_000));
    let waits = outcome.waits.unwrap();
    assert_eq!((waits.count, waits.least, waits.most), (5, 56_000_000, 58_000_000));
    assert_eq!(outcome.timeline.iter().map(|bin| bin.denied).sum::<u64>(), 5);
}

#[test]
fn compressed_logs_are_read_alike() {
    let log = as_csv(&made(3_000));
    let plain = replayed(RULES, log.clone());
    // Two members, as `cat one.gz two.gz` makes them.
    let (first, second) = log.split_at(log.len() / 3);
    let mut zipped = Vec::new();
    for part in [first, second] {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(part.as_bytes()).unwrap();
        zipped.extend(encoder.finish().unwrap());
    }
    let size = zipped.len() as u64;
    let unzipped = replayed(RULES, zipped);
    assert_eq!(unzipped.reading.bytes, size);
    assert_eq!(plain.outcome.admitted, unzipped.outcome.admitted);
    assert_eq!(plain.reading.lines, unzipped.reading.lines);
}

#[test]
fn a_broken_archive_is_an_error_and_no_end() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(as_csv(&made(3_000)).as_bytes()).unwrap();
    let mut zipped = encoder.finish().unwrap();
    zipped.truncate(zipped.len() / 2);
    let error = Replay::of(rules(RULES)).read(input(zipped), |_| {}).unwrap_err();
    assert!(matches!(error, ReadError::Unreadable { .. }), "{error}");
}

#[test]
fn broken_lines_are_counted_and_shown_and_stop_nothing() {
    let good = r#"203.0.113.7 - - [15/Nov/2026:09:52:55 +0000] "GET / HTTP/1.1" 200 2 "-" "-""#;
    let mut log = Vec::new();
    for number in 1..=100 {
        match number % 10 {
            3 => log.extend(b"broken \x1b[31m line\n"),
            4 => log.extend(b"\xff\xfe\n"),
            5 => log.extend(b"\n"),
            _ => log.extend(format!("{good}\r\n").into_bytes()),
        }
    }
    let report = replayed(RULES, log);
    assert_eq!((report.reading.lines, report.reading.malformed), (90, 20));
    assert_eq!(report.outcome.requests, 70);
    let shown: Vec<_> = report.reading.shown.iter().map(|line| (line.line, line.problem.as_str())).collect();
    assert_eq!(
        shown,
        [
            (3, "it contains no time"),
            (4, "it is not UTF-8"),
            (13, "it contains no time"),
            (14, "it is not UTF-8"),
            (23, "it contains no time")
        ]
    );
    assert!(!replay::text(&report).contains('\u{1b}'));
}

#[test]
fn lines_of_one_second_are_spread_over_it() {
    let line =
        |second: u64| format!("203.0.113.7 - - [15/Nov/2026:09:52:{second:02} +0000] \"GET / HTTP/1.1\" 200 2\n");
    // Ten in each of three seconds: ten a second, evenly spaced.
    let log: String = (10..13).flat_map(|second| std::iter::repeat_n(line(second), 10)).collect();
    let rules_text = "rules: [{ id: even, key: address, limit: 10/s burst 1 }]";
    let mut replay = Replay::of(rules(rules_text));
    let mut times = Vec::new();
    replay.read_each(input(log.clone()), |_| {}, |_, at, _| times.push(at.as_micros() % 10_000_000)).unwrap();
    let expected: Vec<u64> = (0..30).map(|n| n * 100_000).collect();
    assert_eq!(times, expected);
    assert_eq!(replay.report(1).outcome.denied, 0);
    let settings = ReplaySettings { spread: false, ..ReplaySettings::default() };
    let mut replay = Replay::with(rules(rules_text), None, &settings);
    replay.read(input(log), |_| {}).unwrap();
    assert_eq!(replay.report(1).outcome.denied, 27);
}

#[test]
fn a_second_may_be_larger_than_a_block() {
    let line = |second: u64, n: usize| {
        format!(
            "203.0.113.{} - - [15/Nov/2026:09:52:{second:02} +0000] \"GET /{n} HTTP/1.1\" 200 2 \"-\" \"{}\"\n",
            n % 256,
            "x".repeat(100)
        )
    };
    let mut log = String::new();
    for second in 10..13 {
        (0..20_000).for_each(|n| log += &line(second, n));
        log += "broken\n";
    }
    let mut replay = Replay::of(rules(RULES));
    let mut last = 0;
    let mut gaps = [u64::MAX, 0];
    let tell = |_: &replay::AccessEntry<'_>, at: Timestamp, _| {
        if last > 0 {
            let gap = at.as_micros() - last;
            gaps = [gaps[0].min(gap), gaps[1].max(gap)];
        }
        last = at.as_micros();
    };
    replay.read_each(input(log), |_| {}, tell).unwrap();
    assert_eq!(gaps, [50, 50], "all are evenly apart");
    let reading = replay.report(1).reading;
    assert_eq!((reading.lines, reading.malformed), (60_003, 3));
    assert_eq!(reading.shown.iter().map(|line| line.line).collect::<Vec<_>>(), [20_001, 40_002, 60_003]);
}

#[test]
fn time_does_not_go_back() {
    let log = "time,address\n100.5,192.0.2.1\n99.25,192.0.2.1\n101.5,192.0.2.1\n";
    let mut replay = Replay::of(rules(RULES));
    let mut times = Vec::new();
    replay.read_each(input(log), |_| {}, |_, at, _| times.push(at.as_micros())).unwrap();
    assert_eq!(times, [100_500_000, 100_500_000, 101_500_000]);
    let reading = replay.report(1).reading;
    assert_eq!((reading.out_of_order, reading.furthest_back), (1, 1_250_000));
}

#[test]
fn a_late_line_joins_the_second_that_is_being_read() {
    let log = ["10", "9", "10", "11"]
        .map(|second| format!("192.0.2.1 - - [15/Nov/2026:09:52:{second:0>2} +0000] \"GET / HTTP/1.1\" 200 2\n"));
    let mut replay = Replay::of(rules(RULES));
    let mut times = Vec::new();
    replay.read_each(input(log.concat()), |_| {}, |_, at, _| times.push(at.as_micros())).unwrap();
    let ten = times[0];
    assert_eq!(times.iter().map(|at| at - ten).collect::<Vec<_>>(), [0, 333_333, 666_666, 1_000_000]);
    let reading = replay.report(1).reading;
    assert_eq!((reading.lines, reading.out_of_order, reading.furthest_back), (4, 1, 1_000_000));
}

#[test]
fn a_malformed_line_is_cut_between_characters() {
    let replay_of = |line: String| {
        let mut replay = Replay::of(rules(RULES));
        replay.read(input(format!("time,address\n{line}\n10,192.0.2.1\n")), |_| {}).unwrap();
        replay.report(1).reading.shown[0].text.clone()
    };
    assert_eq!(replay_of("é".repeat(80)), "é".repeat(80));
    assert_eq!(replay_of(format!("x{}", "é".repeat(80))), format!("x{}…", "é".repeat(79)));
}

#[test]
fn a_line_from_the_future_does_not_move_the_others() {
    let combined = |time: &str| format!("192.0.2.1 - - [15/Nov/{time} +0000] \"GET / HTTP/1.1\" 200 2\n");
    // 15 November 2026, 09:52:00.
    let now = Timestamp::from_secs(1_794_736_320);
    let settings = ReplaySettings { not_after: Some(now + Micros::from_secs(86_400)), ..ReplaySettings::default() };
    let read = |log: String| {
        let mut replay = Replay::with(rules(RULES), None, &settings);
        let mut times = Vec::new();
        replay.read_each(input(log), |_| {}, |_, at, _| times.push(at.as_micros())).unwrap();
        (times, replay.report(10))
    };
    let log = ["2026:09:51:00", "9999:23:59:59", "2026:09:51:01", "2026:09:51:03"].map(combined).concat();
    let (times, report) = read(log + "broken\n");
    let at = |second: u64| (1_794_736_260 + second) * 1_000_000;
    assert_eq!(times, [at(0), at(1), at(3)]);
    let reading = &report.reading;
    assert_eq!((reading.lines, reading.malformed, reading.in_future, reading.out_of_order), (5, 2, 1, 0));
    assert_eq!((reading.shown[0].line, reading.shown[0].problem.as_str()), (2, "its time is in the future"));
    let said = replay::text(&report);
    assert!(said.contains("left out: 2 unparsable lines, 1 of them with a time in the future\n  line 2: "), "{said}");
    assert!(replay::html(&report).contains("2 of them unparsable, 1 with a time in the future."));

    let table = |last: u64| format!("time,address\n1794736319.5,192.0.2.1\n{last}.5,192.0.2.1\n");
    assert_eq!(read(table(1_794_736_320 + 86_399)).1.reading.in_future, 0);
    assert_eq!(read(table(1_794_736_320 + 86_400)).1.reading.in_future, 1);
    // Lines of a second that is read again with the next block are counted once.
    let block: String = (0..20_000).map(|_| combined("2026:09:51:00") + &combined("9999:23:59:59")).collect();
    let (times, report) = read(block);
    let reading = report.reading;
    assert_eq!((times.len(), reading.lines, reading.malformed, reading.in_future), (20_000, 40_000, 20_000, 20_000));
}

#[test]
fn a_comparison_names_those_who_are_affected() {
    let mut log = "time,address,user\n".to_owned();
    for n in 0..20 {
        writeln!(log, "{}.1,192.0.2.1,ann", 1_000 + n).unwrap();
        writeln!(log, "{}.2,192.0.2.2,bob", 1_000 + n / 4).unwrap();
    }
    // Deliberately in another order: Bob sends bursts.
    let mut lines: Vec<&str> = log.lines().skip(1).collect();
    lines.sort_by(|one, other| {
        one.split(',')
            .next()
            .unwrap()
            .parse::<f64>()
            .unwrap()
            .total_cmp(&other.split(',').next().unwrap().parse().unwrap())
    });
    let log = format!("time,address,user\n{}\n", lines.join("\n"));
    let old = "rules: [{ id: api, key: address, limit: fixed 2/s }]";
    let new = "rules: [{ id: api, key: user, limit: fixed 10/min }]";
    let mut replay = Replay::with(rules(old), Some(rules(new)), &ReplaySettings::default());
    replay.read(input(log), |_| {}).unwrap();
    let report = replay.report(10);
    let comparison = report.comparison.as_ref().unwrap();
    // Bob: the old rules admit 2 of each 4, the new ones the first 10. Ann: the old rules admit all, the new ones 10.
    let losers: Vec<_> = comparison.losers.iter().map(|key| (key.key.as_str(), key.requests)).collect();
    let gainers: Vec<_> = comparison.gainers.iter().map(|key| (key.key.as_str(), key.requests)).collect();
    assert_eq!(losers, [("ann", 10), ("bob", 4)]);
    assert_eq!(gainers, [("192.0.2.2", 4)]);
    assert_eq!((comparison.newly_denied, comparison.newly_admitted), (14, 4));
    assert_eq!(comparison.both_admit + comparison.both_deny + 18, 40);
    assert!(replay::text(&report).contains("who loses: 2 keys"));
}

#[test]
fn a_suggested_limit_leaves_as_many_alone_as_it_says() {
    let mut log = "time,user\n".to_owned();
    let mut random = Random::seeded(seed(3));
    let mut micros = 0_u64;
    for _ in 0..20_000 {
        micros += random.below(20_000);
        // A few of the hundred clients send far more requests than the others.
        let user = random.below(100) * random.below(100) / 100;
        writeln!(log, "{}.{:06},u{user}", micros / 1_000_000, micros % 1_000_000).unwrap();
    }
    let any = "rules: [{ id: api, key: user, limit: 1/s }]";
    let settings = ReplaySettings {
        suggest: Some(SuggestionSettings { share: 0.9, within: Micros::from_secs(60), only: false }),
        ..ReplaySettings::default()
    };
    let mut replay = Replay::with(rules(any), None, &settings);
    replay.read(input(log.clone()), |_| {}).unwrap();
    let suggestions = replay.report(10).suggestions;
    let [suggestion] = &suggestions[..] else { panic!("{suggestions:?}") };
    assert!(suggestion.limited as f64 <= 0.1 * suggestion.keys as f64 && suggestion.limited > 0, "{suggestion:?}");
    for alternative in &suggestion.alternatives {
        let proposed = format!("rules: [{{ id: api, key: user, limit: {} }}]", alternative.limit);
        let outcome = replayed(&proposed, log.clone()).outcome;
        assert_eq!(outcome.denied_keys, alternative.limited, "{alternative:?}");
        if alternative.limit == suggestion.proposal {
            let denied: BTreeSet<&str> = outcome.keys.iter().map(|key| key.key.as_str()).collect();
            let named: BTreeSet<&str> = suggestion.limited_keys.iter().map(|key| key.key.as_str()).collect();
            assert_eq!(denied, named);
        }
    }
}

#[test]
fn slots_are_held_for_as_long_as_a_request_took() {
    let rules_text = "rules: [{ id: exports, key: address, limit: concurrent 1 ttl 1h }]";
    let log = "time,address,duration_ms\n10.0,192.0.2.1,1500\n11.0,192.0.2.1,10\n11.5,192.0.2.1,100\n11.55,192.0.2.1,5\n11.7,192.0.2.1,5\n";
    let mut replay = Replay::of(rules(rules_text));
    let mut admitted = Vec::new();
    replay.read_each(input(log), |_| {}, |_, _, was| admitted.push(was)).unwrap();
    assert_eq!(admitted, [true, false, true, false, true]);
    let without = replayed(rules_text, "time,address\n10,192.0.2.1\n10,192.0.2.1\n").outcome;
    assert_eq!((without.denied, without.slots_without_duration), (0, 2));
}

#[test]
fn refusals_and_unmatched_requests_are_reported() {
    let rules_text = "rules: [{ id: users, match: { path: /a }, key: user, on_missing_key: refuse, limit: 1/s }]";
    let outcome = replayed(rules_text, "time,path,user\n1,/a,\n2,/b,ann\n3,/a,ann\n").outcome;
    assert_eq!((outcome.admitted, outcome.denied, outcome.ungoverned), (2, 1, 1));
    assert_eq!(outcome.refused, [("users".to_owned(), 1)]);
}

#[test]
fn a_file_that_is_not_a_log_is_an_error() {
    let mut replay = Replay::of(rules(RULES));
    let error = replay.read(input("Dear diary,\ntoday was fine.\n"), |_| {}).unwrap_err();
    assert!(error.to_string().contains("name it: combined, nginx-json"), "{error}");
    replay.read(input(""), |_| {}).unwrap();
    assert_eq!(replay.report(1).outcome.requests, 0);
    let settings = ReplaySettings { format: Some(LogFormat::Csv), ..ReplaySettings::default() };
    let mut replay = Replay::with(rules(RULES), None, &settings);
    let error = replay.read(input("adress,time\n"), |_| {}).unwrap_err();
    assert!(error.to_string().contains("line 1: the header of the table"), "{error}");
}

#[test]
fn memory_stays_bounded_under_a_flood_of_keys() {
    // Each of 300 000 addresses is denied once, which is more than can be counted.
    struct Flood(u32, Vec<u8>);
    impl Read for Flood {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.1.is_empty() && self.0 < 300_000 {
                let [_, b, c, d] = self.0.to_be_bytes();
                self.1 = format!("1000.5,10.{b}.{c}.{d}\n1000.5,10.{b}.{c}.{d}\n").into_bytes();
                self.0 += 1;
            }
            let count = self.1.len().min(buffer.len());
            buffer[..count].copy_from_slice(&self.1[..count]);
            self.1.drain(..count);
            Ok(count)
        }
    }
    let head = std::io::Cursor::new(b"time,address\n".to_vec());
    let mut replay = Replay::of(rules("rules: [{ id: one, key: address, limit: 1/h }]"));
    replay.read(Input::from_reader("flood", head.chain(Flood(0, Vec::new()))).unwrap(), |_| {}).unwrap();
    let outcome = replay.report(5).outcome;
    assert_eq!((outcome.requests, outcome.denied, outcome.denied_keys), (600_000, 300_000, 300_000));
    assert!(outcome.keys_short_by > 0);
}

#[test]
fn the_page_holds_no_markup_from_the_log() {
    let log = "time,address,user\n1,192.0.2.1,<script>alert(1)</script>\n1,192.0.2.1,<script>alert(1)</script>\n";
    let report = replayed("rules: [{ id: api, key: user, limit: 1/h }]", log);
    let page = replay::html(&report);
    assert!(page.contains("&lt;script&gt;alert(1)"));
    assert!(!page.contains("<script>alert"));
    assert_eq!(page.matches("<script").count(), 1, "only our own data");
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let data = page.split("id=\"tidegate-replay\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["outcome"]["keys"][0]["key"], "<script>alert(1)</script>");
    assert!(replay::csv(&report).contains("key,api,<script>alert(1)</script>,,1,1,"));
}
