//! The text formats that Prometheus reads, and which of them a scraper asks for.

/// A text format of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own, version 0.0.4, which every scraper reads.
    #[default]
    Text,
    /// `OpenMetrics` 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The `Content-Type` of a text in this format.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format that the values of `Accept` ask for. `OpenMetrics` has to be named, with at least the weight that plain text
    /// has: clients that accept anything get the format that every scraper reads.
    #[must_use]
    pub fn accepted<'a>(accept: impl IntoIterator<Item = &'a str>) -> Format {
        let (mut text, mut open_metrics) = (0, 0);
        for range in accept.into_iter().flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let weight_of = match parts.next().unwrap_or_default() {
                kind if kind.eq_ignore_ascii_case("application/openmetrics-text") => &mut open_metrics,
                kind if kind.eq_ignore_ascii_case("text/plain") => &mut text,
                _ => continue,
            };
            *weight_of = weight(parts).max(*weight_of);
        }
        if open_metrics > 0 && open_metrics >= text { Format::OpenMetrics } else { Format::Text }
    }
}

/// The weight of a media range, in thousandths.
fn weight<'a>(mut parameters: impl Iterator<Item = &'a str>) -> u32 {
    let given = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    match given {
        None => 1_000,
        Some(weight) => thousandths(weight).unwrap_or(0),
    }
}

/// `0.75` as 750: a weight has at most three digits behind its point (RFC 9110, 12.4.2).
fn thousandths(weight: &str) -> Option<u32> {
    let (whole, fraction) = weight.split_once('.').unwrap_or((weight, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if fraction.len() > 3 || !is_number(fraction) || !is_number(whole) {
        return None;
    }
    let fraction: u32 = format!("{fraction:0<3}").parse().ok()?;
    Some((whole.parse::<u32>().ok()?.min(1) * 1_000 + fraction).min(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_written_for_those_who_ask_for_it() {
        // Prometheus 3 and 2 as they come, and Prometheus told to prefer its own format.
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
            assert_eq!(Format::accepted([accept]), format, "{accept}");
        }
        assert_eq!(Format::accepted([]), Format::Text);
        assert_eq!(Format::accepted(["*/*", "application/openmetrics-text"]), Format::OpenMetrics);
    }
}
