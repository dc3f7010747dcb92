use fantoccini::key::Key;

use crate::lab::page::Lab;
use crate::support::browser::Browser;

/// Presses Tab until the element with this id has the focus.
fn tab_to(browser: &Browser, id: &str) {
    for _ in 0..80 {
        if browser.js("return document.activeElement.id") == id {
            return;
        }
        browser.press(&[Key::Tab]);
        let shown = browser
            .js("return document.activeElement.matches(':focus-visible') || document.activeElement === document.body");
        assert_eq!(shown, true, "the focus can be seen");
    }
    panic!("{id} cannot be reached");
}

#[test]
#[ignore = "long: make nightly"]
fn everything_is_done_without_a_mouse() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/?limit=20/s&traffic=steady+40/s&for=10s&speed=max"));
    browser.until_ended(400);
    browser.js(
        "document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex'); return null",
    );
    tab_to(&browser, "limit-text-0");
    browser.js("document.activeElement.select(); return null");
    browser.type_text("fixed 10/s");
    // Enter in a field starts the run.
    browser.press(&[Key::Enter]);
    browser.until(
        "the new run",
        "return document.querySelector('[data-limit=\"0\"] code')?.textContent === 'fixed 10/s' || null",
    );
    browser.until_ended(400);
    assert_eq!(browser.shown(0), [400, 100, 300]);
    tab_to(&browser, "back");
    browser.press(&[Key::Enter]);
    browser.until("a step back", "return document.documentElement.dataset.arrivals === '399' || null");
    tab_to(&browser, "scrub");
    browser.press(&[Key::Home]);
    browser.until("the beginning", "return document.documentElement.dataset.arrivals === '1' || null");
    browser.js("document.getElementById('stage').focus(); return null");
    browser.type_text(".");
    browser.until("a step on", "return document.documentElement.dataset.arrivals === '2' || null");
    browser.type_text(" ");
    browser.until_ended(400);
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn everything_has_a_name_for_those_who_do_not_see_it() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/?limit=20/s&limit=concurrent+3&traffic=steady+40/s&for=10s&speed=max"));
    browser.until_ended(400);
    browser.draw();
    let nameless = browser.js(
        "return [...document.querySelectorAll('input, select, button, canvas, textarea')].filter((field) => {
           const label = field.getAttribute('aria-label') || field.labels?.[0]?.textContent || field.textContent;
           return !label?.trim();
         }).map((field) => field.outerHTML)",
    );
    assert_eq!(nameless, serde_json::json!([]));
    let said = browser.js("return document.querySelector('[data-limit=\"0\"] .levels').getAttribute('aria-label')");
    assert!(said.as_str().unwrap().contains("219 admitted, 181 denied"), "{said}");
    // Totals are announced once they no longer change.
    let spoken = browser.js("return document.querySelector('#spoken[aria-live=polite]').textContent");
    assert!(spoken.as_str().unwrap().contains("A, 20/s: 219 admitted, 181 denied"), "{spoken}");
    assert_eq!(browser.js("return document.getElementById('status').getAttribute('role')"), "status");
}
