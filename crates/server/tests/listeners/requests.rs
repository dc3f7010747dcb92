//! Requests that could be interpreted in several ways, each with a plain one.

use crate::listeners::ask::Asker;

/// A request as the client writes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) method: &'static str,
    pub(crate) target: &'static str,
    pub(crate) host: &'static str,
    pub(crate) headers: &'static [(&'static str, &'static str)],
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    Deny,
    /// The request repeats a part that a rule needs once.
    Refuse,
}

/// A rule, and two requests, of which it allows the first.
pub(crate) struct Row {
    /// Further conditions of the rule, each after a comma.
    pub(crate) condition: &'static str,
    /// Further parts of the rule's key, each after a comma.
    pub(crate) key: &'static str,
    pub(crate) plain: Written,
    pub(crate) awkward: Written,
    /// The verdict on the unusual request.
    pub(crate) verdict: Verdict,
    /// Listeners and tools that cannot express this request.
    pub(crate) unknown_to: &'static [Asker],
}

impl Row {
    /// Whether a log in the combined format has all that the rule asks for: that has neither hosts nor other headers.
    pub(crate) fn is_in_combined_logs(&self) -> bool {
        [self.plain, self.awkward].iter().all(|request| request.host == PLAIN.host && request.headers.is_empty())
    }
}

const PLAIN: Written = Written { method: "GET", target: "/", host: "h.example", headers: &[] };

const ROW: Row = Row { condition: "", key: "", plain: PLAIN, awkward: PLAIN, verdict: Verdict::Deny, unknown_to: &[] };

const fn path(awkward: &'static str) -> Row {
    let plain = Written { target: "/a/b", ..PLAIN };
    Row { condition: ", path: /a/b", plain, awkward: Written { target: awkward, ..PLAIN }, ..ROW }
}

const fn query(awkward: &'static str, verdict: Verdict) -> Row {
    let plain = Written { target: "/?draft=x", ..PLAIN };
    Row { key: ", 'query:draft'", plain, awkward: Written { target: awkward, ..PLAIN }, verdict, ..ROW }
}

const fn host(plain: &'static str, awkward: &'static str) -> Row {
    let plain = Written { host: plain, ..PLAIN };
    Row { key: ", host", plain, awkward: Written { host: awkward, ..PLAIN }, ..ROW }
}

type Lines = &'static [(&'static str, &'static str)];

const fn cookie(awkward: Lines, verdict: Verdict) -> Row {
    let plain = Written { headers: &[("Cookie", "a=1")], ..PLAIN };
    Row { key: ", 'cookie:a'", plain, awkward: Written { headers: awkward, ..PLAIN }, verdict, ..ROW }
}

const fn header(key: &'static str, plain: Lines, awkward: Lines, verdict: Verdict) -> Row {
    let plain = Written { headers: plain, ..PLAIN };
    Row { key, plain, awkward: Written { headers: awkward, ..PLAIN }, verdict, ..ROW }
}

const KEY: &str = ", 'header:X-Key'";
const KEY_A: Lines = &[("X-Key", "a")];
const TOKEN: &str = ", 'header:Authorization'";
const TOKEN_X: Lines = &[("Authorization", "Bearer x")];

pub(crate) const ROWS: [Row; 37] = [
    path("//a/../a//b"),
    path("/a/%2e%2e/a/%2E/b"),
    path("/%61/b/"),
    path("/a/b?c=/../d"),
    path("/a/b."),
    Row { verdict: Verdict::Allow, ..path("/a%2fb") },
    Row { verdict: Verdict::Allow, ..path("/A/b") },
    query("/?dr%61ft=x", Verdict::Deny),
    query("/?DRAFT=x", Verdict::Deny),
    query("/?draft=%78", Verdict::Deny),
    query("/?a=1;draft=x", Verdict::Deny),
    query("/?draft[]=x", Verdict::Deny),
    query("/?draft%00=x", Verdict::Deny),
    query("/?draft=X", Verdict::Allow),
    query("/?draft=x&draft=x", Verdict::Refuse),
    query("/?draft=x&Dr%61ft=y", Verdict::Refuse),
    Row { condition: ", query: { draft: x }", key: "", ..query("/?dr%61ft=x", Verdict::Deny) },
    host("h.example", "H.EXAMPLE:80"),
    host("h.example", "h.example."),
    host("h.example", "h.example.:8080"),
    host("[::1]", "[::1]:8080"),
    host("[2001:db8::a]", "[2001:DB8::A]:80"),
    Row { condition: ", host: h.example", key: "", ..host("h.example", "h.Example:443") },
    Row { key: ", 'header:Host'", ..host("h.example", "H.example.:80") },
    // In the target of a request to a proxy.
    Row {
        condition: ", path: /a/b, host: t.example",
        plain: Written { target: "/a/b", host: "t.example", ..PLAIN },
        awkward: Written { target: "http://T.example:80/a/b?c#d", host: "t.example", ..PLAIN },
        unknown_to: &[Asker::Explain],
        ..ROW
    },
    cookie(&[("Cookie", "A=1")], Verdict::Deny),
    cookie(&[("Cookie", "b=2; a=\"1\"")], Verdict::Deny),
    cookie(&[("cookie", "b=2;a = %31")], Verdict::Deny),
    cookie(&[("Cookie", "a=1; A=2")], Verdict::Refuse),
    cookie(&[("Cookie", "a=1"), ("Cookie", "a=1")], Verdict::Refuse),
    header(KEY, KEY_A, &[("x-KEY", " a\t")], Verdict::Deny),
    header(KEY, KEY_A, &[("X-Key", "A")], Verdict::Allow),
    header(KEY, KEY_A, &[("X-Key", "a"), ("X-Key", "b")], Verdict::Refuse),
    header(KEY, KEY_A, &[("X-Key", "a"), ("x-key", "a")], Verdict::Refuse),
    header(TOKEN, TOKEN_X, &[("authorization", "bearer  x")], Verdict::Deny),
    header(TOKEN, TOKEN_X, &[("Authorization", "Basic x")], Verdict::Allow),
    Row { condition: ", method: GET", awkward: Written { method: "get", ..PLAIN }, ..ROW },
];
