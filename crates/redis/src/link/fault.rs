//! What a server says when it does not do what it was asked, and what follows from it.
//!
//! A server says why in the first word of its error. Nearly all of these words mean that nothing was done: the server
//! looks at its own state before it runs a script, and a script's first write is refused before it is made. The
//! exception is an error that the script itself raised, which may come after some of its writes.

use std::fmt;
use std::sync::Arc;

use super::address::Address;

/// An error that a server answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind of error it is.
    pub code: Code,
    /// All that the server said.
    pub text: Arc<str>,
}

/// The kinds of errors that a server answers with, after the first word of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// `NOSCRIPT`: it does not know the script, because it was restarted or its scripts were flushed.
    NoScript,
    /// `READONLY`: it is a replica.
    ReadOnly,
    /// `LOADING`: it was started just now and still reads its data.
    Loading,
    /// `MASTERDOWN`: it is a replica that has lost its primary, and will not serve old data.
    MasterDown,
    /// `CLUSTERDOWN`: the cluster has lost too many nodes, or nobody serves the slot.
    ClusterDown,
    /// `MISCONF`: it cannot save to disk, and takes no writes until it can.
    Misconf,
    /// `OOM`: it has used all the memory that it may.
    OutOfMemory,
    /// `NOREPLICAS`: fewer replicas follow it than it wants for a write.
    NoReplicas,
    /// `BUSY`: somebody's script has been running for too long.
    Busy,
    /// `NOAUTH`: it wants to know who we are.
    NoAuth,
    /// `WRONGPASS`: it does not believe who we are.
    WrongPass,
    /// `NOPERM`: the user may not run the script, or not on these keys.
    NoPerm,
    /// `DENIED`: it is in protected mode and takes no connections from elsewhere.
    Denied,
    /// `WRONGTYPE`: somebody else uses a key of that name for something else.
    WrongType,
    /// `MOVED`: another node of the cluster serves the slot.
    Moved,
    /// `ASK`: the slot is on its way to another node, and so may be the key.
    Ask,
    /// `TRYAGAIN`: the slot is on its way to another node, and some of the keys are here and some there.
    TryAgain,
    /// `CROSSSLOT`: the keys of one call lie in several slots.
    CrossSlot,
    /// Anything else.
    Other,
}

impl Code {
    const WORDS: [(&'static str, Code); 18] = [
        ("NOSCRIPT", Code::NoScript),
        ("READONLY", Code::ReadOnly),
        ("LOADING", Code::Loading),
        ("MASTERDOWN", Code::MasterDown),
        ("CLUSTERDOWN", Code::ClusterDown),
        ("MISCONF", Code::Misconf),
        ("OOM", Code::OutOfMemory),
        ("NOREPLICAS", Code::NoReplicas),
        ("BUSY", Code::Busy),
        ("NOAUTH", Code::NoAuth),
        ("WRONGPASS", Code::WrongPass),
        ("NOPERM", Code::NoPerm),
        ("DENIED", Code::Denied),
        ("WRONGTYPE", Code::WrongType),
        ("MOVED", Code::Moved),
        ("ASK", Code::Ask),
        ("TRYAGAIN", Code::TryAgain),
        ("CROSSSLOT", Code::CrossSlot),
    ];

    fn of(text: &str) -> Code {
        let first = text.split(' ').next().unwrap_or_default();
        Code::WORDS.iter().find(|(word, _)| *word == first).map_or(Code::Other, |&(_, code)| code)
    }

    /// Whether a script that was answered with this may have written something before.
    ///
    /// The state of the server is looked at before the script's first write and not again after it, so whatever the
    /// server says of its own state, it has written nothing. A wrong type may be met at any time; a script that meets it
    /// says so for the one request and goes on, so here, where it ended the whole script, nothing is certain.
    #[must_use]
    pub const fn may_have_run(self) -> bool {
        matches!(self, Code::WrongType | Code::Other)
    }

    /// Whether the server says of itself that it cannot serve anybody now, as it would also say to a `PING`.
    pub(super) const fn means_down(self) -> bool {
        matches!(self, Code::Loading | Code::MasterDown | Code::Busy | Code::NoAuth | Code::WrongPass | Code::Denied)
    }

    /// Whether a server that answers a probe with this would run calls all the same: one that has lost the script gets it
    /// with the next call, and one that cannot save takes no writes, nor even a `PING`, but still reads.
    pub(super) const fn means_alive(self) -> bool {
        matches!(self, Code::NoScript | Code::Misconf)
    }

    /// Whether the call belongs to another node of the cluster, or will.
    pub(super) const fn redirects(self) -> bool {
        matches!(self, Code::Moved | Code::Ask | Code::TryAgain)
    }

    /// Whether it is time to ask again where the primary is.
    pub(super) const fn means_elsewhere(self) -> bool {
        matches!(self, Code::ReadOnly | Code::MasterDown | Code::ClusterDown | Code::NoAuth)
    }
}

impl Fault {
    pub(crate) fn of(text: &[u8]) -> Fault {
        let text = String::from_utf8_lossy(text);
        Fault { code: Code::of(&text), text: text.as_ref().into() }
    }

    /// Where the server says that the call belongs. A node that does not know its own name leaves the host out of the
    /// address: then it is `host`, the one that was asked.
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
            Code::Moved => Some(Redirection::Moved(address()?)),
            Code::Ask => Some(Redirection::Ask(address()?)),
            Code::TryAgain => Some(Redirection::Again),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Where a call belongs that the cluster did not run where it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirection {
    /// That node serves the slot.
    Moved(Address),
    /// That node is about to; this one call is to go there.
    Ask(Address),
    /// Nowhere yet: half of its keys have moved.
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_known_by_their_first_word() {
        let cases = [
            ("NOSCRIPT No matching script. Please use EVAL.", Code::NoScript),
            ("OOM command not allowed when used memory > 'maxmemory'.", Code::OutOfMemory),
            ("BUSY Redis is busy running a script.", Code::Busy),
            ("MASTERDOWN Link with MASTER is down", Code::MasterDown),
            ("ERR NOSCRIPT is not how this begins", Code::Other),
            ("OOMPH", Code::Other),
            ("", Code::Other),
        ];
        for (text, code) in cases {
            assert_eq!(Fault::of(text.as_bytes()).code, code, "{text}");
        }
    }

    #[test]
    fn redirections_say_where() {
        let redirection = |text: &str| Fault::of(text.as_bytes()).redirection(Some("asked"));
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
        for (_, code) in Code::WORDS {
            assert_eq!(code.may_have_run(), code == Code::WrongType, "{code:?}");
        }
        assert!(Code::Other.may_have_run());
    }
}
