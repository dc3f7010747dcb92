//! Errors at startup.

use std::io;
use std::path::PathBuf;

use tidegate_redis::fleet::NoRuntime;
use tidegate_rules::Diagnostics;

use crate::access_log::AccessLogError;
use crate::admin::TokenError;
use crate::config::RegionServersError;
use crate::listen::{HandoverError, ListenError};
use crate::state_file::StateFileError;
use crate::state_file_lock::StateFileInUse;
use crate::traces::TracesError;
use crate::watch::WatchError;

/// Error at startup.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The rules are invalid.
    #[error("{0}")]
    Rules(Diagnostics),
    /// The store cannot be opened.
    #[error("the store cannot be opened: {0}")]
    Store(#[from] tidegate_redis::SettingsError),
    /// The rules give the region of this server no share.
    #[error("{0} Set `region` to one of them")]
    Region(String),
    /// The servers of regions cannot be used.
    #[error(transparent)]
    Regions(#[from] RegionServersError),
    /// A listener cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Published rules cannot be followed.
    #[error(transparent)]
    Follow(#[from] NoRuntime),
    /// The rules files cannot be watched.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The handover from a predecessor, or to a successor, is not possible.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// The access log cannot be opened.
    #[error(transparent)]
    AccessLog(#[from] AccessLogError),
    /// Traces cannot be sent.
    #[error(transparent)]
    Traces(#[from] TracesError),
    /// The admin token is invalid or cannot be generated.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The state file is unusable.
    #[error(transparent)]
    State(#[from] StateFileError),
    /// The state file belongs to another server.
    #[error(transparent)]
    StateInUse(#[from] StateFileInUse),
    /// The state file cannot be written.
    #[error("the state file `{}` cannot be written: {error}. Create its folder, and let the server write there", path.display())]
    StateFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The system's random source failed.
    #[error("the operating system provides no random numbers: {0}")]
    Randomness(String),
    /// All listeners are off.
    #[error("all listeners are off: set `api.listen`, `rls.listen`, `resp.listen` or `gateway.upstream`")]
    NoListener,
}
