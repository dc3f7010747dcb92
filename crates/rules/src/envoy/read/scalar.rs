//! Scalars as envoyproxy/ratelimit reads them: by the rules of YAML 1.1.

use crate::yaml::{Node, Reader, Value};

/// Text. A number is taken literally; an absent value is empty text.
pub(super) fn text(reader: &mut Reader<'_>, node: &Node, what: &str) -> Option<String> {
    match &node.value {
        Value::Text(text) => Some(text.clone()),
        Value::Null => Some(String::new()),
        Value::Integer(number) if i64::try_from(*number).is_ok() => Some(written(node)),
        Value::Bool(_) => Some(written(node)),
        Value::Integer(_) | Value::Float(_) => {
            let text = written(node);
            let problem = format_args!("{what} must be text, found the number {text}");
            reader.error(node.at, problem, format!("write it in quotes: `\"{text}\"`"));
            None
        }
        Value::List(_) | Value::Map(_) => {
            reader.error(node.at, format_args!("{what} must be text, found {}", node.kind()), "write one value");
            None
        }
    }
}

pub(super) fn flag(reader: &mut Reader<'_>, node: &Node, name: &str) -> bool {
    const YES: [&str; 4] = ["true", "yes", "on", "y"];
    const NO: [&str; 4] = ["false", "no", "off", "n"];
    let word = match &node.value {
        Value::Bool(flag) => return *flag,
        Value::Null => return false,
        Value::Text(text) if !is_quoted(node, text) => text.to_lowercase(),
        _ => String::new(),
    };
    if !YES.contains(&word.as_str()) && !NO.contains(&word.as_str()) {
        let text = node.as_text().map_or_else(|| node.kind().to_owned(), |text| format!("`{text}`"));
        reader.error(node.at, format_args!("`{name}` is {text}"), "write `true` or `false`, without quotes");
    }
    YES.contains(&word.as_str())
}

/// An unsigned integer of 32 bits, also hexadecimal, octal or with groups: `0x10`, `010`, `1_000`.
pub(super) fn whole(reader: &mut Reader<'_>, node: &Node, name: &str) -> Option<u32> {
    let text = match &node.value {
        Value::Integer(_) => written(node),
        Value::Text(text) if !is_quoted(node, text) => text.clone(),
        Value::Text(text) => format!("\"{text}\""),
        _ => written(node),
    };
    if let Some(number) = number(&text) {
        return Some(number);
    }
    let help = format!("write a whole number from 0 to {}, without quotes", u32::MAX);
    reader.error(node.at, format_args!("`{name}` cannot be `{text}`"), help);
    None
}

fn number(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('+').unwrap_or(text).replace('_', "").to_lowercase();
    let (radix, digits) = match digits.split_at_checked(2) {
        Some(("0x", digits)) => (16, digits),
        Some(("0b", digits)) => (2, digits),
        Some(("0o", digits)) => (8, digits),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, &digits[..]),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    u32::from_str_radix(digits, radix).ok().filter(|_| plain)
}

/// A number or a word as in the file.
fn written(node: &Node) -> String {
    node.as_text().unwrap_or_else(|| node.kind().to_owned())
}

/// Whether the scalar is quoted.
fn is_quoted(node: &Node, text: &str) -> bool {
    node.at.width != text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_read_as_in_yaml_1_1() {
        for (text, value) in [
            ("0", Some(0)),
            ("10", Some(10)),
            ("+10", Some(10)),
            ("1_000", Some(1_000)),
            ("0x1F", Some(31)),
            ("0b101", Some(5)),
            ("0o17", Some(15)),
            ("017", Some(15)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("-1", None),
            ("0x+1", None),
            ("1.0", None),
            ("089", None),
            ("", None),
            ("é", None),
        ] {
            assert_eq!(number(text), value, "{text}");
        }
    }
}
