//! Measures the engine in process: the time per check, the memory per key, and the longest check.
//!
//! The peers are libraries that a Rust program would use instead: governor's keyed limiter with its default store, and
//! throttlecrab with its fastest store in memory.
//!
//! Without arguments, everything is measured. `quick` omits the largest number of keys, and any of `speed`, `three`,
//! `memory` and `pauses` selects parts. They can also be set in the environment variable `INPROC`.

#![allow(missing_docs, reason = "a program has no users of its items")]

mod contestants;
mod floors;
mod memory;
mod pauses;
mod scale;
mod speed;
mod three;

use tidegate_bench::report::Report;

use crate::scale::Scale;

const PARTS: [&str; 4] = ["speed", "three", "memory", "pauses"];

fn main() {
    let words = std::env::var("INPROC").unwrap_or_default();
    let words: Vec<_> = words.split([' ', ',']).map(String::from).chain(std::env::args().skip(1)).collect();
    if let [.., fill, who, keys] = &words[..]
        && fill == "fill"
    {
        return memory::fill_and_print(who, keys.parse().expect("a number of keys"));
    }
    let said = |word: &str| words.iter().any(|said| said == word);
    let wanted = |part: &str| said(part) || !PARTS.into_iter().any(said);
    let scale = if said("quick") { Scale::QUICK } else { Scale::FULL };
    let mut report = Report::default();
    if wanted("speed") {
        let checks = speed::measure(&mut report, &scale);
        floors::measure(&mut report, &scale, &checks);
    }
    if wanted("three") {
        three::measure(&mut report, &scale);
    }
    if wanted("memory") {
        memory::measure(&mut report, &scale);
    }
    if wanted("pauses") {
        pauses::measure(&mut report, &scale);
    }
    report.write("inproc");
}
