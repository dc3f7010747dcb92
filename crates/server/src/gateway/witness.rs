//! Counts what the gateway decides, as at every other door.

use std::sync::Arc;

use tidegate_core::Ruling;
use tidegate_http::HttpFacts;
use tidegate_tower::Witness;

use crate::engine::Engine;

pub(super) struct Counting(pub(super) Arc<Engine>);

impl Witness for Counting {
    fn asking(&self) -> u64 {
        self.0.metrics().reading()
    }

    fn decided(&self, facts: &HttpFacts<'_>, ruling: &Ruling<'_>, asking: u64) {
        self.0.witnessed(facts, ruling, asking);
    }
}
