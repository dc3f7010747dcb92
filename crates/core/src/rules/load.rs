//! Files and folders of rules.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::diagnostic::{Diagnostic, Diagnostics, Place, Severity};
use super::read::{self, File};
use super::yaml::{Node, Reader, Source, Value};
use super::{RuleSet, checks};

/// Rules that can be used, and what is doubtful about them.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: RuleSet,
    /// Warnings; no errors.
    pub warnings: Diagnostics,
}

/// Reads files, and the YAML files in folders in the order of their names, with all that they include.
///
/// # Errors
/// Everything that is wrong with them, if anything is an error.
pub fn load(paths: &[PathBuf]) -> Result<Loaded, Diagnostics> {
    let mut loading = Loading::default();
    for path in paths {
        loading.path(path);
    }
    loading.finish()
}

impl RuleSet {
    /// Reads rules from text. `name` is what messages call it; it can include no other files.
    ///
    /// # Errors
    /// Everything that is wrong with it, if anything is an error.
    pub fn parse(name: &str, text: &str) -> Result<Loaded, Diagnostics> {
        let mut loading = Loading::default();
        loading.bytes(name, text.as_bytes().to_vec(), None);
        loading.finish()
    }
}

#[derive(Default)]
struct Loading {
    files: Vec<(Source, File)>,
    findings: Vec<Diagnostic>,
    seen: BTreeSet<PathBuf>,
}

impl Loading {
    fn path(&mut self, path: &Path) {
        if !path.is_dir() {
            return self.file(path, None);
        }
        match yaml_files(path) {
            Ok(files) if files.is_empty() => {
                self.fault(path, "the folder has no YAML file", "name rules files `*.yaml`");
            }
            Ok(files) => files.iter().for_each(|file| self.file(file, None)),
            Err(error) => self.fault(path, &format!("the folder cannot be read: {error}"), ""),
        }
    }

    /// Reads a file, unless it was read already. `included_by` says where it was asked for.
    fn file(&mut self, path: &Path, included_by: Option<(&Source, &Node)>) {
        match std::fs::canonicalize(path).and_then(|whole| Ok((std::fs::read(&whole)?, whole))) {
            Ok((bytes, whole)) => {
                if self.seen.insert(whole) {
                    self.bytes(&path.display().to_string(), bytes, path.parent());
                }
            }
            Err(error) => {
                let problem = format!("`{}` cannot be read: {error}", path.display());
                match included_by {
                    Some((source, node)) => {
                        let help = Some("paths are taken from the folder of the file that includes".to_owned());
                        self.findings.push(source.finding(Severity::Error, node.at, problem, help));
                    }
                    None => self.fault(path, &problem, ""),
                }
            }
        }
    }

    fn bytes(&mut self, name: &str, bytes: Vec<u8>, folder: Option<&Path>) {
        let source = match Source::new(name, bytes) {
            Ok(source) => source,
            Err(finding) => return self.findings.push(finding),
        };
        let root = match source.parse() {
            Ok(root) => root,
            Err(finding) => return self.findings.push(finding),
        };
        let mut reader = Reader::new(&source);
        let file = if root.value == Value::Null {
            reader.error(root.at, "the file is empty", "write `rules:` and a list of rules below it");
            File::default()
        } else {
            read::file(&mut reader, &root)
        };
        self.findings.append(&mut reader.findings);
        for node in &file.include {
            match (node.as_text(), folder) {
                (Some(text), Some(folder)) => self.file(&folder.join(text), Some((&source, node))),
                _ => {
                    let problem = "nothing can be included here";
                    self.findings.push(source.finding(Severity::Error, node.at, problem, None));
                }
            }
        }
        self.files.push((source, file));
    }

    fn fault(&mut self, path: &Path, problem: &str, help: &str) {
        let place = Place { file: path.display().to_string().into(), line: 1, column: 1 };
        let help = Some(help.to_owned()).filter(|help| !help.is_empty());
        let (problem, severity) = (problem.to_owned(), Severity::Error);
        self.findings.push(Diagnostic { severity, place, problem, help, excerpt: String::new(), mark: (0, 0) });
    }

    fn finish(mut self) -> Result<Loaded, Diagnostics> {
        self.findings.extend(checks::across(&self.files));
        self.findings.sort_by(|one, other| one.place.cmp(&other.place));
        let findings = Diagnostics(self.findings);
        if findings.errors() > 0 {
            return Err(findings);
        }
        let tiers = self.files.iter_mut().find_map(|(_, file)| file.tiers.take()).unwrap_or_default();
        let rules = self.files.into_iter().flat_map(|(_, file)| file.rules).collect();
        Ok(Loaded { rules: RuleSet::new(rules, tiers), warnings: findings })
    }
}

/// Hidden files are left out: a Kubernetes `ConfigMap` keeps its versions in some.
fn yaml_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        let yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if yaml && !hidden && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
