//! Settings of the HTTP API, the Envoy rate-limit service, the Redis protocol and the admin API.

use super::super::setting::{Setting, SettingKind};

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

pub(super) use listener;

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

/// Settings of `api`, `rls`, `resp` and `admin`.
pub(super) fn listeners() -> Vec<Setting> {
    let mut listeners = Vec::from(listener!("api", "127.0.0.1:8080"));
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
