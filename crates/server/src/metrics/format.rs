//! Text formats of metrics, and content negotiation.

use http::HeaderMap;
use tidegate_http::accepted_weights;

/// A text format of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text format 0.0.4, which every scraper supports.
    #[default]
    Text,
    /// `OpenMetrics` 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The `Content-Type` of this format.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Chooses the format by the `Accept` header. `OpenMetrics` must be named, with at least the weight of plain text.
    /// Otherwise clients get the format that every scraper supports.
    #[must_use]
    pub fn accepted(headers: &HeaderMap) -> Format {
        let [open_metrics, text] = accepted_weights(headers, [&["application/openmetrics-text"], &["text/plain"]]);
        if open_metrics > 0 && open_metrics >= text { Format::OpenMetrics } else { Format::Text }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::ACCEPT;

    use super::*;

    fn accepted(lines: &[&str]) -> Format {
        let line = |line: &&str| (ACCEPT, HeaderValue::from_str(line).unwrap());
        Format::accepted(&lines.iter().map(line).collect())
    }

    #[test]
    fn open_metrics_is_written_for_those_who_ask_for_it() {
        // Headers of Prometheus 3 and 2, by default and with a preference for the text format.
        const PROMETHEUS_3: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                                    application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                                    text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        const PROMETHEUS_2: &str = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        const TEXT_FIRST: &str =
            "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.4";
        for (accept, format) in [
            (PROMETHEUS_3, Format::OpenMetrics),
            (PROMETHEUS_2, Format::OpenMetrics),
            (TEXT_FIRST, Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("Application/OpenMetrics-Text; Q=0.1", Format::OpenMetrics),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=much", Format::Text),
            ("*/*", Format::Text),
            ("text/html, */*;q=0.8", Format::Text),
            ("", Format::Text),
        ] {
            assert_eq!(accepted(&[accept]), format, "{accept}");
        }
        assert_eq!(accepted(&[]), Format::Text);
        assert_eq!(accepted(&["*/*", "application/openmetrics-text"]), Format::OpenMetrics);
    }
}
