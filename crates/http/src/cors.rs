//! Cross-origin resource sharing (CORS) for Tidegate's own responses.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method};

/// The rate-limit fields that scripts cannot read by default.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Retry-After, RateLimit, RateLimit-Policy, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, \
     X-RateLimit-Reset-After, X-RateLimit-Bucket",
);

/// The origins whose scripts may read Tidegate's own responses.
///
/// Responses of a service are unchanged, because the service has its own CORS policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    origins: Vec<AllowedOrigin>,
    allows_credentials: bool,
}

/// A pattern of allowed origins.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedOrigin {
    /// Every origin: `*`.
    Any,
    /// One origin, as browsers write it.
    Exact(String),
    /// All subdomains of a domain: `https://*.example.com`.
    Subdomains { scheme: String, domain: String },
}

/// A text that is not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// The text is malformed.
    #[error("`{0}` is not an origin")]
    Malformed(String),
    /// The text has a path after the origin.
    #[error("`{0}` is more than an origin: it has a path or a slash at the end")]
    Path(String),
    /// The text is `null`, the origin of every sandboxed document.
    #[error("`null` is the origin of every sandboxed page")]
    Null,
    /// `*` with credentials: scripts of every origin could read responses to a logged-in user.
    #[error("`*` allows every origin, which is not possible with credentials")]
    AnyWithCredentials,
}

/// The origin of a request whose scripts may read the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedReader {
    origin: HeaderValue,
    allows_credentials: bool,
}

impl Cors {
    /// Allows scripts of these origins to read responses: `https://app.example.com`, `https://*.example.com` for all
    /// subdomains, or `*`. `allows_credentials` includes responses to requests with cookies.
    ///
    /// ```
    /// # use tidegate_http::{Cors, OriginError};
    /// assert!(Cors::new(["https://app.example.com", "http://localhost:5173"], true).is_ok());
    /// assert_eq!(Cors::new(["*"], true), Err(OriginError::AnyWithCredentials));
    /// ```
    ///
    /// # Errors
    /// One of the texts is not an origin, or `*` is combined with credentials.
    pub fn new<'o>(origins: impl IntoIterator<Item = &'o str>, allows_credentials: bool) -> Result<Cors, OriginError> {
        let origins = origins.into_iter().map(AllowedOrigin::parse).collect::<Result<Vec<_>, _>>()?;
        if allows_credentials && origins.contains(&AllowedOrigin::Any) {
            return Err(OriginError::AnyWithCredentials);
        }
        Ok(Cors { origins, allows_credentials })
    }

    /// The origin of a request, if its scripts may read the response.
    #[must_use]
    pub fn reader(&self, request: &HeaderMap) -> Option<AllowedReader> {
        let mut origins = request.get_all(ORIGIN).iter();
        let (origin, None) = (origins.next()?, origins.next()) else { return None };
        let text = origin.to_str().ok()?;
        let allowed = self.origins.iter().find(|allowed| allowed.admits(text))?;
        let origin = match allowed {
            AllowedOrigin::Any => HeaderValue::from_static("*"),
            AllowedOrigin::Exact(_) | AllowedOrigin::Subdomains { .. } => origin.clone(),
        };
        Some(AllowedReader { origin, allows_credentials: self.allows_credentials })
    }

    /// Returns `true` if a request is a preflight of an allowed origin.
    #[must_use]
    pub fn is_preflight(&self, method: &Method, headers: &HeaderMap) -> bool {
        method == Method::OPTIONS
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            && self.reader(headers).is_some()
    }

    /// Adds the CORS headers that let `reader` read the response, and a `Vary` for caches.
    pub fn write(&self, reader: Option<&AllowedReader>, answer: &mut HeaderMap) {
        if self.origins.iter().any(|origin| *origin != AllowedOrigin::Any) {
            answer.append(VARY, HeaderValue::from_static("Origin"));
        }
        let Some(reader) = reader else { return };
        answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, reader.origin.clone());
        if reader.allows_credentials {
            answer.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}

/// Exposes the rate-limit fields of a service's response to the scripts that may read the response. A response
/// without CORS headers is unchanged.
pub fn expose_limits(response: &mut HeaderMap) {
    if response.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        // Fails if the response already has as many headers as a map can hold. It then stays unchanged.
        let _ = response.try_append(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}

impl AllowedOrigin {
    fn parse(text: &str) -> Result<AllowedOrigin, OriginError> {
        if text == "*" {
            return Ok(AllowedOrigin::Any);
        }
        if text.eq_ignore_ascii_case("null") {
            return Err(OriginError::Null);
        }
        let malformed = || OriginError::Malformed(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(malformed)?;
        let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        if scheme.is_empty() || !scheme.bytes().all(is_scheme) {
            return Err(malformed());
        }
        if rest.contains(['/', '?', '#']) {
            return Err(OriginError::Path(text.to_owned()));
        }
        let (scheme, rest) = (scheme.to_ascii_lowercase(), rest.to_ascii_lowercase());
        // Browsers omit the default port.
        let default_port = match scheme.as_str() {
            "https" => ":443",
            "http" => ":80",
            _ => "",
        };
        let host = if default_port.is_empty() { &rest[..] } else { rest.strip_suffix(default_port).unwrap_or(&rest) };
        let is_host = |host: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
            !host.is_empty() && host.bytes().all(is_part)
        };
        match host.strip_prefix("*.") {
            Some(domain) if is_host(domain) => Ok(AllowedOrigin::Subdomains { scheme, domain: format!(".{domain}") }),
            None if is_host(host) => Ok(AllowedOrigin::Exact(format!("{scheme}://{host}"))),
            Some(_) | None => Err(malformed()),
        }
    }

    fn admits(&self, origin: &str) -> bool {
        match self {
            AllowedOrigin::Any => true,
            AllowedOrigin::Exact(exact) => origin == exact,
            AllowedOrigin::Subdomains { scheme, domain } => {
                let host = origin.strip_prefix(scheme.as_str()).and_then(|rest| rest.strip_prefix("://"));
                let name = host.and_then(|host| host.strip_suffix(domain.as_str()));
                name.is_some_and(|name| {
                    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(origin: &str) -> HeaderMap {
        [(ORIGIN, HeaderValue::from_str(origin).unwrap())].into_iter().collect()
    }

    fn reads(cors: &Cors, origin: &str) -> bool {
        cors.reader(&from(origin)).is_some()
    }

    #[test]
    fn only_origins_in_the_list_may_read() {
        let cors = Cors::new(["https://App.example.com:443", "http://localhost:5173", "https://*.shop.example"], false);
        let cors = cors.unwrap();
        for origin in
            ["https://app.example.com", "http://localhost:5173", "https://a.shop.example", "https://a.b.shop.example"]
        {
            assert!(reads(&cors, origin), "{origin}");
        }
        for origin in [
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://app.example.com.evil.example",
            "https://evil-app.example.com",
            "http://localhost",
            "https://shop.example",
            "https://.shop.example",
            "https://evilshop.example",
            "https://evil.example/.shop.example",
            "https://evil.example#.shop.example",
            "https://me@evil.example:1.shop.example",
            "null",
            "*",
            "",
        ] {
            assert!(!reads(&cors, origin), "{origin}");
        }
        let mut twice = from("https://app.example.com");
        twice.append(ORIGIN, HeaderValue::from_static("https://app.example.com"));
        assert_eq!(cors.reader(&twice), None);
    }

    #[test]
    fn a_response_names_its_reader_and_varies_by_origin() {
        let cors = Cors::new(["https://a.example"], true).unwrap();
        let mut answer = HeaderMap::new();
        cors.write(cors.reader(&from("https://a.example")).as_ref(), &mut answer);
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_CREDENTIALS], "true");
        assert!(answer[ACCESS_CONTROL_EXPOSE_HEADERS].to_str().unwrap().contains("Retry-After"));
        assert_eq!(answer[VARY], "Origin");

        let mut other = HeaderMap::new();
        cors.write(cors.reader(&from("https://b.example")).as_ref(), &mut other);
        assert_eq!(other, HeaderMap::from_iter([(VARY, HeaderValue::from_static("Origin"))]));

        let (any, mut answer) = (Cors::new(["*"], false).unwrap(), HeaderMap::new());
        any.write(any.reader(&from("https://b.example")).as_ref(), &mut answer);
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
        assert!(!answer.contains_key(VARY) && !answer.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS));
    }

    #[test]
    fn a_response_without_cors_headers_stays_unchanged() {
        let mut own = HeaderMap::new();
        expose_limits(&mut own);
        assert!(own.is_empty());
        let mut shared: HeaderMap =
            [(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"))].into_iter().collect();
        expose_limits(&mut shared);
        assert!(shared[ACCESS_CONTROL_EXPOSE_HEADERS].to_str().unwrap().contains("RateLimit-Policy"));
    }

    #[test]
    fn a_preflight_asks_for_a_method_on_behalf_of_an_origin() {
        let cors = Cors::new(["https://a.example"], false).unwrap();
        let mut headers = from("https://a.example");
        assert!(!cors.is_preflight(&Method::OPTIONS, &headers));
        headers.insert(ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("PUT"));
        assert!(cors.is_preflight(&Method::OPTIONS, &headers) && !cors.is_preflight(&Method::PUT, &headers));
        headers.insert(ORIGIN, HeaderValue::from_static("https://b.example"));
        assert!(!cors.is_preflight(&Method::OPTIONS, &headers));
    }

    #[test]
    fn invalid_origins_are_refused() {
        for (text, error) in [
            ("https://a.example/", OriginError::Path("https://a.example/".into())),
            ("https://a.example/app", OriginError::Path("https://a.example/app".into())),
            ("a.example", OriginError::Malformed("a.example".into())),
            ("https://", OriginError::Malformed("https://".into())),
            ("https://*.", OriginError::Malformed("https://*.".into())),
            ("https://a.*.example", OriginError::Malformed("https://a.*.example".into())),
            ("null", OriginError::Null),
        ] {
            assert_eq!(Cors::new([text], false), Err(error), "{text}");
        }
        assert_eq!(Cors::new(["https://a.example", "*"], true), Err(OriginError::AnyWithCredentials));
    }
}
