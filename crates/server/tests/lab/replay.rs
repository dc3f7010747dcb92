use std::fmt::Write;

use serde_json::Value;

use crate::browser::Browser;
use crate::lab::Lab;
use crate::serving::{folder, tidegate};

const RULES: &str = "rules: [{ id: login, match: { path: /login }, key: address, limit: 5/min }]";

/// A log of 200 requests a second apart, most of one client.
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
    // What is suggested can be tried at once.
    browser.click("#report section:last-of-type button");
    let limit = browser.js("return document.getElementById('limit-text-0').value");
    assert_eq!(limit, report["suggestions"][0]["proposal"]);
    // The page showed a run of two limits before.
    browser.until("the run", "return document.querySelectorAll('#tracks > *').length === 1 || null");
    browser.until("its end", "return document.getElementById('status').dataset.state === 'ended' || null");
    browser.assert_quiet(|_| false);
}
