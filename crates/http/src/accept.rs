//! Content negotiation: the media types that a client prefers.

use http::HeaderMap;
use http::header::ACCEPT;

/// Returns `true` if a request's `Accept` prefers HTML to JSON. A browser's does when it opens a page; programs send
/// `*/*`, JSON, or no `Accept`.
///
/// ```
/// use http::{HeaderMap, HeaderValue, header::ACCEPT};
/// use tidegate_http::prefers_html;
///
/// let accepting = |value| HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(value))]);
/// assert!(prefers_html(&accepting("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")));
/// assert!(!prefers_html(&accepting("*/*")));
/// assert!(!prefers_html(&accepting("application/json, text/html;q=0.5")));
/// ```
#[must_use]
pub fn prefers_html(headers: &HeaderMap) -> bool {
    let [html, json] = accepted_weights(
        headers,
        [&["text/html", "application/xhtml+xml"], &["application/json", "application/problem+json"]],
    );
    html > json
}

/// The weight of each group of media types in `Accept`, in thousandths: the highest weight of any type in the group,
/// or 0 if `Accept` names none of them.
#[must_use]
pub fn accepted_weights<const N: usize>(headers: &HeaderMap, groups: [&[&str]; N]) -> [u32; N] {
    let mut weights = [0; N];
    for line in headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok()) {
        for range in line.split(',') {
            let (kind, parameters) = range.split_once(';').unwrap_or((range, ""));
            let kind = kind.trim();
            for (weight, group) in weights.iter_mut().zip(groups) {
                if group.iter().any(|known| kind.eq_ignore_ascii_case(known)) {
                    *weight = quality(parameters).max(*weight);
                }
            }
        }
    }
    weights
}

/// The weight among the parameters of a media range, in thousandths. An invalid weight is 0.
fn quality(parameters: &str) -> u32 {
    let mut named = parameters.split(';').filter_map(|parameter| parameter.split_once('='));
    let Some((_, value)) = named.find(|(name, _)| name.trim().eq_ignore_ascii_case("q")) else { return 1_000 };
    let (whole, fraction) = value.trim().split_once('.').unwrap_or((value.trim(), ""));
    let digits = format!("{fraction:0<3}");
    match (whole, digits.get(..3).and_then(|digits| digits.parse::<u32>().ok())) {
        ("0", Some(thousandths)) => thousandths,
        ("1", _) => 1_000,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn prefers(lines: &[&str]) -> bool {
        let line = |line: &&str| (ACCEPT, HeaderValue::from_str(line).unwrap());
        prefers_html(&lines.iter().map(line).collect())
    }

    #[test]
    fn browsers_get_a_page_and_programs_do_not() {
        for browser in [
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
            "text/html, application/xhtml+xml, image/jxr, */*",
            "TEXT/HTML",
            "application/xhtml+xml;q=0.5",
            "text/html;level=1;q=0.7, application/json;q=0.3",
        ] {
            assert!(prefers(&[browser]), "{browser}");
        }
        for program in [
            "*/*",
            "",
            "application/json",
            "application/json, text/plain, */*",
            "text/html;q=0",
            "text/html;q=0.000",
            "text/html;q=nonsense",
            "text/html, application/json",
            "application/problem+json, text/html;q=0.9",
            "text/*",
            "text/htmlx",
        ] {
            assert!(!prefers(&[program]), "{program}");
        }
        assert!(!prefers(&[]) && prefers(&["*/*", "text/html"]) && !prefers(&["text/html", "application/json"]));
    }
}
