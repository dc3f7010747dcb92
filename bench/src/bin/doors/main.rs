//! The server's listeners compared with peers, each on one core with the load on the other.
//!
//! Without arguments, everything is measured. Any of `resp`, `http` and `latency`, as an argument or in `DOORS`,
//! selects parts.

mod http;
mod latency;
mod load;
mod resp;
mod serving;
mod single;
mod throttlecrab;

use tidegate_bench::machine::pin_to_core;
use tidegate_bench::report::Report;

const PARTS: [&str; 3] = ["resp", "http", "latency"];

fn main() {
    if serving::is_asked_for() {
        return serving::serve();
    }
    let words = std::env::var("DOORS").unwrap_or_default();
    let words: Vec<_> = words.split([' ', ',']).map(String::from).chain(std::env::args().skip(1)).collect();
    let said = |word: &str| words.iter().any(|said| said == word);
    let wanted = |part: &str| said(part) || !PARTS.into_iter().any(said);
    let mut report = Report::default();
    if wanted("resp") {
        resp::measure(&mut report);
    }
    if wanted("http") {
        http::measure(&mut report);
    }
    if wanted("latency") {
        pin_to_core(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        latency::measure(&mut report, &runtime);
    }
    report.write("doors");
}
