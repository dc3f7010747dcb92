//! The host of a request.

use std::net::Ipv6Addr;

/// Returns `true` if an authority is unambiguous: a name or an address, optionally followed by a colon and a port.
///
/// [RFC 3986](https://www.rfc-editor.org/rfc/rfc3986#section-3.2.2) also allows userinfo, percent escapes, commas and other
/// signs. Servers interpret them differently, so a rule or a route could see another host than the server that answers.
///
/// ```
/// use tidegate_http::is_plain_host;
///
/// assert!(is_plain_host(b"api.example.com:8080") && is_plain_host(b"[2001:db8::1]:80"));
/// assert!(!is_plain_host(b"api.example.com:80:90") && !is_plain_host(b"b,api.example.com"));
/// ```
#[must_use]
pub fn is_plain_host(authority: &[u8]) -> bool {
    let port = match authority.strip_prefix(b"[") {
        Some(rest) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let (address, port) = (&rest[..end], &rest[end + 1..]);
            let is_address = std::str::from_utf8(address).is_ok_and(|address| address.parse::<Ipv6Addr>().is_ok());
            if !is_address {
                return false;
            }
            port
        }
        None => {
            let end = authority.iter().position(|byte| *byte == b':').unwrap_or(authority.len());
            let (name, port) = authority.split_at(end);
            let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            if name.is_empty() || !name.iter().all(is_of_name) {
                return false;
            }
            port
        }
    };
    match port {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_hosts_are_none() {
        for host in
            ["a", "a:", "a:80", "API.Example.com.", "my_service", "127.0.0.1:1", "[::1]", "[::1]:80", "xn--e1afmkfd"]
        {
            assert!(is_plain_host(host.as_bytes()), "{host}");
        }
        for host in [
            "",
            ":80",
            "a:80:90",
            "[a]",
            "[api.example.com]",
            "a,b",
            "u@a",
            "a/",
            "a?",
            "a#",
            "a\\",
            "api%2eexample.com",
            " a",
            "a ",
            "a\tb",
            "a:8o",
            "[::1",
            "[::1]80",
            "::1",
            "a;b",
            "*",
            "é",
            "a=b",
            "[::1]:8:0",
            "[::1%eth0]",
        ] {
            assert!(!is_plain_host(host.as_bytes()), "{host}");
        }
    }
}
