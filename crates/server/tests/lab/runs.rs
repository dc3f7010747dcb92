use serde_json::Value;

use crate::lab::page::{Lab, Scenario};
use crate::support::browser::Browser;
use crate::support::until;

/// Every algorithm, with traffic that it partly admits.
const ALGORITHMS: [Scenario; 9] = [
    scenario(&["20/s burst 50"]),
    scenario(&["gcra 20/s burst 50"]),
    scenario(&["meter 20/s burst 10"]),
    scenario(&["shaper 10/s queue 30"]),
    scenario(&["fixed 20/s"]),
    scenario(&["sliding 20/s"]),
    scenario(&["sliding 20/s parts 5"]),
    scenario(&["log 20/s"]),
    Scenario { holding: Some("250ms"), ..scenario(&["concurrent 5 ttl 10s"]) },
];

const fn scenario(limits: &'static [&'static str]) -> Scenario {
    Scenario { limits, traffic: "square 80/s 10/s every 4s random clients 2", seconds: 20, seed: 7, holding: None }
}

#[test]
#[ignore = "long: make nightly"]
fn each_algorithm_shows_what_the_engine_decides() {
    let (lab, browser) = (Lab::open(), Browser::open());
    for scenario in &ALGORITHMS {
        browser.go_to_lab(&lab.url(&format!("/lab/?{}", scenario.query("max"))));
        browser.assert_shows(scenario);
        let name: String =
            scenario.limits[0].chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        browser.draw();
        browser.screenshot(&format!("algorithm-{name}"));
    }
    browser.assert_quiet(|_| false);
    browser.go("about:blank");
    lab.until_idle();
}

#[test]
#[ignore = "long: make nightly"]
fn four_limits_are_compared_on_the_same_arrivals() {
    let (lab, browser) = (Lab::open(), Browser::open());
    let scenario = Scenario {
        limits: &["fixed 30/s", "sliding 30/s", "log 30/s", "30/s burst 10"],
        traffic: "boundary 30 every 1s + poisson 20/s",
        seconds: 20,
        seed: 3,
        holding: None,
    };
    browser.go_to_lab(&lab.url(&format!("/lab/?{}", scenario.query("max"))));
    browser.assert_shows(&scenario);
    browser.assert_quiet(|_| false);
}

#[test]
fn a_run_is_started_from_the_page_and_its_link_reproduces_it() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/"));
    browser.choose("#algorithm-0", "GCRA");
    browser.write("#limit-text-1", "log 9/s");
    browser.choose("#model", "Poisson");
    browser.write("#traffic-text", "poisson 70/s clients 3 zipf 1.1 cost 2");
    browser.write("#length", "15s");
    browser.write("#seed", "11");
    browser.choose("#speed", "maximum");
    browser.click("#run");
    let scenario = Scenario {
        limits: &["gcra 20/s burst 50", "log 9/s"],
        traffic: "poisson 70/s clients 3 zipf 1.1 cost 2",
        seconds: 15,
        seed: 11,
        holding: None,
    };
    browser.assert_shows(&scenario);
    browser.click("#save-csv");
    let (link, first) = (browser.url(), browser.saved("tidegate-run.csv"));
    assert!(link.ends_with(&scenario.query("max")), "{link}");

    let other = Browser::open();
    other.go_to_lab(&link);
    other.assert_shows(&scenario);
    assert_eq!(other.js("return document.getElementById('seed').value"), "11");
    other.click("#save-csv");
    let again = other.saved("tidegate-run.csv");
    assert_eq!(String::from_utf8(first).unwrap(), String::from_utf8(again).unwrap());
    browser.assert_quiet(|_| false);
    other.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn a_run_is_paused_stepped_and_scrubbed() {
    let (lab, browser) = (Lab::open(), Browser::open());
    let scenario = &ALGORITHMS[0];
    browser.go_to_lab(&lab.url(&format!("/lab/?{}", scenario.query("max"))));
    let all = scenario.totals()[0].arrivals;
    browser.until_ended(all);
    let arrivals = |wanted: u64| {
        browser.until(
            "so many arrivals",
            &format!("return document.documentElement.dataset.arrivals === '{wanted}' || null"),
        );
    };
    browser.click("#back");
    arrivals(all - 1);
    browser.click("#back");
    arrivals(all - 2);
    browser.click("#forth");
    arrivals(all - 1);
    assert_eq!(browser.shown(0)[0], all - 1);
    let middle = browser.js(
        "const scrub = document.getElementById('scrub'); scrub.value = 500; scrub.dispatchEvent(new Event('input'));
         return null",
    );
    assert_eq!(middle, Value::Null);
    let half = browser.until(
        "the middle",
        "const seen = Number(document.documentElement.dataset.arrivals); return seen > 0 && seen < 600 ? seen : null",
    );
    assert_eq!(browser.shown(0)[0], half.as_u64().unwrap());
    browser.click("#latest");
    arrivals(all);
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn every_worked_case_runs() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/"));
    let cases =
        browser.js("return [...document.querySelectorAll('#presets button')].map((button) => button.textContent)");
    let cases: Vec<String> = serde_json::from_value(cases).unwrap();
    assert!(cases.len() > 8, "{cases:?}");
    for (number, case) in cases.iter().enumerate() {
        // The previous run must not be taken for this one.
        browser.js("delete document.documentElement.dataset.arrivals; return null");
        browser.click(&format!("#presets button:nth-child({})", number + 1));
        browser.until(
            case,
            "const state = document.getElementById('status').dataset.state;
             if (state === 'refused') throw new Error('refused');
             return Number(document.documentElement.dataset.arrivals) > 0 || null",
        );
        assert_eq!(
            browser.js("return document.querySelector('#presets [aria-pressed=true]').textContent"),
            case.as_str()
        );
        // Each case needs a free run, so the previous ones must have ended.
        until(case, || (lab.about()["runs"]["now"].as_u64().unwrap() <= 2).then_some(()));
    }
    browser.assert_quiet(|_| false);
    browser.go("about:blank");
    lab.until_idle();
}

#[test]
#[ignore = "long: make nightly"]
fn a_limit_that_adapts_is_drawn_over_the_queue_of_its_server() {
    let (lab, browser) = (Lab::open(), Browser::open());
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", "1000/s burst 50 adapt 100/s on latency > 200ms");
    query.append_pair("limit", "1000/s burst 50").append_pair("traffic", "poisson 900/s").append_pair("for", "30s");
    query.append_pair("speed", "max").append_pair("server", "20 x 40ms");
    browser.go_to_lab(&lab.url(&format!("/lab/?{}", query.finish())));
    browser.until("the end", "return document.getElementById('status').dataset.state === 'ended' || null");
    browser.draw();
    let in_server = |limit: usize| -> f64 {
        let words = browser.text(&format!("[data-limit='{limit}'] .words"));
        let number = words.split("/s, ").nth(1).and_then(|rest| rest.split(" requests").next()).unwrap_or_default();
        match number.strip_suffix(" k") {
            Some(thousands) => thousands.parse::<f64>().map(|number| number * 1_000.0),
            None => number.parse(),
        }
        .unwrap_or_else(|_| panic!("{words}"))
    };
    assert!(in_server(0) < 1_000.0, "{}", in_server(0));
    assert!(in_server(1) > 8_000.0, "{}", in_server(1));
    let words = browser.text("[data-limit='0'] .words");
    assert!(words.starts_with("limit at ") && words.contains("requests in the server"), "{words}");
    let rule = browser.text("#rule");
    assert!(rule.contains("limit: 1000/s burst 50\n"), "{rule}");
    assert!(rule.contains("adapt: { between: 100/s..1000/s, on: [latency > 200ms] }"), "{rule}");
    browser.screenshot("adaptive-limit");
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn a_limit_that_finds_the_workers_is_drawn_over_the_queue_of_its_server() {
    let (lab, browser) = (Lab::open(), Browser::open());
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", "gradient2 1..200").append_pair("limit", "1000/s burst 50");
    query.append_pair("traffic", "poisson 600/s").append_pair("for", "60s");
    query.append_pair("speed", "max").append_pair("server", "20 x 100ms");
    browser.go_to_lab(&lab.url(&format!("/lab/?{}", query.finish())));
    browser.until("the end", "return document.getElementById('status').dataset.state === 'ended' || null");
    browser.draw();
    let words = browser.text("[data-limit='0'] .words");
    let limit = words.strip_prefix("limit at ").and_then(|rest| rest.split_once(" in flight, "));
    let (limit, rest) = limit.unwrap_or_else(|| panic!("{words}"));
    let limit: f64 = limit.parse().unwrap();
    assert!((20.0..=60.0).contains(&limit) && rest.contains("requests in the server"), "{words}");
    // Without adaptation, 400 more requests arrive each second than are served.
    let words = browser.text("[data-limit='1'] .words");
    assert!(words.contains(" k requests in the server"), "{words}");
    let rule = browser.text("#rule");
    assert!(rule.contains("gateway:\n  concurrency: gradient2 1..200\n"), "{rule}");
    browser.screenshot("adaptive-concurrency");
    // The example is available as a preset.
    let named = "return [...document.querySelectorAll('#presets button')].some((one) => one.textContent === 'A limit that finds the workers')";
    assert_eq!(browser.js(named), true);
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn the_first_sight_is_a_finished_run_that_can_be_played() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/"));
    browser.until("the end", "return document.getElementById('status').dataset.state === 'ended' || null");
    browser.until("the end drawn", "return document.getElementById('clock').textContent.startsWith('30.00 s') || null");
    assert_eq!(browser.js("return document.getElementById('speed').value"), "2");
    let pressed = "return document.querySelector('#presets [aria-pressed=true]')?.textContent ?? null";
    assert_eq!(browser.js(pressed), "A rate with bursts");
    // Another speed does not select another preset.
    browser.choose("#speed", "10 ×");
    assert_eq!(browser.js(pressed), "A rate with bursts");
    browser.click("#play");
    browser.until("the beginning", "return parseFloat(document.getElementById('clock').textContent) < 30 || null");
    browser.assert_quiet(|_| false);
    lab.until_idle();
}
