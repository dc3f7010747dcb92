//! Where values come from: a flag, else a variable, else the file, else the default.

use std::path::{Path, PathBuf};

use tidegate_rules::yaml::{Diagnostic, Node, Place, Position, Reader, Severity, Source, Value, closest};

use super::fault::{Fault, Faults};
use super::setting::Setting;
use super::table::SETTINGS;

/// What was given when the program was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The configuration file, if any.
    pub file: Option<PathBuf>,
    /// Flags, by the names of settings.
    pub flags: Vec<(String, Vec<String>)>,
}

/// The variable that names the file.
pub(crate) const FILE_VARIABLE: &str = "TIDEGATE_CONFIG";

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Default,
    File(Position),
    Variable,
    Flag,
}

/// The values of one setting.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) setting: &'static Setting,
    pub(super) values: Vec<String>,
    pub(super) origin: Origin,
    /// Where each of them stands, if they come from the file.
    places: Vec<Position>,
}

/// The values of all settings.
pub(super) struct Layers {
    pub(super) found: Vec<Found>,
    source: Option<Source>,
    folder: PathBuf,
}

impl Layers {
    /// Puts together what is set. Variables that are close to the name of one and mean nothing are warned of.
    pub(super) fn collect(given: &Given, variables: &[(String, String)]) -> Result<(Layers, Vec<String>), Faults> {
        let file = given.file.clone().or_else(|| {
            let named = variables.iter().find(|(name, value)| name == FILE_VARIABLE && !value.is_empty());
            named.map(|(_, path)| PathBuf::from(path))
        });
        let found = SETTINGS.iter().map(|setting| {
            let values = setting.default.iter().map(|&value| value.to_owned()).collect();
            Found { setting, values, origin: Origin::Default, places: Vec::new() }
        });
        let mut layers = Layers { found: found.collect(), source: None, folder: PathBuf::new() };
        if let Some(file) = file {
            layers.read(&file)?;
        }
        let strangers = layers.take_variables(variables);
        for (name, values) in &given.flags {
            layers.set(name, values.clone(), Origin::Flag);
        }
        Ok((layers, strangers))
    }

    /// The precedence of the layer that a setting comes from: 0 for its default, 3 for a flag.
    pub(super) fn rank(&self, name: &str) -> u8 {
        self.get(name).map_or(0, |found| match found.origin {
            Origin::Default => 0,
            Origin::File(_) => 1,
            Origin::Variable => 2,
            Origin::Flag => 3,
        })
    }

    pub(super) fn get(&self, name: &str) -> Option<&Found> {
        self.found.iter().find(|found| found.setting.name == name)
    }

    fn set(&mut self, name: &str, values: Vec<String>, origin: Origin) {
        if let Some(found) = self.found.iter_mut().find(|found| found.setting.name == name) {
            *found = Found { values, origin, places: Vec::new(), ..*found };
        }
    }

    fn read(&mut self, path: &Path) -> Result<(), Faults> {
        let name = path.display().to_string();
        let unreadable = |error: std::io::Error| {
            let place = Place { file: name.as_str().into(), line: 1, column: 1 };
            let problem = format!("the configuration cannot be read: {error}");
            let help = "`tidegate init` writes one to start from";
            Faults(vec![Fault::in_file(Diagnostic::bare(place, problem, help))])
        };
        let bytes = std::fs::read(path).map_err(unreadable)?;
        let source = Source::new(&name, bytes).map_err(|finding| Faults(vec![Fault::in_file(*finding)]))?;
        let mut findings = Vec::new();
        let root = source.parse(&mut findings);
        let mut reader = Reader::new(&source);
        let mut file = Vec::new();
        if let Some(root) = &root {
            section(&mut reader, "", root, &mut file);
        }
        findings.append(&mut reader.findings);
        if findings.iter().any(|finding| finding.severity == Severity::Error) {
            return Err(Faults(findings.into_iter().map(Fault::in_file).collect()));
        }
        for entry in file {
            if let Some(found) = self.found.iter_mut().find(|found| found.setting.name == entry.setting.name) {
                *found = entry;
            }
        }
        self.folder = path.parent().map(Path::to_owned).unwrap_or_default();
        self.source = Some(source);
        Ok(())
    }

    /// Says which variables are probably misspelled.
    fn take_variables(&mut self, variables: &[(String, String)]) -> Vec<String> {
        let mut strangers = Vec::new();
        for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("TIDEGATE_")) {
            match SETTINGS.iter().find(|setting| setting.is_set_by(name)) {
                Some(setting) if setting.is_list() => {
                    let values = value.split(',').map(str::trim).filter(|value| !value.is_empty());
                    self.set(setting.name, values.map(str::to_owned).collect(), Origin::Variable);
                }
                Some(setting) => self.set(setting.name, vec![value.clone()], Origin::Variable),
                None if name == FILE_VARIABLE => {}
                None => {
                    // Kubernetes sets variables of its own that begin like these: only what is close is told of.
                    let known: Vec<String> =
                        SETTINGS.iter().flat_map(Setting::variables).map(|variable| variable.to_lowercase()).collect();
                    let rests = known.iter().filter_map(|name| name.strip_prefix("tidegate_"));
                    if let Some(meant) = closest(&name["TIDEGATE_".len()..], rests) {
                        let meant = meant.to_uppercase();
                        strangers.push(format!("{name} is not a setting: did you mean TIDEGATE_{meant}?"));
                    }
                }
            }
        }
        strangers
    }

    /// A path, taken from the folder of the file that says it.
    pub(super) fn path(&self, found: &Found, value: &str) -> PathBuf {
        match found.origin {
            Origin::File(_) => self.folder.join(value),
            Origin::Default | Origin::Variable | Origin::Flag => PathBuf::from(value),
        }
    }

    /// Where a value comes from, for people.
    pub(super) fn from(&self, found: &Found) -> String {
        match (found.origin, &self.source) {
            (Origin::Default, _) => "default".to_owned(),
            (Origin::Variable, _) => found.setting.variable.clone(),
            (Origin::Flag, _) => format!("--{}", found.setting.flag),
            (Origin::File(at), Some(source)) => source.place(at).to_string(),
            (Origin::File(_), None) => "file".to_owned(),
        }
    }

    /// Says what is wrong with the value of this number.
    pub(super) fn fault(&self, found: &Found, number: usize, problem: String, help: String) -> Fault {
        match (found.origin, &self.source) {
            (Origin::File(at), Some(source)) => {
                let at = found.places.get(number).copied().unwrap_or(at);
                let help = Some(help).filter(|help| !help.is_empty());
                Fault::in_file(source.finding(Severity::Error, at, problem, help))
            }
            _ => Fault::Given { by: self.from(found), problem, help },
        }
    }
}

/// Reads the map of a section, which `prefix` names.
fn section(reader: &mut Reader<'_>, prefix: &str, node: &Node, file: &mut Vec<Found>) {
    // A section of which everything is commented out.
    if node.value == Value::Null {
        return;
    }
    let known = names_in(prefix);
    let what = if prefix.is_empty() { "the configuration".to_owned() } else { format!("`{prefix}`") };
    let Some(fields) = reader.fields(node, &what, &known) else { return };
    for (name, node) in fields.map {
        let whole = if prefix.is_empty() { name.text.clone() } else { format!("{prefix}.{}", name.text) };
        match SETTINGS.iter().find(|setting| setting.name == whole) {
            Some(setting) => file.extend(values(reader, setting, node)),
            None if known.contains(&name.text.as_str()) => section(reader, &whole, node, file),
            None => {}
        }
    }
}

/// The names that may stand in a section.
fn names_in(prefix: &str) -> Vec<&'static str> {
    let inside = |name: &'static str| match prefix {
        "" => Some(name),
        prefix => name.strip_prefix(prefix)?.strip_prefix('.'),
    };
    let mut names: Vec<&str> = Vec::new();
    for first in SETTINGS.iter().filter_map(|setting| inside(setting.name)?.split('.').next()) {
        if !names.contains(&first) {
            names.push(first);
        }
    }
    names
}

fn values(reader: &mut Reader<'_>, setting: &'static Setting, node: &Node) -> Option<Found> {
    if node.value == Value::Null {
        return None;
    }
    let what = format!("`{}`", setting.name);
    if !setting.is_list() && matches!(node.value, Value::List(_)) {
        reader.error(node.at, format_args!("{what} is a list where one value is wanted"), "write one value");
        return None;
    }
    let nodes = reader.each(node);
    let values: Vec<String> = nodes.iter().filter_map(|node| reader.text(node, &what)).collect();
    let places = nodes.iter().map(|node| node.at).collect();
    Some(Found { setting, values, origin: Origin::File(node.at), places })
}
