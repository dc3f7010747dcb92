//! The facts of a request as JSON.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::slice;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tidegate_core::Micros;
use tidegate_http::CostFinder;
use tidegate_rules::facts::{self, RawRequest};
use tidegate_rules::syntax::RequestTarget;
use tidegate_rules::yaml::closest;
use tidegate_rules::{BodyNumber, Fact, Facts, FieldPath, Values};

use crate::problem::{JsonPosition, Problem};

/// The most requests that one call may ask about.
pub(super) const MOST_QUESTIONS: usize = 1_000;

/// The facts of one request, and what to do with them.
#[derive(Debug, Default)]
pub(super) struct ApiQuestion<'a> {
    method: Option<Text<'a>>,
    path: Option<Text<'a>>,
    host: Option<Text<'a>>,
    address: Option<ClientAddress>,
    user: Option<Text<'a>>,
    api_key: Option<Text<'a>>,
    tier: Option<Text<'a>>,
    headers: Pairs<'a>,
    query: Pairs<'a>,
    cookies: Pairs<'a>,
    claims: Pairs<'a>,
    descriptor: Pairs<'a>,
    body: Option<RawObject<'a>>,
    hits: Option<Hits>,
    /// For how long what is taken stays open to be settled.
    pub(super) ttl: Option<ParsedSpan>,
    /// Whether to say what the client should be answered.
    pub(super) response: bool,
}

/// The name of a field of a question.
#[derive(Clone, Copy, serde::Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum FieldName {
    Method,
    Path,
    Host,
    Address,
    User,
    ApiKey,
    Tier,
    Headers,
    Query,
    Cookies,
    Claims,
    Descriptor,
    Body,
    Hits,
    Ttl,
    Response,
}

/// In their order.
const NAMES: [&str; 16] = [
    "method",
    "path",
    "host",
    "address",
    "user",
    "api_key",
    "tier",
    "headers",
    "query",
    "cookies",
    "claims",
    "descriptor",
    "body",
    "hits",
    "ttl",
    "response",
];

/// Deserializes into a question in place. A derived `Deserialize` would return the struct by value and copy it six times on its
/// way out, which is 3 % of the instructions of a check.
struct Filling<'q, 'a>(&'q mut ApiQuestion<'a>);

impl<'de: 'a, 'a> DeserializeSeed<'de> for Filling<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_struct("Question", &NAMES, self)
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Filling<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"an object such as {"method": "GET", "path": "/"}"#)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let Filling(question) = self;
        let mut seen = [false; NAMES.len()];
        while let Some(name) = map.next_key::<FieldName>()? {
            if std::mem::replace(&mut seen[name as usize], true) {
                return Err(de::Error::duplicate_field(NAMES[name as usize]));
            }
            match name {
                FieldName::Method => question.method = map.next_value()?,
                FieldName::Path => question.path = map.next_value()?,
                FieldName::Host => question.host = map.next_value()?,
                FieldName::Address => question.address = map.next_value()?,
                FieldName::User => question.user = map.next_value()?,
                FieldName::ApiKey => question.api_key = map.next_value()?,
                FieldName::Tier => question.tier = map.next_value()?,
                FieldName::Headers => question.headers = map.next_value()?,
                FieldName::Query => question.query = map.next_value()?,
                FieldName::Cookies => question.cookies = map.next_value()?,
                FieldName::Claims => question.claims = map.next_value()?,
                FieldName::Descriptor => question.descriptor = map.next_value()?,
                FieldName::Body => question.body = map.next_value()?,
                FieldName::Hits => question.hits = map.next_value()?,
                FieldName::Ttl => question.ttl = map.next_value()?,
                FieldName::Response => question.response = map.next_value()?,
            }
        }
        Ok(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ApiQuestion<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ApiQuestion<'a>, D::Error> {
        let mut question = ApiQuestion::default();
        Filling(&mut question).deserialize(from)?;
        Ok(question)
    }
}

/// Whether a body asks about several requests: it is a list.
pub(super) fn are_several(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'[')
}

impl<'a> ApiQuestion<'a> {
    /// Reads a question that has nothing in it yet.
    pub(super) fn read(&mut self, body: &'a [u8]) -> Result<(), Problem> {
        let Ok(text) = str::from_utf8(body) else { return read(body).map(|question| *self = question) };
        let mut json = serde_json::Deserializer::from_str(text);
        let read = Filling(self).deserialize(&mut json).and_then(|()| json.end());
        read.map_err(|error| problem_with::<ApiQuestion<'_>>(body, &error))
    }

    pub(super) fn read_several(body: &'a [u8]) -> Result<Vec<ApiQuestion<'a>>, Problem> {
        let several: Vec<ApiQuestion<'a>> = read(body)?;
        if several.len() > MOST_QUESTIONS {
            let detail = format!("{} requests in one call: send at most {MOST_QUESTIONS} at once.", several.len());
            return Err(Problem::in_json(detail, None));
        }
        Ok(several)
    }
}

/// Reads JSON. The problem says where it goes wrong.
pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    // Looked at once, and not text by text.
    let read = match str::from_utf8(body) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(body),
    };
    read.map_err(|error| problem_with::<T>(body, &error))
}

/// The problem with JSON that should be a `T`.
#[cold]
fn problem_with<'a, T: Deserialize<'a>>(body: &'a [u8], error: &serde_json::Error) -> Problem {
    // The way there is only followed when something is wrong.
    let mut json = serde_json::Deserializer::from_slice(body);
    let path = match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Ok(_) => ".".to_owned(),
        Err(error) => error.path().to_string(),
    };
    if body.trim_ascii().is_empty() {
        let detail = r#"The body is empty. Send JSON such as {"method": "GET", "path": "/"}."#.to_owned();
        return Problem::in_json(detail, None);
    }
    let text = error.to_string();
    let said = text.rsplit_once(" at line ").map_or(text.as_str(), |(said, _)| said);
    let said = match (error.is_data(), meant(said)) {
        (true, Some((unknown, meant))) => format!("unknown field `{unknown}`. Did you mean `{meant}`?"),
        (true, None) => format!("{said}."),
        (false, _) => format!("Not JSON: {said}."),
    };
    Problem::in_json(said, Some(JsonPosition { path, line: error.line(), column: error.column() }))
}

/// The name that means nothing, and the one that was probably meant, in a message about an unknown field.
fn meant(said: &str) -> Option<(&str, &str)> {
    let mut names = said.strip_prefix("unknown field `")?.split('`').step_by(2);
    let unknown = names.next()?;
    closest(unknown, names).map(|meant| (unknown, meant))
}

impl ApiQuestion<'_> {
    /// Whether the question names who makes the request.
    pub(super) fn is_authenticated(&self) -> bool {
        self.user.is_some() || self.api_key.is_some() || !self.claims.0.is_empty()
    }
}

fn plain<'q>(text: &'q Option<Text<'_>>) -> Option<&'q str> {
    text.as_ref().map(|text| text.0.as_ref())
}

impl RawRequest for ApiQuestion<'_> {
    fn method(&self) -> Option<&str> {
        plain(&self.method)
    }

    fn target(&self) -> RequestTarget<'_> {
        plain(&self.path).map(RequestTarget::parse).unwrap_or_default()
    }

    fn lines(&self, name: &str) -> Values<'_> {
        self.headers.called(Fact::Header(name))
    }

    fn stated(&self, fact: Fact<'_>) -> Values<'_> {
        match fact {
            Fact::Host => plain(&self.host).into(),
            Fact::ApiKey => plain(&self.api_key).into(),
            Fact::User => plain(&self.user).into(),
            Fact::Tier => plain(&self.tier).into(),
            Fact::Query(_) => self.query.called(fact),
            Fact::Cookie(_) => self.cookies.called(fact),
            Fact::Claim(_) => self.claims.called(fact),
            Fact::Descriptor(_) => self.descriptor.called(fact),
            Fact::Method | Fact::Path | Fact::Header(_) => Values::None,
        }
    }
}

impl Facts for ApiQuestion<'_> {
    fn values(&self, fact: Fact<'_>) -> Values<'_> {
        facts::read(self, fact)
    }

    fn address(&self) -> Option<IpAddr> {
        self.address.map(|address| address.0)
    }

    fn hits(&self) -> Option<u64> {
        self.hits.map(|hits| hits.0)
    }

    /// Read as the gateway reads it.
    fn body(&self, path: &FieldPath) -> Option<BodyNumber> {
        let mut finder = CostFinder::new(slice::from_ref(path));
        finder.feed(self.body.as_ref()?.0.get().as_bytes());
        finder.found(0)
    }
}

/// Text that is borrowed where JSON lets it be.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text<'a>, D::Error> {
        from.deserialize_str(TextVisitor("text in double quotes")).map(Text)
    }
}

/// Reads text. Errors say what is expected.
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

/// Names and values, in their order. A name may come several times.
#[derive(Debug, Default)]
struct Pairs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Pairs<'_> {
    fn called(&self, fact: Fact<'_>) -> Values<'_> {
        self.0.iter().filter(|(known, _)| fact.is_called(known)).map(|(_, value)| value.as_ref()).collect()
    }
}

/// Text, or a list of texts where what is said comes more than once.
struct Texts<'a>(Values<'a>);

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

/// A JSON object, as it is written.
#[derive(Debug)]
struct RawObject<'a>(&'a RawValue);

impl<'de: 'a, 'a> Deserialize<'de> for RawObject<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RawObject<'a>, D::Error> {
        let raw = <&'de RawValue>::deserialize(from)?;
        if raw.get().starts_with('{') {
            return Ok(RawObject(raw));
        }
        Err(de::Error::custom(r#"the body of a request is an object: write one such as {"max_tokens": 500}"#))
    }
}

/// An address of a client.
#[derive(Clone, Copy, Debug)]
struct ClientAddress(IpAddr);

impl<'de> Deserialize<'de> for ClientAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ClientAddress, D::Error> {
        let text = from.deserialize_str(TextVisitor(r#"an address such as "203.0.113.7""#))?;
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
        bare.parse().map(ClientAddress).map_err(|_| {
            de::Error::custom(format_args!("`{text}` is no address: write one such as 203.0.113.7 or 2001:db8::7"))
        })
    }
}

/// A cost.
#[derive(Clone, Copy, Debug)]
struct Hits(u64);

impl<'de> Deserialize<'de> for Hits {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Hits, D::Error> {
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
        from.deserialize_u64(HitsVisitor).map(Hits)
    }
}

/// A span of time: `"30s"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParsedSpan(pub(super) Micros);

impl<'de> Deserialize<'de> for ParsedSpan {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ParsedSpan, D::Error> {
        let text = from.deserialize_str(TextVisitor(r#"a span of time such as "10s""#))?;
        text.parse().map(ParsedSpan).map_err(|error: tidegate_core::NotationError| {
            de::Error::custom(format_args!("`{text}` is no span of time: {}", error.problem()))
        })
    }
}

/// Hands the facts in a question to `look`.
#[cfg(test)]
pub(crate) fn with_facts<T>(body: &str, look: impl FnOnce(&dyn Facts) -> T) -> T {
    look(&read::<ApiQuestion<'_>>(body.as_bytes()).unwrap_or_else(|_| panic!("not a question: {body}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_fields_have_two_values() {
        let text = br#"{"path": "/?k=1&%6b=2", "headers": {"X-Key": ["a", "b"], "x-key": "c", "Cookie": ["d=1", "d=2"],
            "Host": ["h:1", "i"], "one": ["e"], "none": []}, "query": {"Q": ["1", "2"]}}"#;
        let question: ApiQuestion<'_> = read(text).unwrap();
        let all = |fact| question.values(fact).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(all(Fact::Header("x-key")), ["a", "b", "c"]);
        assert_eq!(all(Fact::Cookie("d")), ["1", "2"]);
        assert_eq!(all(Fact::Query("k")), ["1", "2"]);
        assert_eq!(all(Fact::Query("q")), ["1", "2"]);
        assert_eq!(all(Fact::Host), ["h", "i"]);
        assert_eq!(question.values(Fact::Header("one")), Values::from("e"));
        assert_eq!(question.values(Fact::Header("none")), Values::None);
        assert!(read::<ApiQuestion<'_>>(br#"{"headers": {"x": [1]}}"#).is_err());
    }

    #[test]
    fn names_are_listed_in_their_order() {
        for (number, name) in NAMES.into_iter().enumerate() {
            let read: FieldName = serde_json::from_value(name.into()).unwrap();
            assert_eq!(read as usize, number, "{name}");
        }
    }
}
