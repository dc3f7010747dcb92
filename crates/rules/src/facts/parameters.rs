//! The parameters of a query: where each ends, and which names are one.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::secret_name::is_secret_name;

/// The values of a parameter in a query, in their order. Names and values are decoded (`%61`, `+`).
///
/// A parameter counts if any usual upstream takes its name for this one: in another case, with blanks around it, with an index
/// (`name[]`) or a NUL behind it, and with a blank, a dot or a bracket for an underscore, as PHP does. Some upstreams separate
/// parameters by `;` too: values that only they read follow those that all read.
pub fn parameters<'q>(query: &'q str, name: &str) -> impl Iterator<Item = Cow<'q, str>> {
    let all = form_urlencoded::parse(query.as_bytes()).filter(move |(known, _)| is_parameter(known, name));
    let others = if query.contains(';') { between_semicolons(query, name) } else { Vec::new() };
    all.map(|(_, value)| value).chain(others)
}

/// The values of a parameter that only upstreams which separate by `;` read.
#[cold]
fn between_semicolons<'q>(query: &'q str, name: &str) -> Vec<Cow<'q, str>> {
    let value = |part: &'q str| decoded(part).filter(|(known, _)| is_parameter(known, name)).map(|(_, value)| value);
    let known: HashSet<Cow<'q, str>> = query.split('&').filter_map(value).collect();
    let parts = query.split('&').flat_map(|parameter| parameter.split(';'));
    parts.filter_map(value).filter(|value| !known.contains(value)).collect()
}

/// A query with some values replaced. `replacement` gets the decoded name and value of a parameter, and returns the value to write
/// instead, encoded. All else stays as it is written.
///
/// Parameters are those that [`parameters`] finds: what stands between `&`, and the parts of that between `;`. The value of the
/// former ends at the next `&`, and includes every `;`.
///
/// ```
/// use tidegate_rules::syntax::{is_secret_parameter, replace_values};
///
/// let hidden = |name: &str, _: &str| is_secret_parameter(name).then(|| "*".to_owned());
/// assert_eq!(replace_values("q=tea;api_key=k_7f3a&page=2", hidden), "q=tea;api_key=*&page=2");
/// ```
pub fn replace_values(query: &str, replacement: impl Fn(&str, &str) -> Option<String>) -> Cow<'_, str> {
    let replaced = |written: &str| {
        let (name, value) = decoded(written)?;
        let (written_name, _) = written.split_once('=')?;
        Some(format!("{written_name}={}", replacement(&name, &value)?))
    };
    let is_kept = |parameter: &str| {
        replaced(parameter).is_none()
            && (!parameter.contains(';') || parameter.split(';').all(|part| replaced(part).is_none()))
    };
    if query.split('&').all(is_kept) {
        return Cow::Borrowed(query);
    }
    let part = |part| replaced(part).map_or(Cow::Borrowed(part), Cow::Owned);
    let each = query.split('&').map(|parameter| match replaced(parameter) {
        Some(replaced) => replaced,
        None => parameter.split(';').map(part).collect::<Vec<_>>().join(";"),
    });
    Cow::Owned(each.collect::<Vec<_>>().join("&"))
}

/// The name and the value of one parameter.
fn decoded(parameter: &str) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    form_urlencoded::parse(parameter.as_bytes()).next()
}

/// Whether a parameter of a query that is called `known` counts as the one called `name`.
pub(super) fn is_parameter(known: &str, name: &str) -> bool {
    known.eq_ignore_ascii_case(name)
        || (is_odd(known) && readings(known).any(|reading| reading.eq_ignore_ascii_case(name)))
}

/// Returns `true` if some upstream takes the name of a parameter for one that is [secret](is_secret_name).
///
/// ```
/// use tidegate_rules::syntax::is_secret_parameter;
///
/// assert!(is_secret_parameter("api_key") && is_secret_parameter("to\0ken[]") && is_secret_parameter("oTp"));
/// assert!(!is_secret_parameter("page"));
/// ```
#[must_use]
pub fn is_secret_parameter(name: &str) -> bool {
    // Names are compared in any case, so capitals need not begin a word.
    let is_secret = |name: &str| is_secret_name(name) || is_secret_name(&name.to_ascii_lowercase());
    is_secret(name) || (is_odd(name) && readings(name).any(|reading| is_secret(&reading)))
}

/// Whether upstreams may read a name differently.
fn is_odd(name: &str) -> bool {
    name.bytes().any(|byte| byte <= b' ' || matches!(byte, b'.' | b'[' | 0x7f))
}

/// The names that upstreams may take a name for.
#[cold]
fn readings(name: &str) -> impl Iterator<Item = String> {
    let before_nul = name.split('\0').next().unwrap_or_default().to_owned();
    let without_controls: String = name.chars().filter(|char| !char.is_control()).collect();
    [before_nul, without_controls].into_iter().flat_map(|name| {
        let name = without_index(name.trim());
        [name.to_owned(), name.replace([' ', '.', '['], "_")]
    })
}

/// A name without `[]` or `[0]` at its end.
fn without_index(name: &str) -> &str {
    let open = name.strip_suffix(']').map(|name| name.trim_end_matches(|char: char| char.is_ascii_digit()));
    open.and_then(|name| name.strip_suffix('[')).unwrap_or(name)
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
        assert_eq!(
            all("+k=1&%09k=2&k%00x=3&k%00=4&%00k=5&k[]=6&k[0]=7&k+=8", "k"),
            ["1", "2", "3", "4", "5", "6", "7", "8"]
        );
        assert_eq!(
            all("api.key=1&api+key=2&api[key=3&api_key=4&apikey=5&api%2Ekey=6", "api_key"),
            ["1", "2", "3", "4", "6"]
        );
        assert_eq!(all("filter[a]=1&filter[b]=2&filter=3", "filter[a]"), ["1"]);
        assert_eq!(all("filter[a]=1&filter=3", "filter"), ["3"]);
    }

    #[test]
    fn a_parameter_is_found_behind_a_semicolon_too() {
        let all = |query, name| parameters(query, name).collect::<Vec<_>>();
        assert_eq!(all("x=1;k=2", "k"), ["2"]);
        assert_eq!(all("k=1&x=1;k=2", "k"), ["1", "2"]);
        assert_eq!(all("k=1;x=1", "k"), ["1;x=1", "1"]);
        assert_eq!(all("x=a;b&k=1", "k"), ["1"]);
        assert_eq!(all("x=a;b&k=1&k=1", "k"), ["1", "1"]);
        assert_eq!(all("x=a%3Bk=2", "k"), [""; 0]);
    }

    #[test]
    fn a_value_is_replaced_where_any_upstream_reads_it() {
        let hidden = |query| replace_values(query, |name, value| (name == "k").then(|| value.len().to_string()));
        for (query, wanted) in [
            ("k=abc", "k=3"),
            ("x=1&%6b=a%20c&y", "x=1&%6b=3&y"),
            ("x=1;k=abc;y", "x=1;k=3;y"),
            ("x;k=abc&k=ab", "x;k=3&k=2"),
            ("k=ab;x=1&y=2", "k=6&y=2"),
            ("x=1;k=ab;k=a", "x=1;k=2;k=1"),
            ("x=;k=a=b", "x=;k=3"),
        ] {
            assert_eq!(hidden(query), wanted, "{query}");
        }
        for query in ["", "k", "&;&", "kk=1;x=k&y=k", "x=1%3Bk=2", "x=1%26k=2"] {
            assert!(matches!(hidden(query), Cow::Borrowed(same) if same == query), "{query}");
        }
    }

    #[test]
    fn a_secret_is_known_in_every_spelling_of_its_name() {
        for name in ["api_key", "api.key", "ap\0i_k\0ey", "p\0in", " pin", "pin[0]", "pIn", "o\ttp"] {
            assert!(is_secret_parameter(name), "{name:?}");
        }
        for name in ["page", "opinion", "zip_code", "zip.code", "countryCode", "p.in", ""] {
            assert!(!is_secret_parameter(name), "{name:?}");
        }
    }
}
