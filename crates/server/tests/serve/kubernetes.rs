//! The Kubernetes objects, plain and rendered by Helm, match the program and each other.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value};

use super::deploy::{assert_accepted, listening, read, read_help, strings};
use crate::support::{Server, folder, tidegate};

/// The version whose schemas objects are held against.
const KUBERNETES: &str = "1.31";

/// Objects that are applied together.
struct Manifests(Vec<Value>);

impl Manifests {
    fn parse(text: &str) -> Manifests {
        let texts = text.split("\n---\n").map(|text| text.strip_prefix("---\n").unwrap_or(text));
        let is_object = |text: &&str| text.lines().any(|line| !line.is_empty() && !line.starts_with('#'));
        Manifests(texts.filter(is_object).map(|text| serde_saphyr::from_str(text).unwrap()).collect())
    }

    fn of_files(files: &[&str]) -> Manifests {
        Manifests::parse(&files.iter().map(|file| read(file)).collect::<Vec<_>>().join("\n---\n"))
    }

    /// The chart with these values.
    fn rendered(values: &[&str]) -> Manifests {
        let (is_good, text) = helm(&["template", "edge", "."], values);
        assert!(is_good, "{text}");
        Manifests::parse(&text)
    }

    fn kinds(&self) -> BTreeSet<&str> {
        self.0.iter().map(|object| object["kind"].as_str().unwrap()).collect()
    }

    fn find(&self, kind: &str) -> Option<&Value> {
        let mut found = self.0.iter().filter(|object| object["kind"] == kind);
        let first = found.next();
        assert!(found.next().is_none(), "two of {kind}");
        first
    }

    fn get(&self, kind: &str) -> &Value {
        self.find(kind).unwrap_or_else(|| panic!("no {kind} among {:?}", self.kinds()))
    }

    /// The Deployment or the StatefulSet.
    fn workload(&self) -> &Value {
        self.find("Deployment").unwrap_or_else(|| self.get("StatefulSet"))
    }

    fn container(&self) -> &Value {
        let containers = self.workload()["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        containers.iter().find(|container| container["name"] == "tidegate").unwrap()
    }

    /// Checks the objects against the program and against each other.
    fn check(&self) {
        self.check_schemas();
        self.check_settings();
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
    fn validated(&self) -> (bool, String) {
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

    fn check_settings(&self) {
        let rules = self.get("ConfigMap")["data"]["rules.yaml"].as_str().unwrap();
        let files = folder(&[("rules.yaml", rules)]);
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
    }

    fn check_ports(&self) {
        let ports = self.container()["ports"].as_array().unwrap();
        let number = |port: &Value| port["containerPort"].as_u64().unwrap();
        let open: BTreeSet<u64> = listening(strings(&self.container()["args"]).iter()).into_iter().collect();
        assert_eq!(ports.iter().map(number).collect::<BTreeSet<_>>(), open);
        let names: BTreeSet<&str> = ports.iter().map(|port| port["name"].as_str().unwrap()).collect();
        for port in self.get("Service")["spec"]["ports"].as_array().unwrap() {
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
        selects(&service["spec"]["selector"], &pod);
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
        let rules = self.get("ConfigMap")["data"]["rules.yaml"].as_str().unwrap();
        let args = ["--rules", "rules.yaml", "--admin-open-metrics=true"];
        let server = Server::start(&[("rules.yaml", rules)], &args);
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
fn helm(args: &[&str], values: &[&str]) -> (bool, String) {
    let chart = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/tidegate");
    let mut command = Command::new(installed("helm").join("bin/helm"));
    command.args(args).args(values.iter().flat_map(|value| ["--set", value])).current_dir(chart);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn a_fleet_of_plain_manifests_fits_the_program() {
    let files = ["kubernetes/tidegate.yaml", "kubernetes/network-policy.yaml", "kubernetes/service-monitor.yaml"];
    let fleet = Manifests::of_files(&files);
    fleet.check();
    let kinds = ["ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget"];
    assert_eq!(fleet.kinds(), kinds.into_iter().chain(["Service", "ServiceMonitor"]).collect());
}

#[test]
fn a_misspelt_field_is_found() {
    let file = "kubernetes/tidegate.yaml";
    for (right, wrong) in
        [("readinessProbe:", "readynessProbe:"), ("minReplicas:", "minReplica:"), ("maxSkew: 1", "maxSkew: one")]
    {
        let text = read(file);
        assert!(text.contains(right), "{right}");
        let (is_good, said) = Manifests::parse(&text.replace(right, wrong)).validated();
        assert!(!is_good, "{wrong}: {said}");
    }
}

#[test]
fn a_single_node_and_a_sidecar_of_plain_manifests_fit_the_program() {
    let single = Manifests::of_files(&["kubernetes/single.yaml"]);
    single.check();
    assert_eq!(single.workload()["spec"]["replicas"], 1);
    let sidecar = Manifests::of_files(&["kubernetes/sidecar.yaml"]);
    sidecar.check();
    assert_eq!(sidecar.get("Service")["spec"]["ports"][0]["targetPort"], "gateway");
}

#[test]
fn the_chart_renders_objects_that_fit_the_program() {
    let (is_good, said) = helm(&["lint", "--strict", "."], &[]);
    assert!(is_good, "{said}");

    let single = Manifests::rendered(&[]);
    single.check();
    let kinds = ["ConfigMap", "Deployment", "PersistentVolumeClaim", "Service"];
    assert_eq!(single.kinds(), kinds.into_iter().collect());

    let fleet = Manifests::rendered(&[
        "redis=redis://redis:6379",
        "autoscaling.enabled=true",
        "networkPolicy.enabled=true",
        "metrics.serviceMonitor.enabled=true",
        "existingSecret=tidegate",
        "args={--log-level=debug}",
    ]);
    fleet.check();
    let kinds = ["ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget"];
    assert_eq!(fleet.kinds(), kinds.into_iter().chain(["Service", "ServiceMonitor"]).collect());

    let app = ["sidecar.containers[0].name=app", "sidecar.containers[0].image=app:1", "redis=redis://redis:6379"];
    let sidecar = Manifests::rendered(&[&app[..], &["form=sidecar", "replicas=3"]].concat());
    sidecar.check();
    let pod = |manifests: &Manifests| manifests.workload()["spec"]["template"]["spec"].clone();
    assert_eq!(pod(&sidecar)["containers"].as_array().unwrap().len(), 2);
    // The token is for the containers beside it.
    assert_eq!(pod(&sidecar).get("automountServiceAccountToken"), None);
    assert_eq!(pod(&fleet)["automountServiceAccountToken"], false);
    assert_eq!(sidecar.get("Service")["spec"]["ports"][0]["targetPort"], "gateway");

    let closed = Manifests::rendered(&["metrics.enabled=false", "persistence.enabled=false"]);
    assert_eq!(listening(strings(&closed.container()["args"]).iter()), [8081, 8080]);
}

#[test]
fn the_chart_refuses_values_that_contradict_each_other() {
    for (values, expected) in [
        (&["replicas=2"][..], "set redis"),
        (&["autoscaling.enabled=true"], "set redis"),
        (&["form=sidecar"], "sidecar.containers"),
        (&["form=sidecar", "sidecar.containers[0].name=app"], "persistence.enabled"),
        (&["form=daemon"], "write service or sidecar"),
    ] {
        let (is_good, said) = helm(&["template", "edge", "."], values);
        assert!(!is_good && said.contains(expected), "{values:?}: {said}");
    }
}

#[test]
fn chart_and_manifests_have_the_version_of_the_program() {
    let version = env!("CARGO_PKG_VERSION");
    let chart: Value = serde_saphyr::from_str(&read("helm/tidegate/Chart.yaml")).unwrap();
    assert_eq!((chart["version"].as_str(), chart["appVersion"].as_str()), (Some(version), Some(version)));
    for file in ["kubernetes/tidegate.yaml", "kubernetes/single.yaml", "kubernetes/sidecar.yaml"] {
        let image = Manifests::of_files(&[file]).container()["image"].clone();
        assert_eq!(image, format!("tidegate:{version}"), "{file}");
    }
}
