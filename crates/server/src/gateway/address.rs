//! Address of an upstream.

use std::fmt;
use std::str::FromStr;

use http::HeaderValue;
use http::uri::Authority;
use rustls::pki_types::ServerName;

use crate::authority::bare_host;

/// An upstream's address and protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAddress {
    pub(super) scheme: UpstreamScheme,
    /// Host name or IP address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// `Host` for requests that do not keep the client's own.
    pub(super) authority: HeaderValue,
    /// Required name in the upstream's certificate, with TLS.
    pub(super) server_name: Option<ServerName<'static>>,
}

/// The protocol of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamScheme {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 with prior knowledge.
    H2c,
    /// HTTP/1.1 or HTTP/2 over TLS, as negotiated by ALPN.
    Https,
}

/// An invalid upstream address: the problem, and a suggested fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct AddressError {
    pub(crate) problem: String,
    pub(crate) help: String,
}

impl AddressError {
    pub(super) fn new(problem: impl Into<String>, help: impl Into<String>) -> AddressError {
        AddressError { problem: problem.into(), help: help.into() }
    }
}

impl FromStr for UpstreamAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<UpstreamAddress, AddressError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            let help = format!("write `http://{}`", if text.is_empty() { "127.0.0.1:3000" } else { text });
            return Err(AddressError::new(format!("`{text}` has no scheme"), help));
        };
        let (scheme, port) = match scheme {
            "http" => (UpstreamScheme::Http, 80),
            "h2c" => (UpstreamScheme::H2c, 80),
            "https" => (UpstreamScheme::Https, 443),
            _ => {
                let help = "write `http://`, `https://`, or `h2c://` for HTTP/2 without TLS";
                return Err(AddressError::new(format!("`{scheme}` is not a supported scheme"), help));
            }
        };
        let written = rest.strip_suffix('/').unwrap_or(rest);
        if written.contains(['/', '?', '#']) {
            let help = "leave out what follows the port: paths are forwarded as they come";
            return Err(AddressError::new(format!("`{text}` has a path"), help));
        }
        if written.contains('@') {
            let help = "leave out the user and the password: clients send their own";
            return Err(AddressError::new(format!("`{text}` contains credentials"), help));
        }
        let wrong =
            || AddressError::new(format!("`{text}` names no host"), "write one such as `http://127.0.0.1:3000`");
        let authority: Authority = written.parse().map_err(|_| wrong())?;
        let port = match authority.port_u16() {
            Some(0) => return Err(wrong()),
            Some(port) => port,
            // The host is followed by something other than a port.
            None if authority.host().len() < written.len() => return Err(wrong()),
            None => port,
        };
        let host = bare_host(&authority).to_owned();
        if host.is_empty() {
            return Err(wrong());
        }
        let server_name = match scheme {
            UpstreamScheme::Http | UpstreamScheme::H2c => None,
            UpstreamScheme::Https => Some(ServerName::try_from(host.clone()).map_err(|_| wrong())?),
        };
        let authority = HeaderValue::try_from(written).map_err(|_| wrong())?;
        Ok(UpstreamAddress { scheme, host, port, authority, server_name })
    }
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            UpstreamScheme::Http => "http",
            UpstreamScheme::H2c => "h2c",
            UpstreamScheme::Https => "https",
        };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_what_is_spoken_where() {
        for (text, shown) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://localhost/", "http://localhost:80"),
            ("https://api.example.com", "https://api.example.com:443"),
            ("h2c://[::1]:50051", "h2c://[::1]:50051"),
        ] {
            assert_eq!(text.parse::<UpstreamAddress>().map(|address| address.to_string()).as_deref(), Ok(shown));
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, help) in [
            ("127.0.0.1:3000", "write `http://127.0.0.1:3000`"),
            ("ftp://a", "write `http://`, `https://`, or `h2c://` for HTTP/2 without TLS"),
            ("http://a/base", "leave out what follows the port: paths are forwarded as they come"),
            ("http://me@a", "leave out the user and the password: clients send their own"),
            ("http://", "write one such as `http://127.0.0.1:3000`"),
            ("http://a:0", "write one such as `http://127.0.0.1:3000`"),
            ("http://a:99999", "write one such as `http://127.0.0.1:3000`"),
            ("http://a:", "write one such as `http://127.0.0.1:3000`"),
            ("http://a b", "write one such as `http://127.0.0.1:3000`"),
        ] {
            assert_eq!(text.parse::<UpstreamAddress>().unwrap_err().help, help, "{text}");
        }
    }
}
