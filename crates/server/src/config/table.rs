//! Everything that can be set: one table, from which the file, the flags, the variables and the documentation follow.

use std::sync::LazyLock;

use super::setting::{Kind, Setting};

/// The purpose of a section, in a sentence.
pub(crate) fn about_section(section: &str) -> &'static str {
    match section {
        "node" => "This server among others.",
        "gateway" => "The gateway: forwards what the rules allow to your services, and answers the rest itself.",
        "api" => "The HTTP door: decisions as JSON, and forward-auth for nginx, Caddy, Traefik and HAProxy.",
        "rls" => "The door for Envoy: its rate-limit service, over gRPC and as JSON.",
        "resp" => "The Redis door: CL.THROTTLE and TG.* for clients of Redis.",
        "admin" => "The operators' door: rules, modes, keys, metrics. Nothing is answered without the token.",
        "auth" => {
            "Who the client is, at the gateway and in forward-auth. Headers count from trusted proxies alone, which have to \
             set or remove them themselves."
        }
        "auth.jwt" => {
            "JSON Web Tokens: they are verified if there is a source of keys (`jwks_url`, `jwks_file`, `public_key_file`, \
             `secret_file`)."
        }
        "tls" => {
            "Certificates, for the doors that say `tls: on` or `tls: mutual`. They are read again when they change."
        }
        "store" => "Where state lives.",
        "store.redis" => "Redis or Valkey, for `kind: redis`, `sentinel` and `cluster`.",
        "secrets" => {
            "How API keys, cookies and other secrets are hidden in Redis, in the log and in metrics. The same on all nodes."
        }
        "headers" => "Which headers tell clients how they stand. A denied request always has Retry-After.",
        "denial" => {
            "The bodies of denials, at the gateway and in forward-auth: a page for browsers (by `Accept`), JSON for all others."
        }
        "cors" => {
            "Scripts in browsers that may read answers of the gateway itself and of forward-auth (429, 413, 502), with \
             Retry-After and the RateLimit fields. Your services answer for their own responses."
        }
        "log" => "What is written to standard error.",
        "access_log" => {
            "A line for each request of the gateway or of forward-auth, to be read by people, by other programs, or by \
             tidegate replay."
        }
        "traces" => "OpenTelemetry: a span for each request that is decided. Only in builds with the feature `otel`.",
        "limits" => "What clients may use of the server.",
        _ => "",
    }
}

/// All settings, in the order in which they are shown.
pub(crate) static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let mut all = vec![
        Setting::new(
            "rules",
            &[],
            "Rules files, or folders of them. They are followed when they change. None is a small example.",
        )
        .of(Kind::Many)
        .such_as("rules.yaml")
        .common(),
        Setting::new(
            "rules_required",
            &["true"],
            "Whether a folder in `rules` needs a file in it. With false the server starts without rules and waits for one.",
        )
        .at_start(),
        Setting::new(
            "redis",
            &[],
            "Share state through Redis: redis://host, rediss://host (TLS), cluster://host,host or sentinel://host,host/primary. \
             Stands for store.kind and store.redis.urls.",
        )
        .of(Kind::Urls)
        .such_as("redis://127.0.0.1:6379")
        .also_called("redis-url")
        .at_start()
        .common(),
        Setting::new(
            "trusted_proxies",
            &["127.0.0.0/8", "::1/128"],
            "The proxies whose word counts: on who the client is, and what it asks for.",
        )
        .of(Kind::Many)
        .common(),
        Setting::new(
            "forwarding_header",
            &["x-forwarded-for"],
            "Where they say who the client is: x-forwarded-for or forwarded.",
        ),
        Setting::new(
            "handover",
            &[],
            "A Unix socket at which the server that takes this one's place is handed what the doors listen at.",
        )
        .such_as("/run/tidegate.sock"),
        Setting::new(
            "node.name",
            &[],
            "What this server is called in `tidegate fleet` and in metrics; otherwise the machine's name and a random number.",
        )
        .such_as("edge-1")
        .at_start(),
    ];
    all.extend(doors());
    all.extend(others());
    all.into_iter().map(Setting::spelled).collect()
});

/// How a door listens.
macro_rules! door {
    ($name:literal, $address:literal) => {
        [
            Setting::new(concat!($name, ".listen"), &[$address], "An address and a port, or off.").common(),
            Setting::new(concat!($name, ".tls"), &["off"], "off, on, or mutual if clients need a certificate too."),
            Setting::new(
                concat!($name, ".proxy_protocol"),
                &["false"],
                "Whether trusted proxies begin connections with a PROXY header.",
            ),
            Setting::new(
                concat!($name, ".connections"),
                &[],
                "The most connections at once; further ones wait. Otherwise 10000, or a share of the open files there may be.",
            )
            .such_as("10000"),
        ]
    };
}

/// For which hosts a listener that a browser can speak to answers.
macro_rules! hosts {
    ($name:literal) => {
        Setting::new(
            concat!($name, ".hosts"),
            &[],
            "Host names that requests may be for, besides localhost and loopback addresses. If none is given, any will do \
             unless the listener has a loopback address.",
        )
        .of(Kind::Many)
        .such_as("tidegate.internal")
    };
}

fn doors() -> Vec<Setting> {
    let mut doors = gateway();
    doors.extend(door!("api", "127.0.0.1:8080"));
    doors.push(hosts!("api"));
    doors.extend(door!("rls", "127.0.0.1:8081"));
    doors.push(hosts!("rls"));
    doors.push(
        Setting::new("rls.domain", &["tidegate"], "The domain whose descriptors meet your own rules, or off.").common(),
    );
    doors.push(
        Setting::new(
            "rls.always_charge",
            &[],
            "Domains that are charged as by envoyproxy/ratelimit: every descriptor, also when another one denies.",
        )
        .of(Kind::Many)
        .such_as("legacy"),
    );
    doors.push(Setting::new(
        "rls.on_store_failure",
        &["allow"],
        "What Envoy's domains do while the store cannot decide: allow, deny or local.",
    ));
    doors.push(Setting::new(
        "rls.metadata",
        &["needed"],
        "When answers have dynamic metadata: never, needed or always.",
    ));
    doors.push(Setting::new(
        "rls.x_ratelimit",
        &["false"],
        "Whether denials have X-RateLimit-* headers, too; Envoy can add them itself (enable_x_ratelimit_headers).",
    ));
    doors.push(Setting::new(
        "rls.idle_time",
        &["1h"],
        "How long a gRPC connection may be without a request before it is told to end.",
    ));
    doors.push(Setting::new(
        "rls.on_allowed",
        &["false"],
        "Whether Envoy is told to add the headers of `headers` to allowed requests, too, if `headers.on_allowed` says so.",
    ));
    doors.push(Setting::new(
        "rls.connection_age",
        &["off"],
        "How long a gRPC connection may live, give or take a tenth, so that clients connect to new servers; or off.",
    ));
    doors.push(Setting::new(
        "rls.connection_grace",
        &["10s"],
        "How long requests in flight may take to end on a connection that has reached its age.",
    ));
    doors.extend(door!("resp", "127.0.0.1:6380"));
    doors.push(
        Setting::new("resp.password", &[], "The password that clients have to show.")
            .of(Kind::Secret)
            .such_as("s3cret"),
    );
    doors.push(
        Setting::new(
            "resp.users",
            &[],
            "Users who may come in as well: names with their passwords. `AUTH ann tea` is written ann:tea.",
        )
        .of(Kind::Logins)
        .such_as("ann:tea"),
    );
    doors.push(Setting::new(
        "resp.on_store_failure",
        &["allow"],
        "What CL.THROTTLE does while the store cannot decide: allow, deny or local. Rules say it themselves.",
    ));
    doors.push(
        Setting::new(
            "resp.store_deadline",
            &[],
            "How long CL.THROTTLE may wait for the store; otherwise as long as store.redis.deadline says.",
        )
        .such_as("10ms"),
    );
    doors.push(Setting::new("resp.idle_time", &["5min"], "How long a connection may be idle."));
    doors.push(Setting::new(
        "resp.transaction_commands",
        &["10000"],
        "How many commands may be queued between MULTI and EXEC.",
    ));
    doors.push(Setting::new(
        "resp.transaction_bytes",
        &["1048576"],
        "How many bytes the commands between MULTI and EXEC may have; each word counts 16 more.",
    ));
    doors.extend(door!("admin", "127.0.0.1:9600"));
    doors.push(hosts!("admin"));
    doors.push(
        Setting::new(
            "admin.token",
            &[],
            "What operators have to know, 16 characters or more. Otherwise one is made up and printed.",
        )
        .of(Kind::Secret)
        .such_as("0123456789abcdef")
        .common(),
    );
    doors.push(Setting::new("admin.open_metrics", &["false"], "Whether /metrics is answered without the token."));
    doors
}

fn gateway() -> Vec<Setting> {
    let [listen, rest @ ..] = door!("gateway", "127.0.0.1:8000");
    let mut gateway = vec![listen.called("gateway")];
    gateway.extend(rest);
    let own = [
        Setting::new(
            "gateway.upstream",
            &[],
            "Where requests go: http://, https:// or h2c:// (HTTP/2 without TLS). The gateway is open if there is one.",
        )
        .of(Kind::Urls)
        .such_as("http://127.0.0.1:3000")
        .called("upstream")
        .common(),
        Setting::new(
            "gateway.routes",
            &[],
            "Where some of them go instead: a host, a path or both, then upstreams, and paths= or upgrades= where they differ.",
        )
        .of(Kind::Many)
        .such_as("api.example.com/v2 http://10.0.0.5:3000 http://10.0.0.6:3000"),
        Setting::new("gateway.api_key_header", &[], "The header in which clients show their API key.")
            .such_as("X-Api-Key"),
        Setting::new(
            "gateway.priority_header",
            &[],
            "The header that says how much a request matters: trusted proxies where no rule does, and upstreams are told.",
        )
        .such_as("X-Priority"),
        Setting::new("gateway.keep_host", &["true"], "Whether upstreams see the Host that the client asked for."),
        Setting::new(
            "gateway.underscores",
            &["false"],
            "Whether headers pass whose names have an underscore, or anything but letters, digits and dashes. Some upstreams take \
             X_User for X-User.",
        ),
        Setting::new(
            "gateway.paths",
            &["canonical"],
            "Paths with several spellings: canonical (one form, and 400 for what has none), strict (400) or as-is.",
        ),
        Setting::new(
            "gateway.upgrades",
            &["websocket"],
            "The protocols that connections may be upgraded to, or off. What is not named is not passed on.",
        )
        .of(Kind::Many),
        Setting::new("gateway.via", &["false"], "Whether Via is added to requests and responses."),
        Setting::new(
            "gateway.inspection_time",
            &["20s"],
            "How long the part of a request's body that rules look into may take to come.",
        ),
        Setting::new(
            "gateway.body_time",
            &["24h"],
            "How long a request's body may take to come. Only time spent waiting for the client counts.",
        ),
        Setting::new(
            "gateway.body_rate",
            &["500"],
            "The least bytes of a body a second, on average, while the client is waited for; 0 for none. Not for gRPC.",
        ),
        Setting::new("gateway.body_grace", &["20s"], "How long a body may be slower than that at first."),
        Setting::new(
            "gateway.tunnel_idle_time",
            &["1h"],
            "How long an upgraded connection (WebSocket) may be silent before it is closed.",
        ),
        Setting::new("gateway.connect_time", &["2s"], "How long connecting to an upstream may take."),
        Setting::new("gateway.response_time", &["60s"], "How long an upstream may take to begin its response."),
        Setting::new("gateway.stall_time", &["60s"], "How long a response may stand still in the middle."),
        Setting::new("gateway.keep_time", &["30s"], "How long a connection to an upstream is kept while it is idle."),
        Setting::new("gateway.keep_connections", &["256"], "How many idle connections to one address are kept."),
        Setting::new("gateway.retries", &["1"], "How often a request is tried again, if nothing can go wrong by that."),
        Setting::new("gateway.retry_percent", &["20"], "How many retries there may be among a hundred requests."),
        Setting::new(
            "gateway.rest_time",
            &["1s"],
            "How long an address that fails rests; twice as long each time, up to 16 times.",
        ),
        Setting::new("gateway.health_path", &[], "The path to ask for, to see whether an address is well.")
            .such_as("/healthz"),
        Setting::new("gateway.health_interval", &["5s"], "How often that is asked for."),
        Setting::new(
            "gateway.give_back",
            &["true"],
            "Whether requests that reach no upstream get back what they were charged.",
        ),
        Setting::new("gateway.ca", &[], "Who may vouch for https upstreams, as PEM; otherwise whom browsers believe.")
            .such_as("upstream-ca.pem"),
    ];
    gateway.extend(own.map(Setting::at_start));
    gateway
}

/// The verification of JSON Web Tokens.
fn jwt() -> Vec<Setting> {
    let all = [
        Setting::new("auth.jwt.jwks_url", &[], "The URL of the key set (JWKS) that verifies tokens.")
            .such_as("https://login.example.com/.well-known/jwks.json")
            .common(),
        Setting::new("auth.jwt.jwks_file", &[], "A file with a key set (JWKS). It is read again when it changes.")
            .such_as("jwks.json"),
        Setting::new(
            "auth.jwt.public_key_file",
            &[],
            "A file with public keys as PEM. It is read again when it changes.",
        )
        .such_as("issuer.pem"),
        Setting::new(
            "auth.jwt.secret_file",
            &[],
            "A file with a shared secret of 32 bytes or more, for HS256. It is read again when it changes.",
        )
        .such_as("jwt-secret"),
        Setting::new(
            "auth.jwt.issuer",
            &[],
            "Issuers (`iss`) of which a token has to name one; otherwise any will do.",
        )
        .of(Kind::Many)
        .such_as("https://login.example.com/")
        .common(),
        Setting::new(
            "auth.jwt.audience",
            &[],
            "Audiences (`aud`) of which a token has to name one; otherwise any will do.",
        )
        .of(Kind::Many)
        .such_as("https://api.example.com")
        .common(),
        Setting::new(
            "auth.jwt.algorithms",
            &["RS256", "PS256", "ES256", "ES384", "EdDSA", "HS256"],
            "Algorithms that a token may name. Each key verifies those of its own kind alone.",
        )
        .of(Kind::Many),
        Setting::new("auth.jwt.user_claim", &["sub"], "The claim that is the user."),
        Setting::new("auth.jwt.tier_claim", &[], "The claim that is the tier.").such_as("plan"),
        Setting::new(
            "auth.jwt.header",
            &["authorization"],
            "The header that has the token: of Authorization, what follows Bearer.",
        ),
        Setting::new("auth.jwt.cookie", &[], "The cookie that has the token if the header has none.")
            .such_as("session"),
        Setting::new(
            "auth.jwt.on_invalid",
            &["refuse"],
            "A request with an invalid token: refuse (401), or anonymous (limited as one without a user).",
        ),
        Setting::new("auth.jwt.required", &["false"], "Whether a request without a token is refused with 401."),
        Setting::new(
            "auth.jwt.leeway",
            &["60s"],
            "How far the clocks of issuers may differ from the server's: tokens are accepted for so long after they expire.",
        ),
        Setting::new("auth.jwt.refresh_interval", &["5min"], "How often the key set is fetched from its URL."),
        Setting::new(
            "auth.jwt.min_refresh_interval",
            &["10s"],
            "The least time between two fetches, however many tokens name keys that are not known.",
        ),
        Setting::new("auth.jwt.fetch_time", &["5s"], "How long fetching the key set may take."),
        Setting::new("auth.jwt.fetch_bytes", &["1048576"], "The most bytes of a key set that is fetched."),
        Setting::new(
            "auth.jwt.ca",
            &[],
            "Who may vouch for the server of the key set, as PEM; otherwise whom browsers believe.",
        )
        .such_as("issuer-ca.pem"),
        Setting::new("auth.jwt.token_bytes", &["8192"], "The most bytes of a token."),
        Setting::new("auth.jwt.cache_tokens", &["10000"], "The most verified tokens that are remembered; 0 for none."),
        Setting::new("auth.jwt.cache_bytes", &["16777216"], "The most bytes that they take, about."),
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
        Setting::new("auth.user_header", &[], "The header that says which user it is.").such_as("X-User"),
        Setting::new("auth.api_key_header", &[], "The header that says which API key it is.").such_as("X-Api-Key"),
        Setting::new("auth.tier_header", &[], "The header that says which tier it belongs to.").such_as("X-Tier"),
        Setting::new(
            "auth.paths",
            &["canonical"],
            "Paths that servers read in several ways: canonical (denied), strict (whatever is not canonical) or as-is.",
        ),
        Setting::new(
            "auth.hold_time",
            &["500ms"],
            "The longest that forward-auth holds an answer back for a `shaper`. What would wait longer is denied. Shorter than the \
             proxy's timeout.",
        ),
        Setting::new(
            "auth.client_certificate",
            &["off"],
            "The name in a verified client certificate that is the user, at a gateway with `tls: mutual`: common_name, dns, \
             uri or off.",
        )
        .at_start(),
        Setting::new(
            "auth.basic",
            &["false"],
            "Whether the name in `Authorization: Basic` is the user. Its password is not verified here.",
        )
        .at_start(),
    ]
}

fn rest() -> Vec<Setting> {
    vec![
        Setting::new("tls.certificate", &[], "The certificate, as PEM.").such_as("server.pem"),
        Setting::new("tls.key", &[], "Its private key, as PEM.").such_as("server-key.pem"),
        Setting::new("tls.client_ca", &[], "Who may vouch for clients, as PEM.").such_as("clients.pem"),
        Setting::new("store.kind", &["memory"], "memory, redis, sentinel or cluster.").common(),
        Setting::new(
            "store.required",
            &["false"],
            "Whether the server is ready only while the store answers, to /readyz, /healthcheck and gRPC's health service.",
        ),
        Setting::new(
            "store.keys",
            &["16777216"],
            "In memory: the most keys that are kept apart, about 45 bytes each. Logs, leases and reservations count by their size.",
        ),
        Setting::new(
            "store.redis.urls",
            &["redis://127.0.0.1:6379"],
            "The server, the sentinels, or some nodes of the cluster. rediss:// is TLS.",
        )
        .of(Kind::Urls)
        .common(),
        Setting::new("store.redis.primary", &[], "The name by which sentinels know the primary.").such_as("mymaster"),
        Setting::new("store.redis.user", &[], "The Redis user, if the URL does not say it.")
            .also_called("redis-user")
            .such_as("tidegate"),
        Setting::new("store.redis.password", &[], "The password, if the URL does not say it.")
            .also_called("redis-password")
            .of(Kind::Secret)
            .such_as("s3cret"),
        Setting::new("store.redis.prefix", &["tidegate"], "What all keys begin with."),
        Setting::new("store.redis.ca", &[], "Who may vouch for the server, as PEM; otherwise whom browsers believe.")
            .such_as("redis-ca.pem"),
        Setting::new("store.redis.certificate", &[], "The certificate to show to the server, as PEM.")
            .such_as("redis-client.pem"),
        Setting::new("store.redis.key", &[], "Its private key, as PEM.").such_as("redis-client-key.pem"),
        Setting::new(
            "store.redis.deadline",
            &["20ms"],
            "How long a decision may wait for the server, unless its rule says otherwise.",
        ),
        Setting::new("store.redis.connect_time", &["250ms"], "How long connecting may take."),
        Setting::new("store.redis.follow", &["true"], "Whether rules and modes that are published there are followed."),
        Setting::new(
            "secrets.key",
            &[],
            "The key of the hashes that stand for secrets: 32 hexadecimal digits, as `openssl rand -hex 16` prints. Without \
             one, state in memory has a key of its own, and state in Redis one that everyone knows.",
        )
        .of(Kind::Secret)
        .such_as("<32 hexadecimal digits>"),
        Setting::new(
            "secrets.previous",
            &[],
            "The key before that one, until the longest window is over: requests are charged under both. built-in if there \
             was none.",
        )
        .of(Kind::Secret)
        .such_as("<32 hexadecimal digits>"),
        Setting::new(
            "headers.x_ratelimit",
            &["delta"],
            "X-RateLimit-Limit, -Remaining and -Reset: delta (seconds to go), epoch, or off.",
        ),
        Setting::new("headers.ietf", &["draft-11"], "RateLimit and RateLimit-Policy, as this draft has them: draft-11, or off."),
        Setting::new(
            "headers.partition_key",
            &["false"],
            "Whether RateLimit says which partition of a quota it tells of (pk), as a hash of the key.",
        ),
        Setting::new(
            "headers.too_large_status",
            &["413"],
            "The status of a request that costs more than a limit can ever hold: 413, 429, 400 or 422.",
        ),
        Setting::new("headers.bucket", &["false"], "X-RateLimit-Bucket: the name of the limit."),
        Setting::new("headers.reset_after", &["false"], "X-RateLimit-Reset-After: seconds with their thousandths."),
        Setting::new("headers.on_allowed", &["true"], "Whether requests that are allowed have them too."),
        Setting::new("headers.audience", &["everyone"], "Who sees them: everyone, or authenticated callers only."),
        Setting::new("headers.jitter", &["0s"], "Up to how much is added to waits by chance."),
        Setting::new("denial.html", &["true"], "Whether browsers get a page. Programs get JSON in any case."),
        Setting::new(
            "denial.html_template",
            &[],
            "A file with a page of your own. {{rule}}, {{retry_after}}, {{status}}, {{reason}}, {{type}}, {{title}}, {{detail}} and \
             {{request_id}} stand for values.",
        )
        .such_as("denied.html"),
        Setting::new("denial.json_template", &[], "A file with JSON of your own, with the same placeholders.")
            .such_as("denied.json"),
        Setting::new(
            "denial.json_type",
            &["application/problem+json"],
            "The media type of JSON: application/problem+json or application/json.",
        ),
        Setting::new("denial.request_id_header", &["X-Request-Id"], "The request header that is {{request_id}} in templates."),
        Setting::new(
            "cors.origins",
            &[],
            "Origins whose scripts may read these answers; https://*.example.com for all below a domain, * for every one.",
        )
        .of(Kind::Many)
        .such_as("https://app.example.com"),
        Setting::new(
            "cors.credentials",
            &["false"],
            "Whether they may also read answers to requests that were sent with cookies.",
        ),
        Setting::new(
            "cors.limit_preflights",
            &["false"],
            "Whether preflights (OPTIONS) of these origins meet the rules. Otherwise they pass uncounted.",
        ),
        Setting::new("log.format", &["text"], "text or json.").common().at_start(),
        Setting::new(
            "log.level",
            &["info"],
            "error, warn, info, debug or trace; or by part: info,tidegate_redis=debug. Libraries log errors only unless named.",
        )
        .common(),
        Setting::new(
            "log.queue_bytes",
            &["1048576"],
            "The most bytes that wait to be written to the log; further lines are dropped and counted.",
        )
        .at_start(),
        Setting::new(
            "log.repeats",
            &["10"],
            "How many lines a second one place in the program may log, after a burst of ten times as many.",
        )
        .at_start(),
        Setting::new(
            "access_log.format",
            &["off"],
            "json, combined (Apache's combined log format), or off. Values of secret parameters are hidden.",
        )
        .common()
        .at_start(),
        Setting::new(
            "access_log.path",
            &["-"],
            "The file that lines are added to, or - for standard output. SIGHUP has it opened anew, after it was renamed.",
        )
        .at_start(),
        Setting::new(
            "access_log.queue_bytes",
            &["4194304"],
            "The most bytes that wait to be written to it; further lines are dropped and counted.",
        )
        .at_start(),
        Setting::new(
            "traces.endpoint",
            &[],
            "The collector, which takes OTLP over gRPC. Without it there are no traces.",
        )
        .such_as("http://127.0.0.1:4317"),
        Setting::new("traces.sample", &["0.01"], "Of the traces that begin here, the share that is kept: 0 to 1."),
        Setting::new("traces.service", &["tidegate"], "What this server is called in them."),
        Setting::new("limits.header_bytes", &["16384"], "The most bytes of a request's head."),
        Setting::new(
            "limits.header_time",
            &["20s"],
            "How long a request's head may take to come, and a connection to be idle.",
        ),
        Setting::new("limits.body_bytes", &["1048576"], "The most bytes of a request's body at the HTTP and admin listeners. The gateway forwards bodies of any size."),
        Setting::new(
            "limits.request_time",
            &["10s"],
            "How long a request's body may take to come, and its answer to be found.",
        ),
        Setting::new("limits.write_time", &["30s"], "How long a client may leave its answer unread."),
        Setting::new(
            "limits.connections_per_address",
            &[],
            "The most connections of one address (IPv6: /64) at a listener, or off; trusted proxies have any number. \
             Otherwise a quarter of the listener's, but 64 at least and half at most.",
        )
        .such_as("2500"),
        Setting::new("limits.handshake_time", &["10s"], "How long TLS and the PROXY protocol may take."),
        Setting::new(
            "limits.keepalive_time",
            &["60s"],
            "How long a connection may be silent before TCP keepalive probes it; 0s for never.",
        ),
        Setting::new("limits.streams", &["128"], "The most requests at once on one HTTP/2 connection."),
        Setting::new(
            "limits.stop_time",
            &["10s"],
            "How long requests in flight may take to end when the server stops.",
        ),
    ]
}
