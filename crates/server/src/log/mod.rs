//! The log of the server, on standard error.
//!
//! Logging never blocks: a line goes into a bounded queue (`queue.rs`), which a thread writes. Lines that do not fit
//! are dropped, counted, and reported once the queue has room. Clients cannot flood it (`repeat_limit.rs`): each call
//! site has a budget of lines, and libraries log errors only, unless `log.level` names them.

mod queue;
mod repeat_limit;
mod text_fields;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) use self::queue::{LineQueue, LostLines};
use self::repeat_limit::{RepeatLimit, Repeats};
use self::text_fields::text_fields;

/// The time that shutdown waits for the last lines to be written.
const FLUSH_TIME: Duration = Duration::from_secs(2);

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLineFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for programs.
    Json,
}

/// Log settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The format of a line.
    pub format: LogLineFormat,
    /// Minimum level, by module.
    pub level: Targets,
    /// Maximum number of bytes waiting to be written.
    pub queue_bytes: usize,
    /// Lines per second that one call site may log, after a burst of ten times as many.
    pub repeats: NonZero<u32>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            format: LogLineFormat::Text,
            level: libraries_at_error(Targets::new().with_default(LevelFilter::INFO)),
            queue_bytes: 1 << 20,
            repeats: const { NonZero::new(10).unwrap() },
        }
    }
}

/// Parses a level such as `info`, or `info,tidegate_redis=debug`.
pub(crate) fn level(text: &str) -> Option<Targets> {
    // `Targets` would parse a word that is not a level as a module, and log everything of it.
    let is_part = |word: &str| word.contains('=') || word.trim().parse::<LevelFilter>().is_ok();
    let targets: Targets = text.parse().ok()?;
    text.split(',').all(is_part).then(|| libraries_at_error(targets))
}

/// Applies the default level to Tidegate's crates only. Other libraries log errors only: their warnings are mostly
/// about clients, which can cause them at will. The exception is the export of traces.
fn libraries_at_error(asked: Targets) -> Targets {
    let default = asked.default_level().unwrap_or(LevelFilter::OFF);
    let mut all = Targets::new().with_default(default.min(LevelFilter::ERROR));
    for own in ["tidegate", "opentelemetry"] {
        all = all.with_target(own, default);
    }
    all.with_targets(asked.iter())
}

/// The log of this process, once it has begun.
static LOG: OnceLock<ProcessLog> = OnceLock::new();

struct ProcessLog {
    level: Handle<Targets, Registry>,
    queue: Arc<LineQueue>,
    repeats: Arc<Repeats>,
}

/// Lines that were not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Because the queue was full, or writing failed.
    pub queue_full: u64,
    /// Because one call site logged too many.
    pub repeated: u64,
}

/// Flushes the queue on drop, for two seconds at most.
#[must_use = "the last lines are lost if it is dropped early"]
pub struct Flush(Option<Arc<LineQueue>>);

impl Flush {
    /// Waits until the queue is written, for two seconds at most.
    pub fn wait(&self) {
        if let Some(queue) = &self.0 {
            queue.flush(FLUSH_TIME);
        }
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Starts logging, including panics. Only the first call has an effect. Drop the result when the process ends.
///
/// # Errors
/// If the thread cannot be started.
pub fn begin(settings: &Settings) -> io::Result<Flush> {
    let (level, handle) = reload::Layer::new(settings.level.clone());
    let queue = Arc::new(LineQueue::new(settings.queue_bytes));
    let repeats = Arc::new(Repeats::new(settings.repeats));
    let registry = tracing_subscriber::registry().with(level).with(RepeatLimit(Arc::clone(&repeats)));
    let lines = Arc::clone(&queue);
    let to_queue = tracing_subscriber::fmt::layer().with_writer(move || queue::LineWriter(Arc::clone(&lines)));
    let begun = match settings.format {
        LogLineFormat::Text => {
            let colours = io::IsTerminal::is_terminal(&io::stderr()) && std::env::var_os("NO_COLOR").is_none();
            registry.with(to_queue.with_ansi(colours).fmt_fields(text_fields())).try_init()
        }
        LogLineFormat::Json => registry.with(to_queue.json().flatten_event(true)).try_init(),
    };
    // Another logger may be installed already, as in tests.
    if begun.is_err() {
        return Ok(Flush(None));
    }
    // `io::stderr` holds its lock while a write stalls, so the descriptor is written to directly.
    let out = std::fs::File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let written = Arc::clone(&queue);
    std::thread::Builder::new().name("tidegate-log".to_owned()).spawn(move || written.write_to(out, report))?;
    std::panic::set_hook(Box::new(|info| {
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        tracing::error!(target: "tidegate::panic", thread, backtrace = backtrace.map(tracing::field::display), "{info}");
    }));
    let _ = LOG.set(ProcessLog { level: handle, queue: Arc::clone(&queue), repeats });
    Ok(Flush(Some(queue)))
}

#[expect(clippy::needless_pass_by_value, reason = "that is how it is called")]
fn report(trouble: LostLines) {
    match trouble {
        LostLines::Missing { lines } => {
            tracing::warn!(target: repeat_limit::UNLIMITED, lines, "log lines were dropped here: the queue was full");
        }
        // Standard error failed, so there is no place to report it.
        LostLines::Failed { .. } => {}
    }
}

/// Changes the log level.
pub fn change_level(level: &Targets) {
    if let Some(log) = LOG.get() {
        // Cannot fail: the subscriber is never dropped.
        let _ = log.level.reload(level.clone());
    }
}

/// Refills the budgets of call sites, and reports suppressed lines. Call it about once a second.
pub fn refill() {
    if let Some(log) = LOG.get() {
        log.repeats.refill();
    }
}

/// Lines that were not written since the process started.
#[must_use]
pub fn dropped() -> Dropped {
    LOG.get().map_or_else(Dropped::default, |log| Dropped {
        queue_full: log.queue.dropped(),
        repeated: log.repeats.dropped(),
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_log_errors_only_unless_they_are_named() {
        for (text, target, at, is_logged) in [
            ("info", "tidegate::serve", Level::INFO, true),
            ("info", "tidegate_redis::link", Level::INFO, true),
            ("info", "tidegate", Level::DEBUG, false),
            ("info", "h2::proto", Level::WARN, false),
            ("info", "h2::proto", Level::ERROR, true),
            ("trace", "h2::proto", Level::WARN, false),
            ("trace", "tidegate_core", Level::TRACE, true),
            ("info,h2=debug", "h2::proto", Level::DEBUG, true),
            ("info,tidegate::denials=warn", "tidegate::denials", Level::INFO, false),
            ("warn,tidegate=debug", "tidegate::serve", Level::DEBUG, true),
            ("info", "opentelemetry-otlp", Level::WARN, true),
            ("off", "h2", Level::ERROR, false),
            ("h2=warn", "h2", Level::WARN, true),
            ("h2=warn", "tidegate", Level::ERROR, false),
        ] {
            assert_eq!(level(text).unwrap().would_enable(target, &at), is_logged, "{text}: {target} at {at}");
        }
    }
}
