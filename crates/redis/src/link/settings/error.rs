//! Settings that cannot be used.

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A URL cannot be read.
    #[error("{url}: {reason}")]
    Url {
        /// The URL, without user and password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no URL.
    #[error("no server is given")]
    NoServer,
    /// The name of the primary is empty.
    #[error("the name by which the sentinels know the primary is empty")]
    NoPrimary,
    /// Some URLs ask for TLS, or name a user, and others do not or name another.
    #[error("the servers' URLs differ in {0}")]
    Differ(&'static str),
    /// A user or a password has a comma in it, which separates servers.
    #[error("a user or a password has a comma in it: write `%2C`")]
    CommaInLogin,
    /// A cluster has no databases.
    #[error("a cluster has only database 0")]
    DatabaseInCluster,
    /// A socket in the file system stands for one server.
    #[error("a Unix socket reaches a standalone server only")]
    UnixSocket,
    /// A socket in the file system is not encrypted.
    #[error("there is no TLS on a Unix socket")]
    TlsOnUnixSocket,
    /// A user is given, but no password.
    #[error("a user is given, but no password")]
    NoPassword,
    /// A certificate or a key cannot be read.
    #[error("the {what} cannot be used: {reason}")]
    Certificate {
        /// Which.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A number is too small or too large.
    #[error("{what} is {value}, but has to be from {least} to {most}")]
    OutOfRange {
        /// Which.
        what: &'static str,
        /// What it is.
        value: String,
        /// What it has to be at least.
        least: String,
        /// What it may be at most.
        most: String,
    },
    /// There is no runtime to run on.
    #[error("a link has to be opened from within a Tokio runtime")]
    NoRuntime,
}
