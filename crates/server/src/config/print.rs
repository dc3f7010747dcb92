//! The configuration as people see it.

use std::fmt::Write;

use serde::Serialize;

use super::error::ConfigErrors;
use super::layers::{FoundValue, Layers, StartupArgs};
use super::setting::Setting;
use super::table::{SETTINGS, about_section};

/// A setting with its value and origin.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ShownSetting {
    /// As in the file: `api.listen`.
    pub(crate) name: &'static str,
    /// Secrets are hidden.
    pub(crate) value: Vec<String>,
    /// A flag, a variable, a place in the file, or `default`.
    pub(crate) from: String,
}

/// All settings with their values and origins.
pub(crate) fn shown(given: &StartupArgs, variables: &[(String, String)]) -> Result<Vec<ShownSetting>, ConfigErrors> {
    let (layers, _) = Layers::collect(given, variables)?;
    Ok(layers.found.iter().map(|found| show(&layers, found)).collect())
}

/// One of them.
pub(super) fn show(layers: &Layers, found: &FoundValue) -> ShownSetting {
    ShownSetting {
        name: found.setting.name,
        value: found.values.iter().map(|value| found.setting.shown(value)).collect(),
        from: layers.from(found),
    }
}

/// Configuration file with all settings as comments. Only `rules` is set.
pub(crate) fn commented_file() -> String {
    let mut file = String::from(
        "# Tidegate configuration. Lines that are commented out show the defaults.\n\
         # Each setting is also an environment variable and a flag of `tidegate serve`: `listen` in `api` is\n\
         # TIDEGATE_API_LISTEN and --api-listen. Flags take precedence over variables, and variables over this file.\n\
         # `tidegate config` shows the values in force and their origin.\n",
    );
    let mut section = "";
    for setting in SETTINGS.iter() {
        if setting.section() != section {
            section = setting.section();
            let indent = "  ".repeat(section.matches('.').count());
            let name = section.rsplit('.').next().unwrap_or(section);
            let _ = write!(file, "\n{indent}# {}\n{indent}{name}:\n", about_section(section));
        } else if section.is_empty() {
            file.push('\n');
        }
        entry(&mut file, setting);
    }
    file
}

fn entry(file: &mut String, setting: &Setting) {
    let indent = "  ".repeat(setting.name.matches('.').count());
    let name = setting.name.rsplit('.').next().unwrap_or(setting.name);
    let _ = writeln!(file, "{indent}# {}", setting.about);
    let comment = if setting.name == "rules" { "" } else { "# " };
    let values: Vec<&str> = if setting.default.is_empty() { vec![setting.example] } else { setting.default.to_vec() };
    let value = match values[..] {
        [only] => written(only),
        ref several => format!("[{}]", several.iter().map(|value| written(value)).collect::<Vec<_>>().join(", ")),
    };
    let _ = writeln!(file, "{indent}{comment}{name}: {value}");
}

/// A value as it is written in YAML.
pub(crate) fn written(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "./_-:".contains(c);
    let starts_well = value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/' || c == '.');
    // A colon before a space, or at the end, would make it a map.
    if starts_well && value.chars().all(is_plain) && !value.ends_with(':') {
        value.to_owned()
    } else {
        format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
    }
}
