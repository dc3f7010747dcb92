//! Errors of requests of which nothing was sent.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::iter::successors;

#[cfg(feature = "hyper-util")]
use hyper_util::client::legacy::Error as LegacyError;

use crate::BoxError;

/// The error of a service that has not sent anything of a request. Such a request is retried whatever its method.
#[derive(Debug, thiserror::Error)]
#[error("nothing of the request was sent: {0}")]
pub struct Unsent(#[source] pub BoxError);

/// Whether an error, or one of its sources, indicates that nothing was sent: [`Unsent`], or a failed connection attempt.
pub(crate) fn is_unsent(error: &(dyn Error + 'static)) -> bool {
    if causes(error).any(|error| error.is::<Unsent>() || is_failed_connect(error)) {
        return true;
    }
    // A client that can tell has not said so.
    !causes(error).any(is_of_known_client) && causes(error).any(is_refused_connection)
}

/// Whether a layer of this crate, below the one that sees the error, refused to send the request. That says nothing about the host.
pub(crate) fn is_refused_here(error: &BoxError) -> bool {
    #[cfg(feature = "shared")]
    if error.is::<crate::TooLarge>() || error.is::<crate::RuleRefused>() {
        return true;
    }
    #[cfg(feature = "adaptive")]
    if error.is::<crate::HostBusy>() {
        return true;
    }
    error.is::<crate::Paced>() || error.is::<crate::Throttled>()
}

/// An error, the one that caused it, and so on.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    successors(Some(error), |error| <dyn Error>::source(*error))
}

/// Whether the error of a known client says that its connection was not made.
#[cfg_attr(
    not(any(feature = "hyper-util", feature = "reqwest", feature = "tonic")),
    expect(unused_variables, reason = "no client is known without its feature")
)]
fn is_failed_connect(error: &(dyn Error + 'static)) -> bool {
    #[cfg(feature = "hyper-util")]
    if error.downcast_ref::<LegacyError>().is_some_and(LegacyError::is_connect) {
        return true;
    }
    #[cfg(feature = "reqwest")]
    if error.downcast_ref::<::reqwest::Error>().is_some_and(::reqwest::Error::is_connect) {
        return true;
    }
    #[cfg(feature = "tonic")]
    if error.is::<tonic::ConnectError>() {
        return true;
    }
    false
}

/// Whether the error comes from a client whose errors tell failed connections apart.
#[cfg_attr(
    not(any(feature = "hyper-util", feature = "reqwest", feature = "tonic")),
    expect(unused_variables, reason = "no client is known without its feature")
)]
fn is_of_known_client(error: &(dyn Error + 'static)) -> bool {
    #[cfg(feature = "hyper-util")]
    if error.is::<LegacyError>() {
        return true;
    }
    #[cfg(feature = "reqwest")]
    if error.is::<::reqwest::Error>() {
        return true;
    }
    #[cfg(feature = "tonic")]
    if error.is::<tonic::transport::Error>() {
        return true;
    }
    false
}

/// Whether `connect` has failed, as far as the error of the system tells.
///
/// Unreachable hosts and networks are left out: Linux ends established connections with these errors too, if a router has
/// said so before the connection timed out. The request may have been received then.
fn is_refused_connection(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(ErrorKind::ConnectionRefused | ErrorKind::AddrNotAvailable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_refused_connection_is_found_below_other_errors() {
        assert!(is_unsent(&Outer(ErrorKind::ConnectionRefused.into())));
        assert!(!is_unsent(&Outer(ErrorKind::ConnectionReset.into())));
        assert!(!is_unsent(&Outer(ErrorKind::TimedOut.into())), "a request may have been sent before a timeout");
        assert!(is_unsent(&Unsent("no connection in the pool".into())));
        assert!(is_unsent(&Unsent(io::Error::from(ErrorKind::HostUnreachable).into())));
    }

    #[test]
    fn an_established_connection_may_end_with_an_unreachable_host() {
        for kind in [ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable] {
            assert!(!is_unsent(&Outer(kind.into())), "{kind:?}");
        }
    }

    #[cfg(feature = "tonic")]
    #[test]
    fn tonic_tells_connections_that_were_not_made() {
        for kind in [ErrorKind::HostUnreachable, ErrorKind::TimedOut] {
            let error = io::Error::from(kind);
            assert!(is_unsent(&tonic::ConnectError(Outer(error).into())), "{kind:?}");
        }
    }
}
