//! Token of a request, and claims of a verified token.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName};
use serde_json::{Map, Value};
use tidegate_http::Claims;
use tidegate_rules::syntax;

use crate::identity::{Identity, has_several_credentials};

/// Location of the token in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenLocation {
    /// Header with the token: after `Bearer` in `Authorization`, or the whole value of another header.
    pub header: HeaderName,
    /// Alternative cookie with the token.
    pub cookie: Option<String>,
}

/// A request's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FoundToken<'h> {
    None,
    One(Cow<'h, [u8]>),
    /// Several tokens: an upstream may use another one than is verified here.
    Several,
}

impl TokenLocation {
    #[inline]
    pub(super) fn find<'h>(&self, headers: &'h HeaderMap) -> FoundToken<'h> {
        let lines = headers.get_all(&self.header).iter().map(http::HeaderValue::as_bytes);
        // With several `Authorization` lines, an upstream may use one that is not a token.
        if self.header == AUTHORIZATION && has_several_credentials(headers) {
            return FoundToken::Several;
        }
        let found = if self.header == AUTHORIZATION {
            only(lines.filter_map(after_bearer).map(Cow::Borrowed))
        } else {
            only(lines.map(|line| Cow::Borrowed(after_bearer(line).unwrap_or(line))))
        };
        let Some(name) = &self.cookie else { return found };
        let lines = headers.get_all(COOKIE).iter();
        found.or(only(lines.flat_map(|line| syntax::cookies(line.as_bytes(), name)).map(bytes)))
    }
}

impl<'h> FoundToken<'h> {
    /// Combines the tokens from two locations: one token if both are equal.
    fn or(self, other: FoundToken<'h>) -> FoundToken<'h> {
        match (self, other) {
            (FoundToken::None, found) | (found, FoundToken::None) => found,
            (FoundToken::One(one), FoundToken::One(other)) if one == other => FoundToken::One(one),
            _ => FoundToken::Several,
        }
    }
}

fn only<'h>(mut tokens: impl Iterator<Item = Cow<'h, [u8]>>) -> FoundToken<'h> {
    match (tokens.next(), tokens.next()) {
        (None, _) => FoundToken::None,
        (Some(token), None) => FoundToken::One(token),
        (Some(_), Some(_)) => FoundToken::Several,
    }
}

fn bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// Credentials after the scheme `Bearer`; `None` for another scheme.
fn after_bearer(line: &[u8]) -> Option<&[u8]> {
    syntax::credentials(line, "Bearer")
}

/// Names of the claims that identify the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimNames {
    /// Claim that identifies the user.
    pub user: String,
    /// Claim that contains the tier, if any.
    pub tier: Option<String>,
}

/// Maximum size of a token's claims. Larger claims are refused rather than truncated: a rule could depend on a missing
/// one.
const MOST_BYTES: usize = 64 * 1_024;
/// Maximum depth of nested objects that are searched.
const DEEPEST: usize = 4;

impl ClaimNames {
    /// Identity from the claims of a verified token. The name of a nested claim is its path, joined by dots. A list
    /// becomes a claim with several values. `None` if the claims are too large.
    pub(super) fn identity(&self, claims: &Map<String, Value>) -> Option<Identity> {
        let mut found = FlatClaims::default();
        for (name, value) in claims {
            found.add(name, value, 1)?;
        }
        let claims: Claims = found.claims.into_iter().collect();
        // Claims with several values are ignored.
        let only = |name: &str| {
            let mut values = claims.values(name);
            values.next().filter(|value| values.next().is_none() && !value.is_empty()).map(Box::from)
        };
        Some(Identity { user: only(&self.user), tier: self.tier.as_deref().and_then(only), claims })
    }
}

/// Claims by their full names.
#[derive(Default)]
struct FlatClaims {
    claims: Vec<(Box<str>, Box<str>)>,
    bytes: usize,
}

impl FlatClaims {
    /// `None` if the claims are too large.
    fn add(&mut self, name: &str, value: &Value, depth: usize) -> Option<()> {
        match value {
            Value::String(text) => self.push(name, text),
            Value::Number(number) => self.push(name, &number.to_string()),
            Value::Bool(flag) => self.push(name, &flag.to_string()),
            Value::Array(values) if depth < DEEPEST => {
                let mut values = values.iter().filter(|value| !value.is_array() && !value.is_object());
                values.try_for_each(|value| self.add(name, value, depth + 1))
            }
            Value::Object(fields) if depth < DEEPEST => {
                fields.iter().try_for_each(|(field, value)| self.add(&format!("{name}.{field}"), value, depth + 1))
            }
            Value::Null | Value::Array(_) | Value::Object(_) => Some(()),
        }
    }

    fn push(&mut self, name: &str, text: &str) -> Option<()> {
        self.bytes += name.len() + text.len();
        self.claims.push((name.into(), text.into()));
        (self.bytes <= MOST_BYTES).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn found(place: &TokenLocation, lines: &[(&'static str, &'static str)]) -> Option<String> {
        match place.find(&headers(lines)) {
            FoundToken::None => None,
            FoundToken::One(token) => Some(String::from_utf8(token.into_owned()).unwrap()),
            FoundToken::Several => Some("several".to_owned()),
        }
    }

    #[test]
    fn a_token_is_found_in_its_configured_place() {
        let usual = TokenLocation { header: AUTHORIZATION, cookie: Some("session".to_owned()) };
        for (lines, token) in [
            (&[("authorization", "Bearer a.b.c")][..], Some("a.b.c")),
            (&[("authorization", "bearer   a.b.c")], Some("a.b.c")),
            (&[("authorization", "Bearer")], Some("")),
            (&[("authorization", "Basic a.b.c")], None),
            (&[("authorization", "Bearers a.b.c")], None),
            (&[("authorization", "Basic x"), ("authorization", "Bearer a.b.c")], Some("several")),
            (&[("authorization", "Bearer a.b.c"), ("authorization", "Basic x")], Some("several")),
            (&[("authorization", "Bearer x"), ("authorization", "Bearer a.b.c")], Some("several")),
            (&[("cookie", "a=1; session=x.y.z")], Some("x.y.z")),
            (&[("cookie", "session=x.y.z"), ("authorization", "Bearer a.b.c")], Some("several")),
            (&[("cookie", "session=a.b.c"), ("authorization", "Bearer a.b.c")], Some("a.b.c")),
            (&[("cookie", "session=x; Session=y"), ("authorization", "Basic a")], Some("several")),
            (&[("cookie", "session=x; session=y")], Some("several")),
            (&[("x-token", "a.b.c")], None),
        ] {
            assert_eq!(found(&usual, lines).as_deref(), token, "{lines:?}");
        }
        let own = TokenLocation { header: HeaderName::from_static("x-token"), cookie: None };
        assert_eq!(found(&own, &[("x-token", "a.b.c")]).as_deref(), Some("a.b.c"));
        assert_eq!(found(&own, &[("x-token", "Bearer a.b.c"), ("cookie", "session=x")]).as_deref(), Some("a.b.c"));
    }

    #[test]
    fn claims_become_facts_by_their_names() {
        let names = ClaimNames { user: "sub".to_owned(), tier: Some("app.plan".to_owned()) };
        let claims = json!({ "sub": 7, "app": { "plan": "gold", "deep": { "er": { "est": 1 } } }, "roles": ["a", "b"],
            "https://example.com/org": "acme", "is_admin": true, "nothing": null });
        let Value::Object(claims) = claims else { panic!() };
        let identity = names.identity(&claims).unwrap();
        assert_eq!((identity.user.as_deref(), identity.tier.as_deref()), (Some("7"), Some("gold")));
        let all = |name| identity.claims.values(name).collect::<Vec<_>>();
        assert_eq!((all("roles"), all("https://example.com/org")), (vec!["a", "b"], vec!["acme"]));
        assert_eq!((all("is_admin"), all("nothing"), all("app.deep.er.est")), (vec!["true"], vec![], vec!["1"]));
    }

    #[test]
    fn a_user_with_several_names_is_nobody() {
        let names = ClaimNames { user: "sub".to_owned(), tier: Some("plan".to_owned()) };
        let Value::Object(claims) = json!({ "sub": ["a", "b"], "plan": "" }) else { panic!() };
        let identity = names.identity(&claims).unwrap();
        assert_eq!((identity.user, identity.tier), (None, None));
    }

    #[test]
    fn no_number_of_other_claims_hides_the_user() {
        let names = ClaimNames { user: "sub".to_owned(), tier: Some("plan".to_owned()) };
        let groups: Vec<String> = (0..2_000).map(|number| format!("group {number}")).collect();
        let Value::Object(claims) = json!({ "groups": groups, "sub": "ann", "plan": "free", "org": "acme" }) else {
            panic!()
        };
        let identity = names.identity(&claims).unwrap();
        assert_eq!((identity.user.as_deref(), identity.tier.as_deref()), (Some("ann"), Some("free")));
        assert_eq!(identity.claims.values("org").collect::<Vec<_>>(), ["acme"]);
        let Value::Object(claims) = json!({ "groups": vec!["x".repeat(1_000); 100], "sub": "ann" }) else { panic!() };
        assert!(names.identity(&claims).is_none());
    }
}
