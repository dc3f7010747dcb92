//! Table of all settings. The file, flags, variables and documentation are derived from it.

mod connections;
mod gateway;
mod identity;
mod listeners;
mod observability;
mod responses;
mod store;

use std::sync::LazyLock;

use super::setting::{Setting, SettingKind};

/// Description of a section, in one sentence.
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
            "JSON Web Tokens, verified with keys from `jwks_url`, `jwks_file`, `public_key_file`, `secret_file`, or \
             several of these."
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
             example rules, or none with a gateway, which then limits nothing.",
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
            "region",
            &[],
            "Region of this server, for rules with `regions`: it applies the share of its region. All servers of a region share one Redis.",
        )
        .such_as("eu")
        .at_start(),
        Setting::new(
            "node.name",
            &[],
            "Name of this server in `tidegate fleet` and in metrics. Default: the host name and a random number.",
        )
        .such_as("edge-1")
        .at_start(),
    ];
    all.extend(gateway::gateway());
    all.extend(listeners::listeners());
    all.extend(identity::auth());
    all.extend(identity::jwt());
    all.extend(connections::tls());
    all.extend(store::store());
    all.extend(responses::responses());
    all.extend(observability::observability());
    all.extend(connections::limits());
    all.into_iter().map(Setting::spelled).collect()
});
