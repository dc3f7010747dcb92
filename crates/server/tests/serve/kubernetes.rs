//! The Kubernetes objects, plain and rendered by Helm, match the program and each other.

use serde_json::Value;

use super::deploy::{listening, read, strings};
use super::manifests::{Manifests, helm};

/// The image of a release, without its version.
const IMAGE: &str = "ghcr.io/tidegate/tidegate";

#[test]
fn a_fleet_of_plain_manifests_fits_the_program() {
    let files = ["kubernetes/tidegate.yaml", "kubernetes/network-policy.yaml", "kubernetes/service-monitor.yaml"];
    let fleet = Manifests::of_files(&files);
    fleet.check();
    let kinds = ["ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget"];
    assert_eq!(fleet.kinds(), kinds.into_iter().chain(["Service", "ServiceMonitor"]).collect());
    assert!(fleet.lets_in("istio-system", "grpc") && !fleet.lets_in("istio-system", "metrics"));
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
    assert_eq!(single.rules(), [("rules.yaml", "rules: []")], "no limit that nobody has written");
    assert_eq!(single.get("PersistentVolumeClaim")["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    let own = Manifests::rendered(&[r"rules.mine\.yaml=rules: [{ id: all\, limit: 5/s }]"]);
    own.check();
    assert_eq!(own.rules(), [("mine.yaml", "rules: [{ id: all, limit: 5/s }]")], "and no other file beside it");

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

    assert!(fleet.lets_in("istio-system", "grpc") && !fleet.lets_in("istio-system", "metrics"));
    let directions = |manifests: &Manifests| strings(&manifests.get("NetworkPolicy")["spec"]["policyTypes"]);
    assert_eq!(directions(&fleet), ["Ingress", "Egress"]);

    let app = ["sidecar.containers[0].name=app", "sidecar.containers[0].image=app:1", "redis=redis://redis:6379"];
    let form = ["form=sidecar", "replicas=3", "existingSecret=tidegate", "networkPolicy.enabled=true"];
    let sidecar = Manifests::rendered(&[&app[..], &form].concat());
    sidecar.check();
    assert!(sidecar.lets_in("ingress-nginx", "gateway"));
    // What the policy forbids, it forbids the service too.
    assert_eq!(
        (directions(&sidecar), sidecar.get("NetworkPolicy")["spec"].get("egress")),
        (vec!["Ingress".to_owned()], None)
    );
    let egress = ["networkPolicy.egress[0].ports[0].port=5432"];
    let bound = Manifests::rendered(&[&app[..], &form, &egress].concat());
    bound.check();
    assert_eq!(directions(&bound), ["Ingress", "Egress"]);
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
        assert_eq!(image, format!("{IMAGE}:{version}"), "{file}");
    }
    assert_eq!(Manifests::rendered(&[]).container()["image"], format!("{IMAGE}:{version}"));
    for file in ["compose/compose.yaml", "compose/single.yaml"] {
        let compose: Value = serde_saphyr::from_str(&read(file)).unwrap();
        assert_eq!(compose["services"]["tidegate"]["image"], format!("{IMAGE}:{version}"), "{file}");
    }
    let release = read("../.github/workflows/release.yaml");
    assert!(release.contains(&format!("IMAGE: {IMAGE} ")), "the release makes it");
    assert!(release.contains("--build-arg TIDEGATE_COMMIT="), "and it says its commit");
}
