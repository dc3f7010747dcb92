//! Settings of the store and of secrets in it.

use super::super::setting::{Setting, SettingKind};

/// Settings of `store` and `secrets`.
pub(super) fn store() -> Vec<Setting> {
    vec![
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
            "store.redis.regions",
            &[],
            "Name and URL of the Redis of each region, for `tidegate regions` and for moving shares through the admin API. \
             Decisions use only the Redis of their own region.",
        )
        .of(SettingKind::Urls)
        .also_called("regions")
        .such_as("eu=redis://cache.eu.internal"),
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
    ]
}
