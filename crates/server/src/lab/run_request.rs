//! Parses the query that describes a run.

use std::str::FromStr;

use tidegate_core::adaptive::{ControllerError, LimitController};
use tidegate_core::lease::{Leasing, Terms};
use tidegate_core::{Limit, Micros, NotationError};
use tidegate_lab::simulate::{Adaptation, RateAdaptation, ServedError, ServerModel, Simulation};
use tidegate_lab::traffic::{Traffic, TrafficError};
use tidegate_rules::yaml::closest;

use crate::problem::FieldError;

/// Maximum number of limits in a run.
pub(super) const MOST_LIMITS: usize = 4;
/// Maximum number of decisions in a run, over all limits.
pub(super) const MOST_DECISIONS: u64 = 1_000_000;
/// Maximum number of clients in a run.
pub(super) const MOST_CLIENTS: u32 = 100_000;
/// Maximum number of nodes in a fleet.
const MOST_NODES: usize = 1_000;
/// Maximum length of a run, in the time of its arrivals.
const LONGEST: Micros = Micros::from_secs(366 * 86_400);
/// Maximum length of a run in real time.
const LONGEST_WATCH: Micros = Micros::from_secs(3_600);
/// Maximum number of steps of the traffic generator: steps without arrivals take time too.
const MOST_PHASES: u64 = 5_000_000;
/// Maximum length of a parameter.
const MOST_TEXT: usize = 1_000;

/// Controllers of adaptive concurrency limits.
const CONTROLLERS: [&str; 3] = ["gradient2", "vegas", "aimd"];
const NAMES: [&str; 9] = ["limit", "traffic", "for", "seed", "speed", "holding", "server", "store", "run"];

/// A run that a client requests.
#[derive(Clone, Debug)]
pub(super) struct RunRequest {
    pub(super) limits: Vec<Limit>,
    /// For each limit, its adaptation as written, if any.
    pub(super) adaptations: Vec<Option<Adaptation>>,
    /// For each limit, the number of nodes that lease it, if any.
    pub(super) fleets: Vec<Option<usize>>,
    pub(super) texts: Vec<String>,
    /// Server behind each limit.
    pub(super) server: Option<ServerModel>,
    pub(super) traffic: Traffic,
    pub(super) length: Micros,
    pub(super) seed: u64,
    pub(super) pace: RunPace,
    pub(super) holding: Option<Micros>,
    pub(super) store: StoreChoice,
}

/// Speed of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RunPace {
    /// This many times as fast as real time.
    Times(f64),
    /// As fast as possible.
    Fastest,
}

/// The store that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StoreChoice {
    /// In memory, in virtual time.
    Memory,
    /// In Redis, in real time, under keys with this name.
    Redis(String),
}

impl RunRequest {
    /// Parses a query. Errors name every invalid field.
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

    /// Maximum number of arrivals in a run.
    pub(super) const fn most_arrivals(&self) -> u64 {
        MOST_DECISIONS / self.limits.len() as u64
    }

    /// The error of a run with too many arrivals.
    pub(super) fn too_many(&self, expected: f64) -> Option<FieldError> {
        let most = self.most_arrivals();
        // Leaves room for random variation. A run that exceeds the maximum anyway is cut off.
        (expected > most as f64 * 0.98).then(|| {
            let message = format!(
                "about {expected:.0} requests would arrive, and the lab draws {most} at most: \
                 write a shorter time or less traffic"
            );
            FieldError::new("for", message)
        })
    }
}

/// Limits with their adaptations and texts.
struct WrittenLimits {
    limits: Vec<Limit>,
    adaptations: Vec<Option<Adaptation>>,
    fleets: Vec<Option<usize>>,
    texts: Vec<String>,
}

/// A limit, its adaptation, and the number of nodes that lease it.
type WrittenLimit = (Limit, Option<Adaptation>, Option<usize>);

/// Parameters of a query, and their errors.
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
                fields.wrong(&name, "it occurs twice: remove one");
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

    /// Parses a limit such as `1000/s burst 50`, an adaptive one such as `1000/s adapt 100/s on latency > 200ms` or
    /// `gradient2 20..200`, or a leased one such as `1000/s fleet 20`.
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
            self.wrong("traffic", "write the arrivals, such as poisson 20/s");
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

    /// Checks that involve several fields.
    fn check(&mut self, request: &RunRequest) {
        if request.traffic.clients() > MOST_CLIENTS {
            self.wrong("traffic", format!("the lab keeps {MOST_CLIENTS} clients apart: write fewer, or lower numbers"));
        }
        if request.traffic.phases(request.length) > MOST_PHASES {
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
                self.wrong("server", "a fleet has no server behind it: leave this empty, or leave out `fleet`");
            }
        }
        if request.store != StoreChoice::Memory && request.pace != RunPace::Times(1.0) {
            self.wrong("speed", "Redis decides in real time: write 1");
        }
    }
}

#[cfg(test)]
mod tests;
