//! The page on a phone.

use serde_json::json;

use crate::lab::page::Lab;
use crate::support::Server;
use crate::support::browser::Browser;

const TOKEN: &str = "an-operators-token";
const FOUR: &str = "/lab/?limit=sliding+300/min&limit=sliding+300/min+parts+6&limit=300/min+burst+30&limit=log+300/min\
    &traffic=square+12/s+2/s+every+2min+random&for=6min&seed=1&speed=max";

/// A browser with the screen of a phone.
fn phone() -> Browser {
    let browser = Browser::open();
    let screen = json!({ "width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true });
    browser.devtools("Emulation.setDeviceMetricsOverride", &screen);
    browser.devtools("Emulation.setTouchEmulationEnabled", &json!({ "enabled": true }));
    browser
}

/// Checks that no element is wider than the screen, except scrollable ones.
fn assert_nothing_sticks_out(browser: &Browser) {
    let wide = browser.js("return [document.documentElement.scrollWidth, window.innerWidth]");
    assert_eq!(wide, json!([390, 390]));
    let outside = browser.js(
        "const scrolls = (element) => element && (['auto', 'scroll', 'hidden'].includes(getComputedStyle(element).overflowX)
           || scrolls(element.parentElement));
         return [...document.querySelectorAll('main *, header *')]
           .filter((element) => element.checkVisibility() && !element.closest('.unseen, .skip'))
           .filter((element) => {
             const { left, right, width } = element.getBoundingClientRect();
             return width > 0 && (left < -1 || right > innerWidth + 1) && !scrolls(element);
           }).map((element) => element.outerHTML.slice(0, 120))",
    );
    assert_eq!(outside, json!([]));
}

/// Checks that tabs and the theme button are on the screen, in one line, and large enough for a finger.
fn assert_head_is_reachable(browser: &Browser) {
    let boxes = browser.js(
        "return [...document.querySelectorAll('header button')].filter((button) => !button.hidden).map((button) => {
           const { left, right, top, height } = button.getBoundingClientRect();
           return { name: button.id, inside: left >= 0 && right <= innerWidth, top, height };
         })",
    );
    let boxes = boxes.as_array().unwrap();
    for button in boxes {
        let height = button["height"].as_f64().unwrap();
        assert!(button["inside"] == true && (24.0..48.0).contains(&height), "{button}");
    }
    let tops = |name: &str| boxes.iter().find(|button| button["name"] == name).map(|button| button["top"].as_f64());
    let (first, theme) = (tops("tab-simulate").flatten().unwrap(), tops("theme").flatten().unwrap());
    assert!((first - theme).abs() < 12.0, "{boxes:?}");
    let theme = |browser: &Browser| browser.js("return document.documentElement.dataset.theme");
    let before = theme(browser);
    browser.click("#theme");
    assert_ne!(theme(browser), before);
}

#[test]
#[ignore = "long: make nightly"]
fn the_lab_fits_a_phone_and_shows_its_chart_first() {
    let (lab, browser) = (Lab::open(), phone());
    browser.go_to_lab(&lab.url(FOUR));
    browser.until("the end", "return document.getElementById('status').dataset.state === 'ended' || null");
    browser.draw();
    assert_nothing_sticks_out(&browser);
    assert_head_is_reachable(&browser);
    let order = browser.js("const top = (id) => document.getElementById(id).getBoundingClientRect().top;
         const before = document.getElementById('stage').compareDocumentPosition(document.getElementById('settings'));
         return [top('flow') < innerHeight, top('stage') < top('settings'), (before & 4) === 4]");
    assert_eq!(
        order,
        json!([true, true, true]),
        "the chart is on the first screen, and the keyboard finds the same order"
    );
    // The form is further down, but the result of a run is visible immediately.
    browser.js("document.getElementById('run').scrollIntoView(); return null");
    browser.click("#run");
    browser.until(
        "the chart",
        "const { top, bottom } = document.getElementById('flow').getBoundingClientRect();
         return (top >= 0 && top < innerHeight && bottom > 0) || null",
    );
    browser.until("the end", "return document.getElementById('status').dataset.state === 'ended' || null");
    browser.draw();
    // Touching a chart shows its values, which stay after the touch.
    browser.js("const flow = document.getElementById('flow');
         const { left, top, width } = flow.getBoundingClientRect();
         const at = { clientX: left + width / 2, clientY: top + 20, pointerType: 'touch', bubbles: true };
         flow.dispatchEvent(new PointerEvent('pointerdown', at));
         flow.dispatchEvent(new PointerEvent('pointerleave', at));
         return null");
    browser.until("values", "return document.getElementById('flow').dataset.readout?.includes('arrived') || null");
    browser.screenshot("phone-four");
    browser.go_to_lab(&lab.url("/lab/#replay"));
    browser.until("the tab", "return document.getElementById('replay')?.hidden === false || null");
    assert_nothing_sticks_out(&browser);
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn the_live_view_fits_a_phone() {
    const RULES: &str = "\
rules:
  - { id: per-user, match: { path: /login }, key: address, limit: 5/day }
  - { id: searches-and-exports-of-one-organisation, match: { path: /search }, key: address, limit: 1000/day }
";
    let server =
        Server::start_with(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"], &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
    let (_, rest) = server.banner.split_once("\n  Admin ").unwrap_or_else(|| panic!("{}", server.banner));
    let admin = rest.lines().next().unwrap().trim().to_owned();
    for path in ["/login", "/search"] {
        for _ in 0..9 {
            server.check(&json!({ "method": "POST", "path": path, "address": "203.0.113.7" }).to_string());
        }
    }
    let browser = phone();
    browser.go_to_lab(&format!("{admin}/lab/"));
    assert_nothing_sticks_out(&browser);
    browser.write("#token", TOKEN);
    browser.click(".token button");
    browser.until("both rules", "return document.querySelectorAll('tr[data-rule]').length === 2 || null");
    browser.until("keys", "return document.body.textContent.includes('203.0.113.7') || null");
    browser.draw();
    assert_nothing_sticks_out(&browser);
    assert_head_is_reachable(&browser);
    // A short name is on one line, and a long one is broken at suitable places.
    let lines = browser.js("return [...document.querySelectorAll('tr[data-rule] td:first-child code')].map((name) => {
           const { width, height } = name.getBoundingClientRect();
           return [name.textContent.length, Math.round(height / parseFloat(getComputedStyle(name).lineHeight)), width];
         })");
    for name in lines.as_array().unwrap() {
        let (letters, lines) = (name[0].as_u64().unwrap(), name[1].as_u64().unwrap());
        assert!(lines <= letters.div_ceil(12), "{name}");
    }
    // Names stay visible while the numbers are scrolled.
    let left = browser.js("const name = document.querySelector('tr[data-rule] td');
         const table = name.closest('.scroll');
         const before = name.getBoundingClientRect().left;
         table.scrollLeft = 10_000;
         return [table.scrollLeft > 0, Math.abs(name.getBoundingClientRect().left - before) < 2]");
    assert_eq!(left, json!([true, true]));
    browser.screenshot("phone-live");
    browser.assert_quiet(|_| false);
}
