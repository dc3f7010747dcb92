//! What is known of a request, as `TG.CHECK` and its kin are told: `method GET path /search user alice header x-tier
//! gold`.

use std::net::IpAddr;

use smallvec::SmallVec;
use tidegate_rules::facts::{RawRequest, read};
use tidegate_rules::syntax::Target;
use tidegate_rules::{BodyNumber, Fact, Facts, FieldPath, Values};

use super::most_like;
use crate::resp::reply::echo;
use crate::resp::request::Words;

/// A request as it was told, borrowing the words.
#[derive(Debug, Default)]
pub(super) struct Asked<'a> {
    told: SmallVec<[Told<'a>; 8]>,
    target: Target<'a>,
    address: Option<IpAddr>,
    cost: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Told<'a> {
    kind: Kind,
    /// Empty unless the kind has names.
    name: &'a str,
    value: &'a str,
}

/// What can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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
    /// A number in its JSON body, by its path.
    Body,
}

const KINDS: [(&str, Kind); 15] = [
    ("method", Kind::Method),
    ("path", Kind::Path),
    ("host", Kind::Host),
    ("ip", Kind::Address),
    ("address", Kind::Address),
    ("api_key", Kind::ApiKey),
    ("user", Kind::User),
    ("tier", Kind::Tier),
    ("cost", Kind::Cost),
    ("header", Kind::Header),
    ("query", Kind::Query),
    ("cookie", Kind::Cookie),
    ("claim", Kind::Claim),
    ("descriptor", Kind::Descriptor),
    ("body", Kind::Body),
];

impl Kind {
    const fn has_names(self) -> bool {
        matches!(self, Kind::Header | Kind::Query | Kind::Cookie | Kind::Claim | Kind::Descriptor | Kind::Body)
    }

    fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// What cannot be understood of what was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Misunderstood {
    #[error(
        "'{0}' is not a fact of a request: write method, path, host, ip, api_key, user, tier or cost with a value, or header, query, cookie, claim, descriptor or body with a name and a value{1}"
    )]
    Kind(String, String),
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

impl<'a> Asked<'a> {
    /// Understands what `words` tell of a request.
    pub(super) fn decode(words: Words<'a>) -> Result<Asked<'a>, Misunderstood> {
        let mut asked = Asked::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (kind, joined) = kind(word)?;
            let text = |word: Option<&'a [u8]>, missing| {
                std::str::from_utf8(word.ok_or(missing)?).map_err(|_| Misunderstood::NotText(kind.name()))
            };
            let name = match joined {
                Some(name) => name,
                None if kind.has_names() => text(words.next(), Misunderstood::NoName(kind.name()))?,
                None => "",
            };
            let missing =
                if kind.has_names() { Misunderstood::NoName(kind.name()) } else { Misunderstood::NoValue(kind.name()) };
            asked.add(Told { kind, name, value: text(words.next(), missing)? })?;
        }
        if asked.told.is_empty() { Err(Misunderstood::Nothing) } else { Ok(asked) }
    }

    fn add(&mut self, told: Told<'a>) -> Result<(), Misunderstood> {
        let Told { kind, value, .. } = told;
        if !kind.has_names() && self.told.iter().any(|told| told.kind == kind) {
            return Err(Misunderstood::Twice(kind.name()));
        }
        match kind {
            Kind::Address => {
                self.address = Some(value.parse().map_err(|_| Misunderstood::Address(echo(value.as_bytes())))?);
            }
            Kind::Cost => self.cost = Some(value.parse().map_err(|_| Misunderstood::Cost(echo(value.as_bytes())))?),
            Kind::Path => self.target = Target::parse(value),
            _ => {}
        }
        self.told.push(told);
        Ok(())
    }

    fn one(&self, kind: Kind) -> Option<&'a str> {
        self.told.iter().find(|told| told.kind == kind).map(|told| told.value)
    }

    fn called(&self, kind: Kind, fact: Fact<'_>) -> Values<'a> {
        let found = self.told.iter().filter(|told| told.kind == kind && fact.is_called(told.name));
        found.map(|told| told.value).collect()
    }
}

/// What a word says is coming. A name may be joined to it, as rules write it: `header:x-tier`.
fn kind(word: &[u8]) -> Result<(Kind, Option<&str>), Misunderstood> {
    let unknown = || Misunderstood::Kind(echo(word), suggestion(word));
    let text = std::str::from_utf8(word).map_err(|_| unknown())?;
    let (text, joined) = text.split_once(':').map_or((text, None), |(text, name)| (text, Some(name)));
    let found = KINDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, kind)| *kind);
    match found {
        Some(kind) if joined.is_none() || kind.has_names() => Ok((kind, joined)),
        _ => Err(unknown()),
    }
}

fn suggestion(word: &[u8]) -> String {
    let text = String::from_utf8_lossy(word.get(..32).unwrap_or(word));
    let near = most_like(&text, KINDS.iter().map(|(name, _)| *name));
    near.map(|near| format!(". Did you mean {near}?")).unwrap_or_default()
}

impl RawRequest for Asked<'_> {
    fn method(&self) -> Option<&str> {
        self.one(Kind::Method)
    }

    fn target(&self) -> Target<'_> {
        self.target
    }

    fn lines(&self, name: &str) -> Values<'_> {
        self.called(Kind::Header, Fact::Header(name))
    }

    fn stated(&self, fact: Fact<'_>) -> Values<'_> {
        match fact {
            Fact::Host => self.one(Kind::Host).into(),
            Fact::ApiKey => self.one(Kind::ApiKey).into(),
            Fact::User => self.one(Kind::User).into(),
            Fact::Tier => self.one(Kind::Tier).into(),
            Fact::Query(_) => self.called(Kind::Query, fact),
            Fact::Cookie(_) => self.called(Kind::Cookie, fact),
            Fact::Claim(_) => self.called(Kind::Claim, fact),
            Fact::Descriptor(_) => self.called(Kind::Descriptor, fact),
            Fact::Method | Fact::Path | Fact::Header(_) => Values::None,
        }
    }
}

impl Facts for Asked<'_> {
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
        let found = self.told.iter().find(|told| told.kind == Kind::Body && told.name == path.as_str())?;
        BodyNumber::parse(found.value)
    }
}

/// Hands the facts in words to `look`.
#[cfg(test)]
pub(crate) fn with_facts<T>(words: &[&str], look: impl FnOnce(&dyn Facts) -> T) -> T {
    let mut end = 0;
    let span = |word: &&str| {
        let begin = end;
        end += word.len();
        crate::resp::request::Span { begin, end }
    };
    let (spans, text): (Vec<_>, String) = (words.iter().map(span).collect(), words.concat());
    let owned = Words::new(text.as_bytes(), &spans).to_owned();
    look(&Asked::decode(owned.words()).unwrap_or_else(|error| panic!("{error}: {words:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::request::{OwnedWords, Span};

    fn owned(text: &str) -> OwnedWords {
        let words = text.split(' ').map(|word| {
            let begin = word.as_ptr() as usize - text.as_ptr() as usize;
            Span { begin, end: begin + word.len() }
        });
        let spans: Vec<_> = words.filter(|span| span.end > span.begin).collect();
        Words::new(text.as_bytes(), &spans).to_owned()
    }

    fn wrong(text: &str) -> Misunderstood {
        Asked::decode(owned(text).words()).unwrap_err()
    }

    #[test]
    fn what_a_person_types_are_facts() {
        let words = owned(
            "METHOD GET path /search?q=tea&n=3 user alice ip 192.0.2.7 header X-Tier gold header:x-env prod claim sub 7 cost 5 query n 4 body:options.max 500",
        );
        let asked = Asked::decode(words.words()).unwrap();
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
            assert_eq!(asked.get(fact).as_deref(), value, "{fact:?}");
        }
        let body = |path: &str| asked.body(&path.parse().unwrap());
        assert_eq!((body("options.max"), body("max")), (Some(BodyNumber::Exact(500)), None));
        assert_eq!((asked.address(), asked.hits()), (Some("192.0.2.7".parse().unwrap()), Some(5)));
    }

    #[test]
    fn what_is_told_twice_has_two_values() {
        let words = owned("path /?k=1&%6B=2 header X-Key a header:x-key b cookie c 1 cookie c 2 header cookie d=3;d=4");
        let asked = Asked::decode(words.words()).unwrap();
        let all = |fact| asked.values(fact).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(all(Fact::Header("x-key")), ["a", "b"]);
        assert_eq!(all(Fact::Query("k")), ["1", "2"]);
        assert_eq!(all(Fact::Cookie("c")), ["1", "2"]);
        assert_eq!(all(Fact::Cookie("d")), ["3", "4"]);
    }

    #[test]
    fn what_is_wrong_comes_with_what_to_write() {
        assert!(wrong("headr x-tier gold").to_string().contains("Did you mean header?"));
        assert!(wrong("colour blue").to_string().contains("write method, path"));
        assert!(wrong("user:x alice").to_string().contains("'user:x'"));
        assert_eq!(wrong("user"), Misunderstood::NoValue("user"));
        assert_eq!(wrong("user alice header x-tier"), Misunderstood::NoName("header"));
        assert_eq!(wrong("user alice user bob"), Misunderstood::Twice("user"));
        assert_eq!(wrong("ip 1.2.3"), Misunderstood::Address("1.2.3".to_owned()));
        assert_eq!(wrong("cost -1"), Misunderstood::Cost("-1".to_owned()));
        assert_eq!(wrong(""), Misunderstood::Nothing);
        let bytes = Words::new(b"user\xff", &[Span { begin: 0, end: 4 }, Span { begin: 4, end: 5 }]).to_owned();
        assert_eq!(Asked::decode(bytes.words()).unwrap_err(), Misunderstood::NotText("user"));
    }
}
