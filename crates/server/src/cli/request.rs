//! A request described by arguments.

use std::net::{IpAddr, SocketAddr};

use tidegate_rules::Request;
use tidegate_rules::syntax::split_authority;

/// Facts of the request.
#[derive(clap::Args)]
#[command(next_help_heading = "The request")]
pub(super) struct RequestArgs {
    /// Method and path, optionally with a query: 'POST /api/search?q=tea'.
    #[arg(long, short, value_name = "REQUEST", value_parser = request_line)]
    request: RequestLine,

    /// Header: 'X-Env: prod'. May be repeated. `Host` and `Cookie` also set the host and the cookies.
    #[arg(long = "header", short = 'H', value_name = "HEADER", value_parser = header)]
    headers: Vec<Pair>,

    /// Client address: 203.0.113.7 or 2001:db8::7.
    #[arg(long, visible_alias = "address", value_name = "ADDRESS", value_parser = address)]
    ip: Option<IpAddr>,

    /// Requested host: api.example.com.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// API key. The output shows a hash of it.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,

    /// Authenticated user.
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// Verified tier. Default: the tier that the rules assign.
    #[arg(long, value_name = "TIER")]
    tier: Option<String>,

    /// Cookie: session=123. May be repeated.
    #[arg(long = "cookie", value_name = "NAME=VALUE", value_parser = pair)]
    cookies: Vec<Pair>,

    /// Claim of a verified token: sub=123. May be repeated.
    #[arg(long = "claim", value_name = "NAME=VALUE", value_parser = pair)]
    claims: Vec<Pair>,

    /// Entry of an Envoy rate-limit descriptor: remote_address=203.0.113.7. May be repeated.
    #[arg(long = "descriptor", value_name = "KEY=VALUE", value_parser = pair)]
    descriptor: Vec<Pair>,

    /// Number in the JSON body, by its path: max_tokens=500 or options.max=500. May be repeated.
    #[arg(long = "body", value_name = "FIELD=NUMBER", value_parser = pair)]
    body: Vec<Pair>,

    /// Cost of the request, for protocols that can state it.
    #[arg(long, value_name = "N")]
    hits: Option<u64>,
}

impl RequestArgs {
    pub(super) fn request(&self) -> Request {
        let mut request = Request::new(&self.request.method, &self.request.target);
        request = self.headers.iter().fold(request, |request, Pair { name, value }| request.header(name, value));
        request = self.host.iter().fold(request, |request, host| request.host(host));
        if let Some(address) = self.ip {
            request = request.address(address);
        }
        if let Some(hits) = self.hits {
            request = request.hits(hits);
        }
        request = self.api_key.iter().fold(request, |request, key| request.api_key(key));
        request = self.user.iter().fold(request, |request, user| request.user(user));
        request = self.tier.iter().fold(request, |request, tier| request.tier(tier));
        request = self.cookies.iter().fold(request, |request, pair| request.cookie(&pair.name, &pair.value));
        request = self.claims.iter().fold(request, |request, pair| request.claim(&pair.name, &pair.value));
        request = self.body.iter().fold(request, |request, pair| request.body(&pair.name, &pair.value));
        self.descriptor.iter().fold(request, |request, pair| request.descriptor(&pair.name, &pair.value))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestLine {
    pub(super) method: String,
    pub(super) target: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    name: String,
    value: String,
}

/// Whether a text is a valid name of a method or a header.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Parses a method and a path. Errors say what to write instead.
pub(super) fn request_line(text: &str) -> Result<RequestLine, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (method, target) = match words[..] {
        [method, target] => (method, target),
        [method, target, version] if version.starts_with("HTTP/") => (method, target),
        [target] if target.starts_with('/') => return Err(format!("a method is missing: write 'GET {target}'")),
        _ => return Err("write a method, a space and a path, such as 'POST /login?next=home'".to_owned()),
    };
    if !is_token(method) {
        return Err(format!("`{method}` is not a method: write one such as GET or POST"));
    }
    if let (Some(host), rest) = split_authority(target) {
        let slash = if rest.starts_with('/') { "" } else { "/" };
        return Err(format!(
            "write only the path, '{method} {slash}{rest}', and the host separately: `--host {host}`, or `host: {host}` in a file"
        ));
    }
    if !target.starts_with('/') {
        return Err(format!("a path begins with `/`: write '{method} /{target}'"));
    }
    Ok(RequestLine { method: method.to_owned(), target: target.to_owned() })
}

fn header(text: &str) -> Result<Pair, String> {
    let Some((name, value)) = text.split_once(':') else {
        return Err("a colon is missing: write a name, a colon and a value, such as 'X-Env: prod'".to_owned());
    };
    if !is_token(name) {
        return Err(format!("`{name}` is not the name of a header: write one such as 'X-Env: prod'"));
    }
    Ok(Pair { name: name.to_owned(), value: value.trim().to_owned() })
}

fn pair(text: &str) -> Result<Pair, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok(Pair { name: name.to_owned(), value: value.to_owned() }),
        Some(_) => Err("a name is missing before `=`: write name=value".to_owned()),
        None => Err(format!("an `=` is missing: write {text}=value")),
    }
}

/// Parses a client's address. Errors say what to write instead.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    if let Some(address) = inner.and_then(|inner| inner.parse::<IpAddr>().ok()) {
        return Err(format!("write it without brackets: {address}"));
    }
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Err(format!("write it without the port: {}", socket.ip()));
    }
    if let Some((address, _)) = text.split_once('/') {
        return Err(format!("a client has an address, not a network: write one such as {address}"));
    }
    Err("not an address: write one such as 203.0.113.7 or 2001:db8::7".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_suggest_what_to_write() {
        let wrong = |error: Result<RequestLine, String>| error.unwrap_err();
        assert!(wrong(request_line("/login")).contains("'GET /login'"));
        assert!(wrong(request_line("GET login")).contains("'GET /login'"));
        assert!(
            wrong(request_line("GET https://a.example/x"))
                .contains("'GET /x', and the host separately: `--host a.example`")
        );
        assert!(
            wrong(request_line("GET https://me@a.example:81?x"))
                .contains("'GET /?x', and the host separately: `--host a.example:81`")
        );
        assert!(wrong(request_line("")).contains("'POST /login?next=home'"));
        assert!(header("X-Env=prod").unwrap_err().contains("'X-Env: prod'"));
        assert!(header("X Env: prod").unwrap_err().contains("`X Env`"));
        assert!(pair("sub").unwrap_err().contains("sub=value"));
        assert!(address("192.0.2.7:80").unwrap_err().contains("without the port: 192.0.2.7"));
        assert!(address("[::1]").unwrap_err().contains("without brackets: ::1"));
        assert!(address("10.0.0.0/8").unwrap_err().contains("not a network"));
        assert!(address("localhost").unwrap_err().contains("203.0.113.7"));
    }

    #[test]
    fn a_path_may_hold_a_uri() {
        for target in ["/login?next=http://b.example/", "/proxy/http://b.example/x"] {
            assert_eq!(request_line(&format!("GET {target}")).unwrap().target, target);
        }
    }

    #[test]
    fn a_request_line_may_end_in_the_version() {
        let line = request_line("POST /a?b=c HTTP/1.1").unwrap();
        assert_eq!((line.method.as_str(), line.target.as_str()), ("POST", "/a?b=c"));
    }

    #[test]
    fn a_header_may_hold_colons_and_a_pair_may_hold_equals_signs() {
        assert_eq!(header("X-Time: 12:30").unwrap().value, "12:30");
        assert_eq!(pair("token=a=b").unwrap().value, "a=b");
    }
}
