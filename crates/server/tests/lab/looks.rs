use serde_json::json;

use crate::lab::page::Lab;
use crate::support::browser::Browser;

const RUN: &str =
    "/lab/?limit=20/s+burst+50&limit=fixed+20/s&traffic=square+60/s+5/s+every+10s&for=30s&seed=1&speed=max";
const FOUR: &str = "/lab/?limit=sliding+300/min&limit=sliding+300/min+parts+6&limit=300/min+burst+30&limit=log+300/min\
    &traffic=square+12/s+2/s+every+2min+random&for=6min&seed=1&speed=max";

fn to_the_middle(browser: &Browser) {
    browser.until("the end", "return document.getElementById('status').dataset.state === 'ended' || null");
    browser.js("const scrub = document.getElementById('scrub'); scrub.value = 720; scrub.dispatchEvent(new Event('input')); return null");
    browser.draw();
}

#[test]
#[ignore = "long: make nightly"]
fn the_page_is_drawn_in_light_and_dark_and_on_a_phone() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url(RUN));
    to_the_middle(&browser);
    browser.screenshot("light");
    let scheme = |theme: &str| json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] });
    browser.devtools("Emulation.setEmulatedMedia", &scheme("dark"));
    browser.draw();
    let ink = |browser: &Browser| browser.js("return getComputedStyle(document.body).backgroundColor");
    let dark = ink(&browser);
    browser.screenshot("dark");
    // The switch takes precedence over the system's theme.
    browser.click("#theme");
    browser.draw();
    assert_ne!(ink(&browser), dark);
    browser.click("#theme");
    browser.devtools("Emulation.setEmulatedMedia", &scheme("light"));
    assert_eq!(ink(&browser), dark);
    browser.click("#theme");
    browser.go_to_lab(&lab.url(FOUR));
    to_the_middle(&browser);
    browser.screenshot("four");
    let phone = json!({ "width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true });
    browser.devtools("Emulation.setDeviceMetricsOverride", &phone);
    browser.go_to_lab(&lab.url(RUN));
    to_the_middle(&browser);
    browser.screenshot("phone");
    let wide = browser.js("return [document.documentElement.scrollWidth, window.innerWidth]");
    assert_eq!(wide, json!([390, 390]), "nothing sticks out");
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn thousands_of_decisions_a_second_are_drawn_as_they_come() {
    let (lab, browser) = (Lab::open(), Browser::open());
    let query = "limit=500/s+burst+1000&limit=sliding+500/s&traffic=square+6000/s+1000/s+every+4s+random&for=20s&seed=1&speed=4";
    browser.go_to_lab(&lab.url(&format!("/lab/?{query}")));
    browser.until("thousands", "return Number(document.documentElement.dataset.arrivals) > 20000 || null");
    browser.screenshot("thousands-a-second");
    browser.until("the end", "return document.getElementById('status').dataset.state === 'ended' || null");
    browser.assert_quiet(|_| false);
}
