//! `tidegate lab`, and the engine to compare it with.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::process::{ChildStdout, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tidegate_core::{Limit, Micros};
use tidegate_lab::simulate::{Simulation, Totals};
use tidegate_lab::traffic::Traffic;

use crate::support::browser::Browser;
use crate::support::{Process, folder, tidegate, until};

/// A lab that is open until dropped.
pub(crate) struct Lab {
    _process: Process,
    /// Kept open for the lab's lifetime, because the lab needs a reader for its output.
    _printed: BufReader<ChildStdout>,
    _folder: TempDir,
    pub(crate) address: SocketAddr,
}

impl Lab {
    pub(crate) fn open() -> Lab {
        Lab::with(&[])
    }

    pub(crate) fn with(arguments: &[&str]) -> Lab {
        let folder = folder(&[]);
        let mut command = tidegate(folder.path());
        command.args(["lab", "--listen", "127.0.0.1:0"]).args(arguments).stdout(Stdio::piped());
        let mut process = Process(command.spawn().unwrap());
        let mut line = String::new();
        let mut printed = BufReader::new(process.0.stdout.take().unwrap());
        printed.read_line(&mut line).unwrap();
        let (_, address) = line.split_once("http://").unwrap_or_else(|| panic!("{line}"));
        let address = address.trim().trim_end_matches("/lab/").parse().unwrap();
        Lab { _process: process, _printed: printed, _folder: folder, address }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn about(&self) -> Value {
        let text = ureq::get(self.url("/lab/about")).call().unwrap().body_mut().read_to_string().unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until there are no runs.
    pub(crate) fn until_idle(&self) {
        until("the end of all runs", || (self.about()["runs"]["now"] == 0).then_some(()));
    }
}

/// A run to compare with the engine.
pub(crate) struct Scenario {
    pub(crate) limits: &'static [&'static str],
    pub(crate) traffic: &'static str,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    pub(crate) holding: Option<&'static str>,
}

impl Scenario {
    pub(crate) fn query(&self, speed: &str) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for limit in self.limits {
            query.append_pair("limit", limit);
        }
        query.append_pair("traffic", self.traffic).append_pair("for", &format!("{}s", self.seconds));
        query.append_pair("seed", &self.seed.to_string()).append_pair("speed", speed);
        if let Some(holding) = self.holding {
            query.append_pair("holding", holding);
        }
        query.finish()
    }

    /// The results of the engine.
    pub(crate) fn totals(&self) -> Vec<Totals> {
        let limits: Vec<Limit> = self.limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let traffic: Traffic = self.traffic.parse().unwrap();
        let mut simulation = Simulation::new(&limits);
        if let Some(holding) = self.holding {
            simulation = simulation.holding(holding.parse().unwrap());
        }
        let arrivals = traffic.arrivals(Micros::from_secs(self.seconds), self.seed);
        simulation.run(arrivals, |_, _| ControlFlow::Continue(()));
        simulation.totals().to_vec()
    }
}

impl Browser {
    /// Waits until the page has received the whole run, and shows its last decision.
    pub(crate) fn until_ended(&self, arrivals: u64) {
        let script = format!(
            "const data = document.documentElement.dataset;
             return (document.getElementById('status').dataset.state === 'ended' && data.arrivals === '{arrivals}') || null"
        );
        self.until("the end of the run", &script);
    }

    /// The totals of one limit on the page: requests, admissions, denials.
    pub(crate) fn shown(&self, limit: usize) -> [u64; 3] {
        ["Requests", "Admitted", "Denied"].map(|name| {
            let css = format!("[data-limit='{limit}'] [data-total='{name}']");
            let text = self.text(&css);
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            digits.parse().unwrap_or_else(|_| panic!("{css} shows {text:?}"))
        })
    }

    /// Compares the page with the engine.
    pub(crate) fn assert_shows(&self, scenario: &Scenario) {
        let totals = scenario.totals();
        self.until_ended(totals[0].arrivals);
        for (number, totals) in totals.iter().enumerate() {
            let expected = [totals.arrivals, totals.admitted, totals.denied + totals.too_large];
            let limit = scenario.limits[number];
            assert_eq!(self.shown(number), expected, "{limit}");
            assert!(totals.admitted > 0 && expected[2] > 0, "{limit}: both should happen, or it shows nothing");
        }
        let counted = self.js("return document.documentElement.dataset.counted");
        assert_eq!(counted, "true", "what the page counted is what the engine counted");
    }
}
