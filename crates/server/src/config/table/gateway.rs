//! Settings of the gateway.

use super::super::setting::{Setting, SettingKind};

/// Settings of `gateway`.
pub(super) fn gateway() -> Vec<Setting> {
    let [listen, rest @ ..] = super::listeners::listener!("gateway", "127.0.0.1:8000");
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
        Setting::new("gateway.pool_idle_time", &["30s"], "Idle timeout of a pooled connection to an upstream.")
            .formerly("gateway.keep_time"),
        Setting::new(
            "gateway.pool_idle_connections",
            &["256"],
            "Maximum number of idle connections in the pool of each upstream address.",
        )
        .formerly("gateway.keep_connections"),
        Setting::new(
            "gateway.retries",
            &["1"],
            "Maximum number of retries of a request. Only requests that are safe to repeat are retried.",
        ),
        Setting::new("gateway.retry_percent", &["20"], "Retry budget: maximum number of retries per 100 requests."),
        Setting::new(
            "gateway.concurrency",
            &[],
            "Adaptive limit on requests in flight at each upstream address: `gradient2`, `vegas` or `aimd`, its bounds, and constants such as `tolerance 1.3`.",
        )
        .such_as("gradient2 20..200"),
        Setting::new(
            "gateway.concurrency_mode",
            &["enforce"],
            "`enforce` refuses requests above the adaptive limit with 503. `shadow` only counts them.",
        ),
        Setting::new(
            "gateway.concurrency_window",
            &["1s"],
            "Requests that are measured together for the adaptive limit: for this time at least, and until there are 10 (`samples 10`). Shorter ones than 100 µs do not count (`shortest 100us`). Up to 1 % of them may be refused or time out before the limit falls (`drops 0.01`).",
        ),
        Setting::new(
            "gateway.concurrency_shares",
            &["low=0", "normal=20", "high=30", "critical=50"],
            "Percentage of the adaptive limit that each priority may use even if the whole limit is taken. So the requests in flight may exceed the limit by the sum of the shares: with the default, up to twice the limit.",
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
            "Paths whose requests are never shed, not even by rules with `shed`, and are exempt from the adaptive limit, such as health checks. `gateway.health_path` is always one of them, for GET and HEAD.",
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
            "gateway.backoff_time",
            &["1s"],
            "Backoff of an upstream address that fails. Doubles with each further failure, up to 16 times.",
        )
        .formerly("gateway.rest_time"),
        Setting::new(
            "gateway.health_path",
            &[],
            "Path of active health checks. Without one, there are no active health checks.",
        )
        .such_as("/healthz"),
        Setting::new("gateway.health_interval", &["5s"], "Interval between health checks."),
        Setting::new("gateway.refund_unserved", &["true"], "Refund the charges of requests that reach no upstream.")
            .formerly("gateway.give_back"),
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
