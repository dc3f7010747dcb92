//! Settings of the client's identity.

use std::path::Path;
use std::time::Duration;

use jsonwebtoken::Algorithm;

use super::error::InvalidValue;
use super::values::{choice, count, flag, span, text};
use super::{ConfigReader, HOUR, MS};
use crate::certificate_authorities::CertificateAuthorities;
use crate::identity::CertificateName;
use crate::identity::jwt::{
    ClaimNames, FetchSettings, KeyFile, KeyFileError, OnInvalid, Settings, TokenLocation, Url, UrlError,
};

const URL: &str = "auth.jwt.jwks_url";
const ALGORITHMS: [(&str, Algorithm); 12] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
];

type ReadFile = fn(&Path) -> Result<KeyFile, KeyFileError>;

/// Settings that name a file with keys, and the function that reads each kind.
const FILES: [(&str, ReadFile); 3] = [
    ("auth.jwt.jwks_file", KeyFile::jwks),
    ("auth.jwt.public_key_file", KeyFile::pem),
    ("auth.jwt.secret_file", KeyFile::secret),
];

impl ConfigReader<'_> {
    /// Settings of token verification; `Some(None)` if there is no source of keys.
    pub(super) fn jwt(&mut self) -> Option<Option<Settings>> {
        let algorithms = self.algorithms();
        let on_invalid = [("refuse", OnInvalid::Refuse), ("anonymous", OnInvalid::Anonymous)];
        let on_invalid = self.value("auth.jwt.on_invalid", choice(&on_invalid));
        let is_required = self.value("auth.jwt.required", flag);
        let leeway = self.value("auth.jwt.leeway", span(Duration::ZERO, HOUR));
        let header = self.header("auth.jwt.header");
        let cookie = self.value("auth.jwt.cookie", text);
        let user = self.value("auth.jwt.user_claim", text);
        let tier = self.value("auth.jwt.tier_claim", text);
        let token_bytes = self.value("auth.jwt.token_bytes", count(64, 1 << 16));
        let cache_entries = self.value("auth.jwt.cache_tokens", count(0, 10_000_000));
        let cache_bytes = self.value("auth.jwt.cache_bytes", count(0, 1 << 34));
        let errors = self.errors.len();
        let (files, fetch) = (self.key_files(), self.fetch()?);
        if self.errors.len() > errors {
            return None;
        }
        if is_required? && on_invalid? == OnInvalid::Anonymous {
            let problem = "a request with an invalid token would pass, because `auth.jwt.on_invalid` is `anonymous`";
            let help = "write `on_invalid: refuse`, or leave `required` out";
            self.wrong("auth.jwt.required", problem, help);
            return None;
        }
        let (issuers, audiences) = (self.texts("auth.jwt.issuer"), self.texts("auth.jwt.audience"));
        if files.is_empty() && fetch.is_none() {
            self.check_without_keys(&issuers, &audiences);
            return Some(None);
        }
        if audiences.is_empty() {
            self.warnings.push(
                "`auth.jwt.audience` is not set: tokens issued for other services are accepted as well".to_owned(),
            );
        }
        Some(Some(Settings {
            place: TokenLocation { header: header?, cookie },
            names: ClaimNames { user: user?, tier },
            algorithms: algorithms?,
            issuers,
            audiences,
            leeway: leeway?,
            on_invalid: on_invalid?,
            is_required: is_required?,
            token_bytes: token_bytes?,
            cache_entries: cache_entries?,
            cache_bytes: cache_bytes?,
            files,
            fetch,
        }))
    }

    /// Reports settings that have no effect without keys: tokens would not be verified at all.
    fn check_without_keys(&mut self, issuers: &[String], audiences: &[String]) {
        let is_required = self.value("auth.jwt.required", flag) == Some(true);
        let tier = self.layers.get("auth.jwt.tier_claim").filter(|found| !found.values.is_empty());
        let named = [
            ("auth.jwt.issuer", !issuers.is_empty()),
            ("auth.jwt.audience", !audiences.is_empty()),
            ("auth.jwt.required", is_required),
            ("auth.jwt.tier_claim", tier.is_some()),
        ];
        if let Some((name, _)) = named.into_iter().find(|(_, is_set)| *is_set) {
            let help = "set `auth.jwt.jwks_url`, `jwks_file`, `public_key_file` or `secret_file`";
            self.wrong(name, "there are no keys to verify tokens with", help);
        }
    }

    fn algorithms(&mut self) -> Option<Vec<Algorithm>> {
        const NAME: &str = "auth.jwt.algorithms";
        let (mut all, errors) = (Vec::new(), self.errors.len());
        for (number, value) in self.texts(NAME).iter().enumerate() {
            match choice(&ALGORITHMS)(value) {
                Ok(algorithm) => all.push(algorithm),
                Err(wrong) if value.eq_ignore_ascii_case("none") => {
                    let help = "leave it out: anyone can forge a token without a signature";
                    self.wrong_one(NAME, number, InvalidValue::new(wrong.problem, help));
                }
                Err(wrong) => self.wrong_one(NAME, number, wrong),
            }
        }
        (self.errors.len() == errors).then_some(all)
    }

    fn key_files(&mut self) -> Vec<KeyFile> {
        let mut files = Vec::new();
        for (name, read) in FILES {
            let Some(path) = self.path(name) else { continue };
            match read(&path) {
                Ok(file) => files.push(file),
                Err(error) => self.wrong(name, &error.to_string(), key_file_help(name)),
            }
        }
        files
    }

    /// Settings for fetching keys; `Some(None)` if there is no URL.
    fn fetch(&mut self) -> Option<Option<FetchSettings>> {
        let interval = self.value("auth.jwt.refresh_interval", span(100 * MS, 24 * HOUR));
        let min_interval = self.value("auth.jwt.min_refresh_interval", span(100 * MS, HOUR));
        let timeout = self.value("auth.jwt.fetch_time", span(MS, HOUR));
        let most_bytes = self.value("auth.jwt.fetch_bytes", count(1_024, 1 << 24));
        let trust = self.trust("auth.jwt.ca");
        let url =
            |text: &str| text.parse::<Url>().map_err(|UrlError { problem, help }| InvalidValue::new(problem, help));
        if self.layers.get(URL).is_none_or(|found| found.values.is_empty()) {
            return Some(None);
        }
        let url = self.value(URL, url)?;
        if url.is_forgeable() {
            self.warnings
                .push(format!("`{URL}` is fetched without TLS: anyone on the network path to {url} can forge tokens"));
        }
        Some(Some(FetchSettings {
            url,
            trust: trust?,
            timeout: timeout?,
            most_bytes: most_bytes?,
            interval: interval?,
            min_interval: min_interval?,
        }))
    }

    /// Certificate name that identifies the user; `Some(None)` if certificates do not identify users.
    pub(super) fn client_certificate(&mut self) -> Option<Option<CertificateName>> {
        let names = [
            ("off", None),
            ("common_name", Some(CertificateName::CommonName)),
            ("dns", Some(CertificateName::Dns)),
            ("uri", Some(CertificateName::Uri)),
        ];
        const NAME: &str = "auth.client_certificate";
        let found = self.value(NAME, choice(&names))?;
        let is_mutual = self.value("gateway.tls", text).as_deref() == Some("mutual");
        if found.is_some() && !is_mutual {
            self.wrong(
                NAME,
                "the gateway does not ask clients for certificates",
                "write `gateway.tls: mutual` as well",
            );
            return None;
        }
        Some(found)
    }

    /// Trusted certificate authorities: those in the file, or those that browsers trust if it is not set.
    pub(super) fn trust(&mut self, name: &str) -> Option<CertificateAuthorities> {
        let Some(path) = self.path(name) else { return Some(CertificateAuthorities::web()) };
        match std::fs::read(&path) {
            Ok(pem) => match CertificateAuthorities::of(&pem) {
                Ok(trust) => Some(trust),
                Err(reason) => {
                    self.wrong(name, &format!("`{}` cannot be used: {reason}", path.display()), "");
                    None
                }
            },
            Err(error) => {
                self.wrong(name, &format!("`{}` cannot be read: {error}", path.display()), "");
                None
            }
        }
    }
}

fn key_file_help(name: &str) -> &'static str {
    match name {
        "auth.jwt.jwks_file" => "write a file with `{\"keys\": [...]}` (RFC 7517)",
        "auth.jwt.public_key_file" => "write one that `openssl pkey -pubout` or `openssl rsa -pubout` has made",
        _ => "write one that `openssl rand -base64 48` has made",
    }
}
