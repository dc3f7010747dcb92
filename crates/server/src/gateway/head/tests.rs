use http::Request;

use super::*;

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let name = |name: &str| name.parse::<HeaderName>().unwrap();
    lines.iter().map(|(key, value)| (name(key), value.parse::<HeaderValue>().unwrap())).collect()
}

fn names(headers: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn hop_by_hop_headers_are_removed() {
    let mut map = headers(&[
        ("connection", "close, X-Private ,,"),
        ("connection", "upgrade, host, content-length"),
        ("upgrade", "websocket"),
        ("upgrade", "x"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
        ("x-private", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "x"),
        ("host", "a"),
        ("content-length", "3"),
        ("x-public", "2"),
    ]);
    let upgrade = response(&mut map).unwrap();
    assert_eq!(upgrade.as_ref().map(HeaderValue::as_bytes), Some(&b"websocket, x"[..]));
    assert_eq!(names(&map), ["content-length", "host", "x-public"]);
    // Without `Connection: upgrade`, no upgrade is requested.
    assert_eq!(response(&mut headers(&[("upgrade", "h2c")])), Ok(None));
    let mut chunked = headers(&[("transfer-encoding", "chunked"), ("x-public", "2")]);
    assert_eq!((response(&mut chunked), names(&chunked)), (Ok(None), vec!["x-public"]));
}

#[test]
fn a_response_with_two_lengths_is_refused() {
    let mut both = headers(&[("transfer-encoding", "chunked"), ("content-length", "3")]);
    assert_eq!(response(&mut both), Err(ConflictingLengths));
}

#[test]
fn a_host_is_said_once() {
    let parts = |uri: &str, hosts: &[&str]| {
        let request = Request::get(uri);
        let request = hosts.iter().fold(request, |request, host| request.header(HOST, *host));
        request.body(()).unwrap().into_parts().0
    };
    let host = |uri: &str, hosts: &[&str]| {
        let parts = parts(uri, hosts);
        host(&parts.uri, &parts.headers).map(|host| host.to_str().unwrap().to_owned())
    };
    assert_eq!(host("/", &["a:1"]).as_deref(), Some("a:1"));
    assert_eq!(host("http://me@b:2/x", &["a"]).as_deref(), Some("b:2"));
    assert_eq!((host("/", &[]), host("/", &["a", "a"]), host("http://b/", &["a", "b"])), (None, None, None));
}

#[test]
fn the_target_is_forwarded_to_the_byte() {
    for target in ["/a//b/../%2e/%2F?x=%20&y=a+b", "/", "/?", "/%C3%a9"] {
        let uri: Uri = format!("http://a.example{target}").parse().unwrap();
        assert_eq!(origin_form(&uri).to_string(), target);
        let plain: Uri = target.parse().unwrap();
        assert_eq!(plain.to_string(), target);
    }
    for (target, origin) in
        [("http://b", "/"), ("http://b#x", "/"), ("http://b?x", "/?x"), ("http://b?", "/?"), ("http://b?x#y", "/?x")]
    {
        assert_eq!(origin_form(&target.parse().unwrap()).to_string(), origin, "{target}");
    }
}

#[test]
fn lists_are_continued_only_for_those_who_are_trusted() {
    let item = HeaderValue::from_static("192.0.2.9");
    for (is_trusted, list) in [(true, "1.1.1.1, 2.2.2.2, 3.3.3.3, 192.0.2.9"), (false, "192.0.2.9")] {
        let mut map = headers(&[
            ("x-forwarded-for", "1.1.1.1, 2.2.2.2"),
            ("x-forwarded-for", ""),
            ("x-forwarded-for", "3.3.3.3"),
        ]);
        extend(&mut map, X_FORWARDED_FOR, is_trusted, &item);
        assert_eq!(map.get_all(X_FORWARDED_FOR).iter().collect::<Vec<_>>(), [list]);
    }
}
