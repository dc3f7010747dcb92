//! Displays the configuration.

use std::fmt::Write;

use serde::Serialize;

use super::error::ConfigErrors;
use super::layers::{FoundValue, Layers, StartupArgs};
use super::setting::Setting;
use super::store::set_by_shorthand;
use super::table::{SETTINGS, about_section};

/// A setting with its value and origin.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ShownSetting {
    /// Name as in the file: `api.listen`.
    pub(crate) name: &'static str,
    /// Values, with secrets hidden.
    pub(crate) value: Vec<String>,
    /// Origin: a flag, a variable, a position in the file, or `default`.
    pub(crate) from: String,
}

/// All settings with their values and origins.
pub(crate) fn shown(given: &StartupArgs, variables: &[(String, String)]) -> Result<Vec<ShownSetting>, ConfigErrors> {
    let (layers, _) = Layers::collect(given, variables)?;
    Ok(show(&layers))
}

/// All of them, in the order of the table. Those that `redis` stands for have the values that it gives them.
pub(super) fn show(layers: &Layers) -> Vec<ShownSetting> {
    let shorthand = set_by_shorthand(layers).unwrap_or_default();
    let show = |found: &FoundValue| {
        let name = found.setting.name;
        match shorthand.settings.iter().find(|(set, _)| *set == name) {
            Some((_, value)) => ShownSetting { name, value: value.clone(), from: shorthand.from.clone() },
            None => {
                let value = found.values.iter().map(|value| found.setting.shown(value)).collect();
                ShownSetting { name, value, from: layers.from(found) }
            }
        }
    };
    layers.found.iter().map(show).collect()
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

/// A value in YAML syntax.
pub(crate) fn written(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "./_-:".contains(c);
    let starts_well = value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/' || c == '.');
    // A colon before a space or at the end would turn the value into a map.
    if starts_well && value.chars().all(is_plain) && !value.ends_with(':') {
        value.to_owned()
    } else {
        format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
    }
}
