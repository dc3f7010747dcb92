//! The names of facts in rules.

use std::fmt;

use crate::facts::Fact;

/// The name of a fact.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum FactName {
    Method,
    Host,
    ApiKey,
    User,
    Tier,
    Header(String),
    Query(String),
    Cookie(String),
    Claim(String),
    Descriptor(String),
}

/// Whether a header or parameter with this name contains a secret, such as a credential. In doubt, `true`.
///
/// ```
/// use tidegate_rules::is_secret_name;
///
/// assert!(is_secret_name("X-Api-Key") && is_secret_name("access_token"));
/// assert!(!is_secret_name("page") && !is_secret_name("country_code"));
/// ```
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    if TELLING.iter().any(|part| lower.contains(part)) {
        return true;
    }
    let (mut before, mut tells) = (String::new(), false);
    for word in words(name) {
        let is_ordinary = ORDINARY_CODES.contains(&before.as_str());
        tells |= TELLING_WORDS.contains(&word.as_str()) || (matches!(word.as_str(), "code" | "codes") && !is_ordinary);
        before = word;
    }
    tells
}

impl FactName {
    /// Parses the name of a fact, such as `user` or `header:X-Tenant`.
    pub(super) fn parse(text: &str) -> Option<FactName> {
        let (kind, name) = text.split_once(':').map_or((text, ""), |(kind, name)| (kind, name.trim()));
        let named = |make: fn(String) -> FactName| (!name.is_empty()).then(|| make(name.to_owned()));
        match kind {
            "header" => named(|name| FactName::Header(name.to_ascii_lowercase())),
            "query" => named(FactName::Query),
            "cookie" => named(FactName::Cookie),
            "claim" => named(FactName::Claim),
            "descriptor" => named(FactName::Descriptor),
            _ if !name.is_empty() => None,
            "method" => Some(FactName::Method),
            "host" => Some(FactName::Host),
            "api_key" => Some(FactName::ApiKey),
            "user" => Some(FactName::User),
            "tier" => Some(FactName::Tier),
            _ => None,
        }
    }

    pub(super) fn as_fact(&self) -> Fact<'_> {
        match self {
            FactName::Method => Fact::Method,
            FactName::Host => Fact::Host,
            FactName::ApiKey => Fact::ApiKey,
            FactName::User => Fact::User,
            FactName::Tier => Fact::Tier,
            FactName::Header(name) => Fact::Header(name),
            FactName::Query(name) => Fact::Query(name),
            FactName::Cookie(name) => Fact::Cookie(name),
            FactName::Claim(name) => Fact::Claim(name),
            FactName::Descriptor(name) => Fact::Descriptor(name),
        }
    }

    /// Whether the value may be sufficient to impersonate a client. In doubt, `true`.
    pub(super) fn is_secret(&self) -> bool {
        match self {
            FactName::ApiKey | FactName::Cookie(_) => true,
            FactName::Header(name) | FactName::Query(name) | FactName::Descriptor(name) => is_secret_name(name),
            FactName::Method | FactName::Host | FactName::User | FactName::Tier | FactName::Claim(_) => false,
        }
    }

    /// Whether it is the host, by either of its names.
    pub(super) fn is_host(&self) -> bool {
        match self {
            FactName::Host => true,
            FactName::Header(name) => name == "host",
            _ => false,
        }
    }

    /// Whether it is one of several facts of its kind, and has a name.
    pub(super) const fn is_named(&self) -> bool {
        match self {
            FactName::Header(_)
            | FactName::Query(_)
            | FactName::Cookie(_)
            | FactName::Claim(_)
            | FactName::Descriptor(_) => true,
            FactName::Method | FactName::Host | FactName::ApiKey | FactName::User | FactName::Tier => false,
        }
    }

    /// Whether clients can choose the value freely.
    pub(super) const fn is_unverified(&self) -> bool {
        matches!(self, FactName::Header(_) | FactName::Query(_) | FactName::Cookie(_))
    }
}

/// A name that contains any of these is that of a secret.
const TELLING: [&str; 21] = [
    "2fa",
    "assertion",
    "auth",
    "bearer",
    "cookie",
    "cred",
    "csrf",
    "hmac",
    "jwt",
    "key",
    "pass",
    "private",
    "pwd",
    "saml",
    "secret",
    "session",
    "sid",
    "sig",
    "ticket",
    "token",
    "xsrf",
];
/// Too short to be searched within other words: `opinion` and `footprint` are not secrets.
const TELLING_WORDS: [&str; 10] = ["cvc", "cvv", "hotp", "magic", "mfa", "otp", "pin", "sess", "ssn", "totp"];
/// Words before `code` that make the name harmless. With any other word, it is taken for an access code.
const ORDINARY_CODES: [&str; 21] = [
    "airport", "area", "color", "country", "currency", "dial", "error", "exit", "item", "lang", "language", "locale",
    "post", "postal", "product", "reason", "region", "response", "state", "status", "zip",
];

/// Splits `zip_code`, `zip-code` or `zipCode` into words, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for char in name.chars() {
        if !char.is_ascii_alphabetic() || (char.is_ascii_uppercase() && was_small) {
            words.push(String::new());
        }
        was_small = char.is_ascii_lowercase();
        if let (Some(word), true) = (words.last_mut(), char.is_ascii_alphabetic()) {
            word.push(char.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

impl fmt::Display for FactName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FactName::Method => f.write_str("method"),
            FactName::Host => f.write_str("host"),
            FactName::ApiKey => f.write_str("api_key"),
            FactName::User => f.write_str("user"),
            FactName::Tier => f.write_str("tier"),
            FactName::Header(name) => write!(f, "header:{name}"),
            FactName::Query(name) => write!(f, "query:{name}"),
            FactName::Cookie(name) => write!(f, "cookie:{name}"),
            FactName::Claim(name) => write!(f, "claim:{name}"),
            FactName::Descriptor(name) => write!(f, "descriptor:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_in_whatever_way_they_are_written() {
        for name in [
            "otp",
            "X-OTP",
            "otp_code",
            "totp",
            "pin",
            "userPin",
            "user-pin",
            "bearer",
            "passwd",
            "pwd",
            "userPwd",
            "code",
            "access_code",
            "accessCode",
            "code_verifier",
            "reset-code",
            "verification_code",
            "PHPSESSID",
            "JSESSIONID",
            "sess",
            "sess_id",
            "connect.sid",
            "X-CSRF-Token",
            "_xsrf",
            "SAMLResponse",
            "client_assertion",
            "ticket",
            "cvv",
            "ssn",
            "mfa",
            "2fa",
            "private",
            "X-Api-Key",
            "X-Amz-Signature",
            "recovery_codes",
            "otp1",
        ] {
            assert!(FactName::Query(name.to_owned()).is_secret(), "{name}");
        }
    }

    #[test]
    fn ordinary_names_are_not_hidden() {
        for name in [
            "country_code",
            "countryCode",
            "country-code",
            "zip_code",
            "zipcode",
            "postalCode",
            "statuscode",
            "language_code",
            "error_code",
            "opinion",
            "spinner",
            "shipping",
            "footprint",
            "encoding",
            "decoder",
            "assess",
            "x-tenant",
            "page",
            "q",
            "user",
            "tier",
            "currency_code",
            "barcode",
            "magical",
        ] {
            assert!(!FactName::Query(name.to_owned()).is_secret(), "{name}");
        }
    }
}
