//! Errors of requests of which nothing was sent.

use std::error::Error;
use std::io::{self, ErrorKind};

#[cfg(feature = "hyper-util")]
use hyper_util::client::legacy::Error as LegacyError;

use crate::BoxError;

/// The error of a service that has not sent anything of a request. Such a request is retried whatever its method.
#[derive(Debug, thiserror::Error)]
#[error("nothing of the request was sent: {0}")]
pub struct Unsent(#[source] pub BoxError);

/// Whether an error, or one that caused it, says that nothing was sent: [`Unsent`], or a connection that was never made.
pub(crate) fn is_unsent(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<Unsent>() || is_connect(error) {
            return true;
        }
        next = error.source();
    }
    false
}

fn is_connect(error: &(dyn Error + 'static)) -> bool {
    #[cfg(feature = "hyper-util")]
    if error.downcast_ref::<LegacyError>().is_some_and(LegacyError::is_connect) {
        return true;
    }
    #[cfg(feature = "reqwest")]
    if error.downcast_ref::<::reqwest::Error>().is_some_and(::reqwest::Error::is_connect) {
        return true;
    }
    // Only `connect` fails in these ways.
    error.downcast_ref::<io::Error>().is_some_and(|error| {
        matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::AddrNotAvailable
        )
    })
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
    }
}
