//! Archive and Debian package: their contents, and installation, upgrade and removal in a separate root folder.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegate_test_support::free_port;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs a command that must succeed, and returns its output.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// All released files, built from the program under test.
struct Dist(TempDir);

impl Dist {
    fn make(revision: &str) -> Dist {
        let out = tempfile::tempdir().unwrap();
        let mut dist = Command::new(repository().join("tools/dist"));
        dist.args(["--binary", env!("CARGO_BIN_EXE_tidegate"), "--revision", revision, "--out"]).arg(out.path());
        run(&mut dist);
        Dist(out)
    }

    /// The file whose name ends with this.
    fn file(&self, end: &str) -> PathBuf {
        let files = fs::read_dir(self.0.path()).unwrap().map(|file| file.unwrap().path());
        let mut found = files.filter(|file| file.to_string_lossy().ends_with(end));
        let file = found.next().unwrap_or_else(|| panic!("no file {end}"));
        assert_eq!(found.next(), None);
        file
    }
}

/// The commands of the program, with their subcommands: `rules`, `rules-push`.
fn commands() -> Vec<String> {
    let below = |command: &[&str]| {
        let help = run(Command::new(env!("CARGO_BIN_EXE_tidegate")).args(command).arg("--help"));
        let listed = help.split_once("\nCommands:\n").map(|(_, listed)| listed.to_owned()).unwrap_or_default();
        let lines = listed.lines().take_while(|line| !line.is_empty());
        let named = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        named.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for command in below(&[]) {
        all.extend(below(&[&command]).into_iter().map(|name| format!("{command}-{name}")));
        all.push(command);
    }
    all
}

#[test]
fn the_archive_has_program_manual_completions_licences_and_materials() {
    let dist = Dist::make("1");
    run(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(dist.0.path()));
    let archive = dist.file(".tar.gz");
    run(Command::new("tar").arg("-xzf").arg(&archive).current_dir(dist.0.path()));
    let name = archive.file_name().unwrap().to_str().unwrap().strip_suffix(".tar.gz").unwrap().to_owned();
    let folder = dist.0.path().join(name);

    let version = run(Command::new(folder.join("tidegate")).arg("--version"));
    assert!(version.contains("features: otel"), "a release has traces: {version}");
    for command in commands() {
        let page = folder.join(format!("man1/tidegate-{command}.1"));
        assert!(page.is_file(), "no page {}", page.display());
    }
    for shell in ["bash", "zsh", "fish"] {
        let completions = fs::read_to_string(folder.join(format!("completions/tidegate.{shell}"))).unwrap();
        assert!(completions.contains("bench"), "{shell}");
    }

    let sbom: Value = serde_json::from_str(&fs::read_to_string(folder.join("sbom.cdx.json")).unwrap()).unwrap();
    assert_eq!((sbom["bomFormat"].as_str(), sbom["specVersion"].as_str()), (Some("CycloneDX"), Some("1.5")));
    let components = sbom["components"].as_array().unwrap();
    let names: BTreeSet<&str> = components.iter().map(|component| component["name"].as_str().unwrap()).collect();
    for linked in ["tokio", "rustls", "opentelemetry", "tidegate-core"] {
        assert!(names.contains(linked), "{linked}: {names:?}");
    }
    for tests_only in ["proptest", "fantoccini", "tidegate-test-support"] {
        assert!(!names.contains(tests_only), "{tests_only}");
    }
    let licences = fs::read_to_string(folder.join("THIRD-PARTY-LICENSES.txt")).unwrap();
    for component in components {
        let (name, version) = (component["name"].as_str().unwrap(), component["version"].as_str().unwrap());
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
        let is_own = name.starts_with("tidegate-");
        assert!(is_own || licences.contains(&format!("\n{name} {version}: ")), "{name}");
    }
    let guides = ["README.md", "docs/getting-started.md", "docs/deploying.md"];
    let guides = guides.map(|guide| fs::read_to_string(repository().join(guide)).unwrap());
    let here = |name: &str| {
        let target = run(Command::new("rustc").arg("-vV"));
        let target = target.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
        let on_debian = if target.starts_with("aarch64") { "arm64" } else { "amd64" };
        name.replace(target, "x86_64-unknown-linux-gnu").replace(on_debian, "amd64")
    };
    let archive = here(archive.file_name().unwrap().to_str().unwrap());
    assert!(guides.iter().all(|guide| guide.contains(&archive)), "guides name {archive}");
    let package = here(dist.file(".deb").file_name().unwrap().to_str().unwrap());
    assert!(guides[2].contains(&package), "the guide names {package}");

    let references: BTreeSet<&str> = components.iter().filter_map(|component| component["bom-ref"].as_str()).collect();
    assert_eq!(references.len(), components.len(), "every component is listed once");
    for dependency in sbom["dependencies"].as_array().unwrap() {
        for on in dependency["dependsOn"].as_array().unwrap() {
            assert!(references.contains(on.as_str().unwrap()), "{on}");
        }
    }
}

/// A machine as seen by dpkg: an empty folder.
struct Machine(TempDir);

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir().unwrap();
        for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "run", "etc"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        for file in ["var/lib/dpkg/status", "var/lib/dpkg/available"] {
            fs::write(root.path().join(file), "").unwrap();
        }
        Machine(root)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Runs dpkg on this machine. Maintainer scripts use the host's programs.
    fn dpkg(&self, args: &[&str]) {
        // The files belong to root. Without root privileges, a user namespace maps the ids.
        let is_root = rustix::process::geteuid().is_root();
        let mut command = if is_root { Command::new("dpkg") } else { Command::new("unshare") };
        if !is_root {
            command.args(["--map-root-user", "dpkg"]);
        }
        command.arg(format!("--root={}", self.0.path().display()));
        command.args(["--force-script-chrootless", "--force-depends", "--force-confold", "--log=/dev/null"]);
        let path = std::env::var("PATH").unwrap_or_default();
        run(command.args(args).env("PATH", format!("{path}:/usr/sbin:/sbin")));
    }

    fn install(&self, dist: &Dist) {
        self.dpkg(&["--install", dist.file(".deb").to_str().unwrap()]);
    }

    /// Starts the installed program with the installed configuration, like the systemd unit. The service's folders and
    /// ports are replaced by those of the test.
    fn serve(&self, port: u16) -> Running {
        let process = Command::new(self.path("usr/bin/tidegate"))
            .arg("serve")
            .arg("--config")
            .arg(self.path("etc/tidegate/tidegate.yaml"))
            .arg("--handover")
            .arg(self.path("run/handover.sock"))
            .arg("--store-file")
            .arg(self.path("var/lib/state"))
            .args(["--api-listen", &format!("127.0.0.1:{port}")])
            .args(["--rls-listen", "off", "--resp-listen", "off", "--admin-listen", "off", "--log-level", "error"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Running(process)
    }
}

/// A server that is killed on drop.
struct Running(Child);

impl Running {
    /// Waits until the server ends by itself. Returns whether it was successful.
    fn ended(mut self) -> bool {
        until("the server to end", || self.0.try_wait().unwrap()).success()
    }

    fn stop(self) {
        run(Command::new("kill").arg(self.0.id().to_string()));
        assert!(self.ended());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls for up to half a minute.
fn until<T>(what: &str, mut read: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3_000 {
        if let Some(found) = read() {
            return found;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("waited in vain for {what}");
}

/// Remaining login attempts, or the error.
fn attempts_left(port: u16) -> Result<u64, ureq::Error> {
    let url = format!("http://127.0.0.1:{port}/v1/check");
    let body = r#"{"method":"POST","path":"/login","address":"203.0.113.7"}"#;
    let mut response = ureq::post(url).header("content-type", "application/json").send(body)?;
    let answer: Value = serde_json::from_str(&response.body_mut().read_to_string()?).unwrap();
    let limits = answer["limits"].as_array().unwrap();
    let login = limits.iter().find(|limit| limit["id"] == "login").unwrap();
    Ok(login["remaining"].as_u64().unwrap())
}

#[test]
fn the_package_is_installed_started_upgraded_by_handover_and_removed() {
    let (first, second) = (Dist::make("1"), Dist::make("2"));
    let machine = Machine::new();
    machine.install(&first);
    let passwd = fs::read_to_string(machine.path("etc/passwd")).unwrap();
    assert!(passwd.contains("\ntidegate:") || passwd.starts_with("tidegate:"), "{passwd}");
    for file in ["tidegate.yaml", "rules.yaml"] {
        let about = fs::metadata(machine.path("etc/tidegate").join(file)).unwrap();
        assert_eq!(about.mode() & 0o777, 0o640, "{file} may hold secrets");
        // A user namespace has one group only.
        if rustix::process::geteuid().is_root() {
            let groups = fs::read_to_string(machine.path("etc/group")).unwrap();
            assert!(groups.lines().any(|line| line.starts_with(&format!("tidegate:x:{}:", about.gid()))), "{groups}");
        }
    }
    assert!(machine.path("etc/systemd/system/multi-user.target.wants/tidegate.service").is_symlink());
    let mut config = Command::new(machine.path("usr/bin/tidegate"));
    let shown = run(config.args(["config", "--changed", "--config"]).arg(machine.path("etc/tidegate/tidegate.yaml")));
    for (setting, value) in [("store.file", "/var/lib/tidegate/state"), ("handover", "/run/tidegate/handover.sock")] {
        let line = shown.lines().find(|line| line.starts_with(setting)).unwrap_or_else(|| panic!("{shown}"));
        assert!(line.contains(value), "{line}");
    }

    let port = free_port();
    let old = machine.serve(port);
    assert_eq!(until("the server to be up", || attempts_left(port).ok()), 4);
    assert_eq!(attempts_left(port).unwrap(), 3);

    let rules = machine.path("etc/tidegate/rules.yaml");
    let edited = fs::read_to_string(&rules).unwrap() + "# edited by the administrator\n";
    fs::write(&rules, &edited).unwrap();
    machine.install(&second);
    assert_eq!(fs::read_to_string(&rules).unwrap(), edited, "an upgrade keeps edited files");
    assert_eq!(attempts_left(port).unwrap(), 2, "an upgrade leaves the running server alone");

    // Sequential clients, each on a new connection, while one server replaces the other.
    let new = machine.serve(port);
    let mut old = Some(old);
    until("the old server to end", || {
        let health = ureq::get(format!("http://127.0.0.1:{port}/healthz")).call();
        assert_eq!(health.unwrap().status(), 200, "no request is lost");
        let is_ended = old.as_mut().is_some_and(|old| old.0.try_wait().unwrap().is_some());
        is_ended.then_some(())
    });
    assert!(old.take().is_some_and(Running::ended), "it ends well");
    assert_eq!(attempts_left(port).unwrap(), 1, "what was spent is handed over");
    new.stop();

    machine.dpkg(&["--remove", "tidegate"]);
    assert!(!machine.path("usr/bin/tidegate").exists() && rules.exists(), "configuration stays");
    machine.dpkg(&["--purge", "tidegate"]);
    assert!(!machine.path("etc/tidegate").exists(), "until it is purged");
}

/// The output of the build script about a package in this folder.
fn told_by_build_script(script: &Path, package: &Path, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(script);
    command.env_remove("TIDEGATE_COMMIT").env("CARGO_MANIFEST_DIR", package).envs(variables.iter().copied());
    let told = run(command.current_dir(package));
    told.lines().find_map(|line| line.strip_prefix("cargo:rustc-env=TIDEGATE_COMMIT=")).unwrap().to_owned()
}

#[test]
fn a_release_build_knows_the_commit_of_its_own_repository_only() {
    let place = tempfile::tempdir().unwrap();
    let script = place.path().join("build-script");
    let source = repository().join("crates/server/build.rs");
    run(Command::new("rustc").args(["--edition", "2024", "-o"]).arg(&script).arg(source));
    let root = place.path().join("repository");
    let (own, other) = (root.join("crates/server"), root.join("vendor/tidegate"));
    fs::create_dir_all(&own).unwrap();
    fs::create_dir_all(&other).unwrap();
    let (release, debug) = (("PROFILE", "release"), ("PROFILE", "debug"));
    assert_eq!(told_by_build_script(&script, &own, &[release]), "", "there is no repository");

    let git = |args: &[&str]| run(Command::new("git").args(args).current_dir(&root));
    git(&["init", "--quiet"]);
    fs::write(own.join("Cargo.toml"), "").unwrap();
    git(&["add", "."]);
    git(&["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "one"]);
    let commit = git(&["rev-parse", "--short=8", "HEAD"]);
    assert_eq!(told_by_build_script(&script, &own, &[release]), commit.trim());
    assert_eq!(told_by_build_script(&script, &own, &[debug]), "", "tests are not built anew after a commit");
    assert_eq!(told_by_build_script(&script, &own, &[debug, ("TIDEGATE_COMMIT", "1a2b3c4d")]), "1a2b3c4d");
    assert_eq!(told_by_build_script(&script, &other, &[release]), "", "the repository is of another program");
}
