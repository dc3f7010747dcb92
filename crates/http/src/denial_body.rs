//! The bodies of denials: a page for browsers, JSON for programs.

use std::fmt;
use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, VARY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::accept::prefers_html;
use crate::problem_document::PROBLEM_JSON;
use crate::template::{Template, TemplateValues};

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
/// Allows the inline style sheet of the page, and nothing else.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
/// Longer request ids are not shown.
const MAX_ID_BYTES: usize = 128;

static BUILT_IN: LazyLock<Template> = LazyLock::new(|| {
    // A test parses the page.
    Template::html(include_str!("page.html")).unwrap_or_else(|_| Template::empty())
});

/// The bodies of denials.
///
/// The default is an HTML page for browsers and an RFC 9457 problem in JSON for other clients.
#[derive(Clone, Debug)]
pub struct DenialBodies {
    /// The page for clients that [prefer HTML](prefers_html). `None` sends JSON to all.
    pub html: Option<HtmlPage>,
    /// A template that replaces the RFC 9457 problem.
    pub json: Option<Template>,
    /// The media type of JSON.
    pub json_type: HeaderValue,
    /// The request header with the request's id, for templates.
    pub request_id: HeaderName,
}

/// A page for browsers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HtmlPage {
    /// A small page without scripts, with the reason and the time to wait.
    BuiltIn,
    /// An operator's template.
    Custom(Template),
}

impl Default for DenialBodies {
    fn default() -> DenialBodies {
        DenialBodies { html: Some(HtmlPage::BuiltIn), ..DenialBodies::json() }
    }
}

impl DenialBodies {
    /// JSON for all clients.
    #[must_use]
    pub const fn json() -> DenialBodies {
        DenialBodies {
            html: None,
            json: None,
            json_type: PROBLEM_JSON,
            request_id: HeaderName::from_static("x-request-id"),
        }
    }

    /// Returns `true` if the body is an HTML page for this request.
    #[must_use]
    pub fn is_page_for(&self, request: &HeaderMap) -> bool {
        self.html.is_some() && prefers_html(request)
    }

    /// Writes the body of a denial, and adds its headers to `answer`. `problem` supplies the JSON body if there is no
    /// template.
    pub(crate) fn write(
        &self,
        explanation: TemplateValues<'_>,
        request: &HeaderMap,
        answer: &mut HeaderMap,
        problem: impl FnOnce() -> Bytes,
    ) -> Bytes {
        if self.html.is_some() {
            answer.insert(VARY, HeaderValue::from_static("Accept"));
        }
        let page = self.html.as_ref().filter(|_| prefers_html(request));
        if page.is_none() && self.json.is_none() {
            answer.insert(CONTENT_TYPE, self.json_type.clone());
            return problem();
        }
        let explanation = TemplateValues { request_id: self.request_id(request), ..explanation };
        let text = match (page, &self.json) {
            (Some(page), _) => return page.write(&explanation, answer),
            (None, Some(template)) => template.render(&explanation),
            (None, None) => String::new(),
        };
        answer.insert(CONTENT_TYPE, self.json_type.clone());
        Bytes::from(text)
    }

    /// The request's own id. It need not be verified, because only its sender sees it.
    fn request_id<'h>(&self, request: &'h HeaderMap) -> Option<&'h str> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+=".contains(&byte);
        let id = request.get(&self.request_id)?.to_str().ok()?;
        (!id.is_empty() && id.len() <= MAX_ID_BYTES && id.bytes().all(is_part)).then_some(id)
    }
}

impl HtmlPage {
    fn write(&self, explanation: &TemplateValues<'_>, answer: &mut HeaderMap) -> Bytes {
        answer.insert(CONTENT_TYPE, HTML);
        answer.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        answer.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let template = match self {
            HtmlPage::BuiltIn => {
                answer.insert(CONTENT_SECURITY_POLICY, PAGE_POLICY);
                &*BUILT_IN
            }
            HtmlPage::Custom(template) => template,
        };
        Bytes::from(template.render(explanation))
    }
}

/// The built-in page for an error other than a denial, with its headers.
#[must_use]
pub fn failure_page(status: StatusCode, detail: &dyn fmt::Display, answer: &mut HeaderMap) -> Bytes {
    let title = crate::template::reason(status);
    let (kind, rule, retry_after, request_id) = ("about:blank", None, None, None);
    let explanation = TemplateValues { status, kind, title, detail, rule, retry_after, request_id };
    HtmlPage::BuiltIn.write(&explanation, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_page_is_a_template() {
        let mut headers = HeaderMap::new();
        let page = failure_page(StatusCode::BAD_GATEWAY, &"<It> cannot be reached.", &mut headers);
        let page = String::from_utf8(page.to_vec()).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.contains("<h1>Bad Gateway</h1>"), "{page}");
        assert!(page.contains("&lt;It&gt; cannot be reached.") && !page.contains("{{"), "{page}");
        assert_eq!(headers[CONTENT_TYPE], "text/html; charset=utf-8");
    }

    #[test]
    fn an_id_is_shown_only_if_it_looks_like_one() {
        let bodies = DenialBodies::default();
        let id = |value: &str| {
            let headers = [(bodies.request_id.clone(), HeaderValue::from_str(value).unwrap())].into_iter().collect();
            bodies.request_id(&headers).map(str::to_owned)
        };
        assert_eq!(id("0af7651916cd43dd-8448"), Some("0af7651916cd43dd-8448".to_owned()));
        for value in ["", "<b>", "javascript:alert(1)", "//evil.example", "a b", &"a".repeat(129)] {
            assert_eq!(id(value), None, "{value}");
        }
    }
}
