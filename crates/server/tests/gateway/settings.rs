//! Settings of the gateway, and errors in them.

use crate::gateway::peers::{Gateway, NO_RULES, Upstream, curl, gateway_address};
use crate::support::ran::Ran;
use crate::support::{Server, folder, tidegate};

fn run(files: &[(&str, &str)], args: &[&str]) -> Ran {
    let folder = folder(files);
    Ran(tidegate(folder.path()).args(args).output().unwrap())
}

#[test]
fn mistakes_are_told_with_their_places() {
    let file = "\
gateway:
  upstream: [http://127.0.0.1:3000, 127.0.0.1:3001]
  routes:
    - /images http://127.0.0.1:3002
    - /videos
    - a:80/x http://127.0.0.1:3002
  retry_percent: 200
  health_path: healthz
  ca: nowhere.pem
";
    let ran = run(&[("t.yaml", file)], &["config", "--config", "t.yaml"]);
    let told = ran.bad();
    for expected in [
        "t.yaml:2:37",
        "`127.0.0.1:3001` has no scheme",
        "write `http://127.0.0.1:3001`",
        "t.yaml:5:7",
        "`/videos` names no upstream",
        "t.yaml:6:7",
        "t.yaml:7:18",
        "200 is out of range",
        "t.yaml:8:16",
        "`healthz` is not a path",
        "`nowhere.pem` cannot be read",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    let ran = run(&[], &["config", "--upstream", "localhost:3000"]);
    assert!(
        ran.bad().contains("--> --upstream") && ran.bad().contains("write `http://localhost:3000`"),
        "{}",
        ran.bad()
    );
}

#[test]
fn set_values_are_shown() {
    let file = "gateway: { upstream: 'http://a:1', routes: ['/x http://b:2 http://c:3'] }";
    let ran = run(&[("t.yaml", file)], &["config", "--config", "t.yaml", "--gateway", "127.0.0.1:9999"]);
    for expected in ["http://a:1", "/x http://b:2 http://c:3", "127.0.0.1:9999", "--gateway"] {
        assert!(ran.good().contains(expected), "{expected}: {}", ran.good());
    }
    let files = folder(&[]);
    Ran(tidegate(files.path()).arg("init").output().unwrap()).good();
    let written = std::fs::read_to_string(files.path().join("tidegate.yaml")).unwrap();
    assert!(written.contains("\ngateway:\n") && written.contains("# upstream: http://127.0.0.1:3000"), "{written}");
    Ran(tidegate(files.path()).args(["config", "--config", "tidegate.yaml"]).output().unwrap()).good();
}

#[test]
fn the_listener_is_open_only_with_an_upstream() {
    let server = Server::start(&[], &[]);
    assert!(!server.banner.contains("Gateway"), "{}", server.banner);
    let upstream = Upstream::saying("hello");
    let variables = [("TIDEGATE_UPSTREAM", upstream.url()), ("TIDEGATE_GATEWAY", "127.0.0.1:0".to_owned())];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let server = Server::start_with(&[], &[], &variables);
    let url = format!("http://{}/", gateway_address(&server.banner));
    assert!(server.banner.contains(&format!("curl -i {url}")), "{}", server.banner);
    assert_eq!(curl(&url, &[]).body, "hello");
}

#[test]
fn routes_lead_to_their_upstreams() {
    let [images, api, rest] = ["images", "api", "rest"].map(Upstream::saying);
    let routes = [format!("/images {}", images.url()), format!("api.example.com/v1 {}", api.url())];
    let gateway =
        Gateway::start(NO_RULES, &[&rest.url()], &["--gateway-routes", &routes[0], "--gateway-routes", &routes[1]]);
    let said = |path: &str, args: &[&str]| gateway.curl(path, args).body;
    assert_eq!(said("/images/x", &[]), "images");
    assert_eq!(said("/imagesque", &[]), "rest");
    assert_eq!(said("/v1", &["-H", "Host: API.example.com:8000"]), "api");
    assert_eq!(said("/v1", &[]), "rest");
    let gateway = Gateway::start(NO_RULES, &[], &["--gateway-routes", &routes[0]]);
    let lost = gateway.curl("/elsewhere", &[]);
    assert_eq!((lost.status, lost.json()["fault"].as_str()), (404, Some("client")));
}
