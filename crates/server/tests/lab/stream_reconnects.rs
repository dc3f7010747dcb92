use tidegate_test_support::redis::{Break, Proxy};

use crate::lab::page::{Lab, Scenario};
use crate::support::browser::Browser;

#[test]
#[ignore = "long: make nightly"]
fn a_stream_that_is_cut_goes_on_where_it_stopped() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (lab, browser) = (Lab::open(), Browser::open());
    let proxy = runtime.block_on(Proxy::start(lab.address.port()));
    let scenario = Scenario {
        limits: &["20/s burst 50", "sliding 20/s"],
        traffic: "poisson 100/s",
        seconds: 60,
        seed: 5,
        holding: None,
    };
    browser.go_to_lab(&format!("http://127.0.0.1:{}/lab/?{}", proxy.port(), scenario.query("8")));
    browser.js("const status = document.getElementById('status');
         window.said = [];
         new MutationObserver(() => window.said.push(status.textContent)).observe(status, { childList: true });
         return null");
    let state = |wanted: &str| format!("return document.getElementById('status').dataset.state === '{wanted}' || null");
    for _ in 0..2 {
        browser.until("decisions", "return Number(document.documentElement.dataset.arrivals) > 100 || null");
        proxy.set(Break::Refuse);
        browser.until("word that the connection is lost", &state("lost"));
        proxy.set(Break::Nothing);
        browser.until("the connection", "return document.getElementById('status').dataset.state !== 'lost' || null");
    }
    browser.assert_shows(&scenario);
    let said = browser.js("return window.said").to_string();
    assert!(said.contains("The connection is lost") && said.contains("the run continues where it stopped"), "{said}");
    // The browser itself notes that it could not connect.
    browser.assert_quiet(|message| message.contains("net::ERR_"));
    lab.until_idle();
}
