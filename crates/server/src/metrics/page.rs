//! Writes metrics as text, family by family.

use std::fmt::{Display, Write};

use super::Format;
use super::histogram::HistogramSnapshot;

/// Labels of a series, as names and values.
pub(super) type Labels<'l> = &'l [(&'l str, &'l str)];

/// Text of the exposition. Names are passed without the prefix `tidegate_`, and counters without `_total`.
pub(super) struct Page {
    text: String,
    format: Format,
    prefix: &'static str,
}

impl Page {
    pub(super) const fn new(format: Format) -> Page {
        Page { text: String::new(), format, prefix: "tidegate_" }
    }

    /// Starts the standard process metrics, which have no prefix.
    pub(super) const fn of_process(&mut self) {
        self.prefix = "";
    }

    /// The complete text.
    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    pub(super) fn counter<V: Display>(&mut self, name: &str, help: &str, values: &[(Labels<'_>, V)]) {
        // In OpenMetrics, the name of a family lacks the suffix of its series.
        self.begin(name, if self.format == Format::Text { "_total" } else { "" }, help, "counter");
        for (labels, value) in values {
            self.series(name, "_total", labels, None, value);
        }
    }

    pub(super) fn gauge<V: Display>(&mut self, name: &str, help: &str, values: &[(Labels<'_>, V)]) {
        self.begin(name, "", help, "gauge");
        for (labels, value) in values {
            self.series(name, "", labels, None, value);
        }
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str, values: &[(Labels<'_>, HistogramSnapshot)]) {
        self.begin(name, "", help, "histogram");
        for (labels, shown) in values {
            let mut below = 0;
            for (end, count) in &shown.buckets {
                below += count;
                let end = if *end == f64::MAX { "+Inf".to_owned() } else { format!("{end:?}") };
                self.series(name, "_bucket", labels, Some(&end), below);
            }
            self.series(name, "_sum", labels, None, format_args!("{:?}", shown.sum));
            self.series(name, "_count", labels, None, shown.count);
        }
    }

    fn begin(&mut self, name: &str, suffix: &str, help: &str, kind: &str) {
        let prefix = self.prefix;
        // Writing to a string cannot fail, here and below.
        let _ = write!(self.text, "# HELP {prefix}{name}{suffix} {help}\n# TYPE {prefix}{name}{suffix} {kind}\n");
    }

    fn series(&mut self, name: &str, suffix: &str, labels: Labels<'_>, end: Option<&str>, value: impl Display) {
        let _ = write!(self.text, "{}{name}{suffix}", self.prefix);
        let all = labels.iter().copied().chain(end.map(|end| ("le", end)));
        let mut before = '{';
        for (label, value) in all {
            let _ = write!(self.text, "{before}{label}=\"");
            escape(value, &mut self.text);
            self.text.push('"');
            before = ',';
        }
        if before == ',' {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

/// Escapes a label value.
fn escape(value: &str, text: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(format: Format) -> String {
        let mut page = Page::new(format);
        page.counter("requests", "Requests", &[(&[("rule", "a\\b\"c\nd"), ("mode", "off")], 7)]);
        page.gauge("store_up", "Whether the store answers", &[(&[], 1)]);
        let shown = HistogramSnapshot { sum: 0.5, count: 3, buckets: vec![(2.5e-7, 1), (1.0, 1), (f64::MAX, 1)] };
        page.histogram("duration_seconds", "Time taken", &[(&[("route", "/")], shown)]);
        page.of_process();
        page.counter("process_cpu_seconds", "CPU time", &[(&[], 1.5)]);
        page.finish()
    }

    const REST: &str = "\
# HELP tidegate_store_up Whether the store answers
# TYPE tidegate_store_up gauge
tidegate_store_up 1
# HELP tidegate_duration_seconds Time taken
# TYPE tidegate_duration_seconds histogram
tidegate_duration_seconds_bucket{route=\"/\",le=\"2.5e-7\"} 1
tidegate_duration_seconds_bucket{route=\"/\",le=\"1.0\"} 2
tidegate_duration_seconds_bucket{route=\"/\",le=\"+Inf\"} 3
tidegate_duration_seconds_sum{route=\"/\"} 0.5
tidegate_duration_seconds_count{route=\"/\"} 3
";

    #[test]
    fn both_formats_have_the_same_series_and_name_counters_in_their_own_way() {
        let counter = "tidegate_requests_total{rule=\"a\\\\b\\\"c\\nd\",mode=\"off\"} 7\n";
        let cpu = "process_cpu_seconds_total 1.5\n";
        assert_eq!(
            page(Format::Text),
            format!(
                "# HELP tidegate_requests_total Requests\n# TYPE tidegate_requests_total counter\n{counter}{REST}\
                 # HELP process_cpu_seconds_total CPU time\n# TYPE process_cpu_seconds_total counter\n{cpu}"
            )
        );
        assert_eq!(
            page(Format::OpenMetrics),
            format!(
                "# HELP tidegate_requests Requests\n# TYPE tidegate_requests counter\n{counter}{REST}\
                 # HELP process_cpu_seconds CPU time\n# TYPE process_cpu_seconds counter\n{cpu}# EOF\n"
            )
        );
    }
}
