//! The files under `deploy/` contain only existing settings, ports and paths.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Server, folder, tidegate};

pub(crate) fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)).unwrap()
}

pub(crate) fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Panics unless the program accepts these settings.
#[track_caller]
pub(crate) fn assert_accepted(command: &mut Command) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {said}");
}

/// The ports of arguments and variables such as `--api-listen=0.0.0.0:8080`.
pub(crate) fn listening<'t>(texts: impl Iterator<Item = &'t String>) -> Vec<u64> {
    texts.filter_map(|text| text.split_once("0.0.0.0:")?.1.parse().ok()).collect()
}

/// The help of `tidegate serve`, as one line.
pub(crate) fn read_help() -> String {
    let files = folder(&[]);
    let help = tidegate(files.path()).args(["serve", "--help"]).output().unwrap().stdout;
    String::from_utf8(help).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_container_has_settings_of_the_program_and_a_health_check_that_works() {
    let text = read("Dockerfile").replace("\\\n", " ");
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
    let variables: Vec<(String, String)> = line("ENV ")
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert!(variables.len() >= 4);
    let files = folder(&[("rules.yaml", "rules: []")]);
    let set = variables.iter().map(|(name, value)| (name, value.replace("/etc/tidegate/", "")));
    let checked = tidegate(files.path()).arg("config").envs(set).output().unwrap();
    assert!(checked.status.success() && checked.stderr.is_empty(), "{}", String::from_utf8_lossy(&checked.stderr));
    let help = read_help();
    for (name, _) in &variables {
        assert!(help.contains(&format!("env: {name}")), "{name}");
    }

    let exposed: Vec<u64> = line("EXPOSE ").split_whitespace().skip(1).map(|port| port.parse().unwrap()).collect();
    let mut open = listening(variables.iter().map(|(_, value)| value));
    open.sort_unstable();
    assert_eq!(open, exposed);

    let check = line("HEALTHCHECK ");
    let check: Vec<String> = serde_json::from_str(check.split_once("CMD ").unwrap().1).unwrap();
    let server = Server::start(&[], &[]);
    let here = format!("http://{}", server.address);
    let args: Vec<String> = check[1..].iter().map(|arg| arg.replace("http://127.0.0.1:8080", &here)).collect();
    assert_eq!(check[0], "tidegate");
    assert_accepted(tidegate(files.path()).args(&args));
    drop(server);
    assert!(!tidegate(files.path()).args(&args).output().unwrap().status.success(), "nobody answers any more");
}

/// The verdict of systemd on a unit, if it is installed.
fn verified(unit: &str) -> Option<String> {
    let unit = unit.replace("/usr/bin/tidegate", env!("CARGO_BIN_EXE_tidegate"));
    let files = folder(&[("tidegate.service", &unit)]);
    let mut command = Command::new("systemd-analyze");
    let output = command.args(["verify", "--man=no", "tidegate.service"]).current_dir(files.path()).output().ok()?;
    Some(String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn systemd_understands_the_whole_unit() {
    let unit = read("systemd/tidegate.service");
    let Some(said) = verified(&unit) else { return };
    assert_eq!(said, "");
    let said = verified(&unit.replace("LimitNOFILE=", "LimtNOFILE=")).unwrap();
    assert!(said.contains("Unknown key"), "{said}");
}

#[test]
fn the_container_is_built_of_the_source_alone_and_has_no_shell() {
    let text = read("Dockerfile").replace("\\\n", " ");
    let stages: Vec<&str> = text.split("\nFROM ").skip(1).collect();
    let [build, image] = stages[..] else { panic!("{} stages", stages.len()) };
    assert!(build.contains("\nARG TIDEGATE_COMMIT\n") && build.contains("cargo build --release --locked"), "{build}");
    assert!(image.starts_with("gcr.io/distroless/cc-debian12:nonroot\n") && !image.contains("\nRUN "), "{image}");
    // Both are Debian 12: the program needs the glibc that it was built with.
    assert!(build.starts_with("rust:1-slim-bookworm "), "{build}");
    let left_out = read("../.dockerignore");
    let left_out: Vec<&str> = left_out.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(left_out.contains(&"target") && left_out.contains(&".git"), "{left_out:?}");
    let workspace = read("../Cargo.toml");
    for name in left_out {
        assert!(!workspace.contains(&format!("\"{name}")), "{name} is part of the workspace");
    }
}

#[test]
fn the_compose_file_and_the_system_service_run_commands_of_the_program() {
    let compose: Value = serde_saphyr::from_str(&read("compose/compose.yaml")).unwrap();
    let tidegate_service = &compose["services"]["tidegate"];
    let files = folder(&[("rules.yaml", &read("compose/rules/rules.yaml"))]);
    let here = files.path().display().to_string();
    let accept = |service: &Value| {
        let mut command = tidegate(files.path());
        command.arg("config").args(strings(&service["command"]));
        for (name, value) in service["environment"].as_object().unwrap() {
            command.env(name, value.as_str().unwrap().replace("/etc/tidegate/rules", &here));
        }
        assert_accepted(&mut command);
        // An editor that replaces the file is seen only if its folder is mounted.
        assert!(strings(&service["volumes"]).contains(&"./rules:/etc/tidegate/rules:ro".to_owned()));
        assert_eq!(
            (&service["environment"]["TIDEGATE_RULES"], &service["stop_grace_period"]),
            (&"/etc/tidegate/rules".into(), &"1m".into())
        );
    };
    accept(tidegate_service);
    let single: Value = serde_saphyr::from_str(&read("compose/single.yaml")).unwrap();
    let single = &single["services"]["tidegate"];
    let args = strings(&single["command"]);
    accept(single);
    let volumes = strings(&single["volumes"]);
    assert!(args[1].starts_with("/var/lib/tidegate/") && volumes.contains(&"state:/var/lib/tidegate".to_owned()));
    assert!(read("Dockerfile").contains("--chown=65532:65532 /image/var/lib/tidegate /var/lib/tidegate"));
    assert!(compose.to_string().contains("./envoy.yaml:"));
    read("compose/envoy.yaml");

    let unit = read("systemd/tidegate.service");
    let exec = |name: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let files = folder(&[]);
    assert_accepted(tidegate(files.path()).arg("init"));
    let here = |arg: &String| arg.replace("/etc/tidegate/", "");
    assert_accepted(tidegate(files.path()).args(exec("ExecStartPre=").iter().map(here)));
    let start = exec("ExecStart=");
    assert_eq!(start[0], "serve");
    assert_eq!(start[1..], exec("ExecStartPre=")[1..3], "what is checked is what is started");
    let has = |line: &str| assert!(unit.lines().any(|known| known == line), "{line}");
    ["Type=notify", "NotifyAccess=all", "ExecReload=/bin/kill -HUP $MAINPID"].into_iter().for_each(has);
}
