//! Layers of values. A flag takes precedence over a variable, a variable over the file, and the file over the default.

use std::path::{Path, PathBuf};

use tidegate_rules::yaml::{Diagnostic, Node, Place, Position, Reader, Severity, Source, Value, closest};

use super::error::{ConfigError, ConfigErrors};
use super::setting::Setting;
use super::table::SETTINGS;

/// Configuration file and flags given on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartupArgs {
    /// The configuration file, if any.
    pub file: Option<PathBuf>,
    /// Flags, by the names of settings.
    pub flags: Vec<(String, Vec<String>)>,
}

/// Environment variable with the path of the configuration file.
pub(crate) const FILE_VARIABLE: &str = "TIDEGATE_CONFIG";

/// Layer that a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    Default,
    File(Position),
    Variable,
    Flag,
}

/// The values of one setting.
#[derive(Clone, Debug)]
pub(super) struct FoundValue {
    pub(super) setting: &'static Setting,
    pub(super) values: Vec<String>,
    pub(super) layer: Layer,
    /// Position of each value in the file.
    places: Vec<Position>,
}

/// The values of all settings.
pub(super) struct Layers {
    pub(super) found: Vec<FoundValue>,
    source: Option<Source>,
    folder: PathBuf,
}

impl Layers {
    /// Collects all values. Returns notes on unknown variables that resemble a setting, and on settings with a former
    /// name.
    pub(super) fn collect(
        given: &StartupArgs,
        variables: &[(String, String)],
    ) -> Result<(Layers, Vec<String>), ConfigErrors> {
        let file = given.file.clone().or_else(|| {
            let named = variables.iter().find(|(name, value)| name == FILE_VARIABLE && !value.is_empty());
            named.map(|(_, path)| PathBuf::from(path))
        });
        let found = SETTINGS.iter().map(|setting| {
            let values = setting.default.iter().map(|&value| value.to_owned()).collect();
            FoundValue { setting, values, layer: Layer::Default, places: Vec::new() }
        });
        let mut layers = Layers { found: found.collect(), source: None, folder: PathBuf::new() };
        let mut notes = match file {
            Some(file) => layers.read(&file)?,
            None => Vec::new(),
        };
        notes.extend(layers.take_variables(variables));
        for (name, values) in &given.flags {
            layers.set(name, values.clone(), Layer::Flag);
        }
        Ok((layers, notes))
    }

    /// The precedence of a setting's layer: 0 for the default, 3 for a flag.
    pub(super) fn rank(&self, name: &str) -> u8 {
        self.get(name).map_or(0, |found| match found.layer {
            Layer::Default => 0,
            Layer::File(_) => 1,
            Layer::Variable => 2,
            Layer::Flag => 3,
        })
    }

    /// Whether the value in force comes from a variable.
    pub(super) fn is_set_by_variable(&self, name: &str) -> bool {
        self.get(name).is_some_and(|found| found.layer == Layer::Variable)
    }

    /// The settings with this prefix that are not at their defaults' layer, in the order of the table.
    pub(super) fn set_within(&self, prefix: &str) -> impl Iterator<Item = &'static str> {
        let found = self.found.iter().filter(|found| found.layer != Layer::Default);
        found.map(|found| found.setting.name).filter(move |name| name.starts_with(prefix))
    }

    pub(super) fn get(&self, name: &str) -> Option<&FoundValue> {
        self.found.iter().find(|found| found.setting.name == name)
    }

    fn set(&mut self, name: &str, values: Vec<String>, layer: Layer) {
        if let Some(found) = self.found.iter_mut().find(|found| found.setting.name == name) {
            *found = FoundValue { values, layer, places: Vec::new(), ..*found };
        }
    }

    /// Applies the file. Returns notes on settings with a former name.
    fn read(&mut self, path: &Path) -> Result<Vec<String>, ConfigErrors> {
        let name = path.display().to_string();
        let unreadable = |error: std::io::Error| {
            let place = Place { file: name.as_str().into(), line: 1, column: 1 };
            let problem = format!("the configuration cannot be read: {error}");
            let help = "`tidegate init` writes one to start from";
            ConfigErrors(vec![ConfigError::in_file(Diagnostic::bare(place, problem, help))])
        };
        let bytes = std::fs::read(path).map_err(unreadable)?;
        let source = Source::new(&name, bytes).map_err(|finding| ConfigErrors(vec![ConfigError::in_file(*finding)]))?;
        let mut findings = Vec::new();
        let root = source.parse(&mut findings);
        let mut reader = Reader::new(&source);
        let mut file = FileValues::default();
        if let Some(root) = &root {
            section(&mut reader, "", root, &mut file);
        }
        findings.append(&mut reader.findings);
        if findings.iter().any(|finding| finding.severity == Severity::Error) {
            return Err(ConfigErrors(findings.into_iter().map(ConfigError::in_file).collect()));
        }
        let note = |(former, setting, at): (&str, &Setting, Position)| {
            format!("{}: `{former}` is now called `{}`", source.place(at), setting.name)
        };
        let notes = file.renamed.into_iter().map(note).collect();
        for entry in file.found {
            if let Some(found) = self.found.iter_mut().find(|found| found.setting.name == entry.setting.name) {
                *found = entry;
            }
        }
        self.folder = path.parent().map(Path::to_owned).unwrap_or_default();
        self.source = Some(source);
        Ok(notes)
    }

    /// Applies variables. Returns notes on those that are probably misspelled, or have a former name.
    fn take_variables(&mut self, variables: &[(String, String)]) -> Vec<String> {
        let mut notes = Vec::new();
        for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("TIDEGATE_")) {
            let setting = SETTINGS.iter().find(|setting| setting.is_set_by(name));
            if let Some(setting) = setting.filter(|setting| setting.was_set_by(name)) {
                notes.push(format!("{name} is now called {}", setting.variable));
            }
            match setting {
                Some(setting) if setting.is_list() => {
                    let values = value.split(',').map(str::trim).filter(|value| !value.is_empty());
                    self.set(setting.name, values.map(str::to_owned).collect(), Layer::Variable);
                }
                Some(setting) => self.set(setting.name, vec![value.clone()], Layer::Variable),
                None if name == FILE_VARIABLE => {}
                None => {
                    // Kubernetes sets variables with the same prefix, so only close matches are reported.
                    let known: Vec<String> =
                        SETTINGS.iter().flat_map(Setting::variables).map(|variable| variable.to_lowercase()).collect();
                    let rests = known.iter().filter_map(|name| name.strip_prefix("tidegate_"));
                    if let Some(meant) = closest(&name["TIDEGATE_".len()..], rests) {
                        let meant = meant.to_uppercase();
                        notes.push(format!("{name} is not a setting: did you mean TIDEGATE_{meant}?"));
                    }
                }
            }
        }
        notes
    }

    /// A path, relative to the folder of the configuration file if it comes from there.
    pub(super) fn path(&self, found: &FoundValue, value: &str) -> PathBuf {
        match found.layer {
            Layer::File(_) => self.folder.join(value),
            Layer::Default | Layer::Variable | Layer::Flag => PathBuf::from(value),
        }
    }

    /// Source of a value, as text.
    pub(super) fn from(&self, found: &FoundValue) -> String {
        match (found.layer, &self.source) {
            (Layer::Default, _) => "default".to_owned(),
            (Layer::Variable, _) => found.setting.variable.clone(),
            (Layer::Flag, _) => format!("--{}", found.setting.flag),
            (Layer::File(at), Some(source)) => source.place(at).to_string(),
            (Layer::File(_), None) => "file".to_owned(),
        }
    }

    /// Error in one of the values, by its index.
    pub(super) fn error(&self, found: &FoundValue, number: usize, problem: String, help: String) -> ConfigError {
        match (found.layer, &self.source) {
            (Layer::File(at), Some(source)) => {
                let at = found.places.get(number).copied().unwrap_or(at);
                let help = Some(help).filter(|help| !help.is_empty());
                ConfigError::in_file(source.finding(Severity::Error, at, problem, help))
            }
            _ => ConfigError::Given { by: self.from(found), problem, help },
        }
    }
}

/// The values in a file.
#[derive(Default)]
struct FileValues {
    found: Vec<FoundValue>,
    /// Settings with a former name: that name, the setting, and the position of the name.
    renamed: Vec<(&'static str, &'static Setting, Position)>,
}

/// Reads the map of the section with this prefix.
fn section(reader: &mut Reader<'_>, prefix: &str, node: &Node, file: &mut FileValues) {
    // All entries of the section are commented out.
    if node.value == Value::Null {
        return;
    }
    let known = names_in(prefix);
    let what = if prefix.is_empty() { "the configuration".to_owned() } else { format!("`{prefix}`") };
    let Some(fields) = reader.fields(node, &what, &known) else { return };
    for (name, node) in fields.map {
        let whole = if prefix.is_empty() { name.text.clone() } else { format!("{prefix}.{}", name.text) };
        match SETTINGS.iter().find(|setting| setting.name == whole || setting.former == Some(&whole)) {
            Some(setting) => {
                if let Some(former) = setting.former.filter(|former| *former == whole) {
                    file.renamed.push((former, setting, name.at));
                }
                if file.found.iter().any(|found| found.setting.name == setting.name) {
                    let problem = format_args!("`{}` is set under both of its names", setting.name);
                    reader.error(name.at, problem, "remove the line with the earlier name");
                }
                file.found.extend(values(reader, setting, node));
            }
            None if known.contains(&name.text.as_str()) => section(reader, &whole, node, file),
            None => {}
        }
    }
}

/// Names allowed in a section.
fn names_in(prefix: &str) -> Vec<&'static str> {
    let inside = |name: &'static str| match prefix {
        "" => Some(name),
        prefix => name.strip_prefix(prefix)?.strip_prefix('.'),
    };
    let mut names: Vec<&str> = Vec::new();
    for first in SETTINGS.iter().flat_map(Setting::names).filter_map(|name| inside(name)?.split('.').next()) {
        if !names.contains(&first) {
            names.push(first);
        }
    }
    names
}

fn values(reader: &mut Reader<'_>, setting: &'static Setting, node: &Node) -> Option<FoundValue> {
    if node.value == Value::Null {
        return None;
    }
    let what = format!("`{}`", setting.name);
    if !setting.is_list() && matches!(node.value, Value::List(_)) {
        reader.error(node.at, format_args!("{what} must be one value, found a list"), "write one value");
        return None;
    }
    let nodes = reader.each(node);
    let values: Vec<String> = nodes.iter().filter_map(|node| reader.text(node, &what)).collect();
    let places = nodes.iter().map(|node| node.at).collect();
    Some(FoundValue { setting, values, layer: Layer::File(node.at), places })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_names_are_accepted_with_a_note() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tidegate.yaml");
        let collect = |text: &str, variables: &[(String, String)]| {
            std::fs::write(&file, text).unwrap();
            Layers::collect(&StartupArgs { file: Some(file.clone()), flags: Vec::new() }, variables)
        };
        let (layers, notes) = collect("gateway:\n  give_back: false\n", &[]).unwrap();
        assert_eq!(layers.get("gateway.refund_unserved").unwrap().values, ["false"]);
        let place = format!("{}:2:3", file.display());
        assert_eq!(notes, [format!("{place}: `gateway.give_back` is now called `gateway.refund_unserved`")]);
        let variable = ("TIDEGATE_GATEWAY_KEEP_TIME".to_owned(), "5s".to_owned());
        let (layers, notes) = collect("", &[variable]).unwrap();
        assert_eq!(layers.get("gateway.pool_idle_time").unwrap().values, ["5s"]);
        assert_eq!(notes, ["TIDEGATE_GATEWAY_KEEP_TIME is now called TIDEGATE_GATEWAY_POOL_IDLE_TIME"]);
        let both = collect("gateway:\n  give_back: false\n  refund_unserved: true\n", &[]);
        let errors = both.err().map(|errors| errors.to_string()).unwrap_or_default();
        assert!(errors.contains("under both of its names") && errors.contains(":3:3"), "{errors}");
    }
}
