//! Facts of a request in the arguments of `TG.*` commands: `method GET path /search user alice header x-tier gold`.

use std::net::IpAddr;

use smallvec::SmallVec;
use tidegate_rules::facts::{RawRequest, read};
use tidegate_rules::syntax::RequestTarget;
use tidegate_rules::{BodyNumber, Fact, Facts, FieldPath, Values};

use super::most_like;
use crate::resp::reply::echo;
use crate::resp::request::RequestWords;

/// Facts of a request, borrowed from the arguments.
#[derive(Debug, Default)]
pub(super) struct RequestFacts<'a> {
    facts: SmallVec<[GivenFact<'a>; 8]>,
    target: RequestTarget<'a>,
    address: Option<IpAddr>,
    cost: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct GivenFact<'a> {
    kind: FactKind,
    /// Name within the kind, such as that of a header; empty if the kind has no names.
    name: &'a str,
    value: &'a str,
}

/// Kind of fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FactKind {
    Method,
    Path,
    Host,
    Address,
    ApiKey,
    User,
    Tier,
    Cost,
    Header,
    Query,
    Cookie,
    Claim,
    Descriptor,
    /// A number in the JSON body, by its path.
    Body,
}

const FACT_KINDS: [(&str, FactKind); 15] = [
    ("method", FactKind::Method),
    ("path", FactKind::Path),
    ("host", FactKind::Host),
    ("ip", FactKind::Address),
    ("address", FactKind::Address),
    ("api_key", FactKind::ApiKey),
    ("user", FactKind::User),
    ("tier", FactKind::Tier),
    ("cost", FactKind::Cost),
    ("header", FactKind::Header),
    ("query", FactKind::Query),
    ("cookie", FactKind::Cookie),
    ("claim", FactKind::Claim),
    ("descriptor", FactKind::Descriptor),
    ("body", FactKind::Body),
];

impl FactKind {
    const fn has_names(self) -> bool {
        matches!(
            self,
            FactKind::Header
                | FactKind::Query
                | FactKind::Cookie
                | FactKind::Claim
                | FactKind::Descriptor
                | FactKind::Body
        )
    }

    fn name(self) -> &'static str {
        FACT_KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// Invalid facts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FactError {
    #[error(
        "'{0}' is not a fact of a request: write method, path, host, ip, api_key, user, tier or cost with a value, or header, query, cookie, claim, descriptor or body with a name and a value{1}"
    )]
    Unknown(String, String),
    #[error("a value is missing after '{0}'")]
    NoValue(&'static str),
    #[error("'{0}' needs a name and a value, such as: {0} x-tier gold")]
    NoName(&'static str),
    #[error("'{0}' was given twice")]
    Twice(&'static str),
    #[error("the value of '{0}' is not text in UTF-8")]
    NotText(&'static str),
    #[error("'{0}' is not an address: write one such as 203.0.113.7 or 2001:db8::7")]
    Address(String),
    #[error("'{0}' is not a cost: write a whole number, 0 or more")]
    Cost(String),
    #[error("facts of the request are missing; write for example: method GET path /search user alice")]
    Nothing,
}

impl<'a> RequestFacts<'a> {
    /// Parses facts from arguments.
    pub(super) fn decode(words: RequestWords<'a>) -> Result<RequestFacts<'a>, FactError> {
        let mut facts = RequestFacts::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (kind, joined) = kind(word)?;
            let text = |word: Option<&'a [u8]>, missing| {
                std::str::from_utf8(word.ok_or(missing)?).map_err(|_| FactError::NotText(kind.name()))
            };
            let name = match joined {
                Some(name) => name,
                None if kind.has_names() => text(words.next(), FactError::NoName(kind.name()))?,
                None => "",
            };
            let missing =
                if kind.has_names() { FactError::NoName(kind.name()) } else { FactError::NoValue(kind.name()) };
            facts.add(GivenFact { kind, name, value: text(words.next(), missing)? })?;
        }
        if facts.facts.is_empty() { Err(FactError::Nothing) } else { Ok(facts) }
    }

    fn add(&mut self, fact: GivenFact<'a>) -> Result<(), FactError> {
        let GivenFact { kind, value, .. } = fact;
        if !kind.has_names() && self.facts.iter().any(|fact| fact.kind == kind) {
            return Err(FactError::Twice(kind.name()));
        }
        match kind {
            FactKind::Address => {
                self.address = Some(value.parse().map_err(|_| FactError::Address(echo(value.as_bytes())))?);
            }
            FactKind::Cost => self.cost = Some(value.parse().map_err(|_| FactError::Cost(echo(value.as_bytes())))?),
            FactKind::Path => self.target = RequestTarget::parse(value),
            _ => {}
        }
        self.facts.push(fact);
        Ok(())
    }

    fn one(&self, kind: FactKind) -> Option<&'a str> {
        self.facts.iter().find(|given| given.kind == kind).map(|given| given.value)
    }

    fn called(&self, kind: FactKind, fact: Fact<'_>) -> Values<'a> {
        let found = self.facts.iter().filter(|given| given.kind == kind && fact.is_called(given.name));
        found.map(|given| given.value).collect()
    }
}

/// Parses the kind of the next fact. A name may be part of the word, as in rules: `header:x-tier`.
fn kind(word: &[u8]) -> Result<(FactKind, Option<&str>), FactError> {
    let unknown = || FactError::Unknown(echo(word), suggestion(word));
    let text = std::str::from_utf8(word).map_err(|_| unknown())?;
    let (text, joined) = text.split_once(':').map_or((text, None), |(text, name)| (text, Some(name)));
    let found = FACT_KINDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, kind)| *kind);
    match found {
        Some(kind) if joined.is_none() || kind.has_names() => Ok((kind, joined)),
        _ => Err(unknown()),
    }
}

fn suggestion(word: &[u8]) -> String {
    let text = String::from_utf8_lossy(word.get(..32).unwrap_or(word));
    let near = most_like(&text, FACT_KINDS.iter().map(|(name, _)| *name));
    near.map(|near| format!(". Did you mean {near}?")).unwrap_or_default()
}

impl RawRequest for RequestFacts<'_> {
    fn method(&self) -> Option<&str> {
        self.one(FactKind::Method)
    }

    fn target(&self) -> RequestTarget<'_> {
        self.target
    }

    fn lines(&self, name: &str) -> Values<'_> {
        self.called(FactKind::Header, Fact::Header(name))
    }

    fn stated(&self, fact: Fact<'_>) -> Values<'_> {
        match fact {
            Fact::Host => self.one(FactKind::Host).into(),
            Fact::ApiKey => self.one(FactKind::ApiKey).into(),
            Fact::User => self.one(FactKind::User).into(),
            Fact::Tier => self.one(FactKind::Tier).into(),
            Fact::Query(_) => self.called(FactKind::Query, fact),
            Fact::Cookie(_) => self.called(FactKind::Cookie, fact),
            Fact::Claim(_) => self.called(FactKind::Claim, fact),
            Fact::Descriptor(_) => self.called(FactKind::Descriptor, fact),
            Fact::Method | Fact::Path | Fact::Header(_) => Values::None,
        }
    }
}

impl Facts for RequestFacts<'_> {
    fn values(&self, fact: Fact<'_>) -> Values<'_> {
        read(self, fact)
    }

    fn address(&self) -> Option<IpAddr> {
        self.address
    }

    fn hits(&self) -> Option<u64> {
        self.cost
    }

    fn body(&self, path: &FieldPath) -> Option<BodyNumber> {
        let found = self.facts.iter().find(|facts| facts.kind == FactKind::Body && facts.name == path.as_str())?;
        BodyNumber::parse(found.value)
    }
}

/// Passes the facts in words to `read`.
#[cfg(test)]
pub(crate) fn with_facts<T>(words: &[&str], read: impl FnOnce(&dyn Facts) -> T) -> T {
    let mut end = 0;
    let span = |word: &&str| {
        let begin = end;
        end += word.len();
        crate::resp::word_span::WordSpan { begin, end }
    };
    let (spans, text): (Vec<_>, String) = (words.iter().map(span).collect(), words.concat());
    let owned = RequestWords::new(text.as_bytes(), &spans).to_owned();
    read(&RequestFacts::decode(owned.words()).unwrap_or_else(|error| panic!("{error}: {words:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::request::OwnedWords;
    use crate::resp::word_span::WordSpan;

    fn owned(text: &str) -> OwnedWords {
        let words = text.split(' ').map(|word| {
            let begin = word.as_ptr() as usize - text.as_ptr() as usize;
            WordSpan { begin, end: begin + word.len() }
        });
        let spans: Vec<_> = words.filter(|span| span.end > span.begin).collect();
        RequestWords::new(text.as_bytes(), &spans).to_owned()
    }

    fn wrong(text: &str) -> FactError {
        RequestFacts::decode(owned(text).words()).unwrap_err()
    }

    #[test]
    fn words_are_parsed_as_facts() {
        let words = owned(
            "METHOD GET path /search?q=tea&n=3 user alice ip 192.0.2.7 header X-Tier gold header:x-env prod claim sub 7 cost 5 query n 4 body:options.max 500",
        );
        let facts = RequestFacts::decode(words.words()).unwrap();
        for (fact, value) in [
            (Fact::Method, Some("GET")),
            (Fact::Path, Some("/search")),
            (Fact::User, Some("alice")),
            (Fact::Header("x-tier"), Some("gold")),
            (Fact::Header("x-env"), Some("prod")),
            (Fact::Query("q"), Some("tea")),
            (Fact::Query("n"), Some("4")),
            (Fact::Claim("sub"), Some("7")),
            (Fact::Tier, None),
            (Fact::Host, None),
        ] {
            assert_eq!(facts.get(fact).as_deref(), value, "{fact:?}");
        }
        let body = |path: &str| facts.body(&path.parse().unwrap());
        assert_eq!((body("options.max"), body("max")), (Some(BodyNumber::Exact(500)), None));
        assert_eq!((facts.address(), facts.hits()), (Some("192.0.2.7".parse().unwrap()), Some(5)));
    }

    #[test]
    fn a_repeated_fact_has_two_values() {
        let words = owned("path /?k=1&%6B=2 header X-Key a header:x-key b cookie c 1 cookie c 2 header cookie d=3;d=4");
        let facts = RequestFacts::decode(words.words()).unwrap();
        let all = |fact| facts.values(fact).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(all(Fact::Header("x-key")), ["a", "b"]);
        assert_eq!(all(Fact::Query("k")), ["1", "2"]);
        assert_eq!(all(Fact::Cookie("c")), ["1", "2"]);
        assert_eq!(all(Fact::Cookie("d")), ["3", "4"]);
    }

    #[test]
    fn errors_suggest_what_to_write() {
        assert!(wrong("headr x-tier gold").to_string().contains("Did you mean header?"));
        assert!(wrong("colour blue").to_string().contains("write method, path"));
        assert!(wrong("user:x alice").to_string().contains("'user:x'"));
        assert_eq!(wrong("user"), FactError::NoValue("user"));
        assert_eq!(wrong("user alice header x-tier"), FactError::NoName("header"));
        assert_eq!(wrong("user alice user bob"), FactError::Twice("user"));
        assert_eq!(wrong("ip 1.2.3"), FactError::Address("1.2.3".to_owned()));
        assert_eq!(wrong("cost -1"), FactError::Cost("-1".to_owned()));
        assert_eq!(wrong(""), FactError::Nothing);
        let bytes =
            RequestWords::new(b"user\xff", &[WordSpan { begin: 0, end: 4 }, WordSpan { begin: 4, end: 5 }]).to_owned();
        assert_eq!(RequestFacts::decode(bytes.words()).unwrap_err(), FactError::NotText("user"));
    }
}
