//! Files and folders of rules.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::envoy::Domains;
use super::read::{self, RulesFile};
use super::{RuleSet, checks};
use crate::yaml::{Diagnostic, Diagnostics, Place, Position, Severity};
use crate::yaml::{LARGEST_FILE, Node, Reader, Source, Value};

/// The longest chain of includes.
const LONGEST_CHAIN: usize = 32;
/// Maximum number of files.
const MOST_FILES: usize = 1_024;
/// Maximum total size of all files, in bytes.
const MOST_BYTES: usize = 4 * LARGEST_FILE;

/// Settings of a server, which no rules file has. A file with one of them is a server's configuration.
pub const SERVER_SETTINGS: [&str; 23] = [
    "access_log",
    "admin",
    "api",
    "auth",
    "cors",
    "denial",
    "forwarding_header",
    "gateway",
    "handover",
    "headers",
    "limits",
    "log",
    "node",
    "redis",
    "region",
    "resp",
    "rls",
    "rules_required",
    "secrets",
    "store",
    "tls",
    "traces",
    "trusted_proxies",
];
/// Names of the configuration that `tidegate init` writes beside the rules.
const CONFIGURATION_FILES: [&str; 2] = ["tidegate.yaml", "tidegate.yml"];

/// Valid rules, and warnings about them.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: RuleSet,
    /// Warnings, without errors.
    pub warnings: Diagnostics,
    /// All files that were read, including included ones.
    pub files: Vec<PathBuf>,
    /// Hash of these files, with the contents that were read.
    pub contents: FilesHash,
}

/// Hash of files and their contents, which shows whether they have changed. Comparable within a process only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesHash(u64);

impl FilesHash {
    /// Hash of the rules files at `paths` as they are now, together with `files`, which an earlier load has read. It
    /// equals [`Loaded::contents`] of that load until something changes.
    #[must_use]
    pub fn now(paths: &[PathBuf], files: &[PathBuf]) -> FilesHash {
        // A link that leads elsewhere is a change.
        let whole = |path: PathBuf| std::fs::canonicalize(&path).unwrap_or(path);
        let all: BTreeSet<PathBuf> = rules_files(paths).into_iter().map(whole).chain(files.iter().cloned()).collect();
        let contents = |file: PathBuf| {
            let hash = hash_of_contents(file_contents(&file).ok().as_deref());
            (file, hash)
        };
        FilesHash::of(&all.into_iter().map(contents).collect())
    }

    /// Hash of files, by the hashes of their contents.
    fn of(files: &BTreeMap<PathBuf, u64>) -> FilesHash {
        FilesHash(hash_of(files))
    }
}

/// Hash of the contents of a file; `None` if it cannot be read.
fn hash_of_contents(contents: Option<&[u8]>) -> u64 {
    hash_of(&contents)
}

fn hash_of(value: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// Reads files, and the YAML files in folders in alphabetical order, with all files that they include. A `tidegate.yaml` in
/// a folder is skipped, because it is a server's configuration.
///
/// # Errors
/// Returns all errors and warnings if there is any error.
pub fn load(paths: &[PathBuf]) -> Result<Loaded, Diagnostics> {
    let mut loading = Loading::default();
    for path in paths {
        loading.path(path);
    }
    loading.finish()
}

/// The rules files at `paths`: files themselves, and the YAML files in folders.
#[must_use]
pub fn rules_files(paths: &[PathBuf]) -> Vec<PathBuf> {
    let expand = |path: &PathBuf| {
        if path.is_dir() { yaml_files(path).unwrap_or_default() } else { vec![path.clone()] }
    };
    paths.iter().flat_map(expand).collect()
}

impl RuleSet {
    /// Reads rules from text, which cannot include files. `name` is used in messages.
    ///
    /// # Errors
    /// Returns all errors and warnings if there is any error.
    pub fn parse(name: &str, text: &str) -> Result<Loaded, Diagnostics> {
        let mut loading = Loading::default();
        loading.bytes(name, text.as_bytes().to_vec(), None, 0);
        loading.finish()
    }
}

#[derive(Default)]
struct Loading {
    files: Vec<(Source, RulesFile)>,
    domains: Domains,
    findings: Vec<Diagnostic>,
    /// Files that were read, and the hashes of their contents.
    seen: BTreeMap<PathBuf, u64>,
    bytes_read: usize,
    /// Whether there are more files than the maximum. Further files are not read.
    is_full: bool,
}

/// The place where a file is included.
struct Included<'i> {
    by: &'i Source,
    node: &'i Node,
    /// The depth of includes that lead to the file.
    depth: usize,
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

    /// Reads a file, unless it has been read already.
    fn file(&mut self, path: &Path, included: Option<Included<'_>>) {
        if self.is_full {
            return;
        }
        let depth = included.as_ref().map_or(0, |included| included.depth);
        let wrong = match std::fs::canonicalize(path) {
            Ok(whole) if self.seen.contains_key(&whole) => return,
            Ok(_) if depth > LONGEST_CHAIN => (
                format!("`{}` is included at the end of a chain of more than {LONGEST_CHAIN} files", path.display()),
                "include it further up, or put the files into one folder",
            ),
            Ok(_) if self.seen.len() >= MOST_FILES => {
                self.is_full = true;
                let problem = format!("this is file {}, and {MOST_FILES} are read", MOST_FILES + 1);
                return self.fault(path, &problem, "put several rules into one file");
            }
            Ok(whole) => match file_contents(&whole) {
                Ok(bytes) => {
                    self.seen.insert(whole, hash_of_contents(Some(&bytes)));
                    self.bytes_read = self.bytes_read.saturating_add(bytes.len());
                    if self.bytes_read > MOST_BYTES {
                        self.is_full = true;
                        let problem = format!("the files have more than {MOST_BYTES} bytes in total");
                        return self.fault(
                            path,
                            &problem,
                            "write fewer rules: some may be one with a key or a pattern",
                        );
                    }
                    return self.bytes(&path.display().to_string(), bytes, path.parent(), depth);
                }
                Err(error) => unreadable(path, &error),
            },
            Err(error) => unreadable(path, &error),
        };
        match (included, wrong) {
            (Some(Included { by, node, .. }), (problem, help)) => {
                self.findings.push(by.finding(Severity::Error, node.at, problem, Some(help.to_owned())));
            }
            (None, (problem, _)) => self.fault(path, &problem, ""),
        }
    }

    fn bytes(&mut self, name: &str, bytes: Vec<u8>, folder: Option<&Path>, depth: usize) {
        let source = match Source::new(name, bytes) {
            Ok(source) => source,
            Err(finding) => return self.findings.push(*finding),
        };
        let Some(root) = source.parse(&mut self.findings) else { return };
        let mut reader = Reader::new(&source);
        let file = if root.value == Value::Null {
            reader.error(root.at, "the file is empty", "write `rules:` and a list of rules below it");
            RulesFile::default()
        } else if let Some(setting) = setting_in(&root) {
            let problem = "this is the configuration of a server, and no rules file";
            let help = "`tidegate config --config FILE` checks it; rules are in the files that its `rules` names";
            reader.error(setting, problem, help);
            RulesFile::default()
        } else if Domains::are_in(&root) {
            self.domains.read(&mut reader, &root);
            RulesFile::default()
        } else {
            read::file(&mut reader, &root)
        };
        self.findings.append(&mut reader.findings);
        for node in &file.include {
            match (node.as_text(), folder) {
                (Some(text), Some(folder)) => {
                    self.file(&folder.join(text), Some(Included { by: &source, node, depth: depth + 1 }));
                }
                (Some(_), None) => {
                    let problem = "rules that are published, or read from standard input, cannot include files";
                    let help = "write the rules of those files into this one: nodes that read it do not have the files";
                    self.findings.push(source.finding(Severity::Error, node.at, problem, Some(help.to_owned())));
                }
                (None, _) => {
                    let problem = format!("`include` must name files, found {}", node.kind());
                    let help = Some("write one such as `more/rules.yaml`, or a list of them".to_owned());
                    self.findings.push(source.finding(Severity::Error, node.at, problem, help));
                }
            }
        }
        self.files.push((source, file));
    }

    fn fault(&mut self, path: &Path, problem: &str, help: &str) {
        let place = Place { file: path.display().to_string().into(), line: 1, column: 1 };
        self.findings.push(Diagnostic::bare(place, problem.to_owned(), help));
    }

    fn finish(mut self) -> Result<Loaded, Diagnostics> {
        self.findings.extend(checks::across(&self.files));
        self.findings.sort_by(|one, other| one.place.cmp(&other.place));
        let findings = Diagnostics(self.findings);
        if findings.errors() > 0 {
            return Err(findings);
        }
        let tiers = self.files.iter_mut().find_map(|(_, file)| file.tiers.take()).unwrap_or_default();
        let regions = self.files.iter_mut().find_map(|(_, file)| file.regions.take());
        let rules = self.files.into_iter().flat_map(|(_, file)| file.rules).collect();
        Ok(Loaded {
            rules: RuleSet::new(rules, tiers, self.domains, regions),
            warnings: findings,
            contents: FilesHash::of(&self.seen),
            files: self.seen.into_keys().collect(),
        })
    }
}

/// The place of a server setting in a file.
fn setting_in(root: &Node) -> Option<Position> {
    let Value::Map(fields) = &root.value else { return None };
    fields.iter().find(|(name, _)| SERVER_SETTINGS.contains(&name.text.as_str())).map(|(name, _)| name.at)
}

fn unreadable(path: &Path, error: &io::Error) -> (String, &'static str) {
    let problem = format!("`{}` cannot be read: {error}", path.display());
    (problem, "paths are taken from the folder of the file that includes")
}

/// The bytes of a rules file. Of a file that is too large, one byte more than the maximum.
///
/// # Errors
/// Fails if the file cannot be read, or is not a regular file: a device or a pipe may have no end.
fn file_contents(path: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(LARGEST_FILE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Skips hidden files, in which a Kubernetes `ConfigMap` keeps its versions, and a server's configuration.
fn yaml_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        let yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        let configuration = CONFIGURATION_FILES.iter().any(|name| path.ends_with(name));
        // Tests of rules are in the same folder: `rules.test.yaml`.
        let tests = path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with(".test"));
        if yaml && !hidden && !configuration && !tests && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
