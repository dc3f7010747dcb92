//! Checks that the guides name only existing commands, flags, variables and settings, and that each of their blocks is run,
//! read, compiled, or compared with the program ([`blocks`]).
//!
//! Every word between backticks in `README.md` and `docs/`, and every line of a shell block that runs `tidegate`, is
//! compared with the output of the program: `tidegate config` for settings, `--help` for commands, flags and variables.
//! Metrics are compared with those of a server in `admin/deploy.rs`.

mod blocks;
mod commands;
mod examples;
mod guide;
mod operating;
mod repository;
mod sessions;
mod size;
mod snippets;
mod toolchain;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use guide::{Block, Guide, guides, plain, read};

/// Flags of other programs, and of builds.
const FOREIGN_FLAGS: [&str; 10] = [
    "--add-host",
    "--set-file",
    "--features",
    "--no-default-features",
    "--json",
    "--help",
    "--version",
    "--config",
    "--compressed",
    "--prior-knowledge",
];

/// A variable of builds.
const COMMIT: &str = "TIDEGATE_COMMIT";

/// Names that only look like settings: files, traces, fields of other formats, and values of the chart.
const FOREIGN_NAMES: [&str; 5] = ["tidegate.", "usage.", "example.", "api.key", "sidecar."];
const FILES: [&str; 10] = [".rs", ".lua", ".yaml", ".yml", ".json", ".md", ".log", ".pem", ".toml", ".html"];

/// Names that the program defines.
struct Known {
    settings: BTreeSet<String>,
    /// Flags by command. Subcommands are listed under both names, such as `rules push`.
    commands: BTreeMap<String, BTreeSet<String>>,
    variables: BTreeSet<String>,
}

fn tidegate(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The words of a text that begin with `begin`, followed by characters that satisfy `is_part`.
fn words<'t>(text: &'t str, begin: &'t str, is_part: fn(char) -> bool) -> impl Iterator<Item = &'t str> {
    let is_apart = move |at: usize| text[..at].chars().next_back().is_none_or(|before| !is_part(before));
    text.match_indices(begin).filter(move |(at, _)| is_apart(*at)).map(move |(at, _)| {
        let rest = &text[at..];
        let end = rest[begin.len()..].find(|c| !is_part(c)).map_or(rest.len(), |end| begin.len() + end);
        &rest[..end]
    })
}

fn flags(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    words(text, "--", is_part).filter(|flag| flag.len() > 2)
}

fn variables(text: &str) -> impl Iterator<Item = &str> {
    words(text, "TIDEGATE_", |c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// The names after `Commands:` in a help text.
fn commands(help: &str) -> Vec<String> {
    let Some((_, listed)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = listed.lines().take_while(|line| !line.is_empty());
    let named = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    named.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

impl Known {
    fn learn() -> Known {
        let settings = tidegate(&["config"]);
        let settings = settings.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
        let mut known = Known { settings, commands: BTreeMap::new(), variables: BTreeSet::new() };
        for command in commands(&tidegate(&["--help"])) {
            let help = tidegate(&[&command, "--help"]);
            for below in commands(&help) {
                known.add(&format!("{command} {below}"), &tidegate(&[&command, &below, "--help"]));
            }
            known.add(&command, &help);
        }
        let of_serve = known.commands["serve"].iter();
        let of_serve = of_serve.map(|flag| format!("TIDEGATE_{}", flag[2..].replace('-', "_").to_ascii_uppercase()));
        known.variables.extend(of_serve.collect::<Vec<_>>());
        known.variables.insert(COMMIT.to_owned());
        known
    }

    fn add(&mut self, command: &str, help: &str) {
        self.variables.extend(variables(help).map(str::to_owned));
        self.commands.insert(command.to_owned(), flags(help).map(str::to_owned).collect());
    }

    fn has_flag(&self, flag: &str) -> bool {
        FOREIGN_FLAGS.contains(&flag) || self.commands.values().any(|flags| flags.contains(flag))
    }

    /// The errors in a line that runs the program.
    fn wrong_in_call(&self, line: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        for call in line.split("&&").map(str::trim) {
            let Some(rest) = call.strip_prefix("tidegate ") else { continue };
            let mut said = rest.split_whitespace();
            let (first, second) = (said.next().unwrap_or_default(), said.next().unwrap_or_default());
            let both = format!("{first} {second}");
            let has_subcommands = self.commands.keys().any(|known| known.starts_with(&format!("{first} ")));
            if has_subcommands && is_word(second) && !self.commands.contains_key(&both) {
                wrong.push(format!("no command `{both}`"));
            }
            let name = if self.commands.contains_key(&both) { both } else { first.to_owned() };
            match self.commands.get(&name) {
                Some(known) => {
                    // Quoted text and other commands of a pipeline are not arguments of the program.
                    let own = rest.split(['|', '\'', '"']).step_by(2).collect::<Vec<_>>().join(" ");
                    let unknown = flags(&own).filter(|flag| !known.contains(*flag) && *flag != "--help");
                    wrong.extend(unknown.map(|flag| format!("`tidegate {name}` has no {flag}")));
                }
                None if is_word(first) => wrong.push(format!("no command `{first}`")),
                None => {}
            }
        }
        wrong
    }

    /// The errors in a word between backticks.
    fn wrong_in_span(&self, span: &str) -> Vec<String> {
        let mut wrong = self.wrong_in_call(span);
        if span.starts_with("--") {
            wrong.extend(flags(span).filter(|flag| !self.has_flag(flag)).map(|flag| format!("no flag {flag}")));
        }
        if let Some(name) = setting(span)
            && !self.settings.contains(name)
            && !self.settings.iter().any(|known| known.starts_with(&format!("{name}.")))
        {
            wrong.push(format!("no setting `{name}`"));
        }
        wrong
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// The name in `a.b` or `a.b: value`, if the word has this form.
fn setting(span: &str) -> Option<&str> {
    let name = span.split(": ").next()?;
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let is_setting = name.contains('.') && name.split('.').all(is_word);
    let is_foreign =
        FOREIGN_NAMES.iter().any(|begin| name.starts_with(begin)) || FILES.iter().any(|end| name.ends_with(end));
    (is_setting && !is_foreign).then_some(name)
}

/// The words between backticks.
fn spans(prose: &str) -> impl Iterator<Item = &str> {
    prose.split("\n\n").flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2))
}

/// The first cells of the tables of settings.
fn listed_settings(prose: &str) -> Vec<&str> {
    let mut listed = Vec::new();
    for paragraph in prose.split("\n\n").filter(|paragraph| paragraph.starts_with("| setting |")) {
        let rows = paragraph.lines().skip(2).filter_map(|row| row.split('|').nth(1));
        listed.extend(rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)));
    }
    listed
}

#[test]
fn guides_name_only_what_there_is() {
    let known = Known::learn();
    let mut wrong = Vec::new();
    for Guide { name, prose, blocks } in guides() {
        let mut complain = |what: String| wrong.push(format!("{name}: {what}"));
        for span in spans(&prose) {
            known.wrong_in_span(span).into_iter().for_each(&mut complain);
        }
        for setting in listed_settings(&prose).into_iter().filter(|setting| !known.settings.contains(*setting)) {
            complain(format!("no setting `{setting}`"));
        }
        let whole = blocks.iter().map(|block| block.text.as_str()).chain([prose.as_str()]);
        for variable in whole.flat_map(variables).filter(|variable| !known.variables.contains(*variable)) {
            complain(format!("no variable {variable}"));
        }
        for shown in blocks.iter().flat_map(Block::commands) {
            known.wrong_in_call(&plain(&shown.command)).into_iter().for_each(&mut complain);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn missing_names_are_noticed() {
    let known = Known::learn();
    for span in [
        "rls.own_domain",
        "rls.charging: always",
        "tidegate chekc rules.yaml",
        "tidegate rules pull",
        "tidegate check --strict",
        "--gatewya",
    ] {
        assert!(!known.wrong_in_span(span).is_empty(), "{span}");
    }
    for span in [
        "rls.domain",
        "store.redis",
        "tidegate rules push rules.yaml && tidegate fleet --wait 10",
        "--gateway 0.0.0.0:80",
    ] {
        assert_eq!(known.wrong_in_span(span), [""; 0], "{span}");
    }
    assert_eq!(listed_settings("| setting | default |\n|---|---|\n| `own_domain` | x |\n"), ["own_domain"]);
    assert!(!known.variables.contains("TIDEGATE_GATEWYA") && known.variables.contains("TIDEGATE_RESP_USERS"));
}

#[test]
fn the_page_of_settings_is_the_one_that_the_program_writes() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    let (written, printed) = (std::fs::read_to_string(page).unwrap(), tidegate(&["config", "--reference"]));
    assert!(written == printed, "docs/settings.md is out of date: tidegate config --reference > docs/settings.md");
}

/// The anchor of a heading, as generated by code hosts.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

fn anchors(prose: &str) -> Vec<String> {
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

#[test]
fn links_in_guides_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for Guide { name, prose, .. } in guides() {
        let folder = if name == "README.md" { root.clone() } else { root.join("docs") };
        let own = anchors(&prose);
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") || link.contains(' ') {
                continue;
            }
            seen += 1;
            let (file, place) = link.split_once('#').map_or((link, None), |(file, place)| (file, Some(place)));
            let known = match folder.join(file) {
                _ if file.is_empty() => Some(own.clone()),
                path if !path.exists() => None,
                path if path.extension().is_some_and(|kind| kind == "md") => Some(anchors(&read(&path).prose)),
                _ => Some(Vec::new()),
            };
            let is_found = known.is_some_and(|known| place.is_none_or(|place| known.iter().any(|one| one == place)));
            if !is_found {
                wrong.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty() && seen > 100, "{seen} links, {wrong:#?}");
}

#[test]
fn the_guide_of_the_api_names_every_field_of_a_decision() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let api = std::fs::read_to_string(root.join("src/api/openapi.json")).unwrap();
    let api: serde_json::Value = serde_json::from_str(&api).unwrap();
    let fields = api["components"]["schemas"]["Verdict"]["properties"].as_object().unwrap();
    assert!(fields.contains_key("most_ever"));
    let guide = read(&root.join("../../docs/http-api.md"));
    let named: BTreeSet<&str> = spans(&guide.prose).collect();
    let missing: Vec<&String> = fields.keys().filter(|field| !named.contains(field.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
