//! How HTTP writes query parameters, cookies and hosts, so that every listener reads them alike.

use std::borrow::Cow;

/// The values of a parameter in a query, in their order. Names and values are decoded (`%61`, `+`). Names are compared in
/// any case, because some upstreams do.
pub fn parameters<'q>(query: &'q str, name: &str) -> impl Iterator<Item = Cow<'q, str>> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    pairs.filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// The values of a cookie in a line of `Cookie`, in their order and as they are written.
pub fn cookies<'l>(line: &'l [u8], name: &str) -> impl Iterator<Item = Cow<'l, str>> {
    let pairs = line.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let values = pairs.filter_map(move |pair| {
        let equals = pair.iter().position(|&byte| byte == b'=')?;
        let (known, value) = pair.split_at(equals);
        (known.trim_ascii_end() == name.as_bytes()).then(|| value[1..].trim_ascii_start())
    });
    values.map(text)
}

/// As [`String::from_utf8_lossy`], and faster for what is UTF-8, as nearly all is.
#[must_use]
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_found_in_every_spelling() {
        let all = |query, name| parameters(query, name).collect::<Vec<_>>();
        assert_eq!(all("k=1&%6B=2&K=3&k&kk=4&x=k", "k"), ["1", "2", "3", ""]);
        assert_eq!(all("a+b=1&a%20b=x+y", "a b"), ["1", "x y"]);
        assert_eq!(all("", "k"), [""; 0]);
    }

    #[test]
    fn a_cookie_is_found_wherever_it_stands() {
        let all = |line: &'static str, name| cookies(line.as_bytes(), name).collect::<Vec<_>>();
        assert_eq!(all("a=1;  b = two words ;c; a=3;a==x", "a"), ["1", "3", "=x"]);
        assert_eq!(all("a=1;  b = two words ;c", "b"), ["two words"]);
        assert_eq!(all("A=1; c", "a"), [""; 0]);
        assert_eq!(cookies(b"a=\xff", "a").next().as_deref(), Some("\u{fffd}"));
    }
}
