//! Identification: the user, API key, tier and claims of a request.

use http::HeaderName;
use http::header::AUTHORIZATION;
use http::request::Parts;
use tidegate_http::HttpFacts;
use tidegate_rules::Values;
use tidegate_rules::syntax::{credentials, text};

/// Adds the caller's identity to the facts of a request, for keys and conditions of rules.
///
/// It is called for every request before the rules are checked, so it should look identities up and not verify them.
/// Verify tokens in a layer outside this one, and pass the result in the request's extensions.
///
/// ```
/// use http::request::Parts;
/// use tidegate_http::HttpFacts;
/// use tidegate_tower::Identify;
///
/// /// Inserted into the extensions by the authentication layer.
/// #[derive(Clone)]
/// struct Account { name: String, plan: &'static str }
///
/// struct ByAccount;
///
/// impl Identify for ByAccount {
///     fn identify<'a>(&self, head: &'a Parts, facts: HttpFacts<'a>) -> HttpFacts<'a> {
///         match head.extensions.get::<Account>() {
///             Some(account) => facts.user(&account.name).tier(account.plan),
///             None => facts,
///         }
///     }
/// }
/// ```
pub trait Identify: Send + Sync {
    /// Returns the facts with the caller's identity added.
    fn identify<'a>(&self, head: &'a Parts, facts: HttpFacts<'a>) -> HttpFacts<'a>;
}

impl<F> Identify for F
where
    F: for<'a> Fn(&'a Parts, HttpFacts<'a>) -> HttpFacts<'a> + Send + Sync,
{
    fn identify<'a>(&self, head: &'a Parts, facts: HttpFacts<'a>) -> HttpFacts<'a> {
        self(head, facts)
    }
}

/// Takes the API key from a header. From `Authorization` it takes the token after `Bearer`.
///
/// If the header is repeated, the request has several API keys. Rules refuse such a request unless configured
/// otherwise.
///
/// The key is not verified: a client that sends a new key with each request gets a new limit each time. Use it where unknown
/// keys are rejected, or together with a rule keyed by `address`.
#[derive(Clone, Debug)]
pub struct ApiKeyHeader(pub HeaderName);

impl Identify for ApiKeyHeader {
    fn identify<'a>(&self, head: &'a Parts, facts: HttpFacts<'a>) -> HttpFacts<'a> {
        let mut lines = head.headers.get_all(&self.0).iter().map(|line| line.as_bytes().trim_ascii());
        let Some(line) = lines.next() else { return facts };
        if lines.next().is_some() {
            // Servers differ in which line they use, so all of them count.
            let all = head.headers.get_all(&self.0).iter().map(|line| text(line.as_bytes().trim_ascii()));
            return facts.api_key(all.collect::<Values<'a>>());
        }
        match if self.0 == AUTHORIZATION { bearer(line) } else { Some(line) } {
            Some(key) => facts.api_key(text(key)),
            None => facts,
        }
    }
}

fn bearer(line: &[u8]) -> Option<&[u8]> {
    credentials(line, "Bearer").filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tidegate_rules::{Fact, Facts};

    use super::*;

    #[test]
    fn an_api_key_is_read_from_its_header() {
        for (header, value, key) in [
            ("x-api-key", "k_1", Some("k_1")),
            ("authorization", "bearer  k_1", Some("k_1")),
            ("authorization", "Bearer\tk_1", Some("k_1")),
            ("authorization", "Bearer", None),
            ("authorization", "Basic k_1", None),
            ("authorization", "k_1", None),
            ("x-other", "k_1", None),
        ] {
            let (head, ()) = Request::get("/").header(header, value).body(()).unwrap().into_parts();
            for name in ["x-api-key", "authorization"] {
                let by = ApiKeyHeader(HeaderName::from_static(name));
                let facts = by.identify(&head, HttpFacts::new(&head.method, &head.uri, &head.headers));
                let expected = key.filter(|_| header == name);
                assert_eq!(facts.get(Fact::ApiKey).as_deref(), expected, "{name}: {header}: {value}");
            }
        }
    }

    #[test]
    fn api_keys_that_come_twice_are_several() {
        for (header, first, second) in
            [("x-api-key", "made-up", "real"), ("authorization", "Basic x", "Bearer real"), ("x-api-key", "k", "k")]
        {
            let request = Request::get("/").header(header, first).header(header, second);
            let (head, ()) = request.body(()).unwrap().into_parts();
            let by = ApiKeyHeader(HeaderName::from_static(header));
            let facts = by.identify(&head, HttpFacts::new(&head.method, &head.uri, &head.headers));
            assert_eq!(facts.values(Fact::ApiKey), [first, second].into_iter().collect(), "{header}");
        }
    }
}
