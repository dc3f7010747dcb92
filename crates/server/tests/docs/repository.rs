//! Files that only a code host or a registry reads: manifests of packages, workflows, issue templates.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::docs::guide::repository;

fn read(file: &str) -> String {
    std::fs::read_to_string(repository().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn parse(file: &str) -> Value {
    serde_saphyr::from_str(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn packages() -> Vec<Value> {
    let args = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = Command::new(env!("CARGO")).args(args).current_dir(repository()).output().unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// An empty list stands for `publish = false`.
fn is_published(package: &Value) -> bool {
    package["publish"].is_null()
}

#[test]
fn published_packages_say_what_a_registry_wants_to_know() {
    let packages = packages();
    let published: Vec<&Value> = packages.iter().filter(|package| is_published(package)).collect();
    assert_eq!(published.len(), 8, "{published:#?}");
    for package in &published {
        let name = package["name"].as_str().unwrap();
        for field in ["description", "license", "repository", "rust_version"] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
        let keywords = package["keywords"].as_array().unwrap().len();
        assert!((1..=5).contains(&keywords), "{name} has {keywords} keywords");
        assert!(!package["categories"].as_array().unwrap().is_empty(), "{name} has no categories");
        assert_eq!(package["metadata"]["docs"]["rs"]["all-features"], true, "{name}: docs.rs shows all features");
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
        let readme = manifest.with_file_name(package["readme"].as_str().unwrap_or_else(|| panic!("{name}: no readme")));
        let readme = std::fs::read_to_string(readme).unwrap();
        assert!(readme.starts_with(&format!("# {name}")), "{name}: {readme:.80}");
        for dependency in package["dependencies"].as_array().unwrap() {
            let (other, is_ours) = (dependency["name"].as_str().unwrap(), dependency["path"].is_string());
            // A registry does not need what only tests need.
            if is_ours && dependency["kind"] != "dev" {
                assert!(published.iter().any(|package| package["name"] == other), "{name} needs {other}");
                assert_eq!(dependency["req"], format!("^{}", package["version"].as_str().unwrap()), "{name}: {other}");
            }
        }
    }
}

/// The commands of a workflow.
fn commands(workflow: &Value) -> Vec<String> {
    let jobs = workflow["jobs"].as_object().unwrap().values();
    let steps = jobs.flat_map(|job| job["steps"].as_array().unwrap());
    let lines = steps.filter_map(|step| step["run"].as_str()).flat_map(str::lines);
    lines.map(|line| line.trim().to_owned()).collect()
}

const CI: &str = ".github/workflows/ci.yaml";
const RELEASE: &str = ".github/workflows/release.yaml";
const NIGHTLY: &str = ".github/workflows/nightly.yaml";

#[test]
fn jobs_may_write_only_what_they_make() {
    for file in [CI, RELEASE, NIGHTLY] {
        let workflow = parse(file);
        let text = workflow["permissions"].to_string();
        assert_eq!(text, r#"{"contents":"read"}"#, "{file}");
        for (name, job) in workflow["jobs"].as_object().unwrap() {
            let may_write = job["permissions"].to_string().contains("write");
            let makes = file == RELEASE && ["draft", "build", "image", "image-index"].contains(&name.as_str());
            assert_eq!(may_write, makes, "{file}: {name}");
        }
    }
}

#[test]
fn the_oldest_compiler_is_that_of_the_packages() {
    let packages = packages();
    let oldest = packages[0]["rust_version"].as_str().unwrap();
    let commands = commands(&parse(CI));
    for command in [
        format!("cargo +{oldest} check --workspace --all-features --locked"),
        "cargo install --locked --path crates/server".to_owned(),
    ] {
        assert!(commands.contains(&command), "{command}: {commands:#?}");
    }
}

#[test]
fn workflows_run_what_there_is() {
    let makefile = read("Makefile");
    for file in [CI, RELEASE, NIGHTLY] {
        let commands = commands(&parse(file));
        let at = |wanted: &str| commands.iter().position(|command| command.starts_with(wanted));
        let tests = if file == NIGHTLY { "make nightly" } else { ".ci/run" };
        // The tests of the package need a user namespace.
        let allowed = at("sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0");
        assert!(allowed.is_some() && allowed < at(tests), "{file}: {commands:#?}");
        for command in &commands {
            let program = command.split(' ').next().unwrap();
            if program.starts_with("tools/") || program.starts_with(".ci/") {
                assert!(repository().join(program).is_file(), "{file}: {command}");
            }
            if let Some(target) = command.strip_prefix("make ") {
                let target = target.split(' ').next().unwrap_or(target);
                assert!(makefile.contains(&format!("\n{target}:")), "{file}: {command}");
            }
        }
    }
    let steps = read("tools/test");
    let tools: Vec<&str> = steps.split('"').filter(|word| word.starts_with("./tools/")).collect();
    assert!(
        ["./tools/setup", "./tools/soundness", "./tools/stores"].iter().all(|tool| tools.contains(tool)),
        "{tools:?}"
    );
    for tool in tools {
        assert!(repository().join(tool).is_file(), "{tool}");
    }
    let release = parse(RELEASE);
    let jobs = &release["jobs"];
    assert_eq!(
        (&jobs["draft"]["needs"], &jobs["build"]["needs"]),
        (&"test".into(), &"draft".into()),
        "tests come first"
    );
    let targets = jobs["build"]["strategy"]["matrix"]["include"].as_array().unwrap();
    let targets: Vec<&str> = targets.iter().map(|row| row["target"].as_str().unwrap()).collect();
    assert_eq!(targets, ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]);
    let steps = jobs["build"]["steps"].as_array().unwrap();
    let at =
        |what: &str| steps.iter().position(|step| step.to_string().contains(what)).unwrap_or_else(|| panic!("{what}"));
    assert!(
        at("tools/dist") < at("attest-build-provenance") && at("attest-build-provenance") < at("gh release upload")
    );
    for target in targets {
        assert!(read("docs/deploying.md").contains(target), "{target}");
    }
}

#[test]
fn issue_templates_are_forms() {
    let kinds = ["markdown", "input", "textarea", "dropdown", "checkboxes"];
    for file in ["bug", "idea"] {
        let form = parse(&format!(".github/ISSUE_TEMPLATE/{file}.yaml"));
        for field in ["name", "description"] {
            assert!(form[field].is_string(), "{file}: {field}");
        }
        for part in form["body"].as_array().unwrap() {
            assert!(
                kinds.contains(&part["type"].as_str().unwrap()) && part["attributes"]["label"].is_string(),
                "{part}"
            );
        }
    }
    let links = parse(".github/ISSUE_TEMPLATE/config.yml");
    let is_security = |link: &Value| link["url"].as_str().unwrap().ends_with("/security/policy");
    assert!(
        links["contact_links"].as_array().unwrap().iter().any(is_security)
            && repository().join("SECURITY.md").is_file()
    );
}

#[test]
fn the_changelog_begins_with_the_version_of_the_packages() {
    let packages = packages();
    let version = packages.iter().find(|package| package["name"] == "tidegate").unwrap()["version"].as_str().unwrap();
    let changelog = read("CHANGELOG.md");
    let first = changelog.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    assert!(first == version || first.starts_with("Unreleased"), "{first}, and the packages have {version}");
    assert!(changelog.contains(&format!("\n## {version}\n")));
}

#[test]
fn the_policy_on_versions_names_the_field_with_the_oldest_compiler() {
    let policy = read("CONTRIBUTING.md");
    let (_, policy) = policy.split_once("\n## Versions\n").unwrap();
    for word in ["Semantic versioning", "`rust-version`", "six weeks"] {
        assert!(policy.contains(word), "{word}");
    }
    let packages = packages();
    let oldest = packages[0]["rust_version"].as_str().unwrap();
    assert!(packages.iter().all(|package| package["rust_version"] == oldest));
    for guide in ["README.md", "docs/getting-started.md"] {
        assert!(read(guide).contains(&format!("Rust {oldest} or")), "{guide}: Rust {oldest}");
    }
}
