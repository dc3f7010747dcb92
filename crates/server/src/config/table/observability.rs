//! Settings of the log, the access log and traces.

use super::super::setting::Setting;

/// Settings of `log`, `access_log` and `traces`.
pub(super) fn observability() -> Vec<Setting> {
    vec![
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
    ]
}
