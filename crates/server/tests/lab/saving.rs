use crate::browser::Browser;
use crate::lab::Lab;
use crate::serving::{folder, tidegate};

#[test]
fn the_rule_that_is_shown_is_one_that_can_be_used() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/?limit=20/s&traffic=steady+10/s&for=1s&speed=max"));
    for limit in [
        "20/s burst 50",
        "gcra 100/min burst 10",
        "meter 10/s burst 20",
        "shaper 10/s queue 50",
        "fixed 10_000/month calendar",
        "sliding 300/min parts 6",
        "log 5/min",
        "concurrent 10 ttl 30s",
    ] {
        browser.write("#limit-text-0", limit);
        let rule = browser.js("return document.getElementById('rule').textContent");
        let rule = rule.as_str().unwrap();
        assert!(rule.contains(limit), "{rule}");
        let folder = folder(&[("rules.yaml", rule)]);
        let checked = tidegate(folder.path()).args(["check", "rules.yaml"]).output().unwrap();
        assert!(checked.status.success(), "{rule}{}", String::from_utf8_lossy(&checked.stderr));
    }
    browser.assert_quiet(|_| false);
}

#[test]
fn a_run_is_saved_as_lines_and_as_a_picture() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/?limit=5/s&limit=log+5/s&traffic=steady+10/s&for=4s&speed=max"));
    browser.until_ended(40);
    browser.click("#save-csv");
    let text = String::from_utf8(browser.saved("tidegate-run.csv")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 41);
    assert!(lines[0].starts_with("seconds,client,cost,\"5/s: decision\",\"5/s: remaining\""), "{}", lines[0]);
    assert!(lines[1].starts_with("0.000000,0,1,admitted,4,0.000000,4,admitted,4"), "{}", lines[1]);
    assert!(text.contains("denied"));
    browser.click("#save-png");
    assert!(browser.saved("tidegate-run.png").starts_with(b"\x89PNG"));
    browser.assert_quiet(|_| false);
}
