//! Fuzz target: for every accepted token, another JSON parser also reads HS256 and a current validity.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tidegate_test_support::fuzz::{target, text};

use super::Verifier;
use super::tests::{NOW, at, by_secret, sign};

const WORDS: [&str; 24] = [
    r#"{"alg":"HS256","#,
    r#"{"alg":"HS256"}"#,
    r#""typ":"JWT""#,
    r#""alg":"#,
    r#""none""#,
    r#""HS256""#,
    r#""RS256""#,
    r#""kid":"#,
    r#""crit":"#,
    r#"{"sub":"ann","exp":1800000060}"#,
    r#""sub":"#,
    r#""exp":1800000060"#,
    r#""exp":"#,
    r#""nbf":"#,
    r#""iat":"#,
    "1800000000",
    "1799999999",
    "1.8e9",
    "null",
    "[]",
    "{",
    "}",
    ",",
    r#""a""#,
];

/// The first line of the input is the header, the rest are the claims. The test signs both.
#[test]
fn any_token_that_is_accepted_says_so_to_every_reader() {
    // A static, because the closure must be `UnwindSafe` and cannot capture it.
    static VERIFIER: LazyLock<Verifier> = LazyLock::new(by_secret);
    target!("token").for_each(|bytes: &[u8]| {
        let bytes = text(bytes, &WORDS);
        let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
        let [header, claims] = [lines.next(), lines.next()].map(Option::unwrap_or_default);
        let message = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        let token = format!("{message}.{}", URL_SAFE_NO_PAD.encode(sign(message.as_bytes())));
        assert!(VERIFIER.verify(message.as_bytes(), at(NOW)).is_err(), "without a signature");
        assert!(VERIFIER.verify(&bytes, at(NOW)).is_err(), "as it came");
        let Ok(identity) = VERIFIER.verify(token.as_bytes(), at(NOW)) else { return };
        let header: Value = serde_json::from_slice(header).unwrap();
        let claims: Value = serde_json::from_slice(claims).unwrap();
        assert_eq!((&header["alg"], header["crit"].is_null()), (&"HS256".into(), true), "{header}");
        let whole = |name: &str| claims[name].as_f64().map(f64::floor);
        assert!(whole("exp").unwrap() > NOW as f64, "{claims}");
        assert!(["nbf", "iat"].iter().all(|name| whole(name).is_none_or(|time| time <= NOW as f64)), "{claims}");
        if let Some(user) = &identity.user {
            let sub = &claims["sub"];
            let is_plain = |value: &&Value| value.is_string() || value.is_number() || value.is_boolean();
            let only = sub.as_array().map_or(sub, |list| list.iter().find(is_plain).unwrap());
            assert_eq!(only.as_str().map_or_else(|| only.to_string(), str::to_owned), **user, "{claims}");
        }
    });
}
