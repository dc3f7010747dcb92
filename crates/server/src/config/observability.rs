//! Settings of the log, the access log and traces.

use std::num::NonZero;

use super::ConfigReader;
use super::error::InvalidValue;
use super::values::{choice, count, share, text};
use crate::access_log::{self, AccessLogFormat, AccessLogTarget};
use crate::log::{self, LogLineFormat};
use crate::traces;

impl ConfigReader<'_> {
    pub(super) fn log(&mut self) -> Option<log::Settings> {
        let format = self.value("log.format", choice(&[("text", LogLineFormat::Text), ("json", LogLineFormat::Json)]));
        let level = self.value("log.level", |value| {
            let help = "write error, warn, info, debug or trace, or by module: `info,tidegate_redis=debug`";
            log::level(value).ok_or_else(|| InvalidValue::new(format!("`{value}` is not a log level"), help))
        });
        let queue_bytes = self.value("log.queue_bytes", count(1 << 10, 1 << 30));
        let repeats = self.value("log.repeats", count(1, 1_000_000));
        let repeats = repeats.and_then(|repeats| u32::try_from(repeats).ok().and_then(NonZero::new));
        Some(log::Settings { format: format?, level: level?, queue_bytes: queue_bytes?, repeats: repeats? })
    }

    /// `None` on an error, `Some(None)` if it is off.
    pub(super) fn access_log(&mut self) -> Option<Option<access_log::Settings>> {
        let formats = [
            ("json", Some(AccessLogFormat::Json)),
            ("combined", Some(AccessLogFormat::Combined)),
            ("off", None),
            ("false", None),
        ];
        let format = self.value("access_log.format", choice(&formats));
        let queue_bytes = self.value("access_log.queue_bytes", count(1 << 10, 1 << 30));
        let target = match self.value("access_log.path", text)?.as_str() {
            "-" | "stdout" => AccessLogTarget::Stdout,
            "" => {
                self.wrong("access_log.path", "it is empty", "write the path of a file, or `-` for standard output");
                return None;
            }
            _ => AccessLogTarget::File(self.path("access_log.path")?),
        };
        let queue_bytes = queue_bytes?;
        if format == Some(None) && self.layers.rank("access_log.path") > 0 {
            let warning =
                "`access_log.path` has no effect while `access_log.format` is off: set it to `json` or `combined`";
            self.warnings.push(warning.to_owned());
        }
        Some(format?.map(|format| access_log::Settings { format, target, queue_bytes }))
    }

    /// `None` on an error, `Some(None)` if traces are off.
    pub(super) fn traces(&mut self) -> Option<Option<traces::Settings>> {
        let sample = self.value("traces.sample", share);
        let service = self.value("traces.service", text);
        let Some(endpoint) = self.value("traces.endpoint", text) else { return Some(None) };
        if !cfg!(feature = "otel") {
            let help = "build with `--features otel`, or remove this setting";
            self.wrong("traces.endpoint", "this build has no support for traces", help);
            return None;
        }
        if !endpoint.starts_with("http://") {
            let problem = format!("`{endpoint}` is not the address of a collector");
            self.wrong("traces.endpoint", &problem, "write one such as `http://127.0.0.1:4317`");
            return None;
        }
        Some(Some(traces::Settings { endpoint, sample: sample?, service: service? }))
    }
}
