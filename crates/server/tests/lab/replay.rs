use std::fmt::Write;

use serde_json::{Value, json};

use crate::lab::page::Lab;
use crate::support::browser::Browser;
use crate::support::{folder, tidegate};

const RULES: &str = "rules: [{ id: login, match: { path: /login }, key: address, limit: 5/min }]";

/// A log of 200 requests a second apart, most from one client.
fn log() -> String {
    (0..200).fold(String::new(), |mut log, second| {
        let (client, minute, second) = (if second % 5 == 0 { 8 } else { 7 }, second / 60, second % 60);
        let time = format!("01/Mar/2026:08:{minute:02}:{second:02} +0000");
        writeln!(log, "203.0.113.{client} - - [{time}] \"POST /login HTTP/1.1\" 200 512 \"-\" \"curl\"").unwrap();
        log
    })
}

#[test]
fn a_report_of_a_replay_opens_in_the_page() {
    let folder = folder(&[("rules.yaml", RULES), ("access.log", &log()), ("other.html", "<p>no report</p>")]);
    let mut command = tidegate(folder.path());
    command.args([
        "replay",
        "--rules",
        "rules.yaml",
        "--suggest",
        "--format",
        "json",
        "--html",
        "report.html",
        "access.log",
    ]);
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/#replay"));
    let choose = |name: &str| browser.upload("#report-file", &folder.path().join(name));
    choose("other.html");
    browser.until("an error", "return !document.getElementById('report-error').hidden || null");
    choose("report.html");
    let denied = browser
        .until("the report", "return document.querySelector('#report [data-figure=Denied] b')?.textContent ?? null");
    let expected = report["outcome"]["denied"].as_u64().unwrap();
    assert!(expected > 50 && denied.as_str().unwrap().starts_with(&format!("{expected} (")), "{denied}");
    browser.draw();
    browser.screenshot("replay");
    let suggestion = &report["suggestions"][0];
    assert_eq!(browser.text("#report section:last-of-type pre"), suggestion["rule"].as_str().unwrap());
    // The suggestion can be tried immediately, with similar traffic.
    browser.click("#report section:last-of-type button");
    let tried =
        browser.js("return ['limit-text-0', 'traffic-text', 'length'].map((id) => document.getElementById(id).value)");
    let similar = &suggestion["similar"];
    assert_eq!(tried, json!([suggestion["proposal"], similar["traffic"], similar["length"]]));
    // The page showed a run of two limits before. The log has 200 requests from two clients.
    browser.until("the run", "return document.querySelectorAll('#tracks > *').length === 1 || null");
    browser.until_ended(200);
    assert_eq!(browser.shown(0), [200, 200, 0], "the limit was suggested because it limits nobody");
    assert_eq!(browser.js("return document.getElementById('watched').max"), "1");
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn two_sets_of_rules_are_compared_side_by_side_in_a_report_that_is_dropped() {
    const NEW: &str = "rules: [{ id: login, match: { path: /login }, key: address, limit: 20/min }]";
    let folder = folder(&[("old.yaml", RULES), ("new.yaml", NEW), ("access.log", &log())]);
    let mut command = tidegate(folder.path());
    command.args(["replay", "--compare", "old.yaml", "new.yaml", "--format", "json", "access.log"]);
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/#replay"));
    let text = serde_json::to_string(&report.to_string()).unwrap();
    browser.js(&format!(
        "const files = new DataTransfer();
         files.items.add(new File([{text}], 'report.json'));
         const drop = (kind) => document.querySelector('.drop').dispatchEvent(
           new DragEvent(kind, {{ dataTransfer: files, bubbles: true, cancelable: true }}));
         drop('dragover');
         window.wasOver = document.querySelector('.drop').classList.contains('over');
         drop('drop');
         return null"
    ));
    browser.until("both sets", "return document.querySelectorAll('#report .set').length === 2 || null");
    assert_eq!(browser.js("return window.wasOver"), true, "the zone shows that it takes the file");
    browser.draw();
    let sides = browser.js(
        "const [old, fresh] = [...document.querySelectorAll('#report .set')].map((set) => set.getBoundingClientRect());
         return [Math.abs(old.top - fresh.top) < 2, old.right <= fresh.left]",
    );
    assert_eq!(sides, json!([true, true]));
    let scales =
        browser.js("return [...document.querySelectorAll('#report canvas')].map((chart) => chart.dataset.scale)");
    assert!(scales[0].is_string() && scales[0] == scales[1], "{scales}");
    let denied = |side: usize| {
        browser
            .js(&format!("return document.querySelectorAll('#report .set [data-figure=Denied] b')[{side}].textContent"))
    };
    let expected = [&report["outcome"]["denied"], &report["comparison"]["new"]["denied"]];
    assert!(expected[0].as_u64() > expected[1].as_u64());
    for (side, expected) in expected.into_iter().enumerate() {
        assert!(denied(side).as_str().unwrap().starts_with(&format!("{expected} (")), "{} {expected}", denied(side));
    }
    // Without traffic of single keys, there is nothing to try.
    assert_eq!(browser.js("return document.querySelectorAll('#report button').length"), 0);
    browser.js(
        "const chart = document.querySelector('#report canvas');
         const { left, top, width } = chart.getBoundingClientRect();
         chart.dispatchEvent(new PointerEvent('pointermove', { clientX: left + width / 2, clientY: top + 20, bubbles: true }));
         return null",
    );
    browser.until(
        "values",
        "return document.querySelector('#report canvas').dataset.readout?.includes(' denied') || null",
    );
    browser.screenshot("compared");
    browser.assert_quiet(|_| false);
}
