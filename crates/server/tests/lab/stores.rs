use tidegate_test_support::redis::Server;

use crate::lab::page::Lab;
use crate::support::browser::Browser;

#[test]
#[ignore = "long: make nightly"]
fn a_real_redis_decides_in_real_time() {
    let redis = Server::start();
    let (lab, browser) = (Lab::with(&["--store", &redis.url()]), Browser::open());
    browser.go_to_lab(
        &lab.url("/lab/?limit=5/day+burst+20&limit=fixed+30/day&traffic=steady+40/s&for=2s&speed=1&store=redis"),
    );
    browser.until_ended(80);
    assert_eq!(browser.shown(0), [80, 20, 60]);
    assert_eq!(browser.shown(1), [80, 30, 50]);
    assert_eq!(browser.js("return document.documentElement.dataset.counted"), "true");
    browser.assert_quiet(|_| false);
    lab.until_idle();
}
