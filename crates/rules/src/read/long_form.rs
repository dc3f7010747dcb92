//! A limit with its parts in fields. The fields are converted to the short form.

use crate::yaml::{Fields, Node, Position, Reader};
use tidegate_core::limit::Limit;

const AMOUNTS: [&str; 3] = ["rate", "limit", "slots"];
const PERIODS: [&str; 3] = ["window", "per", "calendar"];
const OPTIONS: [&str; 4] = ["burst", "queue", "parts", "ttl"];

pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Limit> {
    let errors_before = reader.errors();
    if let Some(short) = fields.get("limit")
        && !fields.map.iter().any(|(name, _)| says_more(&name.text))
    {
        return reader.limit(short);
    }
    let mut notation = Notation::default();
    match fields.get("algorithm") {
        Some(node) => notation.word(reader, "algorithm", node),
        None if fields.get("slots").is_some() => notation.push("concurrent", fields.at),
        None => notation.push("token-bucket", fields.at),
    }
    amount(reader, fields, &mut notation);
    for (name, node) in fields.map.iter().filter(|(name, _)| OPTIONS.contains(&name.text.as_str())) {
        notation.push(" ", name.at);
        notation.push(&name.text, name.at);
        notation.push(" ", node.at);
        notation.word(reader, &name.text, node);
    }
    if reader.errors() > errors_before {
        return None;
    }
    match notation.text.parse() {
        Ok(limit) => Some(limit),
        Err(error) => {
            let at = notation.at(error.column());
            reader.error(at, format_args!("this limit reads as `{}`", notation.text), error.problem());
            None
        }
    }
}

/// Whether a field is a part of the long form that is valid beside `limit`.
fn says_more(name: &str) -> bool {
    name == "algorithm" || [&AMOUNTS[..], &PERIODS, &OPTIONS].concat().contains(&name) && name != "limit"
}

/// `rate: 20/s`, `limit: 100` with a period, or `slots: 10`.
fn amount(reader: &mut Reader<'_>, fields: &Fields<'_>, notation: &mut Notation) {
    let Some(amount) = only(reader, fields, &AMOUNTS) else {
        if fields.understood && AMOUNTS.iter().all(|name| fields.get(name).is_none()) {
            let help = "write `rate: 20/s`, `limit: 100` with `window: 1h`, or `slots: 10`";
            reader.error(fields.at, "a limit without a number", help);
        }
        return;
    };
    let Some(node) = fields.get(amount) else { return };
    notation.push(" ", node.at);
    notation.word(reader, amount, node);
    let whole = amount != "limit" || notation.text.contains('/');
    let Some(period) = only(reader, fields, &PERIODS) else {
        if fields.understood && !whole && PERIODS.iter().all(|name| fields.get(name).is_none()) {
            reader.error(node.at, "a `limit` without a period", "add `window: 1h`, or `calendar: month`");
        }
        return;
    };
    let Some(node) = fields.get(period) else { return };
    if whole {
        let problem = format!("`{period}` has no effect with `{amount}`");
        reader.error(node.at, problem, format!("remove it, or write `limit: 100` and `{period}`"));
        return;
    }
    notation.push("/", node.at);
    notation.word(reader, period, node);
    if period == "calendar" {
        notation.push(" calendar", node.at);
    }
}

/// The one of the names that is given. Several of them are an error.
fn only(reader: &mut Reader<'_>, fields: &Fields<'_>, names: &[&'static str]) -> Option<&'static str> {
    let mut found = fields.map.iter().filter_map(|(name, _)| Some((*names.iter().find(|n| **n == name.text)?, name)));
    let (first, _) = found.next()?;
    if let Some((second, name)) = found.next() {
        reader.error(name.at, format_args!("`{first}` and `{second}` in one limit"), "keep one of them");
        return None;
    }
    Some(first)
}

/// The short form, and the position of each piece of it in the file.
#[derive(Default)]
struct Notation {
    text: String,
    pieces: Vec<(usize, Position)>,
}

impl Notation {
    fn push(&mut self, text: &str, at: Position) {
        self.pieces.push((self.text.chars().count(), at));
        self.text.push_str(text);
    }

    fn word(&mut self, reader: &mut Reader<'_>, name: &str, node: &Node) {
        let Some(text) = reader.text(node, &format!("`{name}`")) else { return };
        if text.is_empty() || text.contains(char::is_whitespace) {
            let help = "write one word; the rest of the limit has fields of its own";
            reader.error(node.at, format_args!("`{name}` is `{text}`"), help);
        }
        self.push(&text, node.at);
    }

    /// The position of a character of the short form, counted from 1.
    fn at(&self, column: usize) -> Position {
        let before = self.pieces.partition_point(|(from, _)| *from < column);
        self.pieces.get(before.saturating_sub(1)).map(|(_, at)| *at).unwrap_or_default()
    }
}
