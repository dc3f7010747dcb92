//! The name in `Authorization: Basic`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use tidegate_rules::syntax::credentials;

/// Maximum length of a name, in bytes.
const LONGEST: usize = 256;

/// User named in `Authorization: Basic`. The password is not verified: the service behind must refuse wrong passwords.
///
/// `None` unless there is exactly one such line with a name in it.
pub(crate) fn basic_user(headers: &HeaderMap) -> Option<String> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let pair = STANDARD.decode(credentials(line.as_bytes(), "Basic")?).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(&pair[..colon]).ok()?;
    (1..=LONGEST).contains(&name.len()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_name_is_what_stands_before_the_colon() {
        for (line, name) in [
            ("Basic YWxpY2U6c2VjcmV0", Some("alice")),
            ("basic  YWxpY2U6", Some("alice")),
            ("Basic\tYWxpY2U6", Some("alice")),
            ("Basic YTpiOmM=", Some("a")),
            ("Basic OnNlY3JldA==", None),
            ("Basic YWxpY2U=", None),
            ("Basic ???", None),
            ("Bearer YWxpY2U6c2VjcmV0", None),
            ("Basic", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(line));
            assert_eq!(basic_user(&headers).as_deref(), name, "{line}");
            headers.append(AUTHORIZATION, HeaderValue::from_static("Basic Ym9iOng="));
            assert_eq!(basic_user(&headers), None, "two lines are ambiguous");
        }
    }
}
