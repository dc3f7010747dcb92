//! Settings of the client's identity.

use super::super::setting::{Setting, SettingKind};

/// Settings of `auth`.
pub(super) fn auth() -> Vec<Setting> {
    vec![
        Setting::new("auth.user_header", &[], "Header with the user.").such_as("X-User"),
        Setting::new("auth.api_key_header", &[], "Header with the API key.").such_as("X-Api-Key"),
        Setting::new("auth.tier_header", &[], "Header with the tier.").such_as("X-Tier"),
        Setting::new(
            "auth.paths",
            &["canonical"],
            "Paths that servers may read in several ways: canonical (denied), strict (every path that is not \
             canonical is denied) or as-is.",
        ),
        Setting::new(
            "auth.hold_time",
            &["500ms"],
            "Longest time that forward-auth delays a response for a `shaper`. Longer waits are denied. Keep it below \
             the proxy's timeout.",
        ),
        Setting::new(
            "auth.client_certificate",
            &["off"],
            "Name in a verified client certificate that becomes the user, at a gateway with `tls: mutual`: \
             common_name, dns, uri or off.",
        )
        .at_start(),
        Setting::new(
            "auth.basic",
            &["false"],
            "Take the user from `Authorization: Basic`. The password is not verified.",
        )
        .at_start(),
    ]
}

/// Settings of `auth.jwt`: the verification of JSON Web Tokens.
pub(super) fn jwt() -> Vec<Setting> {
    let all = [
        Setting::new("auth.jwt.jwks_url", &[], "URL of the key set (JWKS) that verifies tokens.")
            .such_as("https://login.example.com/.well-known/jwks.json")
            .common(),
        Setting::new("auth.jwt.jwks_file", &[], "File with a key set (JWKS). Reloaded when it changes.")
            .such_as("jwks.json"),
        Setting::new("auth.jwt.public_key_file", &[], "File with public keys as PEM. Reloaded when it changes.")
            .such_as("issuer.pem"),
        Setting::new(
            "auth.jwt.secret_file",
            &[],
            "File with a shared secret of at least 32 bytes, for HS256. Reloaded when it changes.",
        )
        .such_as("jwt-secret"),
        Setting::new("auth.jwt.issuer", &[], "Accepted issuers (`iss`). Default: any issuer.")
            .of(SettingKind::Many)
            .such_as("https://login.example.com/")
            .common(),
        Setting::new("auth.jwt.audience", &[], "Accepted audiences (`aud`). Default: any audience.")
            .of(SettingKind::Many)
            .such_as("https://api.example.com")
            .common(),
        Setting::new(
            "auth.jwt.algorithms",
            &["RS256", "PS256", "ES256", "ES384", "EdDSA", "HS256"],
            "Accepted signature algorithms. A key only verifies algorithms of its own type.",
        )
        .of(SettingKind::Many),
        Setting::new("auth.jwt.user_claim", &["sub"], "Claim that holds the user."),
        Setting::new("auth.jwt.tier_claim", &[], "Claim that holds the tier.").such_as("plan"),
        Setting::new(
            "auth.jwt.header",
            &["authorization"],
            "Header that carries the token. In Authorization, the token follows `Bearer`.",
        ),
        Setting::new("auth.jwt.cookie", &[], "Cookie that carries the token if the header does not.")
            .such_as("session"),
        Setting::new(
            "auth.jwt.on_invalid",
            &["refuse"],
            "Treatment of a request with an invalid token: refuse (401), or anonymous (limited as a request without a \
             user).",
        ),
        Setting::new("auth.jwt.required", &["false"], "Refuse requests without a token with 401."),
        Setting::new(
            "auth.jwt.leeway",
            &["60s"],
            "Tolerated clock difference between issuers and this server. Tokens are accepted this long after they \
             expire.",
        ),
        Setting::new("auth.jwt.refresh_interval", &["5min"], "Interval at which the key set is fetched from its URL."),
        Setting::new(
            "auth.jwt.min_refresh_interval",
            &["10s"],
            "Minimum time between two fetches, however many tokens name an unknown key.",
        ),
        Setting::new("auth.jwt.fetch_time", &["5s"], "Timeout for fetching the key set."),
        Setting::new("auth.jwt.fetch_bytes", &["1048576"], "Maximum size in bytes of a fetched key set."),
        Setting::new(
            "auth.jwt.ca",
            &[],
            "CA certificates for the server of the key set, as PEM. Default: the certificate authorities that \
             browsers trust.",
        )
        .such_as("issuer-ca.pem"),
        Setting::new("auth.jwt.token_bytes", &["8192"], "Maximum size in bytes of a token."),
        Setting::new(
            "auth.jwt.cache_tokens",
            &["10000"],
            "Maximum number of verified tokens in the cache; 0 for no cache.",
        ),
        Setting::new(
            "auth.jwt.cache_bytes",
            &["16777216"],
            "Approximate maximum size in bytes of the cache of verified tokens.",
        ),
    ];
    all.map(Setting::at_start).into()
}
