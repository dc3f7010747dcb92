//! Printing of limits.

use std::fmt;

use super::unit::{TimeUnit, UNITS};
use crate::limit::{Algorithm, Calendar, Limit, Rate, Windows};
use crate::time::Micros;

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        per(f, self.tokens(), self.period())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.algorithm() {
            Algorithm::TokenBucket(limit) => bucket(f, "", limit.refill(), "burst", limit.capacity()),
            Algorithm::Gcra(limit) => bucket(f, "gcra ", limit.rate(), "burst", limit.capacity()),
            Algorithm::Meter(limit) => bucket(f, "meter ", limit.outflow(), "burst", limit.capacity()),
            Algorithm::Shaper(limit) => bucket(f, "shaper ", limit.outflow(), "queue", limit.capacity()),
            Algorithm::FixedWindow(limit) => {
                f.write_str("fixed ")?;
                match limit.windows() {
                    Windows::Every(length) => per(f, limit.limit(), length),
                    Windows::Calendar(calendar) => write!(f, "{}/{} calendar", limit.limit(), name(calendar)),
                }
            }
            Algorithm::SlidingWindow(limit) => {
                f.write_str("sliding ")?;
                per(f, limit.limit(), limit.window())?;
                if limit.parts() > 1 { write!(f, " parts {}", limit.parts()) } else { Ok(()) }
            }
            Algorithm::SlidingLog(limit) => {
                f.write_str("log ")?;
                per(f, limit.limit(), limit.window())
            }
            Algorithm::Concurrency(limit) => {
                write!(f, "concurrent {} ttl {}", limit.slots(), super::write_span(limit.ttl()))
            }
        }
    }
}

fn bucket(f: &mut fmt::Formatter<'_>, algorithm: &str, rate: Rate, room: &str, capacity: u64) -> fmt::Result {
    write!(f, "{algorithm}{rate}")?;
    if capacity == rate.tokens() { Ok(()) } else { write!(f, " {room} {capacity}") }
}

fn per(f: &mut fmt::Formatter<'_>, count: u64, period: Micros) -> fmt::Result {
    match TimeUnit::measuring(period) {
        (1, unit) => write!(f, "{count}/{}", unit.names[0]),
        (number, unit) => write!(f, "{count}/{number}{}", unit.names[0]),
    }
}

fn name(calendar: Calendar) -> &'static str {
    UNITS.iter().find(|unit| unit.calendar == Some(calendar)).map_or("day", |unit| unit.names[0])
}
