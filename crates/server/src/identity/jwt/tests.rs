//! Generated tokens, with the expected results.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderName;
use http::header::AUTHORIZATION;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::keys::KeyError;
use super::*;

pub(super) const NOW: u64 = 1_800_000_000;
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const OTHER_SECRET: &[u8] = b"another secret of 32 bytes or so";

pub(super) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn settings() -> Settings {
    Settings {
        place: TokenLocation { header: AUTHORIZATION, cookie: None },
        names: ClaimNames { user: "sub".to_owned(), tier: Some("plan".to_owned()) },
        algorithms: vec![Algorithm::HS256, Algorithm::ES256, Algorithm::EdDSA, Algorithm::RS256],
        issuers: Vec::new(),
        audiences: Vec::new(),
        leeway: Duration::ZERO,
        on_invalid: OnInvalid::Refuse,
        is_required: false,
        token_bytes: 8_192,
        cache_entries: 1_000,
        cache_bytes: 1 << 20,
        files: Vec::new(),
        fetch: None,
    }
}

impl Verifier {
    /// Puts these keys in force.
    fn use_keys(&self, keys: Vec<VerificationKey>) {
        self.ring.store(Arc::new(KeyRing::new(keys, &self.settings)));
    }
}

fn verifier(settings: Settings, keys: Vec<VerificationKey>) -> Verifier {
    let verifier = Verifier::new(settings);
    verifier.use_keys(keys);
    verifier
}

/// Signs with the secret of [`by_secret`].
pub(super) fn sign(message: &[u8]) -> Vec<u8> {
    hs256(SECRET)(message)
}

pub(super) fn by_secret() -> Verifier {
    verifier(settings(), vec![VerificationKey::secret(SECRET).unwrap()])
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// A token with any header, signed by `sign`.
fn token(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", part(header), part(claims));
    let signature = URL_SAFE_NO_PAD.encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn hs256(secret: &[u8]) -> impl Fn(&[u8]) -> Vec<u8> {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    move |message| ring::hmac::sign(&key, message).as_ref().to_vec()
}

fn usual(claims: &Value) -> String {
    token(&json!({ "alg": "HS256", "typ": "JWT" }), claims, hs256(SECRET))
}

#[test]
fn a_valid_token_says_who_it_is() {
    let token = usual(&json!({ "sub": "ann", "plan": "gold", "exp": NOW + 60, "org": "acme" }));
    let verifier = by_secret();
    for _ in 0..2 {
        let identity = verifier.verify(token.as_bytes(), at(NOW)).unwrap();
        assert_eq!((identity.user.as_deref(), identity.tier.as_deref()), (Some("ann"), Some("gold")));
        assert_eq!(identity.claims.values("org").collect::<Vec<_>>(), ["acme"]);
    }
    let counted = verifier.counted();
    assert_eq!((counted.verified, counted.cached, counted.cache.entries), (1, 1, 1));
}

#[test]
fn times_are_checked_with_the_leeway_that_is_given() {
    let verifier = verifier(
        Settings { leeway: Duration::from_secs(10), cache_entries: 0, ..settings() },
        vec![VerificationKey::secret(SECRET).unwrap()],
    );
    for (claims, refusal) in [
        (json!({ "exp": NOW + 1 }), None),
        (json!({ "exp": NOW - 9 }), None),
        (json!({ "exp": NOW - 10 }), Some(TokenRefusal::Expired)),
        (json!({ "exp": (NOW - 9) as f64 + 0.5 }), None),
        (json!({ "exp": NOW + 60, "nbf": NOW + 10, "iat": NOW + 10 }), None),
        (json!({ "exp": NOW + 60, "nbf": NOW + 11 }), Some(TokenRefusal::NotYet)),
        (json!({ "exp": NOW + 60, "iat": NOW + 11 }), Some(TokenRefusal::NotYet)),
        (json!({}), Some(TokenRefusal::NeverExpires)),
        (json!({ "exp": null }), Some(TokenRefusal::NeverExpires)),
        (json!({ "exp": "tomorrow" }), Some(TokenRefusal::Malformed)),
        (json!({ "exp": -1 }), Some(TokenRefusal::Malformed)),
        (json!({ "exp": 1e300 }), Some(TokenRefusal::Malformed)),
        (json!({ "exp": u64::MAX }), None),
        (json!({ "exp": NOW + 60, "nbf": "now" }), Some(TokenRefusal::Malformed)),
    ] {
        assert_eq!(verifier.verify(usual(&claims).as_bytes(), at(NOW)).err(), refusal, "{claims}");
    }
}

#[test]
fn issuer_and_audience_have_to_be_named() {
    let settings = Settings {
        issuers: vec!["https://a/".to_owned(), "https://b/".to_owned()],
        audiences: vec!["api".to_owned()],
        ..settings()
    };
    let verifier = verifier(settings, vec![VerificationKey::secret(SECRET).unwrap()]);
    let exp = NOW + 60;
    for (claims, refusal) in [
        (json!({ "exp": exp, "iss": "https://b/", "aud": "api" }), None),
        (json!({ "exp": exp, "iss": "https://a/", "aud": ["web", "api"] }), None),
        (json!({ "exp": exp, "iss": "https://c/", "aud": "api" }), Some(TokenRefusal::Issuer)),
        (json!({ "exp": exp, "iss": "https://a", "aud": "api" }), Some(TokenRefusal::Issuer)),
        (json!({ "exp": exp, "iss": 7, "aud": "api" }), Some(TokenRefusal::Issuer)),
        (json!({ "exp": exp, "iss": ["https://a/"], "aud": "api" }), Some(TokenRefusal::Issuer)),
        (json!({ "exp": exp, "iss": ["https://a/", "https://c/"], "aud": "api" }), Some(TokenRefusal::Issuer)),
        (json!({ "exp": exp, "aud": "api" }), Some(TokenRefusal::Issuer)),
        (json!({ "exp": exp, "iss": "https://a/" }), Some(TokenRefusal::Audience)),
        (json!({ "exp": exp, "iss": "https://a/", "aud": [] }), Some(TokenRefusal::Audience)),
        (json!({ "exp": exp, "iss": "https://a/", "aud": "API" }), Some(TokenRefusal::Audience)),
    ] {
        assert_eq!(verifier.verify(usual(&claims).as_bytes(), at(NOW)).err(), refusal, "{claims}");
    }
}

#[test]
fn tokens_of_other_algorithms_are_refused() {
    let verifier = by_secret();
    let claims = json!({ "sub": "ann", "exp": NOW + 60 });
    let signed = |header: Value, sign: &dyn Fn(&[u8]) -> Vec<u8>| token(&header, &claims, sign);
    for (token, refusal) in [
        (signed(json!({ "alg": "none" }), &|_| Vec::new()), TokenRefusal::Algorithm),
        (signed(json!({ "alg": "None" }), &|_| Vec::new()), TokenRefusal::Algorithm),
        (signed(json!({ "alg": "HS384" }), &hs256(SECRET)), TokenRefusal::Algorithm),
        (signed(json!({ "alg": "RS256" }), &hs256(SECRET)), TokenRefusal::UnknownKey),
        (signed(json!({ "alg": "HS256" }), &hs256(OTHER_SECRET)), TokenRefusal::Signature),
        (signed(json!({ "alg": "HS256" }), &|_| Vec::new()), TokenRefusal::Signature),
        (signed(json!({ "alg": "HS256", "crit": ["exp"] }), &hs256(SECRET)), TokenRefusal::Critical),
        (signed(json!({ "typ": "JWT" }), &hs256(SECRET)), TokenRefusal::Malformed),
        ("a.b".to_owned(), TokenRefusal::Malformed),
        ("....".to_owned(), TokenRefusal::Malformed),
        (String::new(), TokenRefusal::Malformed),
        ("x".repeat(8_193), TokenRefusal::TooLong),
    ] {
        assert_eq!(verifier.verify(token.as_bytes(), at(NOW)).err(), Some(refusal), "{token}");
    }
}

/// A P-256 key as a JWK, and a function that signs with it.
fn p256(id: &str) -> (Value, impl Fn(&[u8]) -> Vec<u8> + use<>) {
    let random = SystemRandom::new();
    let pair = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pair.as_ref(), &random).unwrap();
    let point = pair.public_key().as_ref()[1..].to_vec();
    let [x, y] = [&point[..32], &point[32..]].map(|number| URL_SAFE_NO_PAD.encode(number));
    let jwk = json!({ "kty": "EC", "crv": "P-256", "kid": id, "x": x, "y": y });
    (jwk, move |message: &[u8]| pair.sign(&random, message).unwrap().as_ref().to_vec())
}

fn ed25519(id: &str) -> (Value, impl Fn(&[u8]) -> Vec<u8> + use<>) {
    let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pair.as_ref()).unwrap();
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": URL_SAFE_NO_PAD.encode(pair.public_key()) });
    (jwk, move |message: &[u8]| pair.sign(message).as_ref().to_vec())
}

fn keys(jwks: &[&Value]) -> Vec<VerificationKey> {
    VerificationKey::from_jwks(json!({ "keys": jwks }).to_string().as_bytes(), false).unwrap()
}

#[test]
fn a_token_is_verified_by_the_key_that_it_names() {
    let ((p, sign_p), (e, sign_e)) = (p256("p"), ed25519("e"));
    let verifier = verifier(settings(), keys(&[&p, &e]));
    let claims = json!({ "sub": "ann", "exp": NOW + 60 });
    let header = |alg: &str, kid: Option<&str>| match kid {
        Some(kid) => json!({ "alg": alg, "kid": kid }),
        None => json!({ "alg": alg }),
    };
    let refusal = |header: Value, sign: &dyn Fn(&[u8]) -> Vec<u8>| {
        verifier.verify(token(&header, &claims, sign).as_bytes(), at(NOW)).err()
    };
    assert_eq!(refusal(header("ES256", Some("p")), &sign_p), None);
    assert_eq!(refusal(header("EdDSA", Some("e")), &sign_e), None);
    assert_eq!(refusal(header("EdDSA", None), &sign_e), None, "without a name, all keys of its kind are tried");
    assert_eq!(
        refusal(header("EdDSA", Some("p")), &sign_e),
        Some(TokenRefusal::UnknownKey),
        "the key is of another kind"
    );
    assert_eq!(refusal(header("ES256", Some("q")), &sign_p), Some(TokenRefusal::UnknownKey));
    assert_eq!(refusal(header("ES256", Some("p")), &sign_e), Some(TokenRefusal::Signature));
}

#[test]
fn a_public_key_is_never_taken_for_a_secret() {
    let (jwk, _) = p256("p");
    let verifier = verifier(settings(), keys(&[&jwk]));
    let public = ["x", "y"].map(|name| URL_SAFE_NO_PAD.decode(jwk[name].as_str().unwrap()).unwrap()).concat();
    let confusing = [public.clone(), [vec![4], public].concat(), jwk.to_string().into_bytes()];
    for secret in confusing {
        for header in [json!({ "alg": "HS256", "kid": "p" }), json!({ "alg": "HS256" })] {
            let token = token(&header, &json!({ "exp": NOW + 60 }), hs256(&secret));
            assert_eq!(verifier.verify(token.as_bytes(), at(NOW)).err(), Some(TokenRefusal::UnknownKey));
        }
    }
}

#[test]
fn of_a_key_set_only_what_can_verify_tokens_is_used() {
    let ((good, _), (other, _)) = (p256("good"), p256("other"));
    let with = |name: &str, value: Value| {
        let mut jwk = other.clone();
        jwk[name] = value;
        jwk
    };
    let unusable = [
        with("use", json!("enc")),
        with("key_ops", json!(["sign"])),
        with("alg", json!("RS256")),
        with("alg", json!("ECDH-ES")),
        with("x", json!("AAAA")),
        with("crv", json!("P-521")),
        json!({ "kty": "oct", "k": URL_SAFE_NO_PAD.encode(SECRET) }),
        json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB" }),
        json!({ "kty": "what?" }),
        json!(7),
    ];
    for jwk in &unusable {
        let text = json!({ "keys": [jwk] }).to_string();
        assert!(matches!(VerificationKey::from_jwks(text.as_bytes(), false), Err(KeyError::NoneUsable(_))), "{jwk}");
        assert_eq!(keys(&[jwk, &good]).len(), 1, "{jwk}");
    }
    let secret = json!({ "keys": [{ "kty": "oct", "k": URL_SAFE_NO_PAD.encode(SECRET) }] }).to_string();
    assert_eq!(VerificationKey::from_jwks(secret.as_bytes(), true).unwrap().len(), 1, "a file may hold a secret");
    for text in ["", "{}", "[]", r#"{"keys":7}"#, r#"{"keys":[]}"#] {
        assert!(VerificationKey::from_jwks(text.as_bytes(), false).is_err(), "{text}");
    }
}

#[test]
fn a_missing_token_is_nobody_unless_one_is_required() {
    let headers = |value: Option<&'static str>| {
        let value =
            value.map(|value| (HeaderName::from_static("authorization"), http::HeaderValue::from_static(value)));
        value.into_iter().collect::<HeaderMap>()
    };
    let (none, bad) = (headers(None), headers(Some("Bearer nonsense")));
    let with = |on_invalid, is_required| {
        verifier(Settings { on_invalid, is_required, ..settings() }, vec![VerificationKey::secret(SECRET).unwrap()])
    };
    let refusing = with(OnInvalid::Refuse, false);
    assert_eq!(refusing.identify(&none, at(NOW)), Ok(None));
    assert_eq!(refusing.identify(&bad, at(NOW)), Err(TokenRefusal::Malformed));
    assert_eq!(with(OnInvalid::Anonymous, false).identify(&bad, at(NOW)), Ok(None));
    assert_eq!(with(OnInvalid::Refuse, true).identify(&none, at(NOW)), Err(TokenRefusal::Missing));
    let without_keys = verifier(settings(), Vec::new());
    let token = usual(&json!({ "exp": NOW + 60 }));
    assert_eq!(without_keys.verify(token.as_bytes(), at(NOW)).err(), Some(TokenRefusal::NoKeys));
    assert_eq!(TokenRefusal::NoKeys.challenge(), None, "the client is not at fault");
}

#[test]
fn names_of_refusals_tell_them_apart() {
    for (number, refusal) in TokenRefusal::ALL.iter().enumerate() {
        assert_eq!(*refusal as usize, number);
    }
    let names: HashSet<&str> = TokenRefusal::ALL.iter().map(|refusal| refusal.name()).collect();
    assert_eq!(names.len(), TokenRefusal::ALL.len());
}

#[test]
fn secrets_are_not_in_what_is_printed_for_debugging() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, SECRET).unwrap();
    let files = vec![KeyFile::secret(&path).unwrap()];
    let printed = format!("{:?}", Verifier::new(Settings { files, ..settings() }));
    assert!(!printed.contains("0123456789abcdef") && !printed.contains("48, 49, 50"), "{printed}");
}

#[test]
fn a_file_with_keys_is_read_again_when_it_changes_and_a_bad_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, SECRET).unwrap();
    let verifier = Verifier::new(Settings { files: vec![KeyFile::secret(&path).unwrap()], ..settings() });
    let claims = json!({ "sub": "ann", "exp": NOW + 60 });
    let old = usual(&claims);
    let new = token(&json!({ "alg": "HS256" }), &claims, hs256(OTHER_SECRET));
    let accepts = |token: &str| verifier.verify(token.as_bytes(), at(NOW)).is_ok();
    assert!(accepts(&old) && !accepts(&new));
    std::fs::write(&path, "short").unwrap();
    verifier.reload_files(at(NOW));
    assert!(accepts(&old), "the current keys stay in force");
    assert!(verifier.health().problem.is_some());
    std::fs::write(&path, OTHER_SECRET).unwrap();
    verifier.reload_files(at(NOW));
    assert!(!accepts(&old) && accepts(&new), "what the old key has verified is forgotten");
    assert_eq!(verifier.health(), KeysHealth { keys: 1, problem: None });
}

#[test]
fn keys_of_all_sources_are_in_force_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, SECRET).unwrap();
    let verifier = Verifier::new(Settings { files: vec![KeyFile::secret(&path).unwrap()], ..settings() });
    verifier.take(json!({ "keys": [ed25519("a").0] }).to_string().into_bytes()).unwrap();
    assert_eq!(verifier.health().keys, 2);
}

#[test]
fn an_issuer_that_takes_all_keys_back_is_heeded_and_one_that_answers_nonsense_is_not() {
    let verifier = Verifier::new(settings());
    assert!(verifier.take(Vec::new()).is_err(), "an empty answer is no key set");
    verifier.take(json!({ "keys": [ed25519("a").0] }).to_string().into_bytes()).unwrap();
    for nonsense in ["", "<html>", "{}"] {
        assert!(verifier.take(nonsense.as_bytes().to_vec()).is_err());
        assert_eq!(verifier.health().keys, 1, "{nonsense}");
    }
    for _ in 0..2 {
        assert!(verifier.take(br#"{ "keys": [] }"#.to_vec()).is_err(), "it is a problem all the same");
        assert_eq!(verifier.health().keys, 0);
    }
    verifier.take(json!({ "keys": [ed25519("a").0] }).to_string().into_bytes()).unwrap();
    assert_eq!(verifier.health().keys, 1);
}

#[test]
fn a_key_set_in_a_file_can_be_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    std::fs::write(&path, json!({ "keys": [ed25519("a").0] }).to_string()).unwrap();
    let verifier = Verifier::new(Settings { files: vec![KeyFile::jwks(&path).unwrap()], ..settings() });
    std::fs::write(&path, "{").unwrap();
    verifier.reload_files(at(NOW));
    assert_eq!(verifier.health().keys, 1);
    std::fs::write(&path, r#"{ "keys": [] }"#).unwrap();
    verifier.reload_files(at(NOW));
    assert_eq!(verifier.health().keys, 0);
    assert!(verifier.health().problem.is_some());
}

#[test]
fn only_the_line_break_is_taken_from_a_secret() {
    let ends_in_a_space = [&[7; 31][..], b" "].concat();
    assert!(VerificationKey::secret(&ends_in_a_space).is_ok());
    assert!(VerificationKey::secret(&[&ends_in_a_space[..], b"\r\n"].concat()).is_ok());
    assert!(matches!(VerificationKey::secret(&[&[7; 31][..], b"\n"].concat()), Err(KeyError::ShortSecret(31))));
}

/// Event in a simulated life of a verifier.
#[derive(Clone, Debug)]
enum Event {
    /// A token with this number is verified, signed with this key.
    Shown {
        number: u8,
        key: u8,
    },
    /// This many seconds pass.
    Passed(u64),
    /// Puts the keys of these bits in force.
    Keys(u8),
    Swept,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0..24_u8, 0..3_u8).prop_map(|(number, key)| Event::Shown { number, key }),
        2 => (0..20_u64).prop_map(Event::Passed),
        1 => (0..8_u8).prop_map(Event::Keys),
        1 => Just(Event::Swept),
    ];
    prop::collection::vec(event, 1..120)
}

proptest! {
    /// A token is accepted if and only if its key is in force and it has not expired, whatever the cache contains.
    #[test]
    fn cached_tokens_end_with_their_key_and_their_expiry(events in events(), entries in 0..32_usize) {
        const SECRETS: [&[u8]; 3] = [SECRET, OTHER_SECRET, b"a third secret that is long enough"];
        let verifier = verifier(Settings { cache_entries: entries, ..settings() }, Vec::new());
        let (mut now, mut in_force) = (NOW, 0_u8);
        let mut tokens = HashMap::new();
        for event in events {
            match event {
                Event::Passed(seconds) => now += seconds,
                Event::Swept => verifier.sweep(at(now)),
                Event::Keys(bits) => {
                    in_force = bits;
                    let keys = SECRETS.iter().enumerate().filter(|(number, _)| bits & (1 << number) != 0);
                    verifier.use_keys(keys.map(|(_, secret)| VerificationKey::secret(secret).unwrap()).collect());
                }
                Event::Shown { number, key } => {
                    let expiry = NOW + 10 * u64::from(number);
                    let text = tokens.entry((number, key)).or_insert_with(|| {
                        let claims = json!({ "sub": format!("{number}-{key}"), "exp": expiry });
                        token(&json!({ "alg": "HS256" }), &claims, hs256(SECRETS[usize::from(key)]))
                    });
                    let found = verifier.verify(text.as_bytes(), at(now));
                    let expected = in_force & (1 << key) != 0 && now < expiry;
                    prop_assert_eq!(found.is_ok(), expected, "{} at {}", text, now - NOW);
                    if let Ok(identity) = found {
                        let user = format!("{number}-{key}");
                        prop_assert_eq!(identity.user.as_deref(), Some(user.as_str()));
                    }
                    prop_assert!(verifier.counted().cache.entries <= entries.div_ceil(16) * 16);
                }
            }
        }
    }

    #[test]
    fn no_bytes_are_taken_for_a_token(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(by_secret().verify(&bytes, at(NOW)).is_err());
    }

    #[test]
    fn no_parts_are_taken_for_a_token(header in ".{0,40}", claims in ".{0,40}", signature: Vec<u8>) {
        let parts = [header.as_bytes(), claims.as_bytes(), &signature].map(|part| URL_SAFE_NO_PAD.encode(part));
        prop_assert!(by_secret().verify(parts.join(".").as_bytes(), at(NOW)).is_err());
    }

    /// Every change to a valid token is detected, even of the unused bits of its last character, which must be zero.
    #[test]
    fn a_token_that_was_changed_is_refused(place: prop::sample::Index, with: u8) {
        let token = usual(&json!({ "sub": "ann", "exp": NOW + 60 })).into_bytes();
        let mut changed = token.clone();
        changed[place.index(token.len())] = with;
        prop_assume!(changed != token);
        prop_assert!(by_secret().verify(&changed, at(NOW)).is_err());
    }
}
