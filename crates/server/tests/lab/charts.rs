//! Legends, scales and values of the charts.

use serde_json::json;

use crate::lab::page::Lab;
use crate::support::browser::Browser;

/// Moves the pointer over a chart, to this fraction of its width. Returns the values shown there.
fn pointed(browser: &Browser, css: &str, share: f64) -> String {
    browser.js(&format!(
        "const chart = document.querySelector(\"{css}\");
         const {{ left, top, width }} = chart.getBoundingClientRect();
         chart.dispatchEvent(new PointerEvent('pointermove', {{ clientX: left + width * {share}, clientY: top + 20, bubbles: true }}));
         return null"
    ));
    let script = format!("return document.querySelector(\"{css}\").dataset.readout ?? null");
    browser.until("values under the pointer", &script).as_str().unwrap().to_owned()
}

fn ended(browser: &Browser) {
    browser.until("the end", "return document.getElementById('status').dataset.state === 'ended' || null");
    browser.draw();
}

#[test]
#[ignore = "long: make nightly"]
fn four_limits_have_a_chart_each_with_bars_by_their_period() {
    let (lab, browser) = (Lab::open(), Browser::open());
    let four = "limit=fixed+20/s&limit=sliding+20/s&limit=log+20/s&limit=20/s+burst+10";
    browser.go_to_lab(&lab.url(&format!("/lab/?{four}&traffic=boundary+20+every+1s&for=12s&speed=max")));
    ended(&browser);
    let chart = "const { lanes, bar } = document.getElementById('flow').dataset; return [lanes, bar]";
    assert_eq!(browser.js(chart), json!(["4", "1000000"]));
    let high = "return document.getElementById('flow').getBoundingClientRect().height";
    assert!(browser.js(high).as_f64().unwrap() > 300.0);
    browser.screenshot("four-lanes");
    // Two limits share a chart.
    browser.go_to_lab(&lab.url("/lab/?limit=20/s&limit=fixed+20/s&traffic=steady+40/s&for=30s&speed=max"));
    ended(&browser);
    assert_eq!(browser.js(chart), json!(["1", "1000000"]));
    // The aggregation period is narrower than a bar, so bars cover whole multiples of it.
    browser.go_to_lab(&lab.url("/lab/?limit=20/s&traffic=steady+1/s&for=2h&speed=max"));
    ended(&browser);
    let bar: f64 = browser.js(chart)[1].as_str().unwrap().parse().unwrap();
    assert!(bar > 1e6 && bar % 1e6 == 0.0, "{bar}");
    // Too few periods to see a development: bars are shorter.
    browser.go_to_lab(&lab.url("/lab/?limit=5/min&traffic=steady+1/s&for=2min&speed=max"));
    ended(&browser);
    let bar: f64 = browser.js(chart)[1].as_str().unwrap().parse().unwrap();
    assert!(bar < 10e6, "{bar}");
    browser.assert_quiet(|_| false);
}

#[test]
#[ignore = "long: make nightly"]
fn every_chart_has_a_legend_and_values_under_the_pointer() {
    let (lab, browser) = (Lab::open(), Browser::open());
    let limits = "limit=20/s&limit=shaper+20/s+queue+40";
    browser.go_to_lab(&lab.url(&format!("/lab/?{limits}&traffic=steady+40/s&for=10s&speed=max")));
    ended(&browser);
    let legends = browser.js("return [...document.querySelectorAll('#stage canvas:not(.own)')]
           .map((chart) => [...chart.closest('.card').querySelectorAll('.key')].map((key) => key.textContent))");
    let expected = json!([
        ["arrived", "A20/s", "Bshaper 20/s queue 40"],
        ["tokens left", "admitted", "denied"],
        ["queue", "admitted", "admitted, delayed", "released", "denied"]
    ]);
    assert_eq!(legends, expected);
    // In the sixth second, 40 requests arrive and 20 are admitted.
    assert_eq!(pointed(&browser, "#flow", 0.57), "5.000 s, 1 s; 40 arrived; A: 20 admitted; B: 20 admitted");
    let state = pointed(&browser, "[data-limit='0'] .levels", 0.5);
    assert!(state.contains(" of 20 tokens; ") && state.contains(" admitted, "), "{state}");
    // Outside of the chart, no values are shown.
    browser.js("document.getElementById('flow').dispatchEvent(new PointerEvent('pointerleave')); return null");
    assert_eq!(browser.js("return document.getElementById('flow').dataset.readout ?? null"), json!(null));
    browser.assert_quiet(|_| false);
}
