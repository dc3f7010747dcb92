//! Values in the JSON of a question.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tidegate_core::Micros;
use tidegate_rules::{Fact, Values};

/// Text, borrowed from the input if it contains no escapes.
#[derive(Debug)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text<'a>, D::Error> {
        from.deserialize_str(TextVisitor("text in double quotes")).map(Text)
    }
}

/// Reads text. Errors state the expected format.
struct TextVisitor(&'static str);

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// Names and values, in order. A name may occur several times.
#[derive(Debug, Default)]
pub(super) struct Pairs<'a>(pub(super) Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Pairs<'_> {
    pub(super) fn called(&self, fact: Fact<'_>) -> Values<'_> {
        self.0.iter().filter(|(known, _)| fact.is_called(known)).map(|(_, value)| value.as_ref()).collect()
    }
}

/// Text, or a list of texts for a repeated value.
pub(super) struct Texts<'a>(Values<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Texts<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Texts<'a>, D::Error> {
        struct TextsVisitor;
        impl<'de> Visitor<'de> for TextsVisitor {
            type Value = Values<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text in double quotes, or a list of texts")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Values<'de>, E> {
                Ok(text.into())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Values<'de>, E> {
                Ok(text.to_owned().into())
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Values<'de>, S::Error> {
                let mut texts = Vec::new();
                while let Some(Text(text)) = list.next_element()? {
                    texts.push(text);
                }
                Ok(texts.into_iter().collect())
            }
        }
        from.deserialize_any(TextsVisitor).map(Texts)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Pairs<'a>, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Vec<(Cow<'de, str>, Cow<'de, str>)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(r#"an object of names and texts, such as {"name": "value"}"#)
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut pairs = Vec::new();
                while let Some((Text(name), Texts(values))) = map.next_entry::<Text<'de>, Texts<'de>>()? {
                    match values {
                        Values::None => {}
                        Values::One(value) => pairs.push((name, value)),
                        Values::Several(values) => pairs.extend(values.into_iter().map(|value| (name.clone(), value))),
                    }
                }
                Ok(pairs)
            }
        }
        from.deserialize_map(PairsVisitor).map(Pairs)
    }
}

/// A JSON object as raw text.
#[derive(Debug)]
pub(super) struct RawObject<'a>(pub(super) &'a RawValue);

impl<'de: 'a, 'a> Deserialize<'de> for RawObject<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RawObject<'a>, D::Error> {
        let raw = <&'de RawValue>::deserialize(from)?;
        if raw.get().starts_with('{') {
            return Ok(RawObject(raw));
        }
        Err(de::Error::custom(r#"the body of a request is an object: write one such as {"max_tokens": 500}"#))
    }
}

/// A client address.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientAddress(pub(super) IpAddr);

impl<'de> Deserialize<'de> for ClientAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ClientAddress, D::Error> {
        let text = from.deserialize_str(TextVisitor(r#"an address such as "203.0.113.7""#))?;
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
        bare.parse().map(ClientAddress).map_err(|_| {
            de::Error::custom(format_args!("`{text}` is not an address: write one such as 203.0.113.7 or 2001:db8::7"))
        })
    }
}

/// A cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatedHits(pub(super) u64);

impl<'de> Deserialize<'de> for StatedHits {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<StatedHits, D::Error> {
        struct HitsVisitor;
        impl Visitor<'_> for HitsVisitor {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number such as 3")
            }

            fn visit_u64<E: de::Error>(self, hits: u64) -> Result<u64, E> {
                Ok(hits)
            }
        }
        from.deserialize_u64(HitsVisitor).map(StatedHits)
    }
}

/// A duration: `"30s"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParsedSpan(pub(super) Micros);

impl<'de> Deserialize<'de> for ParsedSpan {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ParsedSpan, D::Error> {
        let text = from.deserialize_str(TextVisitor(r#"a span of time such as "10s""#))?;
        text.parse().map(ParsedSpan).map_err(|error: tidegate_core::NotationError| {
            de::Error::custom(format_args!("`{text}` is not a duration: {}", error.problem()))
        })
    }
}
