use crate::lab::page::Lab;
use crate::support::browser::Browser;
use crate::support::{folder, tidegate};

#[test]
#[ignore = "long: make nightly"]
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
#[ignore = "long: make nightly"]
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
    let png = browser.saved("tidegate-run.png");
    browser.assert_quiet(|_| false);
    // The picture is filled to the right and bottom edges.
    let inked = inked(&browser, &png);
    assert!(inked.iter().flatten().all(|share| *share > 0.005), "{inked:?}");
}

#[test]
#[ignore = "long: make nightly"]
fn every_number_of_a_state_is_saved() {
    let (lab, browser) = (Lab::open(), Browser::open());
    browser.go_to_lab(&lab.url("/lab/?limit=sliding+6/s+parts+2&limit=fixed+5/s&traffic=steady+10/s&for=4s&speed=max"));
    browser.until_ended(40);
    browser.click("#save-csv");
    let text = String::from_utf8(browser.saved("tidegate-run.csv")).unwrap();
    let head = text.lines().next().unwrap();
    for name in ["estimate", "counter 1", "counter 2", "counter 3"] {
        assert!(head.contains(&format!("\"sliding 6/s parts 2: {name}\"")), "{head}");
    }
    assert!(head.ends_with("\"fixed 5/s: spent\",\"fixed 5/s: ends\""), "{head}");
    let cells = |line: &str| line.split(',').count();
    assert!(text.lines().all(|line| cells(line) == cells(head)), "{text}");
}

/// For each cell of a 3 × 3 grid, the fraction of pixels that differ from the background.
fn inked(browser: &Browser, png: &[u8]) -> Vec<Vec<f64>> {
    let data = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, png);
    browser.go("about:blank");
    browser.js(&format!(
        "const image = new Image();
         image.onload = () => {{
           const canvas = document.createElement('canvas');
           [canvas.width, canvas.height] = [image.width, image.height];
           const context = canvas.getContext('2d');
           context.drawImage(image, 0, 0);
           const [wide, high] = [Math.floor(image.width / 3), Math.floor(image.height / 3)];
           const share = (column, row) => {{
             const {{ data }} = context.getImageData(column * wide, row * high, wide, high);
             let inked = 0;
             for (let at = 0; at < data.length; at += 4) if (data[at] !== 255 || data[at + 1] !== 255) inked += 1;
             return inked / (wide * high);
           }};
           window.inked = [0, 1, 2].map((row) => [0, 1, 2].map((column) => share(column, row)));
         }};
         image.src = 'data:image/png;base64,{data}';
         return null"
    ));
    serde_json::from_value(browser.until("the picture", "return window.inked ?? null")).unwrap()
}
