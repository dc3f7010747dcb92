//! `settle`: where the response contains the actual cost of a request.

use std::sync::Arc;

use crate::field::FieldPath;
use crate::settle::{Settle, SettleSource, SettleTerm};
use crate::yaml::{Node, Position, Reader, Value};
use tidegate_core::Micros;
use tidegate_core::limit::{Algorithm, Limit};

/// The time in which a cost can be settled if there is no `reserve`.
pub(super) const DEFAULT_RESERVE: Micros = Micros::from_secs(10 * 60);

const SOURCES: &str = "write `body:usage.total_tokens` or `header:X-Tokens-Used`, a list of such sources to add up, or \
                       a map of them with what each unit costs";

/// One source, a list of sources, or a map from sources to the cost of each unit.
pub(super) fn read(reader: &mut Reader<'_>, node: &Node, limit: &Limit) -> Option<Arc<Settle>> {
    let terms: Vec<SettleTerm> = match &node.value {
        Value::Map(map) => {
            let mut terms = Vec::new();
            for (name, node) in map {
                let times = reader.count(node, &format!("the price of `{}`", name.text))?;
                terms.push(SettleTerm { from: source(reader, name.at, &name.text)?, times });
            }
            terms
        }
        _ => {
            let mut terms = Vec::new();
            for item in reader.each(node) {
                let text = reader.text(item, "`settle`")?;
                terms.push(SettleTerm { from: source(reader, item.at, &text)?, times: 1 });
            }
            terms
        }
    };
    if terms.is_empty() {
        reader.error(node.at, "`settle` names no source in the response", SOURCES);
        return None;
    }
    match limit.algorithm() {
        Algorithm::Concurrency(_) | Algorithm::Shaper(_) => {
            let help = "remove `settle`: slots come back when the response ends, and a queue has no costs to correct";
            reader.error(node.at, format_args!("`{limit}` is not settled"), help);
            None
        }
        Algorithm::TokenBucket(_)
        | Algorithm::Gcra(_)
        | Algorithm::Meter(_)
        | Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_) => Some(Arc::new(Settle::new(terms))),
    }
}

fn source(reader: &mut Reader<'_>, at: Position, text: &str) -> Option<SettleSource> {
    match text.split_once(':').map(|(kind, name)| (kind, name.trim())) {
        Some(("header", name)) if !name.is_empty() => Some(SettleSource::Header(name.to_ascii_lowercase())),
        Some(("body", path)) => field(reader, at, path).map(SettleSource::Body),
        _ => {
            reader.error(at, format_args!("`{text}` does not name a source in the response"), SOURCES);
            None
        }
    }
}

/// The path of a field of a body.
pub(super) fn field(reader: &mut Reader<'_>, at: Position, path: &str) -> Option<FieldPath> {
    match path.parse() {
        Ok(path) => Some(path),
        Err(error) => {
            reader.error(at, format_args!("`{path}` is not the path of a field"), error.to_string());
            None
        }
    }
}
