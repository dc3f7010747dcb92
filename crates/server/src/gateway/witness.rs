//! Counts what the gateway decides, as at every other door.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::request::Parts;
use tidegate_core::RuleId;
use tidegate_http::HttpFacts;
use tidegate_rules::Ruling;
use tidegate_tower::{Note, Unsettled, Witness};

use super::logged::Logged;
use crate::engine::Engine;
use crate::metrics::Sample;

pub(super) struct Counting(pub(super) Arc<Engine>);

impl Witness for Counting {
    fn asking(&self) -> Note {
        let sample = self.0.metrics().begin();
        sample.map_or_else(Note::default, |Sample { weight, begun }| Note { weight: weight.get(), reading: begun })
    }

    fn decided(&self, head: &Parts, facts: &HttpFacts<'_>, ruling: &Ruling<'_>, note: Note) {
        if let Some(logged) = head.extensions.get::<Arc<Logged>>() {
            self.0.limiter().with_rules(|present| logged.judge(facts, ruling, present.rules.secret()));
        }
        let sample = NonZeroU32::new(note.weight).map(|weight| Sample { weight, begun: note.reading });
        self.0.count(ruling, facts, sample);
    }

    fn unsettled(&self, limit: &RuleId, why: Unsettled) {
        self.0.metrics().unsettled(limit, why);
    }

    fn settled(&self, limit: &RuleId, taken: u64, actual: u64) {
        self.0.metrics().settled(limit, taken, actual);
    }

    fn refunded(&self, limit: &RuleId, cost: u64) {
        self.0.metrics().refunded(limit, cost);
    }
}
