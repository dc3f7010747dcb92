//! Progress bars.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress bar with a template, on terminals only. A spinner without a length.
pub(super) fn progress_bar(length: Option<u64>, template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
