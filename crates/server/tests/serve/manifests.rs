//! Kubernetes objects, plain and rendered by Helm, and what holds for all of them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value};

use super::deploy::{assert_accepted, listening, read, read_help, strings};
use crate::support::{Server, folder, tidegate};

/// The version whose schemas objects are held against.
const KUBERNETES: &str = "1.31";

/// Objects that are applied together.
pub(crate) struct Manifests(Vec<Value>);

impl Manifests {
    pub(crate) fn parse(text: &str) -> Manifests {
        let texts = text.split("\n---\n").map(|text| text.strip_prefix("---\n").unwrap_or(text));
        let is_object = |text: &&str| text.lines().any(|line| !line.is_empty() && !line.starts_with('#'));
        Manifests(texts.filter(is_object).map(|text| serde_saphyr::from_str(text).unwrap()).collect())
    }

    pub(crate) fn of_files(files: &[&str]) -> Manifests {
        Manifests::parse(&files.iter().map(|file| read(file)).collect::<Vec<_>>().join("\n---\n"))
    }

    /// The chart with these values.
    pub(crate) fn rendered(values: &[&str]) -> Manifests {
        let (is_good, text) = helm(&["template", "edge", "."], values);
        assert!(is_good, "{text}");
        Manifests::parse(&text)
    }

    pub(crate) fn kinds(&self) -> BTreeSet<&str> {
        self.0.iter().map(|object| object["kind"].as_str().unwrap()).collect()
    }

    fn find(&self, kind: &str) -> Option<&Value> {
        let is_headless = |object: &Value| object["spec"]["clusterIP"] == "None";
        let mut found = self.0.iter().filter(|object| object["kind"] == kind && !is_headless(object));
        let first = found.next();
        assert!(found.next().is_none(), "two of {kind}");
        first
    }

    pub(crate) fn get(&self, kind: &str) -> &Value {
        self.find(kind).unwrap_or_else(|| panic!("no {kind} among {:?}", self.kinds()))
    }

    /// The Deployment or the StatefulSet.
    pub(crate) fn workload(&self) -> &Value {
        self.find("Deployment").unwrap_or_else(|| self.get("StatefulSet"))
    }

    pub(crate) fn container(&self) -> &Value {
        let containers = self.workload()["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        containers.iter().find(|container| container["name"] == "tidegate").unwrap()
    }

    /// Checks the objects against the program and against each other.
    pub(crate) fn check(&self) {
        self.check_schemas();
        self.check_settings();
        self.check_stop();
        self.check_privileges();
        self.check_ports();
        self.check_volumes();
        self.check_selectors();
        self.check_paths();
    }

    fn check_schemas(&self) {
        let (is_good, said) = self.validated();
        assert!(is_good, "{said}");
    }

    /// Whether the objects of Kubernetes itself match its schemas, which allow no unknown fields, and what is said otherwise.
    pub(crate) fn validated(&self) -> (bool, String) {
        const OTHERS: [&str; 1] = ["ServiceMonitor"];
        let objects = self.0.iter().filter(|object| !OTHERS.contains(&object["kind"].as_str().unwrap()));
        let texts: Vec<String> = objects.map(Value::to_string).collect();
        let files = folder(&[("objects.yaml", &texts.join("\n---\n"))]);
        let mut command = Command::new("python3");
        command.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version", KUBERNETES, "objects.yaml"]);
        let output = command.current_dir(files.path()).env("PYTHONPATH", installed("kubernetes")).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    }

    /// The rules files, by name.
    pub(crate) fn rules(&self) -> Vec<(&str, &str)> {
        let files = self.get("ConfigMap")["data"].as_object().unwrap();
        files.iter().map(|(name, text)| (name.as_str(), text.as_str().unwrap())).collect()
    }

    fn check_settings(&self) {
        let files = folder(&self.rules());
        let here = files.path().display().to_string();
        let mut command = tidegate(files.path());
        let args = strings(&self.container()["args"]);
        command.arg("config").args(args.iter().map(|arg| arg.replace("/etc/tidegate/rules", &here)));
        for variable in self.container()["env"].as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            assert!(read_help().contains(&format!("env: {name}]")), "{name}");
            command.env(name, "0123456789abcdef0123456789abcdef");
        }
        assert_accepted(&mut command);
        if args.iter().any(|arg| arg.starts_with("--redis=")) {
            let variables = self.container()["env"].to_string();
            for name in ["TIDEGATE_SECRETS_KEY", "TIDEGATE_STORE_REDIS_PASSWORD"] {
                assert!(variables.contains(name), "{name}: {variables}");
            }
        }
    }

    /// Checks that a pod is ended after the server has stopped by itself.
    fn check_stop(&self) {
        let files = folder(&[]);
        let mut command = tidegate(files.path());
        command.args(["config", "--format", "json"]);
        command.args(strings(&self.container()["args"]).iter().filter(|arg| arg.starts_with("--limits-")));
        let shown = command.output().unwrap();
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        let seconds = |setting: &str| -> u64 {
            let found = shown.as_array().unwrap().iter().find(|shown| shown["name"] == setting).unwrap();
            found["value"][0].as_str().unwrap().strip_suffix('s').unwrap().parse().unwrap()
        };
        let (delay, time) = (seconds("limits.stop_delay"), seconds("limits.stop_time"));
        let grace = self.workload()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(delay > 0 && grace > delay + time, "{grace} s, for {delay} and {time}");
    }

    /// Checks that the program has none of the privileges that it does not need.
    fn check_privileges(&self) {
        let pod = &self.workload()["spec"]["template"]["spec"]["securityContext"];
        let container = &self.container()["securityContext"];
        let profile = &container["seccompProfile"]["type"];
        let profile = if profile.is_null() { &pod["seccompProfile"]["type"] } else { profile };
        assert_eq!(profile, "RuntimeDefault");
        assert_eq!(
            (&container["allowPrivilegeEscalation"], &container["readOnlyRootFilesystem"]),
            (&false.into(), &true.into())
        );
    }

    /// Whether the policy lets this namespace reach the port.
    pub(crate) fn lets_in(&self, namespace: &str, port: &str) -> bool {
        let rules = self.get("NetworkPolicy")["spec"]["ingress"].as_array().unwrap();
        let of_port =
            rules.iter().filter(|rule| rule["ports"].as_array().unwrap().iter().any(|open| open["port"] == port));
        let mut peers = of_port.flat_map(|rule| rule["from"].as_array().unwrap());
        peers.any(|peer| {
            let expressions = peer["namespaceSelector"]["matchExpressions"].as_array();
            let named = expressions.into_iter().flatten().filter(|expression| {
                (&expression["key"], &expression["operator"]) == (&"kubernetes.io/metadata.name".into(), &"In".into())
            });
            named.flat_map(|expression| strings(&expression["values"])).any(|value| value == namespace)
        })
    }

    fn check_ports(&self) {
        let ports = self.container()["ports"].as_array().unwrap();
        let number = |port: &Value| port["containerPort"].as_u64().unwrap();
        let open: BTreeSet<u64> = listening(strings(&self.container()["args"]).iter()).into_iter().collect();
        assert_eq!(ports.iter().map(number).collect::<BTreeSet<_>>(), open);
        let names: BTreeSet<&str> = ports.iter().map(|port| port["name"].as_str().unwrap()).collect();
        let services = self.0.iter().filter(|object| object["kind"] == "Service");
        for port in services.flat_map(|service| service["spec"]["ports"].as_array().unwrap()) {
            assert!(names.contains(port["targetPort"].as_str().unwrap()), "{port}");
        }
        if let Some(policy) = self.find("NetworkPolicy") {
            let rules = policy["spec"]["ingress"].as_array().unwrap();
            for port in rules.iter().flat_map(|rule| rule["ports"].as_array().unwrap()) {
                assert!(names.contains(port["port"].as_str().unwrap()), "{port}");
            }
        }
    }

    fn check_volumes(&self) {
        let pod = &self.workload()["spec"]["template"]["spec"];
        let named = |list: &Value| -> BTreeSet<String> {
            let list = list.as_array().cloned().unwrap_or_default();
            list.iter().map(|volume| volume["name"].as_str().unwrap().to_owned()).collect()
        };
        let mut volumes = named(&pod["volumes"]);
        let claims = self.workload()["spec"]["volumeClaimTemplates"].as_array().cloned().unwrap_or_default();
        volumes.extend(claims.iter().map(|claim| claim["metadata"]["name"].as_str().unwrap().to_owned()));
        let mounts = &self.container()["volumeMounts"];
        assert_eq!(named(mounts), volumes);
        let mounted = |path: &str| mounts.as_array().unwrap().iter().any(|mount| mount["mountPath"] == path);
        assert!(mounted("/etc/tidegate/rules"));
        let args = strings(&self.container()["args"]);
        let has_state = args.iter().any(|arg| arg == "--store-file=/var/lib/tidegate/state");
        assert_eq!(mounted("/var/lib/tidegate"), has_state);
        // The volume's group is that of the program.
        assert!(!has_state || pod["securityContext"]["fsGroup"] == 65_532, "{pod}");
        for volume in pod["volumes"].as_array().unwrap() {
            if let Some(map) = volume["configMap"]["name"].as_str() {
                assert_eq!(self.get("ConfigMap")["metadata"]["name"], map);
            }
            if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
                assert_eq!(self.get("PersistentVolumeClaim")["metadata"]["name"], claim);
            }
        }
    }

    fn check_selectors(&self) {
        let labels = |object: &Value| object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        let selects = |selector: &Value, labels: &Map<String, Value>| {
            let selector = selector.as_object().unwrap();
            assert!(!selector.is_empty());
            assert!(selector.iter().all(|(name, value)| labels.get(name) == Some(value)), "{selector:?} {labels:?}");
        };
        let (workload, service) = (self.workload(), self.get("Service"));
        let pod = labels(&workload["spec"]["template"]);
        selects(&workload["spec"]["selector"]["matchLabels"], &pod);
        for service in self.0.iter().filter(|object| object["kind"] == "Service") {
            selects(&service["spec"]["selector"], &pod);
        }
        if let Some(budget) = self.find("PodDisruptionBudget") {
            selects(&budget["spec"]["selector"]["matchLabels"], &pod);
        }
        if let Some(policy) = self.find("NetworkPolicy") {
            selects(&policy["spec"]["podSelector"]["matchLabels"], &pod);
        }
        if let Some(monitor) = self.find("ServiceMonitor") {
            selects(&monitor["spec"]["selector"]["matchLabels"], &labels(service));
        }
        if let Some(scaler) = self.find("HorizontalPodAutoscaler") {
            assert_eq!(workload["spec"].get("replicas"), None, "the autoscaler sets them");
            assert_eq!(scaler["spec"]["scaleTargetRef"]["name"], workload["metadata"]["name"]);
        }
    }

    fn check_paths(&self) {
        let rules = self.rules();
        let args = ["--rules", rules[0].0, "--admin-open-metrics=true"];
        let server = Server::start(&rules, &args);
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let get = &self.container()[probe]["httpGet"];
            assert_eq!((server.get(get["path"].as_str().unwrap()).status, &get["port"]), (200, &"http".into()));
        }
        let Some(monitor) = self.find("ServiceMonitor") else { return };
        let admin = server.listener("Admin");
        for endpoint in monitor["spec"]["endpoints"].as_array().unwrap() {
            let ports = self.get("Service")["spec"]["ports"].as_array().unwrap();
            let port = ports.iter().find(|port| port["name"] == endpoint["port"]).unwrap();
            assert_eq!(port["port"], 9600, "the admin listener");
            let url = format!("http://{admin}{}", endpoint["path"].as_str().unwrap());
            assert_eq!(server.get_from(&url, &[]).status, 200, "{url}");
        }
        assert!(strings(&self.container()["args"]).contains(&"--admin-open-metrics=true".to_owned()));
    }
}

/// A folder that `tools/setup` installs into.
fn installed(tool: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).unwrap();
    let folder = cache.join("tidegate").join(tool);
    assert!(folder.is_dir(), "there is no {}: run tools/setup", folder.display());
    folder
}

/// Runs Helm on the chart. Returns whether it succeeded, and what it printed.
pub(crate) fn helm(args: &[&str], values: &[&str]) -> (bool, String) {
    let chart = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/tidegate");
    let mut command = Command::new(installed("helm").join("bin/helm"));
    command.args(args).args(values.iter().flat_map(|value| ["--set", value])).current_dir(chart);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}
