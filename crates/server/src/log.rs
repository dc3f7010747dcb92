//! What the server says of itself, on standard error.

use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for programs.
    Json,
}

/// What is logged, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How lines look.
    pub format: LogFormat,
    /// From which level on, part by part.
    pub level: Targets,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { format: LogFormat::Text, level: Targets::new().with_default(LevelFilter::INFO) }
    }
}

/// `info`, or `info,tidegate_redis=debug`.
pub(crate) fn level(text: &str) -> Result<Targets, ParseError> {
    text.parse()
}

/// Where the level of what is logged can be changed, once something is.
static LEVEL: OnceLock<Handle<Targets, Registry>> = OnceLock::new();

/// Logs from now on. Only the first call counts.
pub fn begin(settings: &Settings) {
    let (level, handle) = reload::Layer::new(settings.level.clone());
    let registry = tracing_subscriber::registry().with(level);
    let to_stderr = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let begun = match settings.format {
        LogFormat::Text => {
            let colours =
                std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
            registry.with(to_stderr.with_ansi(colours)).try_init()
        }
        LogFormat::Json => registry.with(to_stderr.json().flatten_event(true)).try_init(),
    };
    // Somebody else may have begun already, as tests do.
    if begun.is_ok() {
        let _ = LEVEL.set(handle);
    }
}

/// Logs from this level on, from now on.
pub fn change_level(level: &Targets) {
    if let Some(handle) = LEVEL.get() {
        // Nobody drops what was begun.
        let _ = handle.reload(level.clone());
    }
}
