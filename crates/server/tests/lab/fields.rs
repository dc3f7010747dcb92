use crate::lab::page::Lab;
use crate::support::browser::Browser;

fn error_at(browser: &Browser, field: &str, error: &str, part: &str) {
    browser.until(
        "an error",
        &format!("const place = document.getElementById('{error}'); return (!place.hidden && place.textContent.includes('{part}')) || null"),
    );
    let input = format!(
        "const field = document.getElementById('{field}');
         return [field.getAttribute('aria-invalid'), field.getAttribute('aria-describedby'), document.activeElement === field]"
    );
    assert_eq!(browser.js(&input), serde_json::json!(["true", error, true]));
}

#[test]
#[ignore = "long: make nightly"]
fn a_bad_parameter_is_answered_at_its_field() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/?limit=5/s&limit=log+5/s&traffic=steady+10/s&for=1s&speed=max"));
    browser.until_ended(10);
    browser.write("#limit-text-1", "log 5/parsec");
    browser.click("#run");
    error_at(&browser, "limit-text-1", "limit-error-1", "no such unit of time");
    browser.screenshot("error-at-a-field");
    // An invalid limit is neither offered as a rule, nor described as too complex for the sliders.
    assert_eq!(browser.js("return document.querySelector('.yaml').hidden"), true);
    assert_eq!(browser.text(".limit.series-1 > .hint"), "");
    // A corrected field is no longer marked.
    browser.write("#limit-text-1", "log 5/s");
    assert_eq!(browser.js("return document.querySelectorAll('[aria-invalid]').length"), 0);
    browser.write("#traffic-text", "rain 5/s");
    browser.click("#run");
    error_at(&browser, "traffic-text", "traffic-error", "write `steady`");
    browser.write("#traffic-text", "steady 100000/s");
    browser.write("#length", "1h");
    browser.click("#run");
    error_at(&browser, "length", "length-error", "the lab draws 500000 at most");
    browser.assert_quiet(|message| message.contains("400 (Bad Request)"));
    lab.until_idle();
}

#[test]
#[ignore = "long: make nightly"]
fn sliders_and_text_say_the_same() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/?limit=20/s+burst+50&traffic=steady+10/s&for=1s&speed=max"));
    let text = || browser.js("return document.getElementById('limit-text-0').value");
    browser.write("[aria-label='Burst of limit A']", "70");
    assert_eq!(text(), "20/s burst 70");
    browser.choose("[aria-label='Period of limit A']", "min");
    assert_eq!(text(), "20/min burst 70");
    browser.choose("#algorithm-0", "Sliding window");
    assert_eq!(text(), "sliding 20/min");
    browser.write("#limit-text-0", "concurrent 7 ttl 30s");
    assert_eq!(browser.js("return document.querySelector('[aria-label=\"Slots of limit A\"]').value"), "7");
    browser.write("[aria-label='Clients']", "40");
    assert_eq!(browser.js("return document.getElementById('traffic-text').value"), "steady 10/s clients 40");
    browser.write("#traffic-text", "steady 10/s for 1s then spike 5");
    assert_eq!(browser.js("return document.getElementById('model').value"), "text");
    browser.assert_quiet(|_| false);
}
