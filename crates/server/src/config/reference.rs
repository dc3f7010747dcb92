//! Reference of all settings, for the documentation.

use std::fmt::Write;

use super::layers::FILE_VARIABLE;
use super::setting::Setting;
use super::table::{SETTINGS, about_section};

const INTRODUCTION: &str = "\
# Settings

Every setting of `tidegate serve`. Each is an entry of the configuration file, an environment variable and a flag. Flags take precedence over
variables, and variables over the file. `tidegate init` writes a file with all of them as comments, and `tidegate config` shows the values in force and their
origin.

A dot is a level of the file: `listen` in the map `api` is called `api.listen` here. Lists have commas between their values in variables and flags. Durations are
written as `500ms`, `20s`, `5min` or `24h`.

Settings marked with \\* take effect at the next start, the others when the server reloads its configuration (SIGHUP).

This page is generated: `tidegate config --reference > docs/settings.md`.
";

/// All settings as Markdown, with defaults, flags and variables.
pub(crate) fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    let _ = writeln!(page, "\nThe file is named by `--config` or `{FILE_VARIABLE}`.");
    let mut section = None;
    for setting in SETTINGS.iter() {
        if section != Some(setting.section()) {
            section = Some(setting.section());
            begin(&mut page, setting.section());
        }
        row(&mut page, setting);
    }
    page
}

/// Writes the headings of a section and of its table.
fn begin(page: &mut String, section: &str) {
    let _ = match section {
        "" => writeln!(page, "\n## General"),
        section => writeln!(page, "\n## {section}\n\n{}", about_section(section)),
    };
    page.push_str("\n| setting | default | flag, variable | meaning |\n|---|---|---|---|\n");
}

fn row(page: &mut String, setting: &Setting) {
    let default = match (setting.default, setting.example) {
        ([], "") => "none".to_owned(),
        ([], example) => format!("none; for example `{}`", cell(example)),
        (values, _) => format!("`{}`", cell(&values.join(","))),
    };
    let Setting { name, flag, variable, about, .. } = setting;
    let mark = if setting.needs_restart { " \\*" } else { "" };
    let aliases: String = setting.aliases.iter().map(|alias| format!(", `--{alias}`")).collect();
    let about = cell(about);
    let _ = writeln!(page, "| `{name}`{mark} | {default} | `--{flag}`{aliases}, `{variable}` | {about} |");
}

/// Escapes text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_a_row_and_every_row_four_cells() {
        let page = reference();
        for setting in SETTINGS.iter() {
            let row = format!("\n| `{}`", setting.name);
            assert!(page.contains(&row), "{}", setting.name);
        }
        for row in page.lines().filter(|line| line.starts_with('|')) {
            assert_eq!(row.replace("\\|", "").matches('|').count(), 5, "{row}");
            assert!(row.matches('`').count().is_multiple_of(2), "{row}");
        }
    }

    #[test]
    fn no_section_comes_twice() {
        let page = reference();
        let mut headings: Vec<&str> = page.lines().filter(|line| line.starts_with("## ")).collect();
        let count = headings.len();
        headings.sort_unstable();
        headings.dedup();
        assert_eq!(headings.len(), count);
    }
}
