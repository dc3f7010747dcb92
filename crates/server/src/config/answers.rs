//! Settings of the responses that Tidegate sends itself.

use std::path::Path;
use std::sync::Arc;

use http::HeaderValue;
use tidegate_http::{Cors, DenialBodies, HtmlPage, OriginError, Template, TemplateError};

use super::ConfigReader;
use super::error::InvalidValue;
use super::values::{choice, flag};
use crate::local_replies::LocalReplies;

/// Maximum size of a template.
const MOST_TEMPLATE_BYTES: u64 = 256 * 1024;

impl ConfigReader<'_> {
    pub(super) fn local_replies(&mut self) -> Option<LocalReplies> {
        let errors = self.errors.len();
        let has_page = self.value("denial.html", flag);
        let page = self.template("denial.html_template", Template::html);
        let json = self.template("denial.json_template", Template::json);
        let types = ["application/problem+json", "application/json"].map(|name| (name, name));
        let json_type = self.value("denial.json_type", choice(&types));
        let request_id = self.header("denial.request_id_header");
        let cors = self.cors();
        let limit_preflights = self.value("cors.limit_preflights", flag);
        if self.errors.len() > errors {
            return None;
        }
        let html = has_page?.then(|| page.map_or(HtmlPage::BuiltIn, HtmlPage::Custom));
        let bodies =
            DenialBodies { html, json, json_type: HeaderValue::from_static(json_type?), request_id: request_id? };
        Some(LocalReplies { bodies: Arc::new(bodies), cors, limit_preflights: limit_preflights? })
    }

    /// `None` if it is not set or invalid.
    fn template(&mut self, name: &str, read: impl Fn(&str) -> Result<Template, TemplateError>) -> Option<Template> {
        let path = self.path(name)?;
        match read_bounded(&path).map(|text| read(&text)) {
            Ok(Ok(template)) => Some(template),
            Ok(Err(error)) => {
                // `path:line:column`, which editors recognise.
                self.wrong(name, &format!("{}:{error}", path.display()), error.help);
                None
            }
            Err(error) => {
                self.wrong(name, &format!("`{}` cannot be read: {error}", path.display()), "");
                None
            }
        }
    }

    /// `None` if no origin is allowed, or on an error.
    fn cors(&mut self) -> Option<Arc<Cors>> {
        const NAME: &str = "cors.origins";
        let credentials = self.value("cors.credentials", flag)?;
        let origins = self.texts(NAME);
        for (number, origin) in origins.iter().enumerate() {
            if let Err(error) = Cors::new([origin.as_str()], credentials) {
                let help = match &error {
                    OriginError::Path(_) | OriginError::Malformed(_) => {
                        "write a scheme and a host such as `https://app.example.com`, `https://*.example.com`, or `*`"
                    }
                    OriginError::Null => "serve the page from an origin of its own, and write that",
                    OriginError::AnyWithCredentials => "name the origins, or leave out `cors.credentials`",
                };
                self.wrong_one(NAME, number, InvalidValue::new(error.to_string(), help));
            }
        }
        if origins.is_empty() {
            return None;
        }
        Cors::new(origins.iter().map(String::as_str), credentials).ok().map(Arc::new)
    }
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind, Read};
    let mut text = String::new();
    std::fs::File::open(path)?.take(MOST_TEMPLATE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_TEMPLATE_BYTES {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {MOST_TEMPLATE_BYTES} bytes")));
    }
    Ok(text)
}
