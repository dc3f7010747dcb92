//! Writes JSON straight to bytes.
//!
//! Names are constants that need no escapes. Looking for characters to escape is most of the cost of writing a small answer.

use serde::Serialize;
use tidegate_core::Micros;

/// Microseconds in a second.
const MICROS: u64 = 1_000_000;

/// The name of a member with its comma and colon, as written for every member but the first. Must not need escapes.
macro_rules! member {
    ($name:literal) => {
        $crate::api::json_writer::Member(concat!(",\"", $name, "\":"))
    };
}
pub(super) use member;

/// The name of a member, made by [`member!`].
#[derive(Clone, Copy)]
pub(super) struct Member(pub(super) &'static str);

/// An object being written.
pub(super) struct ObjectWriter<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl ObjectWriter<'_> {
    /// Writes an object; `fill` writes its members.
    #[inline]
    pub(super) fn write(out: &mut Vec<u8>, fill: impl FnOnce(&mut ObjectWriter<'_>)) {
        out.push(b'{');
        fill(&mut ObjectWriter { out, is_empty: true });
        out.push(b'}');
    }

    #[inline]
    fn name(&mut self, Member(name): Member) {
        let name = if std::mem::take(&mut self.is_empty) { name.strip_prefix(',').unwrap_or(name) } else { name };
        self.out.extend_from_slice(name.as_bytes());
    }

    #[inline]
    pub(super) fn boolean(&mut self, name: Member, yes: bool) {
        self.name(name);
        self.out.extend_from_slice(if yes { b"true" } else { b"false" });
    }

    #[inline]
    pub(super) fn number(&mut self, name: Member, number: u64) {
        self.name(name);
        digits(self.out, number);
    }

    /// A duration in seconds, exact to the microsecond.
    #[inline]
    pub(super) fn seconds(&mut self, name: Member, span: Micros) {
        self.name(name);
        seconds(self.out, span);
    }

    /// A constant that needs no escapes.
    #[inline]
    pub(super) fn word(&mut self, name: Member, word: &'static str) {
        self.name(name);
        quoted(self.out, word);
    }

    /// Any text.
    #[inline]
    pub(super) fn text(&mut self, name: Member, text: &str) {
        self.name(name);
        if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
            quoted(self.out, text);
        } else {
            document(self.out, text);
        }
    }

    /// Any serializable value.
    pub(super) fn value(&mut self, name: Member, value: &impl Serialize) {
        self.name(name);
        document(self.out, value);
    }

    /// A list of objects; `fill` writes the members of each.
    #[inline]
    pub(super) fn list<T>(
        &mut self,
        name: Member,
        items: impl IntoIterator<Item = T>,
        fill: impl Fn(&mut ObjectWriter<'_>, T),
    ) {
        self.name(name);
        list(self.out, items, |out, item| ObjectWriter::write(out, |object| fill(object, item)));
    }
}

/// Writes a list; `write` writes each item.
#[inline]
pub(super) fn list<T>(out: &mut Vec<u8>, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut Vec<u8>, T)) {
    out.push(b'[');
    for (place, item) in items.into_iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

#[inline]
fn quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

#[inline]
fn digits(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn seconds(out: &mut Vec<u8>, span: Micros) {
    let (whole, rest) = (span.get() / MICROS, span.get() % MICROS);
    digits(out, whole);
    out.push(b'.');
    // The additional leading digit preserves zeros after the decimal point.
    let mut buffer = itoa::Buffer::new();
    let behind = buffer.format(MICROS + rest).as_bytes().get(1..).unwrap_or_default();
    let zeros = behind.iter().rev().take_while(|&&digit| digit == b'0').count();
    out.extend_from_slice(behind.get(..(behind.len() - zeros).max(1)).unwrap_or_default());
}

fn document(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let written = serde_json::to_writer(&mut *out, value);
    debug_assert!(written.is_ok(), "text, numbers and lists can always be written: {written:?}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn written(fill: impl FnOnce(&mut ObjectWriter<'_>)) -> Value {
        let mut out = Vec::new();
        ObjectWriter::write(&mut out, fill);
        serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)))
    }

    #[test]
    fn output_is_json() {
        let said = written(|object| {
            object.boolean(member!("yes"), true);
            object.number(member!("most"), u64::MAX);
            object.word(member!("mode"), "shadow");
            object.list(member!("limits"), [1, 2], |item, number| item.number(member!("is"), number));
            object.list(member!("none"), [0; 0], |item, number| item.number(member!("is"), number));
            object.value(member!("any"), &["a", "b"]);
        });
        let expected = serde_json::json!({
            "yes": true, "most": u64::MAX, "mode": "shadow", "limits": [{"is": 1}, {"is": 2}], "none": [], "any": ["a", "b"]
        });
        assert_eq!(said, expected);
        assert_eq!(written(|_| {}), serde_json::json!({}));
    }

    #[test]
    fn seconds_are_exact_to_the_microsecond() {
        for (micros, text) in [
            (0, "0.0"),
            (1, "0.000001"),
            (500_000, "0.5"),
            (1_000_000, "1.0"),
            (61_020_300, "61.0203"),
            ((1 << 53) - 1, "9007199254.740991"),
        ] {
            let mut out = Vec::new();
            seconds(&mut out, Micros::new(micros));
            assert_eq!(String::from_utf8_lossy(&out), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back_as_it_was(text in any::<String>()) {
            prop_assert_eq!(&written(|object| object.text(member!("text"), &text))["text"], &Value::String(text.clone()));
        }

        #[test]
        fn seconds_are_what_a_double_says(micros in 0_u64..1 << 53) {
            let mut out = Vec::new();
            seconds(&mut out, Micros::new(micros));
            #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
            let expected = micros as f64 / 1e6;
            prop_assert_eq!(String::from_utf8_lossy(&out).parse(), Ok(expected));
        }
    }
}
