//! Errors returned by servers, and their meaning: the table of error codes.
//!
//! The first word of an error is its code. Nearly all codes mean that nothing was done: the server checks its own state
//! before it runs a script, and refuses a script's first write before it is made. The exception is an error raised by the
//! script itself, which may occur after some of its writes.

use std::fmt;
use std::sync::Arc;

use super::address::Address;

/// An error returned by a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The code.
    pub code: ErrorCode,
    /// The whole text.
    pub text: Arc<str>,
}

/// The code of an error: its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// `NOSCRIPT`: the script is not loaded, because the server was restarted or its scripts were flushed.
    NoScript,
    /// `READONLY`: the server is a replica.
    ReadOnly,
    /// `LOADING`: the server has just started and loads its data.
    Loading,
    /// `MASTERDOWN`: the server is a replica that has lost its primary, and does not serve stale data.
    MasterDown,
    /// `CLUSTERDOWN`: the cluster has lost too many nodes, or no node serves the slot.
    ClusterDown,
    /// `MISCONF`: the server cannot save to disk, and refuses writes until it can.
    Misconf,
    /// `OOM`: the server has reached its memory limit.
    OutOfMemory,
    /// `NOREPLICAS`: too few replicas are connected for a write.
    NoReplicas,
    /// `BUSY`: a script has been running for too long.
    Busy,
    /// `NOAUTH`: the server requires a login.
    NoAuth,
    /// `WRONGPASS`: wrong user or password.
    WrongPass,
    /// `NOPERM`: the user has no permission for the command or the keys.
    NoPerm,
    /// `DENIED`: the server is in protected mode, which allows only local connections.
    Denied,
    /// `WRONGTYPE`: the key holds a value of another type, which Tidegate did not write.
    WrongType,
    /// `MOVED`: another node of the cluster serves the slot.
    Moved,
    /// `ASK`: the slot is migrating to another node, and the key may be there.
    Ask,
    /// `TRYAGAIN`: the slot is migrating, and the keys are on two nodes.
    TryAgain,
    /// `CROSSSLOT`: the keys of the call are in several slots.
    CrossSlot,
    /// Any other code.
    Other,
}

impl ErrorCode {
    /// All codes except [`ErrorCode::Other`].
    pub(super) const KNOWN: [ErrorCode; 18] = [
        ErrorCode::NoScript,
        ErrorCode::ReadOnly,
        ErrorCode::Loading,
        ErrorCode::MasterDown,
        ErrorCode::ClusterDown,
        ErrorCode::Misconf,
        ErrorCode::OutOfMemory,
        ErrorCode::NoReplicas,
        ErrorCode::Busy,
        ErrorCode::NoAuth,
        ErrorCode::WrongPass,
        ErrorCode::NoPerm,
        ErrorCode::Denied,
        ErrorCode::WrongType,
        ErrorCode::Moved,
        ErrorCode::Ask,
        ErrorCode::TryAgain,
        ErrorCode::CrossSlot,
    ];

    /// The first word of the error in the server's spelling, or `other`. The label in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ErrorCode::NoScript => "NOSCRIPT",
            ErrorCode::ReadOnly => "READONLY",
            ErrorCode::Loading => "LOADING",
            ErrorCode::MasterDown => "MASTERDOWN",
            ErrorCode::ClusterDown => "CLUSTERDOWN",
            ErrorCode::Misconf => "MISCONF",
            ErrorCode::OutOfMemory => "OOM",
            ErrorCode::NoReplicas => "NOREPLICAS",
            ErrorCode::Busy => "BUSY",
            ErrorCode::NoAuth => "NOAUTH",
            ErrorCode::WrongPass => "WRONGPASS",
            ErrorCode::NoPerm => "NOPERM",
            ErrorCode::Denied => "DENIED",
            ErrorCode::WrongType => "WRONGTYPE",
            ErrorCode::Moved => "MOVED",
            ErrorCode::Ask => "ASK",
            ErrorCode::TryAgain => "TRYAGAIN",
            ErrorCode::CrossSlot => "CROSSSLOT",
            ErrorCode::Other => "other",
        }
    }

    fn of(text: &str) -> ErrorCode {
        let first = text.split(' ').next().unwrap_or_default();
        ErrorCode::KNOWN.into_iter().find(|code| code.name() == first).unwrap_or(ErrorCode::Other)
    }

    /// Returns `true` if a script that ended with this error may have written before.
    ///
    /// The server checks its state before the script's first write and not after it, so an error about its state means that
    /// nothing was written. A wrong type can occur at any time. Tidegate's script reports it for the one request and
    /// continues; if it ended the whole script, nothing is certain.
    #[must_use]
    pub const fn may_have_run(self) -> bool {
        matches!(self, ErrorCode::WrongType | ErrorCode::Other)
    }

    /// Whether the server now refuses all commands, including `PING`.
    pub(super) const fn means_down(self) -> bool {
        matches!(
            self,
            ErrorCode::Loading
                | ErrorCode::MasterDown
                | ErrorCode::Busy
                | ErrorCode::NoAuth
                | ErrorCode::WrongPass
                | ErrorCode::Denied
        )
    }

    /// Whether a server that answers a probe with this error still runs calls. A server that has lost the script gets it
    /// with the next call. A server that cannot save refuses writes and `PING`, but still reads.
    pub(super) const fn means_alive(self) -> bool {
        matches!(self, ErrorCode::NoScript | ErrorCode::Misconf)
    }

    /// Whether the call must be sent to another node of the cluster, now or later.
    pub(super) const fn redirects(self) -> bool {
        matches!(self, ErrorCode::Moved | ErrorCode::Ask | ErrorCode::TryAgain)
    }

    /// Whether the primary must be looked up again.
    pub(super) const fn means_elsewhere(self) -> bool {
        matches!(self, ErrorCode::ReadOnly | ErrorCode::MasterDown | ErrorCode::ClusterDown | ErrorCode::NoAuth)
    }
}

impl ServerError {
    pub(crate) fn of(text: &[u8]) -> ServerError {
        let text = String::from_utf8_lossy(text);
        ServerError { code: ErrorCode::of(&text), text: text.as_ref().into() }
    }

    /// The redirection of a call, if the error is one. A node that does not know its own host omits it from the address. In
    /// that case it is `host`, the host that was asked.
    pub(crate) fn redirection(&self, host: Option<&str>) -> Option<Redirection> {
        let address = || {
            let announced = self.text.split(' ').nth(2)?;
            let port_alone = announced.strip_prefix(':').and_then(|port| port.parse().ok());
            match (port_alone, host) {
                (Some(port), Some(host)) => Some(Address::tcp(host, port)),
                _ => Address::parse_announced(announced),
            }
        };
        match self.code {
            ErrorCode::Moved => Some(Redirection::Moved(address()?)),
            ErrorCode::Ask => Some(Redirection::Ask(address()?)),
            ErrorCode::TryAgain => Some(Redirection::Again),
            _ => None,
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A cluster's redirection of a call that did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirection {
    /// To the node that serves the slot.
    Moved(Address),
    /// To the node to which the slot is migrating, for this call only.
    Ask(Address),
    /// The call must be retried, because some of its keys have migrated.
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_known_by_their_first_word() {
        let cases = [
            ("NOSCRIPT No matching script. Please use EVAL.", ErrorCode::NoScript),
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorCode::OutOfMemory),
            ("BUSY Redis is busy running a script.", ErrorCode::Busy),
            ("MASTERDOWN Link with MASTER is down", ErrorCode::MasterDown),
            ("ERR NOSCRIPT is not how this begins", ErrorCode::Other),
            ("OOMPH", ErrorCode::Other),
            ("", ErrorCode::Other),
        ];
        for (text, code) in cases {
            assert_eq!(ServerError::of(text.as_bytes()).code, code, "{text}");
        }
    }

    #[test]
    fn redirections_say_where() {
        let redirection = |text: &str| ServerError::of(text.as_bytes()).redirection(Some("asked"));
        let address = Address::parse_announced("10.0.0.7:7001").unwrap();
        assert_eq!(redirection("MOVED 3999 10.0.0.7:7001"), Some(Redirection::Moved(address.clone())));
        assert_eq!(redirection("ASK 3999 10.0.0.7:7001"), Some(Redirection::Ask(address)));
        assert_eq!(redirection("TRYAGAIN Multiple keys"), Some(Redirection::Again));
        assert_eq!(redirection("MOVED 3999"), None);
        assert_eq!(redirection("MOVED 3999 nowhere"), None);
        assert_eq!(redirection("MOVED 1 :7001"), Some(Redirection::Moved(Address::tcp("asked", 7_001))));
        let six = Address::Tcp { host: "::1".into(), port: 7_001 };
        assert_eq!(redirection("MOVED 1 ::1:7001"), Some(Redirection::Moved(six)));
    }

    #[test]
    fn only_errors_of_the_script_itself_leave_doubt() {
        for code in ErrorCode::KNOWN {
            assert_eq!(code.may_have_run(), code == ErrorCode::WrongType, "{code:?}");
        }
        assert!(ErrorCode::Other.may_have_run());
    }
}
