//! Table of all settings. The file, flags, variables and documentation are derived from it.

use std::sync::LazyLock;

use super::setting::{Setting, SettingKind};

/// The purpose of a section, in a sentence.
pub(crate) fn about_section(section: &str) -> &'static str {
    match section {
        "node" => "This server within a fleet.",
        "gateway" => {
            "Gateway: forwards the requests that the rules allow to your services, and answers the others itself."
        }
        "api" => "HTTP API: decisions as JSON, and forward-auth for nginx, Caddy, Traefik and HAProxy.",
        "rls" => "Envoy rate-limit service, over gRPC and as JSON.",
        "resp" => "Redis-protocol listener: CL.THROTTLE and TG.* for Redis clients.",
        "admin" => "Admin API: rules, modes, keys and metrics. Every request needs the token.",
        "auth" => {
            "Identity of the client, at the gateway and in forward-auth. Headers are accepted from trusted proxies \
             only. These must set or remove them on every request."
        }
        "auth.jwt" => {
            "JSON Web Tokens, verified with one source of keys: `jwks_url`, `jwks_file`, `public_key_file` or \
             `secret_file`."
        }
        "tls" => "Certificates for listeners with `tls: on` or `tls: mutual`. Reloaded when they change.",
        "store" => "Store: where the state of limits is kept.",
        "store.redis" => "Redis or Valkey, for `kind: redis`, `sentinel` and `cluster`.",
        "secrets" => {
            "Hashing of API keys, cookies and other secrets in Redis, in the log and in metrics. Use the same key on \
             all nodes."
        }
        "headers" => "Rate-limit headers in responses. Denials always have Retry-After.",
        "denial" => {
            "Bodies of denials, at the gateway and in forward-auth: an HTML page for browsers (by `Accept`), JSON for \
             other clients."
        }
        "cors" => {
            "Cross-origin access to the responses of the gateway itself and of forward-auth (429, 413, 502), \
             including Retry-After and the rate-limit headers. Your services set CORS headers on their own responses."
        }
        "log" => "Log, written to standard error.",
        "access_log" => {
            "Access log: a line for each request at the gateway or in forward-auth, for people, other programs and \
             `tidegate replay`."
        }
        "traces" => "OpenTelemetry traces: a span for each decision. Only in builds with the feature `otel`.",
        "limits" => "Resource limits on clients.",
        _ => "",
    }
}

/// All settings, in the order in which they are shown.
pub(crate) static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let mut all = vec![
        Setting::new(
            "rules",
            &[],
            "Rules files, or folders of rules files. Changes take effect without a restart. Default: a small set of \
             example rules.",
        )
        .of(SettingKind::Many)
        .such_as("rules.yaml")
        .common(),
        Setting::new(
            "rules_required",
            &["true"],
            "Require at least one file in each folder of `rules`. With false, the server starts without rules and \
             loads them once they appear.",
        )
        .at_start(),
        Setting::new(
            "redis",
            &[],
            "Share state through Redis: redis://host, rediss://host (TLS), cluster://host,host or \
             sentinel://host,host/primary. Shorthand for store.kind and store.redis.urls.",
        )
        .of(SettingKind::Urls)
        .such_as("redis://127.0.0.1:6379")
        .also_called("redis-url")
        .at_start()
        .common(),
        Setting::new(
            "trusted_proxies",
            &["127.0.0.0/8", "::1/128"],
            "Trusted proxies: the client's address and identity are taken from their forwarding headers.",
        )
        .of(SettingKind::Many)
        .common(),
        Setting::new(
            "forwarding_header",
            &["x-forwarded-for"],
            "Header in which trusted proxies send the client's address: x-forwarded-for or forwarded.",
        ),
        Setting::new(
            "handover",
            &[],
            "Unix socket for restarts without downtime: a new server takes over the listening sockets of the old one.",
        )
        .such_as("/run/tidegate.sock"),
        Setting::new(
            "node.name",
            &[],
            "Name of this server in `tidegate fleet` and in metrics. Default: the host name and a random number.",
        )
        .such_as("edge-1")
        .at_start(),
    ];
    all.extend(listeners());
    all.extend(others());
    all.into_iter().map(Setting::spelled).collect()
});

/// Settings of a listener.
macro_rules! listener {
    ($name:literal, $address:literal) => {
        [
            Setting::new(concat!($name, ".listen"), &[$address], "Address and port to listen on, or off.").common(),
            Setting::new(concat!($name, ".tls"), &["off"], "TLS: off, on, or mutual (clients need a certificate too)."),
            Setting::new(
                concat!($name, ".proxy_protocol"),
                &["false"],
                "Expect a PROXY protocol header on connections from trusted proxies.",
            ),
            Setting::new(
                concat!($name, ".connections"),
                &[],
                "Maximum number of open connections; further ones wait. Default: 10000, or a share of the open-file \
             limit.",
            )
            .such_as("10000"),
        ]
    };
}

/// Host names of a listener that speaks HTTP.
macro_rules! hosts {
    ($name:literal) => {
        Setting::new(
            concat!($name, ".hosts"),
            &[],
            "Host names that requests may be addressed to, besides localhost and loopback addresses. Default: any \
             host name, or none on a loopback address.",
        )
        .of(SettingKind::Many)
        .such_as("tidegate.internal")
    };
}

fn listeners() -> Vec<Setting> {
    let mut listeners = gateway();
    listeners.extend(listener!("api", "127.0.0.1:8080"));
    listeners.push(hosts!("api"));
    listeners.extend(listener!("rls", "127.0.0.1:8081"));
    listeners.push(hosts!("rls"));
    listeners.push(
        Setting::new(
            "rls.domain",
            &["tidegate"],
            "Domain whose descriptors are matched against your own rules, or off.",
        )
        .common(),
    );
    listeners.push(
        Setting::new(
            "rls.always_charge",
            &[],
            "Domains charged as envoyproxy/ratelimit does: every descriptor is charged, even if another one denies.",
        )
        .of(SettingKind::Many)
        .such_as("legacy"),
    );
    listeners.push(Setting::new(
        "rls.on_store_failure",
        &["allow"],
        "Decision for Envoy's domains while the store is unavailable: allow, deny or local.",
    ));
    listeners.push(Setting::new(
        "rls.metadata",
        &["needed"],
        "Dynamic metadata in responses: never, needed or always.",
    ));
    listeners.push(Setting::new(
        "rls.x_ratelimit",
        &["false"],
        "Add X-RateLimit-* headers to denials. Envoy can add them itself (enable_x_ratelimit_headers).",
    ));
    listeners.push(Setting::new(
        "rls.idle_time",
        &["1h"],
        "Idle timeout of a gRPC connection: the client is told to close it after this long without a request.",
    ));
    listeners.push(Setting::new(
        "rls.on_allowed",
        &["false"],
        "Have Envoy add the headers of `headers` to allowed requests as well. Requires `headers.on_allowed`.",
    ));
    listeners.push(Setting::new(
        "rls.connection_age",
        &["off"],
        "Maximum age of a gRPC connection, give or take 10 %, so that clients reconnect and reach new servers; or \
             off.",
    ));
    listeners.push(Setting::new(
        "rls.connection_grace",
        &["10s"],
        "Time for requests in flight to finish on a connection that has reached its maximum age.",
    ));
    listeners.extend(listener!("resp", "127.0.0.1:6380"));
    listeners.push(
        Setting::new("resp.password", &[], "Password that clients must send with AUTH or HELLO.")
            .of(SettingKind::Secret)
            .such_as("s3cret"),
    );
    listeners.push(
        Setting::new("resp.users", &[], "Additional users and their passwords. `AUTH ann tea` is written ann:tea.")
            .of(SettingKind::Logins)
            .such_as("ann:tea"),
    );
    listeners.push(Setting::new(
        "resp.on_store_failure",
        &["allow"],
        "Decision of CL.THROTTLE while the store is unavailable: allow, deny or local. Rules have their own \
             `on_store_failure`.",
    ));
    listeners.push(
        Setting::new(
            "resp.store_deadline",
            &[],
            "Longest time that CL.THROTTLE waits for the store. Default: store.redis.deadline.",
        )
        .such_as("10ms"),
    );
    listeners.push(Setting::new("resp.idle_time", &["5min"], "Idle timeout of a connection."));
    listeners.push(Setting::new(
        "resp.transaction_commands",
        &["10000"],
        "Maximum number of commands queued between MULTI and EXEC.",
    ));
    listeners.push(Setting::new(
        "resp.transaction_bytes",
        &["1048576"],
        "Maximum size in bytes of the commands queued between MULTI and EXEC. Each argument counts 16 bytes \
             extra.",
    ));
    listeners.extend(listener!("admin", "127.0.0.1:9600"));
    listeners.push(hosts!("admin"));
    listeners.push(
        Setting::new(
            "admin.token",
            &[],
            "Bearer token that operators must send, at least 16 characters. Default: a random token, printed at \
             startup.",
        )
        .of(SettingKind::Secret)
        .such_as("0123456789abcdef")
        .common(),
    );
    listeners.push(Setting::new("admin.open_metrics", &["false"], "Serve /metrics without the token."));
    listeners
}

fn gateway() -> Vec<Setting> {
    let [listen, rest @ ..] = listener!("gateway", "127.0.0.1:8000");
    let mut gateway = vec![listen.called("gateway")];
    gateway.extend(rest);
    let own = [
        Setting::new(
            "gateway.upstream",
            &[],
            "Upstreams to forward requests to: http://, https:// or h2c:// (HTTP/2 without TLS). Setting one turns \
             the gateway on.",
        )
        .of(SettingKind::Urls)
        .such_as("http://127.0.0.1:3000")
        .called("upstream")
        .common(),
        Setting::new(
            "gateway.routes",
            &[],
            "Routes to other upstreams: a host, a path or both, then upstreams. Options: paths= and upgrades=, if \
             they differ from the settings here.",
        )
        .of(SettingKind::Many)
        .such_as("api.example.com/v2 http://10.0.0.5:3000 http://10.0.0.6:3000"),
        Setting::new("gateway.api_key_header", &[], "Header in which clients send their API key.").such_as("X-Api-Key"),
        Setting::new(
            "gateway.priority_header",
            &[],
            "Header with the priority of a request. Read from trusted proxies if no rule sets the priority; always \
             sent to upstreams.",
        )
        .such_as("X-Priority"),
        Setting::new("gateway.keep_host", &["true"], "Forward the client's Host header to upstreams."),
        Setting::new(
            "gateway.underscores",
            &["false"],
            "Forward headers whose names contain underscores or anything but letters, digits and dashes. Some \
             upstreams treat X_User as X-User.",
        ),
        Setting::new(
            "gateway.paths",
            &["canonical"],
            "Paths that can be spelled in several ways: canonical (rewritten to one form; 400 if there is none), \
             strict (400) or as-is.",
        ),
        Setting::new(
            "gateway.upgrades",
            &["websocket"],
            "Protocols that connections may be upgraded to, or off. Other upgrades are not forwarded.",
        )
        .of(SettingKind::Many),
        Setting::new("gateway.via", &["false"], "Add a Via header to requests and responses."),
        Setting::new(
            "gateway.inspection_time",
            &["20s"],
            "Timeout for receiving the part of a request body that rules inspect.",
        ),
        Setting::new(
            "gateway.body_time",
            &["24h"],
            "Timeout for receiving a request body. Only time spent waiting for the client counts.",
        ),
        Setting::new(
            "gateway.body_rate",
            &["500"],
            "Minimum average rate of a request body in bytes per second, while waiting for the client; 0 for none. \
             Does not apply to gRPC.",
        ),
        Setting::new("gateway.body_grace", &["20s"], "Time before the minimum rate of a request body is enforced."),
        Setting::new("gateway.tunnel_idle_time", &["1h"], "Idle timeout of an upgraded connection (WebSocket)."),
        Setting::new("gateway.connect_time", &["2s"], "Timeout for connecting to an upstream."),
        Setting::new("gateway.response_time", &["60s"], "Timeout for an upstream to begin its response."),
        Setting::new("gateway.stall_time", &["60s"], "Timeout for a response body that makes no progress."),
        Setting::new("gateway.keep_time", &["30s"], "Idle timeout of a pooled connection to an upstream."),
        Setting::new(
            "gateway.keep_connections",
            &["256"],
            "Maximum number of idle connections kept for each upstream address.",
        ),
        Setting::new(
            "gateway.retries",
            &["1"],
            "Maximum number of retries of a request. Only requests that are safe to repeat are retried.",
        ),
        Setting::new("gateway.retry_percent", &["20"], "Retry budget: maximum number of retries per 100 requests."),
        Setting::new(
            "gateway.concurrency",
            &[],
            "Adaptive limit on requests in flight at each upstream address: `gradient2`, `vegas` or `aimd`, and its bounds.",
        )
        .such_as("gradient2 20..200"),
        Setting::new(
            "gateway.concurrency_mode",
            &["enforce"],
            "`enforce` refuses requests above the adaptive limit with 503. `shadow` only counts them.",
        ),
        Setting::new(
            "gateway.concurrency_shares",
            &["low=0", "normal=20", "high=30", "critical=50"],
            "Percentage of the adaptive limit that each priority may use even if the whole limit is taken.",
        )
        .of(SettingKind::Many),
        Setting::new(
            "gateway.shedding",
            &["off"],
            "Load shedding by priority: `enforce` refuses the least important requests with 503 under overload, `shadow` only counts them.",
        ),
        Setting::new(
            "gateway.shedding_exempt",
            &[],
            "Paths whose requests are never shed and not held to the adaptive limit, such as health checks. `gateway.health_path` is one.",
        )
        .of(SettingKind::Many)
        .such_as("/healthz"),
        Setting::new(
            "gateway.shedding_wait",
            &["20ms"],
            "Mean time that tasks of the gateway may wait for a processor. A longer wait counts as overload.",
        ),
        Setting::new(
            "gateway.shedding_busy",
            &["95"],
            "Percentage of the time that the gateway's threads may be busy. More counts as overload; 100 never does.",
        ),
        Setting::new(
            "gateway.rest_time",
            &["1s"],
            "Backoff of an upstream address that fails. Doubles with each further failure, up to 16 times.",
        ),
        Setting::new(
            "gateway.health_path",
            &[],
            "Path of active health checks. Without one, there are no active health checks.",
        )
        .such_as("/healthz"),
        Setting::new("gateway.health_interval", &["5s"], "Interval between health checks."),
        Setting::new("gateway.give_back", &["true"], "Refund the charges of requests that reach no upstream."),
        Setting::new(
            "gateway.ca",
            &[],
            "CA certificates for https upstreams, as PEM. Default: the certificate authorities that browsers trust.",
        )
        .such_as("upstream-ca.pem"),
    ];
    gateway.extend(own.map(Setting::at_start));
    gateway
}

/// The verification of JSON Web Tokens.
fn jwt() -> Vec<Setting> {
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

fn others() -> Vec<Setting> {
    let mut others = auth();
    others.extend(jwt());
    others.extend(rest());
    others
}

fn auth() -> Vec<Setting> {
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

fn rest() -> Vec<Setting> {
    vec![
        Setting::new("tls.certificate", &[], "Certificate chain, as PEM.").such_as("server.pem"),
        Setting::new("tls.key", &[], "Private key of the certificate, as PEM.").such_as("server-key.pem"),
        Setting::new("tls.client_ca", &[], "CA certificates for client certificates, as PEM.").such_as("clients.pem"),
        Setting::new("store.kind", &["memory"], "Kind of store: memory, redis, sentinel or cluster.").common(),
        Setting::new(
            "store.required",
            &["false"],
            "Report ready only while the store is available, at /readyz, /healthcheck and gRPC's health service.",
        ),
        Setting::new(
            "store.keys",
            &["16777216"],
            "Maximum number of keys in the memory store, at about 45 bytes each. Logs, leases and reservations count \
             by their size.",
        ),
        Setting::new(
            "store.file",
            &[],
            "File in which state in memory survives restarts. Without it, a restart forgets what was spent.",
        )
        .such_as("/var/lib/tidegate/state"),
        Setting::new(
            "store.save_every",
            &["5s"],
            "Interval at which state is saved to store.file. A crash forgets at most what was spent within it.",
        ),
        Setting::new(
            "store.redis.urls",
            &["redis://127.0.0.1:6379"],
            "URL of the server, of the sentinels, or of some nodes of the cluster. rediss:// is TLS.",
        )
        .of(SettingKind::Urls)
        .common(),
        Setting::new("store.redis.primary", &[], "Name of the primary, as configured in Sentinel.").such_as("mymaster"),
        Setting::new("store.redis.user", &[], "Redis user, if the URL does not contain one.")
            .also_called("redis-user")
            .such_as("tidegate"),
        Setting::new("store.redis.password", &[], "Redis password, if the URL does not contain one.")
            .also_called("redis-password")
            .of(SettingKind::Secret)
            .such_as("s3cret"),
        Setting::new("store.redis.prefix", &["tidegate"], "Prefix of all keys."),
        Setting::new(
            "store.redis.ca",
            &[],
            "CA certificates for the Redis server, as PEM. Default: the certificate authorities that browsers trust.",
        )
        .such_as("redis-ca.pem"),
        Setting::new("store.redis.certificate", &[], "Client certificate for the Redis server, as PEM.")
            .such_as("redis-client.pem"),
        Setting::new("store.redis.key", &[], "Private key of the client certificate, as PEM.")
            .such_as("redis-client-key.pem"),
        Setting::new(
            "store.redis.deadline",
            &["20ms"],
            "Longest time that a decision waits for Redis, unless its rule sets another deadline.",
        ),
        Setting::new("store.redis.connect_time", &["250ms"], "Timeout for connecting to Redis."),
        Setting::new(
            "store.redis.follow",
            &["true"],
            "Apply rules and modes that are published for the fleet in Redis.",
        ),
        Setting::new(
            "store.redis.leases",
            &["true"],
            "Lease keys that are busy, so that most of their requests are decided without a call to Redis. All nodes together \
             still admit no more than the limit.",
        ),
        Setting::new(
            "store.redis.tiers_ttl",
            &["60s"],
            "Time for which the tier of an API key is used without asking Redis again, for rules with `tiers: { from: store }`.",
        ),
        Setting::new(
            "store.redis.tiers_keys",
            &["100000"],
            "Maximum number of API keys whose tiers are kept in memory, at about 200 bytes each.",
        ),
        Setting::new(
            "store.redis.tiers_deadline",
            &["100ms"],
            "Longest time that a request waits for the tier of its API key. After that, the default tier applies.",
        ),
        Setting::new(
            "secrets.key",
            &[],
            "Key of the hashes that replace secrets: 32 hexadecimal digits, as printed by `openssl rand -hex 16`. \
             Default: a random key for state in memory, and a publicly known key for state in Redis.",
        )
        .of(SettingKind::Secret)
        .such_as("<32 hexadecimal digits>"),
        Setting::new(
            "secrets.previous",
            &[],
            "Previous key, during a key rotation: requests are charged under both keys. Keep it until the longest \
             window has passed. Write built-in if there was no key before.",
        )
        .of(SettingKind::Secret)
        .such_as("<32 hexadecimal digits>"),
        Setting::new(
            "headers.x_ratelimit",
            &["delta"],
            "X-RateLimit-Limit, -Remaining and -Reset: delta (reset in seconds from now), epoch (reset as Unix time) \
             or off.",
        ),
        Setting::new(
            "headers.ietf",
            &["draft-11"],
            "RateLimit and RateLimit-Policy, by the version of the IETF draft: draft-11, or off.",
        ),
        Setting::new(
            "headers.partition_key",
            &["false"],
            "Add the partition key (pk) to RateLimit, as a hash of the key.",
        ),
        Setting::new(
            "headers.too_large_status",
            &["413"],
            "Status of a request that costs more than a limit can ever hold: 413, 429, 400 or 422.",
        ),
        Setting::new("headers.bucket", &["false"], "X-RateLimit-Bucket: the name of the limit."),
        Setting::new(
            "headers.reset_after",
            &["false"],
            "X-RateLimit-Reset-After: seconds, with milliseconds as decimals.",
        ),
        Setting::new("headers.on_allowed", &["true"], "Add the headers to allowed requests as well."),
        Setting::new(
            "headers.audience",
            &["everyone"],
            "Recipients of the headers: everyone, or authenticated callers only.",
        ),
        Setting::new("headers.jitter", &["0s"], "Maximum random time added to Retry-After and resets."),
        Setting::new("denial.html", &["true"], "Send an HTML page to browsers. Other clients always get JSON."),
        Setting::new(
            "denial.html_template",
            &[],
            "File with your own HTML page. Placeholders: {{rule}}, {{retry_after}}, {{status}}, {{reason}}, {{type}}, \
             {{title}}, {{detail}}, {{request_id}}.",
        )
        .such_as("denied.html"),
        Setting::new("denial.json_template", &[], "File with your own JSON body, with the same placeholders.")
            .such_as("denied.json"),
        Setting::new(
            "denial.json_type",
            &["application/problem+json"],
            "Media type of JSON bodies: application/problem+json or application/json.",
        ),
        Setting::new(
            "denial.request_id_header",
            &["X-Request-Id"],
            "Request header that fills {{request_id}} in templates.",
        ),
        Setting::new(
            "cors.origins",
            &[],
            "Origins whose scripts may read these responses; https://*.example.com for all subdomains, * for any \
             origin.",
        )
        .of(SettingKind::Many)
        .such_as("https://app.example.com"),
        Setting::new("cors.credentials", &["false"], "Let these scripts also read responses to requests with cookies."),
        Setting::new(
            "cors.limit_preflights",
            &["false"],
            "Apply the rules to preflight requests (OPTIONS) of these origins. Otherwise preflights pass uncounted.",
        ),
        Setting::new("log.format", &["text"], "Log format: text or json.").common().at_start(),
        Setting::new(
            "log.level",
            &["info"],
            "Log level: error, warn, info, debug or trace; or by module: info,tidegate_redis=debug. Libraries log \
             errors only, unless named.",
        )
        .common(),
        Setting::new(
            "log.queue_bytes",
            &["1048576"],
            "Maximum size in bytes of the queue of log lines. Lines that do not fit are dropped and counted.",
        )
        .at_start(),
        Setting::new(
            "log.repeats",
            &["10"],
            "Maximum number of lines per second from one place in the program, after a burst of ten times as many.",
        )
        .at_start(),
        Setting::new(
            "access_log.format",
            &["off"],
            "Access log format: json, combined (Apache's combined log format) or off. Values of secret parameters are \
             hidden.",
        )
        .common()
        .at_start(),
        Setting::new(
            "access_log.path",
            &["-"],
            "File to append to, or - for standard output. SIGHUP reopens it after log rotation.",
        )
        .at_start(),
        Setting::new(
            "access_log.queue_bytes",
            &["4194304"],
            "Maximum size in bytes of the queue of access log lines. Lines that do not fit are dropped and counted.",
        )
        .at_start(),
        Setting::new("traces.endpoint", &[], "URL of the collector (OTLP over gRPC). Without it, there are no traces.")
            .such_as("http://127.0.0.1:4317"),
        Setting::new("traces.sample", &["0.01"], "Share of new traces that are sampled, from 0 to 1."),
        Setting::new("traces.service", &["tidegate"], "Service name in traces."),
        Setting::new("limits.header_bytes", &["16384"], "Maximum size in bytes of a request's head."),
        Setting::new(
            "limits.header_time",
            &["20s"],
            "Timeout for receiving a request's head, and idle timeout of a connection.",
        ),
        Setting::new(
            "limits.body_bytes",
            &["1048576"],
            "Maximum size in bytes of a request body at the HTTP API and admin listeners. The gateway forwards bodies \
             of any size.",
        ),
        Setting::new(
            "limits.request_time",
            &["10s"],
            "Timeout for receiving a request body, and for computing the response.",
        ),
        Setting::new("limits.write_time", &["30s"], "Timeout for a client that does not read its response."),
        Setting::new(
            "limits.connections_per_address",
            &[],
            "Maximum number of connections from one address (IPv6: /64) to a listener, or off. Trusted proxies are \
             exempt. Default: a quarter of the listener's connections, but at least 64 and at most half.",
        )
        .such_as("2500"),
        Setting::new(
            "limits.handshake_time",
            &["10s"],
            "Timeout of the TLS handshake and of the PROXY protocol header.",
        ),
        Setting::new(
            "limits.keepalive_time",
            &["60s"],
            "Idle time before TCP keepalive probes a connection; 0s for never.",
        ),
        Setting::new("limits.streams", &["128"], "Maximum number of concurrent requests on one HTTP/2 connection."),
        Setting::new("limits.stop_time", &["10s"], "Time for requests in flight to finish when the server stops."),
    ]
}
