//! Errors in settings.

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A URL cannot be parsed.
    #[error("{url}: {reason}")]
    Url {
        /// The URL, without user and password.
        url: String,
        /// The problem.
        reason: String,
    },
    /// No URL is given.
    #[error("no server is given")]
    NoServer,
    /// The name of the primary is empty.
    #[error("the name of the primary is empty")]
    NoPrimary,
    /// The URLs differ in TLS or login.
    #[error("the servers' URLs differ in {0}")]
    Differ(&'static str),
    /// A user or a password contains a comma, which separates servers.
    #[error("a user or a password contains a comma: encode it as `%2C`")]
    CommaInLogin,
    /// A cluster has only database 0.
    #[error("a cluster has only database 0")]
    DatabaseInCluster,
    /// A Unix socket is in a list of sentinels or cluster nodes.
    #[error("a Unix socket reaches a standalone server only")]
    UnixSocket,
    /// TLS is set for a Unix socket.
    #[error("there is no TLS on a Unix socket")]
    TlsOnUnixSocket,
    /// There is a user without a password.
    #[error("a user is given, but no password")]
    NoPassword,
    /// A certificate or a key cannot be parsed.
    #[error("the {what} cannot be used: {reason}")]
    Certificate {
        /// The name of the setting.
        what: &'static str,
        /// The problem.
        reason: String,
    },
    /// A number is out of its range.
    #[error("{what} is {value}, but must be from {least} to {most}")]
    OutOfRange {
        /// The name of the setting.
        what: &'static str,
        /// The value.
        value: String,
        /// The smallest value.
        least: String,
        /// The largest value.
        most: String,
    },
    /// There is no Tokio runtime.
    #[error("the client must be opened from within a Tokio runtime")]
    NoRuntime,
}
