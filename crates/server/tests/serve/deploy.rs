//! The files under `deploy/` hold only settings, ports and paths that the program has.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Server, folder, tidegate};

fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)).unwrap()
}

fn documents(file: &str) -> Vec<Value> {
    read(file).split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Panics unless the program takes these settings.
#[track_caller]
fn assert_accepted(command: &mut Command) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {said}");
}

/// The ports of arguments and variables such as `--api-listen=0.0.0.0:8080`.
fn listening<'t>(texts: impl Iterator<Item = &'t String>) -> Vec<u64> {
    texts.filter_map(|text| text.split_once("0.0.0.0:")?.1.parse().ok()).collect()
}

#[test]
fn the_kubernetes_manifest_has_settings_ports_and_probes_of_the_program() {
    let documents = documents("kubernetes/tidegate.yaml");
    let of_kind = |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap();
    let rules = of_kind("ConfigMap")["data"]["rules.yaml"].as_str().unwrap();
    let container = &of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0];
    let args = strings(&container["args"]);

    let files = folder(&[("rules.yaml", rules)]);
    let here = files.path().display().to_string();
    let mut command = tidegate(files.path());
    command.arg("config").args(args.iter().map(|arg| arg.replace("/etc/tidegate/rules", &here)));
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        assert!(read_help().contains(&format!("env: {name}")), "{name}");
        command.env(name, "pod-1");
    }
    assert_accepted(&mut command);
    assert_eq!(container["volumeMounts"][0]["mountPath"], "/etc/tidegate/rules");

    let ports = container["ports"].as_array().unwrap();
    let numbers: Vec<u64> = ports.iter().map(|port| port["containerPort"].as_u64().unwrap()).collect();
    assert_eq!(listening(args.iter()), numbers);
    for port in of_kind("Service")["spec"]["ports"].as_array().unwrap() {
        let target = ports.iter().find(|named| named["name"] == port["targetPort"]).unwrap();
        assert_eq!(target["containerPort"], port["port"]);
    }
    for kind in ["PodDisruptionBudget", "HorizontalPodAutoscaler"] {
        assert_eq!(of_kind(kind)["metadata"]["name"], of_kind("Deployment")["metadata"]["name"]);
    }

    let server = Server::start(&[("rules.yaml", rules)], &["--rules", "rules.yaml"]);
    for probe in ["livenessProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}

/// The help of `tidegate serve`, in one line.
fn read_help() -> String {
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
    assert_accepted(tidegate(files.path()).arg("config").envs(set));
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

#[test]
fn the_compose_file_and_the_system_service_run_commands_of_the_program() {
    let compose: Value = serde_saphyr::from_str(&read("compose/compose.yaml")).unwrap();
    let tidegate_service = &compose["services"]["tidegate"];
    let files = folder(&[("rules.yaml", &read("compose/rules.yaml"))]);
    let mut command = tidegate(files.path());
    command.arg("config").args(["--rules", "rules.yaml"]).args(strings(&tidegate_service["command"]));
    for (name, value) in tidegate_service["environment"].as_object().unwrap() {
        command.env(name, value.as_str().unwrap());
    }
    assert_accepted(&mut command);
    for volume in ["rules.yaml", "envoy.yaml"] {
        assert!(compose.to_string().contains(&format!("./{volume}:")), "{volume}");
        read(&format!("compose/{volume}"));
    }

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
}
