//! Client addresses behind trusted proxies, and headers that try to forge them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tidegate_http::{ForwardingHeader, NetworkError, TrustedProxies};

const XFF: ForwardingHeader = ForwardingHeader::XForwardedFor;
const FORWARDED: ForwardingHeader = ForwardingHeader::Forwarded;

fn name(header: ForwardingHeader) -> HeaderName {
    HeaderName::from_static(match header {
        ForwardingHeader::XForwardedFor => "x-forwarded-for",
        ForwardingHeader::Forwarded => "forwarded",
    })
}

fn headers<L: AsRef<[u8]>>(header: ForwardingHeader, lines: impl IntoIterator<Item = L>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(name(header), HeaderValue::from_bytes(line.as_ref()).unwrap());
    }
    headers
}

fn trusting(header: ForwardingHeader) -> TrustedProxies {
    TrustedProxies::parse(["10.0.0.0/8", "2001:db8:ffff::/48"], header).unwrap()
}

fn client(header: ForwardingHeader, peer: &str, lines: &[&str]) -> String {
    trusting(header).client(peer.parse().unwrap(), &headers(header, lines)).to_string()
}

#[test]
fn a_thousand_made_up_addresses_from_an_untrusted_peer_are_one_client() {
    for header in [XFF, FORWARDED] {
        let clients: HashSet<_> = (0..1_000_u32)
            .map(|n| match header {
                ForwardingHeader::XForwardedFor => Ipv4Addr::from(n).to_string(),
                ForwardingHeader::Forwarded => format!("for={}", Ipv4Addr::from(n)),
            })
            .map(|line| client(header, "203.0.113.7", &[&line]))
            .collect();
        assert_eq!(clients, HashSet::from(["203.0.113.7".to_owned()]));
    }
}

#[test]
fn the_rightmost_address_that_is_not_trusted_is_the_client() {
    for (lines, expected) in [
        (&["203.0.113.7"][..], "203.0.113.7"),
        (&["198.51.100.1, 203.0.113.7"], "203.0.113.7"),
        (&["198.51.100.1,203.0.113.7 , 10.0.0.2,10.0.0.3"], "203.0.113.7"),
        (&["198.51.100.1", "203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        (&["203.0.113.7", "10.0.0.2"], "203.0.113.7"),
        (&["10.0.0.4, 10.0.0.2"], "10.0.0.4"),
        (&[""], "10.0.0.1"),
        (&[], "10.0.0.1"),
        (&[",, 203.0.113.7,, 10.0.0.2 ,"], "203.0.113.7"),
        (&["198.51.100.1, nonsense, 10.0.0.2"], "10.0.0.2"),
        (&["198.51.100.1, unknown"], "10.0.0.1"),
        (&["198.51.100.1, 010.0.0.1"], "10.0.0.1"),
        (&["2001:db8:ffff::9, 2001:db8:1::5, 2001:db8:ffff::1"], "2001:db8:1::5"),
    ] {
        assert_eq!(client(XFF, "10.0.0.1", lines), expected, "{lines:?}");
    }
}

#[test]
fn forwarded_is_read_as_its_standard_says() {
    for (lines, expected) in [
        (&["for=203.0.113.7"][..], "203.0.113.7"),
        (&["For=\"203.0.113.7:8080\"; proto=https;by=10.0.0.1"], "203.0.113.7"),
        (&["proto=http;for=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::17"),
        (&["for=\"[2001:db8:cafe::17]\""], "2001:db8:cafe::17"),
        (&["for=198.51.100.1, for=203.0.113.7;host=\"a,b;c\", for=10.9.9.9"], "203.0.113.7"),
        (&["for=198.51.100.1", "for=203.0.113.7"], "203.0.113.7"),
        (&["for=\"203\\.0.113.7\""], "203.0.113.7"),
        (&["for=\"203.0.113.7:_port\""], "203.0.113.7"),
        (&["for=203.0.113.7;"], "203.0.113.7"),
        (&["; ;for=203.0.113.7; ;proto=https"], "203.0.113.7"),
        (&["for=198.51.100.1, ;"], "10.0.0.1"),
        (&["for=_hidden"], "10.0.0.1"),
        (&["for=198.51.100.1, for=unknown, for=10.0.0.2"], "10.0.0.2"),
        (&["for=198.51.100.1, proto=https"], "10.0.0.1"),
        (&["for=198.51.100.1;for=203.0.113.7"], "10.0.0.1"),
        (&["for=198.51.100.1;oops"], "10.0.0.1"),
        (&["198.51.100.1"], "10.0.0.1"),
        (&["for=198.51.100.1, for=\""], "10.0.0.1"),
        (&["for=\"198.51.100.1, for=10.0.0.2"], "10.0.0.1"),
        (&["for=\"198.51.100.1", "for=203.0.113.7"], "203.0.113.7"),
        (&["for=\"198.51.100.1\"x"], "10.0.0.1"),
    ] {
        assert_eq!(client(FORWARDED, "10.0.0.1", lines), expected, "{lines:?}");
    }
}

#[test]
fn only_the_header_that_is_believed_is_read() {
    let mut both = headers(XFF, ["198.51.100.1"]);
    both.insert("forwarded", HeaderValue::from_static("for=203.0.113.7"));
    let peer = Ipv4Addr::new(10, 0, 0, 1).into();
    assert_eq!(trusting(XFF).client(peer, &both).to_string(), "198.51.100.1");
    assert_eq!(trusting(FORWARDED).client(peer, &both).to_string(), "203.0.113.7");
    assert_eq!(TrustedProxies::none().client(peer, &both), peer);
}

#[test]
fn a_peer_that_comes_as_ipv6_is_trusted_as_the_ipv4_that_it_is() {
    assert_eq!(client(XFF, "::ffff:10.0.0.1", &["203.0.113.7"]), "203.0.113.7");
    assert_eq!(client(XFF, "::ffff:203.0.113.8", &["203.0.113.7"]), "203.0.113.8");
    let mapped = TrustedProxies::parse(["::ffff:10.0.0.0/104"], XFF).unwrap();
    assert!(mapped.trusts("10.1.2.3".parse().unwrap()) && !mapped.trusts("11.1.2.3".parse().unwrap()));
}

#[test]
fn invalid_networks_are_refused_with_a_correction() {
    let error = |text: &str| TrustedProxies::parse([text], XFF).unwrap_err().to_string();
    assert_eq!(error("10.0.0.1/8"), "`10.0.0.1/8` has bits set outside its network: write `10.0.0.0/8`");
    assert!(error("10.0.0.0/33").contains("neither an address nor a network"));
    assert!(matches!(TrustedProxies::parse(["nginx"], XFF), Err(NetworkError::Unreadable { .. })));
    assert!(TrustedProxies::parse([" 192.0.2.7 ", "::1", "fd00::/8"], XFF).is_ok());
}

/// Spellings of an address that are valid in both headers.
fn spellings(address: IpAddr) -> Vec<String> {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            let mapped = format!("::ffff:{v4}");
            let hex = format!("0:0:0:0:0:FFFF:{a:02x}{b:02x}:{c:02X}{d:02x}");
            let plain = [v4.to_string(), format!("{v4}:4711"), format!(" {v4}\t")];
            plain.into_iter().chain([mapped.clone(), format!("[{mapped}]"), format!("[{hex}]:80"), hex]).collect()
        }
        IpAddr::V6(v6) => {
            let segments = v6.segments();
            let long: Vec<_> = segments.iter().map(|segment| format!("{segment:04X}")).collect();
            let short: Vec<_> = segments.iter().map(|segment| format!("{segment:x}")).collect();
            let [long, short] = [long.join(":"), short.join(":")];
            vec![v6.to_string(), long.clone(), short, format!("[{long}]"), format!("[{v6}]:443"), format!("{v6}%eth0")]
        }
    }
}

fn untrusted() -> impl Strategy<Value = IpAddr> {
    let v4 = any::<u32>().prop_map(|n| IpAddr::V4(Ipv4Addr::from(n)));
    let v6 = any::<u128>().prop_map(|n| IpAddr::V6(Ipv6Addr::from(n)));
    prop_oneof![v4, v6]
        .prop_map(|address| address.to_canonical())
        .prop_filter("trusted", |address| !trusting(XFF).trusts(*address))
}

fn trusted() -> impl Strategy<Value = IpAddr> {
    (0_u32..1 << 24).prop_map(|n| IpAddr::V4(Ipv4Addr::from(10 << 24 | n)))
}

/// Values that an attacker may send in the headers.
fn lies() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        untrusted().prop_map(|address| address.to_string()),
        trusted().prop_map(|address| address.to_string()),
        "(for=|FOR=|by=|\"|\\\\|,|;|\\[|\\]|:|_|%| |unknown|[a-z0-9.]){0,12}",
    ];
    prop::collection::vec(pieces, 0..6).prop_map(|pieces| pieces.concat())
}

/// A quotation that is left open in a parameter name extends over the proxy's element.
#[test]
fn an_open_quotation_does_not_hide_the_client() {
    let (peer, honest) = ("10.0.0.1".parse().unwrap(), "203.0.113.7");
    for lie in ["for=198.51.100.1;\"", "for=198.51.100.1;x\"", "for=198.51.100.1;by=\"", "\";for=198.51.100.1;x=\""] {
        let line = format!("{lie}, for={honest}");
        let client = trusting(FORWARDED).client(peer, &headers(FORWARDED, [&line]));
        assert!(client == peer || client.to_string() == honest, "{line}: {client}");
    }
}

proptest! {
    #[test]
    fn every_spelling_of_an_address_is_one_client(address in untrusted(), peer in trusted()) {
        for spelling in spellings(address) {
            let plain = headers(XFF, [&spelling]);
            prop_assert_eq!(trusting(XFF).client(peer, &plain), address, "{}", spelling);
            let quoted = headers(FORWARDED, [format!("for=\"{spelling}\"")]);
            prop_assert_eq!(trusting(FORWARDED).client(peer, &quoted), address, "{}", spelling);
        }
    }

    #[test]
    fn two_addresses_are_two_clients(one in untrusted(), other in untrusted(), peer in trusted()) {
        let client = |address: IpAddr| trusting(XFF).client(peer, &headers(XFF, [address.to_string()]));
        prop_assert_eq!(one == other, client(one) == client(other));
    }

    /// The elements of trusted proxies count, for any text of the client in the same line or in previous lines.
    #[test]
    fn no_lie_reaches_past_a_trusted_proxy(
        lie in lies(), honest in untrusted(), hops in prop::collection::vec(trusted(), 0..4), peer in trusted(),
    ) {
        let added: Vec<_> = std::iter::once(honest).chain(hops).map(|hop| hop.to_string()).collect();
        for lines in [vec![lie.clone(), added.join(", ")], vec![format!("{lie}, {}", added.join(", "))]] {
            prop_assert_eq!(trusting(XFF).client(peer, &headers(XFF, lines)), honest);
        }
    }

    /// The same for `Forwarded`, where an open quotation can spoil a line that proxies append to. The client gains
    /// nothing: its address is then that of the proxy.
    #[test]
    fn no_lie_in_forwarded_reaches_past_a_trusted_proxy(lie in lies(), honest in untrusted(), peer in trusted()) {
        let added = match honest {
            IpAddr::V4(address) => format!("for={address}"),
            IpAddr::V6(address) => format!("for=\"[{address}]:1234\""),
        };
        let apart = trusting(FORWARDED).client(peer, &headers(FORWARDED, [lie.clone(), added.clone()]));
        prop_assert_eq!(apart, honest);
        let joined = trusting(FORWARDED).client(peer, &headers(FORWARDED, [format!("{lie}, {added}")]));
        prop_assert!(joined == honest || joined == peer, "{}", joined);
    }

    #[test]
    fn an_untrusted_peer_is_the_client_for_any_header(lie in lies(), peer in untrusted()) {
        for header in [XFF, FORWARDED] {
            prop_assert_eq!(trusting(header).client(peer, &headers(header, [&lie])), peer);
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..60), peer in trusted()) {
        let Ok(value) = HeaderValue::from_bytes(&bytes) else { return Ok(()) };
        for header in [XFF, FORWARDED] {
            let mut headers = HeaderMap::new();
            headers.insert(name(header), value.clone());
            let _ = trusting(header).client(peer, &headers);
        }
    }
}
