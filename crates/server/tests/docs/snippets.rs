//! Reads the blocks of the guides that are files: rules, configurations of this and of other programs, manifests, lines of logs.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;
use tidegate_core::{Limit, NotationError};

use crate::docs::Known;
use crate::docs::blocks::{Kind, kind};
use crate::docs::commands::{said, shell};
use crate::docs::guide::{Guide, guides, is_rules, repository};
use crate::support::certificates;
use crate::support::folder;

/// What reads a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reader {
    /// `tidegate check`, without warnings.
    Rules,
    /// `tidegate test`, with the rules before it.
    Scenarios,
    /// `tidegate check`: a file of envoyproxy/ratelimit.
    Descriptors,
    /// `tidegate config`.
    Configuration,
    /// A template for denials, which a configuration of the guide names.
    Template,
    /// Lines that `tidegate replay` reads.
    Requests,
    /// Traffic that `tidegate simulate` makes, line by line.
    Traffic,
    /// The parser of limits.
    Limits,
    /// The parser of limits, which answers as shown.
    Mistake,
    /// Dependencies in a manifest: cargo, and the packages of the workspace.
    Manifest,
    /// The message of each line is one of the program's.
    LogLines,
    /// `nginx -t`, within `http`.
    Nginx,
    /// `promtool check config`.
    Prometheus,
    /// `promtool check rules`, as the expression of an alert.
    PromQl,
}

const LEVELS: [&str; 3] = ["INFO ", "WARN ", "ERROR "];

/// What reads a block of this label and text.
pub(crate) fn reader(label: &str, text: &str) -> Option<Reader> {
    let is_log = || text.lines().all(|line| LEVELS.iter().any(|level| line.starts_with(level)));
    match label {
        "yaml" if is_rules(text) && !text.contains("include:") => Some(Reader::Rules),
        "yaml" if text.starts_with("domain:") => Some(Reader::Descriptors),
        "yaml" if text.starts_with("scrape_configs:") => Some(Reader::Prometheus),
        "yaml" if is_configuration(text) => Some(Reader::Configuration),
        "yaml,test" => Some(Reader::Scenarios),
        "html" | "json" if text.contains("{{") => Some(Reader::Template),
        "json" if text.starts_with("{\"time\"") => Some(Reader::Requests),
        "text" if text.starts_with("time,") => Some(Reader::Requests),
        "text" if is_log() => Some(Reader::LogLines),
        "traffic" => Some(Reader::Traffic),
        "limits" => Some(Reader::Limits),
        "not-limits" => Some(Reader::Mistake),
        "toml" if text.starts_with("[dependencies]\n") => Some(Reader::Manifest),
        "nginx" => Some(Reader::Nginx),
        "promql" => Some(Reader::PromQl),
        _ => None,
    }
}

/// Whether all names at the top level are sections or settings.
fn is_configuration(text: &str) -> bool {
    static KNOWN: LazyLock<Known> = LazyLock::new(Known::learn);
    let lines = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let names: Vec<&str> = lines.filter_map(|line| line.split(':').next()).collect();
    let settings = &KNOWN.settings;
    let is_known = |name: &str| settings.iter().any(|known| known == name || known.starts_with(&format!("{name}.")));
    !names.is_empty() && names.iter().all(|name| is_known(name))
}

/// The sources of all crates, with the literals that span lines joined.
static SOURCES: LazyLock<String> = LazyLock::new(|| {
    fn add(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                add(&entry, text);
            } else if entry.extension().is_some_and(|kind| kind == "rs") {
                text.push_str(&std::fs::read_to_string(entry).unwrap());
            }
        }
    }
    let mut text = String::new();
    for package in std::fs::read_dir(repository().join("crates")).unwrap() {
        add(&package.unwrap().path().join("src"), &mut text);
    }
    let parts: Vec<&str> = text.split("\\\n").collect();
    let rest = parts[1..].iter().map(|part| part.trim_start());
    std::iter::once(parts[0]).chain(rest).collect()
});

/// What is wrong with a line of a log, `LEVEL target: message field=value`.
fn wrong_in_log_line(line: &str) -> Option<String> {
    let (target, message) = line.split_once(' ').and_then(|(_, rest)| rest.split_once(": "))?;
    let words: Vec<&str> = message.split(' ').take_while(|word| !word.contains('=')).collect();
    // Numbers and paths are put into the message.
    let is_value = |word: &&str| word.contains(|c: char| c.is_ascii_digit() || c == '/');
    let mut parts = words.split(is_value).map(|part| part.join(" ")).filter(|part| part.len() > 8);
    let unknown = parts.find(|part| !SOURCES.contains(part.as_str()));
    let module = target.strip_prefix("tidegate::").unwrap_or(target).replace("::", "/");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(&module);
    let is_module =
        source.with_extension("rs").exists() || source.is_dir() || SOURCES.contains(&format!("\"{target}\""));
    match unknown {
        Some(part) => Some(format!("no message has `{part}`")),
        None => (!is_module).then(|| format!("no module {target}")),
    }
}

/// What is wrong with a table of dependencies.
fn wrong_in_manifest(text: &str) -> Option<String> {
    static PACKAGES: LazyLock<Value> = LazyLock::new(|| {
        let args = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
        let output = Command::new(env!("CARGO")).args(args).current_dir(repository()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(&output)))
    });
    let root = repository().canonicalize().unwrap();
    let place = folder(&[("lib.rs", "")]);
    let source = format!("path = \"{}/crates", root.display());
    let mut manifest =
        String::from("[package]\nname = \"user\"\nversion = \"0.1.0\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n");
    for line in text.lines() {
        let Some((name, wanted)) = line.split_once(" = ").filter(|(name, _)| name.starts_with("tidegate")) else {
            manifest.push_str(&format!("{line}\n"));
            continue;
        };
        let packages = PACKAGES["packages"].as_array().unwrap();
        let Some(package) = packages.iter().find(|package| package["name"] == name) else {
            return Some(format!("no package {name}"));
        };
        let version = package["version"].as_str().unwrap();
        let (_, features) = wanted.split_once("features = [").unwrap_or_default();
        for feature in features.split('"').skip(1).step_by(2) {
            if package["features"].get(feature).is_none() {
                return Some(format!("{name} has no feature {feature}"));
            }
        }
        let is_version = wanted.strip_prefix('"').is_some_and(|rest| version.starts_with(rest.trim_end_matches('"')));
        let is_repository = wanted.contains("{ git = \"https://github.com/tidegate/tidegate\"");
        if !is_version && !is_repository {
            return Some(format!("{name} is {version}, not {wanted}"));
        }
        let folder = name.trim_start_matches("tidegate-");
        manifest.push_str(&format!("{name} = {{ {source}/{folder}\" }}\n"));
    }
    std::fs::write(place.path().join("Cargo.toml"), manifest).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(place.path());
    let output = output.output().unwrap();
    (!output.status.success()).then(|| said(&output))
}

/// Runs a command on a block that is in this file. Returns the output if it fails.
fn refused(name: &str, text: &str, command: &str) -> Option<String> {
    let place = folder(&[(name, text)]);
    let output = shell(place.path(), command);
    (!output.status.success()).then(|| said(&output))
}

/// What is wrong with limits, one in every other cell: the cells between say what they are.
fn wrong_in_limits(text: &str) -> Option<String> {
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let mut limits = text.lines().flat_map(|line| cells(line).into_iter().step_by(2));
    limits.find_map(|limit| limit.parse::<Limit>().err().map(|error| error.pointer()))
}

fn wrong_in_mistake(text: &str) -> Option<String> {
    let written = text.lines().next().unwrap_or_default();
    match written.parse::<Limit>().map_err(|error: NotationError| error.pointer()) {
        Ok(_) => Some("it is a limit".to_owned()),
        Err(pointer) => (pointer.trim_end() != text).then_some(pointer),
    }
}

/// What is wrong with a configuration, next to the templates of its guide, certificates, and rules.
fn wrong_in_configuration(guide: &Guide, text: &str) -> Option<String> {
    let authority = certificates::authority("clients of a guide");
    let (certificate, key) = certificates::issued(&authority);
    let (pem, rules) = (authority.pem(), guide.rules().unwrap_or("rules: [{ id: api, limit: 10/s }]\n"));
    let mut files =
        vec![("tidegate.yaml", text), ("rules.yaml", rules), ("server.pem", &*certificate), ("server-key.pem", &*key)];
    files.push(("clients.pem", &*pem));
    let template = |label: &'static str| guide.labelled(label).find(|block| block.contains("{{"));
    files.extend(template("html").map(|block| ("denied.html", block)));
    files.extend(template("json").map(|block| ("denied.json", block)));
    let output = shell(folder(&files).path(), "tidegate config --config tidegate.yaml");
    (!output.status.success()).then(|| said(&output))
}

/// What is wrong with the block at this place.
fn wrong(guide: &Guide, at: usize, reader: Reader) -> Option<String> {
    let text = guide.blocks[at].text.as_str();
    match reader {
        Reader::Rules => refused("rules.yaml", text, "tidegate check --deny-warnings rules.yaml"),
        Reader::Descriptors => refused("ratelimit.yaml", text, "tidegate check --deny-warnings ratelimit.yaml"),
        Reader::Configuration => wrong_in_configuration(guide, text),
        Reader::Scenarios => {
            let rules = guide.blocks[..at].iter().rev().find(|block| is_rules(&block.text));
            let place = folder(&[("rules.yaml", rules?.text.as_str()), ("rules.test.yaml", text)]);
            let output = shell(place.path(), "tidegate test rules.test.yaml");
            (!output.status.success()).then(|| said(&output))
        }
        Reader::Template => {
            let names = ["html_template: denied.html", "json_template: denied.json"];
            let is_named = guide.labelled("yaml").any(|block| names.iter().all(|name| block.contains(name)));
            (!is_named).then(|| "no configuration of this guide names it".to_owned())
        }
        Reader::Requests => refused("access.log", text, "tidegate replay --suggest access.log").or_else(|| {
            let place = folder(&[("access.log", text)]);
            let report = said(&shell(place.path(), "tidegate replay --suggest access.log"));
            report.contains("left out").then_some(report)
        }),
        Reader::Traffic => text.lines().find_map(|line| {
            let call = format!("tidegate simulate 10/s --for 2s --traffic '{line}'");
            refused("unused", "", &call)
        }),
        Reader::Limits => wrong_in_limits(text),
        Reader::Mistake => wrong_in_mistake(text),
        Reader::Manifest => wrong_in_manifest(text),
        Reader::LogLines => text.lines().find_map(wrong_in_log_line),
        Reader::Nginx => {
            let text =
                format!("error_log /dev/null; pid nginx.pid; events {{}}\nhttp {{\naccess_log off;\n{text}\n}}\n");
            refused("nginx.conf", &text, "nginx -t -e error.log -c nginx.conf -p .")
        }
        Reader::Prometheus => refused("prometheus.yaml", text, "promtool check config --syntax-only prometheus.yaml"),
        Reader::PromQl => {
            let text = format!("groups: [{{ name: a, rules: [{{ alert: A, expr: '{text}' }}] }}]\n");
            refused("rules.yaml", &text, "promtool check rules rules.yaml")
        }
    }
}

#[test]
fn blocks_are_read_by_what_they_are_for() {
    let (mut seen, mut problems) = (0, Vec::new());
    for guide in guides() {
        for (at, block) in guide.blocks.iter().enumerate() {
            let Some(Kind::Snippet(reader)) = kind(&guide, at) else { continue };
            seen += 1;
            if let Some(problem) = wrong(&guide, at, reader) {
                problems.push(format!("{}:{}: {reader:?}\n{}\n{problem}", guide.name, block.line, block.text));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(seen > 100, "{seen}");
}

#[test]
fn broken_blocks_are_noticed() {
    let block =
        |label: &str, text: &str| crate::docs::guide::Block { label: label.to_owned(), text: text.to_owned(), line: 1 };
    for (label, text) in [
        ("yaml", "rules:\n  - { id: a, limit: 1/fortnight }"),
        ("yaml", "domain: a\ndescriptors: [{ kee: a }]"),
        ("yaml", "headers: { ietf: maybe }"),
        ("yaml", "scrape_configs: [{ jobname: a }]"),
        ("json", "{\"time\": \"never\"}"),
        ("text", "time,address,method,path\nnever,1.2.3.4,GET,/"),
        ("text", "WARN tidegate::listen: a message that no part of the program has"),
        ("text", "WARN tidegate::nowhere: the server is ready"),
        ("traffic", "often"),
        ("limits", "5/parsec"),
        ("not-limits", "5/s\n^"),
        ("toml", "[dependencies]\ntidegate-core = \"0.9\""),
        (
            "toml",
            "[dependencies]\ntidegate-tower = { git = \"https://github.com/tidegate/tidegate\", features = [\"nope\"] }",
        ),
        ("toml", "[dependencies]\naxum = {"),
        ("nginx", "nothing_of_nginx on;"),
        ("promql", "sum by ("),
        ("json", "{\"code\": {{rule}}}"),
    ] {
        let guide = Guide { name: "new.md".to_owned(), prose: String::new(), blocks: vec![block(label, text)] };
        let Some(Kind::Snippet(reader)) = kind(&guide, 0) else { panic!("{label}: {text}") };
        assert!(wrong(&guide, 0, reader).is_some(), "{reader:?}: {text}");
    }
}
