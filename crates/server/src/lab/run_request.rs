//! A run as its query describes it.

use std::str::FromStr;

use tidegate_core::adaptive::{ControllerError, LimitController};
use tidegate_core::lease::{Leasing, Terms};
use tidegate_core::{Limit, Micros, NotationError};
use tidegate_lab::simulate::{Adaptation, RateAdaptation, ServedError, ServerModel, Simulation};
use tidegate_lab::traffic::{Traffic, TrafficError};
use tidegate_rules::yaml::closest;

use crate::problem::FieldError;

/// The most limits that are held against the same arrivals.
pub(super) const MOST_LIMITS: usize = 4;
/// The most decisions of a run, those of all limits together.
pub(super) const MOST_DECISIONS: u64 = 1_000_000;
/// The most clients of a run.
pub(super) const MOST_CLIENTS: u32 = 100_000;
/// The most nodes of a fleet.
const MOST_NODES: usize = 1_000;
/// The longest run, in the time of its arrivals.
const LONGEST: Micros = Micros::from_secs(366 * 86_400);
/// The longest run in real time.
const LONGEST_WATCH: Micros = Micros::from_secs(3_600);
/// The most turns of the traffic: even those without arrivals take time to make.
const MOST_TURNS: u64 = 5_000_000;
/// The longest text of a parameter.
const MOST_TEXT: usize = 1_000;

/// The limits on requests in flight that adapt.
const CONTROLLERS: [&str; 3] = ["gradient2", "vegas", "aimd"];
const NAMES: [&str; 9] = ["limit", "traffic", "for", "seed", "speed", "holding", "server", "store", "run"];

/// A run that a client asks for.
#[derive(Clone, Debug)]
pub(super) struct RunRequest {
    pub(super) limits: Vec<Limit>,
    /// The limits as they were written, and the terms on which they adapt.
    pub(super) adaptations: Vec<Option<Adaptation>>,
    /// The numbers of nodes that lease them.
    pub(super) fleets: Vec<Option<usize>>,
    pub(super) texts: Vec<String>,
    /// The server behind each limit.
    pub(super) server: Option<ServerModel>,
    pub(super) traffic: Traffic,
    pub(super) length: Micros,
    pub(super) seed: u64,
    pub(super) pace: RunPace,
    pub(super) holding: Option<Micros>,
    pub(super) store: StoreChoice,
}

/// The speed of the arrivals' time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RunPace {
    /// So many times as fast as ours.
    Times(f64),
    /// As fast as it can be decided and sent.
    Fastest,
}

/// The store that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoreChoice {
    /// The limits themselves, in the time of the arrivals.
    Memory,
    /// Redis, in real time, under keys that begin with this name.
    Redis(String),
}

impl RunRequest {
    /// Reads a query. Every field at fault is named.
    pub(super) fn read(query: &str, has_redis: bool) -> Result<RunRequest, Vec<FieldError>> {
        let mut fields = RunFields::of(query);
        let limits = fields.limits();
        let server =
            fields.one("server").map(|text| fields.parsed("server", &text, |error: ServedError| error.to_string()));
        let traffic = fields.traffic();
        let length = fields.length();
        let seed = fields.one("seed").map_or(Some(1), |text| {
            fields.parsed("seed", &text, |_: std::num::ParseIntError| "write a whole number from 0 on".to_owned())
        });
        let pace = fields.pace();
        let holding = fields.one("holding").map(|text| fields.span("holding", &text));
        let store = fields.store(has_redis);
        let request = (|| {
            let holding = match holding {
                Some(read) => Some(read?),
                None => None,
            };
            let server = match server {
                Some(read) => Some(read?),
                None => None,
            };
            let (pace, store) = (pace?, store?);
            let WrittenLimits { limits, adaptations, fleets, texts } = limits?;
            let (traffic, length, seed) = (traffic?, length?, seed?);
            Some(RunRequest { limits, adaptations, fleets, texts, server, traffic, length, seed, pace, holding, store })
        })();
        if let Some(request) = &request {
            fields.check(request);
        }
        match request {
            Some(request) if fields.errors.is_empty() => Ok(request),
            _ => Err(fields.errors),
        }
    }

    /// The most arrivals of a run, at any random seed.
    pub(super) const fn most_arrivals(&self) -> u64 {
        MOST_DECISIONS / self.limits.len() as u64
    }

    /// The error of a run with too many arrivals.
    pub(super) fn too_many(&self, expected: f64) -> Option<FieldError> {
        let most = self.most_arrivals();
        // Room for chance: what it brings beyond that is cut off.
        (expected > most as f64 * 0.98).then(|| {
            let message = format!(
                "about {expected:.0} requests would arrive, and the lab draws {most} at most: \
                 write a shorter time or less traffic"
            );
            FieldError::new("for", message)
        })
    }
}

/// Limits, the terms on which they adapt, and their texts.
struct WrittenLimits {
    limits: Vec<Limit>,
    adaptations: Vec<Option<Adaptation>>,
    fleets: Vec<Option<usize>>,
    texts: Vec<String>,
}

/// A limit, the terms on which it adapts, and the number of nodes that lease it.
type WrittenLimit = (Limit, Option<Adaptation>, Option<usize>);

/// The parameters of a query, and what is wrong with them.
struct RunFields {
    pairs: Vec<(String, String)>,
    errors: Vec<FieldError>,
}

impl RunFields {
    fn of(query: &str) -> RunFields {
        let mut fields = RunFields { pairs: Vec::new(), errors: Vec::new() };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let is_again = name != "limit" && fields.pairs.iter().any(|(known, _)| *known == name);
            if !NAMES.contains(&&*name) {
                let meant = closest(&name, NAMES).map(|meant| format!(": did you mean `{meant}`?"));
                fields.wrong(&name, format!("there is no such parameter{}", meant.unwrap_or_default()));
            } else if is_again {
                fields.wrong(&name, "it is there twice: leave one out");
            } else if value.len() > MOST_TEXT {
                fields.wrong(&name, format!("it is longer than {MOST_TEXT} bytes: write less"));
            } else {
                fields.pairs.push((name.into_owned(), value.trim().to_owned()));
            }
        }
        fields
    }

    fn wrong(&mut self, field: &str, message: impl Into<String>) {
        self.errors.push(FieldError::new(field, message));
    }

    fn one(&self, name: &str) -> Option<String> {
        self.pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    fn parsed<T: FromStr>(&mut self, field: &str, text: &str, say: impl Fn(T::Err) -> String) -> Option<T> {
        text.parse().map_err(|error| self.wrong(field, say(error))).ok()
    }

    fn span(&mut self, field: &str, text: &str) -> Option<Micros> {
        self.parsed(field, text, |error: NotationError| error.problem().to_owned())
    }

    fn limits(&mut self) -> Option<WrittenLimits> {
        let texts: Vec<String> =
            self.pairs.iter().filter(|(name, _)| name == "limit").map(|(_, text)| text.clone()).collect();
        if texts.is_empty() {
            self.wrong("limit.0", "write a limit, such as 20/s burst 50");
        }
        if texts.len() > MOST_LIMITS {
            self.wrong(&format!("limit.{MOST_LIMITS}"), format!("{MOST_LIMITS} limits are compared at most"));
            return None;
        }
        let read = texts.iter().enumerate().map(|(number, text)| self.limit(&format!("limit.{number}"), text));
        let read: Vec<Option<WrittenLimit>> = read.collect();
        let read: Vec<WrittenLimit> = read.into_iter().collect::<Option<_>>()?;
        let (limits, adaptations, fleets): (Vec<_>, Vec<_>, Vec<_>) = read.into_iter().collect();
        (!limits.is_empty()).then_some(WrittenLimits { limits, adaptations, fleets, texts })
    }

    /// A limit such as `1000/s burst 50`, one that adapts, such as `1000/s adapt 100/s on latency > 200ms` or `gradient2 20..200`, or one
    /// that nodes lease, such as `1000/s fleet 20`.
    fn limit(&mut self, field: &str, text: &str) -> Option<WrittenLimit> {
        let say = |error: NotationError| format!("{} (at character {})", error.problem(), error.column());
        if text.split_whitespace().next().is_some_and(|word| CONTROLLERS.contains(&word)) {
            let controller: LimitController = self.parsed(field, text, |error: ControllerError| error.to_string())?;
            let limit = self.parsed(field, &format!("concurrent {}", controller.range().highest()), say)?;
            return Some((limit, Some(Adaptation::Concurrency(controller)), None));
        }
        if let Some((limit, nodes)) = text.split_once(" fleet ") {
            let limit: Limit = self.parsed(field, limit, say)?;
            let nodes = self.nodes(field, nodes)?;
            if Terms::under(&limit, Leasing::AUTO).is_none() {
                self.wrong(field, format!("nodes do not lease `{limit}`: write a larger limit, or leave out `fleet`"));
                return None;
            }
            return Some((limit, None, Some(nodes)));
        }
        let (limit, adaptation) = text.split_once(" adapt ").map_or((text, None), |(one, other)| (one, Some(other)));
        let limit: Limit = self.parsed(field, limit, say)?;
        let Some(text) = adaptation else { return Some((limit, None, None)) };
        let adaptation: RateAdaptation = self.parsed(field, text, |error: ServedError| error.to_string())?;
        if let Err(error) = adaptation.steps(&limit) {
            self.wrong(field, error.to_string());
            return None;
        }
        Some((limit, Some(Adaptation::Rate(adaptation)), None))
    }

    fn nodes(&mut self, field: &str, text: &str) -> Option<usize> {
        let nodes = text.trim().parse().ok().filter(|nodes| (1..=MOST_NODES).contains(nodes));
        if nodes.is_none() {
            self.wrong(field, format!("write the number of nodes after `fleet`, from 1 to {MOST_NODES}"));
        }
        nodes
    }

    fn traffic(&mut self) -> Option<Traffic> {
        let Some(text) = self.one("traffic") else {
            self.wrong("traffic", "write what arrives, such as poisson 20/s");
            return None;
        };
        self.parsed("traffic", &text, |error: TrafficError| error.to_string())
    }

    fn length(&mut self) -> Option<Micros> {
        let Some(text) = self.one("for") else { return Some(Micros::from_secs(60)) };
        let length = self.span("for", &text)?;
        if length < Micros::from_millis(1) || length > LONGEST {
            self.wrong("for", "write a span of time from 1ms to 366day");
            return None;
        }
        Some(length)
    }

    fn pace(&mut self) -> Option<RunPace> {
        match self.one("speed").as_deref() {
            None => Some(RunPace::Times(1.0)),
            Some("max") => Some(RunPace::Fastest),
            Some(text) => match text.parse::<f64>() {
                Ok(times) if (0.01..=1e9).contains(&times) => Some(RunPace::Times(times)),
                _ => {
                    self.wrong("speed", "write `max`, or a number from 0.01 on: 1 is real time, 60 a minute a second");
                    None
                }
            },
        }
    }

    fn store(&mut self, has_redis: bool) -> Option<StoreChoice> {
        match self.one("store").as_deref() {
            None | Some("memory") => Some(StoreChoice::Memory),
            Some("redis") if has_redis => {
                let name = self.one("run").unwrap_or_default();
                if (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                    return Some(StoreChoice::Redis(name));
                }
                self.wrong("run", "write a name for the run of up to 64 letters and digits: its keys begin with it");
                None
            }
            Some("redis") => {
                self.wrong("store", "no Redis is known here: start the lab with --store redis://…, or choose memory");
                None
            }
            Some(_) => {
                self.wrong("store", "write `memory` or `redis`");
                None
            }
        }
    }

    /// Checks that need all fields.
    fn check(&mut self, request: &RunRequest) {
        if request.traffic.clients() > MOST_CLIENTS {
            self.wrong("traffic", format!("the lab keeps {MOST_CLIENTS} clients apart: write fewer, or lower numbers"));
        }
        if request.traffic.turns(request.length) > MOST_TURNS {
            self.wrong("traffic", "it changes too often for so long a run: write longer periods or a shorter time");
        }
        if let RunPace::Times(times) = request.pace
            && request.length.get() as f64 / times > LONGEST_WATCH.get() as f64
        {
            let message = format!("at this speed it would take longer than {LONGEST_WATCH}: write a higher one");
            self.wrong("speed", message);
        }
        match request.server {
            None if request.adaptations.iter().any(Option::is_some) => {
                self.wrong(
                    "server",
                    "write what the limit adapts to: workers and their time for a request, such as 20 x 40ms",
                );
            }
            Some(_) if request.store != StoreChoice::Memory => {
                self.wrong("server", "it is modelled in virtual time: choose memory as the store, or leave it empty");
            }
            Some(server) => {
                if let Err(error) = Simulation::new(&request.limits).serving(server, &request.adaptations) {
                    self.wrong("server", error.to_string());
                }
            }
            None => {}
        }
        if request.fleets.iter().any(Option::is_some) {
            if request.store != StoreChoice::Memory {
                self.wrong("store", "a fleet is simulated in virtual time: choose memory, or leave out `fleet`");
            }
            if request.server.is_some() {
                self.wrong("server", "there is none behind a fleet: leave it empty, or leave out `fleet`");
            }
        }
        if request.store != StoreChoice::Memory && request.pace != RunPace::Times(1.0) {
            self.wrong("speed", "Redis decides in real time: write 1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "limit=20/s+burst+50&limit=fixed+20/s&traffic=poisson+30/s&for=10s&seed=7&speed=max";

    fn wrong(query: &str) -> Vec<(String, String)> {
        let errors = RunRequest::read(query, false).unwrap_err();
        errors.into_iter().map(|error| (error.field, error.message)).collect()
    }

    #[test]
    fn a_query_is_a_whole_run() {
        let request = RunRequest::read(GOOD, false).unwrap();
        assert_eq!(request.limits.iter().map(ToString::to_string).collect::<Vec<_>>(), ["20/s burst 50", "fixed 20/s"]);
        assert_eq!((request.traffic.to_string().as_str(), request.seed), ("poisson 30/s", 7));
        assert_eq!((request.length, request.pace, request.holding), (Micros::from_secs(10), RunPace::Fastest, None));
        assert_eq!(request.most_arrivals(), 500_000);
        let sparse = RunRequest::read("limit=5/s&traffic=steady+1/s", false).unwrap();
        assert_eq!((sparse.length, sparse.seed, sparse.pace), (Micros::from_secs(60), 1, RunPace::Times(1.0)));
    }

    #[test]
    fn a_limit_may_adapt_to_a_server() {
        let query = |limit: &str, server: &str| format!("limit={limit}&traffic=poisson+30/s{server}&speed=max");
        let adaptive = "100/s+adapt+10/s+on+latency+%3E+1s";
        let request = RunRequest::read(&query(adaptive, "&server=2+x+40ms"), false).unwrap();
        assert_eq!(request.texts, ["100/s adapt 10/s on latency > 1s"]);
        assert_eq!(request.server.map(|server| server.to_string()).as_deref(), Some("2 x 40ms"));
        assert!(request.adaptations[0].is_some());
        let request = RunRequest::read(&query("gradient2+4..90", "&server=2+x+40ms"), false).unwrap();
        assert_eq!((request.texts[0].as_str(), request.limits[0].capacity()), ("gradient2 4..90", 90));
        for (limit, server, field) in [
            (adaptive, "", "server"),
            ("vegas", "", "server"),
            ("vegas+9..1", "&server=2+x+40ms", "limit.0"),
            ("aimd+backoff+2", "&server=2+x+40ms", "limit.0"),
            (adaptive, "&server=2", "server"),
            ("5/s+adapt+10/s+on+latency+%3E+1s", "&server=2+x+40ms", "limit.0"),
            ("100/s+adapt+10/s", "&server=2+x+40ms", "limit.0"),
            ("shaper+5/s+queue+5", "&server=2+x+40ms", "server"),
        ] {
            assert_eq!(wrong(&query(limit, server))[0].0, field, "{limit} {server}");
        }
    }

    #[test]
    fn a_limit_may_be_leased_by_a_fleet() {
        let query =
            |limit: &str, more: &str| format!("limit={limit}&limit=2000/s&traffic=poisson+30/s{more}&speed=max");
        let request = RunRequest::read(&query("2000/s+burst+500+fleet+20", ""), false).unwrap();
        assert_eq!((request.texts[0].as_str(), request.limits[0].capacity()), ("2000/s burst 500 fleet 20", 500));
        assert_eq!(request.fleets, [Some(20), None]);
        for (limit, more, field) in [
            ("2000/s+fleet+0", "", "limit.0"),
            ("2000/s+fleet+many", "", "limit.0"),
            ("2000/parsec+fleet+3", "", "limit.0"),
            ("5/min+fleet+3", "", "limit.0"),
            ("log+2000/s+fleet+3", "", "limit.0"),
            ("2000/s+fleet+3", "&server=2+x+40ms", "server"),
        ] {
            assert_eq!(wrong(&query(limit, more))[0].0, field, "{limit} {more}");
        }
        let redis = RunRequest::read("limit=2000/s+fleet+2&traffic=steady+1/s&store=redis&run=a", true).unwrap_err();
        assert_eq!(redis[0].field, "store");
    }

    #[test]
    fn every_field_at_fault_is_named() {
        let errors =
            wrong("limit=5/s&limit=5/parsec&traffic=rain&for=soon&seed=x&speed=0&store=disk&lenght=1&holding=1x");
        let fields: Vec<&str> = errors.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields, ["lenght", "limit.1", "traffic", "for", "seed", "speed", "holding", "store"]);
        assert_eq!(wrong("")[0].0, "limit.0");
        assert_eq!(wrong(&format!("{GOOD}&seed=8"))[0].1, "it is there twice: leave one out");
        assert_eq!(wrong("limit=1/s&limit=1/s&limit=1/s&limit=1/s&limit=1/s&traffic=steady+1/s")[0].0, "limit.4");
    }

    #[test]
    fn runs_that_are_too_large_are_refused() {
        for (query, field) in [
            ("limit=1/s&traffic=steady+1/s&for=400day&speed=max", "for"),
            ("limit=1/s&traffic=steady+1/s&for=2h&speed=1", "speed"),
            ("limit=1/s&traffic=steady+1/s+clients+200000&speed=max", "traffic"),
            ("limit=1/s&traffic=steady+1/s+as+5000000&speed=max", "traffic"),
            ("limit=1/s&traffic=square+1/day+0+every+2us&for=1day&speed=max", "traffic"),
            ("limit=1/s&traffic=boundary+0+every+1us&for=1h&speed=max", "traffic"),
            ("limit=1/s&traffic=steady+1/s&store=redis", "store"),
        ] {
            assert_eq!(wrong(query)[0].0, field, "{query}");
        }
        let redis = RunRequest::read("limit=1/s&traffic=steady+1/s&store=redis&run=a&speed=2", true).unwrap_err();
        assert_eq!(redis[0].field, "speed");
        let request = RunRequest::read("limit=1/s&traffic=steady+20000/s", false).unwrap();
        assert!(request.too_many(1_200_000.0).is_some() && request.too_many(100_000.0).is_none());
    }
}
