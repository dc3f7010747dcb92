//! Hosts of URLs.

use http::uri::Authority;

/// The host without the brackets of an IPv6 address, as name resolution and TLS take it.
pub(crate) fn bare_host(authority: &Authority) -> &str {
    authority.host().trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ipv6_addresses_have_brackets() {
        let bare = |text: &str| bare_host(&text.parse().unwrap()).to_owned();
        assert_eq!(bare("[2001:db8::7]:443"), "2001:db8::7");
        assert_eq!(bare("203.0.113.7:443"), "203.0.113.7");
        assert_eq!(bare("example.com"), "example.com");
    }
}
