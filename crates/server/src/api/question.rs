//! Reads the facts of a request from JSON.

use std::fmt;
use std::net::IpAddr;
use std::slice;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, Visitor};
use tidegate_http::CostFinder;
use tidegate_rules::facts::{self, RawRequest};
use tidegate_rules::syntax::RequestTarget;
use tidegate_rules::yaml::closest;
use tidegate_rules::{BodyNumber, Fact, Facts, FieldPath, Values};

use super::json_values::{ClientAddress, Pairs, ParsedSpan, RawObject, StatedHits, Text};
use crate::problem::{JsonPosition, Problem};

/// Maximum number of requests that one call may ask about.
pub(super) const MOST_QUESTIONS: usize = 1_000;

/// The facts of one request, and options of the call.
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
    hits: Option<StatedHits>,
    /// Time for which a reservation stays open.
    pub(super) ttl: Option<ParsedSpan>,
    /// Whether to include the response for the client.
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

/// Field names, in the order of the variants.
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

/// Whether a body asks about several requests, as a list.
pub(super) fn are_several(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'[')
}

impl<'a> ApiQuestion<'a> {
    /// Reads into an empty question.
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

/// Reads JSON. The problem contains the position of an error.
pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    // UTF-8 is validated once for the whole body, and not for each string.
    let read = match str::from_utf8(body) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(body),
    };
    read.map_err(|error| problem_with::<T>(body, &error))
}

/// The problem with JSON that should be a `T`.
#[cold]
fn problem_with<'a, T: Deserialize<'a>>(body: &'a [u8], error: &serde_json::Error) -> Problem {
    // The path to the error is tracked only here, in a second pass: tracking it costs time.
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

/// The unknown field, and the name that was probably meant, from serde's error message.
fn meant(said: &str) -> Option<(&str, &str)> {
    let mut names = said.strip_prefix("unknown field `")?.split('`').step_by(2);
    let unknown = names.next()?;
    closest(unknown, names).map(|meant| (unknown, meant))
}

impl ApiQuestion<'_> {
    /// Whether the question identifies the client.
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

    /// Reads the body as the gateway does.
    fn body(&self, path: &FieldPath) -> Option<BodyNumber> {
        let mut finder = CostFinder::new(slice::from_ref(path));
        finder.feed(self.body.as_ref()?.0.get().as_bytes());
        finder.found(0)
    }
}

/// Passes the facts of a question to `inspect`.
#[cfg(test)]
pub(crate) fn with_facts<T>(body: &str, inspect: impl FnOnce(&dyn Facts) -> T) -> T {
    inspect(&read::<ApiQuestion<'_>>(body.as_bytes()).unwrap_or_else(|_| panic!("not a question: {body}")))
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
