//! Traces as received by a collector: OpenTelemetry's own service definition.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use rustix::process::Signal;
use tonic::{Request, Response, Status};

use crate::serve::store::redis as redis_server;
use crate::support::{Server, free_port, until};

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Runs a collector until the test ends.
    fn start() -> (Collector, SocketAddr) {
        let collector = Collector::default();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let (address, service) = (socket.local_addr().unwrap(), TraceServiceServer::new(collector.clone()));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let socket = tokio::net::TcpListener::from_std(socket).unwrap();
                let routes = tonic::service::Routes::new(service).prepare();
                while let Ok((stream, _)) = socket.accept().await {
                    let service = hyper_util::service::TowerToHyperService::new(routes.clone());
                    let executor = hyper_util::rt::TokioExecutor::new();
                    let connection = hyper::server::conn::http2::Builder::new(executor)
                        .serve_connection(hyper_util::rt::TokioIo::new(stream), service);
                    tokio::spawn(connection);
                }
            });
        });
        (collector, address)
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.0.lock().unwrap();
        let scopes = requests.iter().flat_map(|request| &request.resource_spans).flat_map(|spans| &spans.scope_spans);
        scopes.flat_map(|scope| scope.spans.iter().cloned()).collect()
    }

    fn services(&self) -> Vec<String> {
        let requests = self.0.lock().unwrap();
        let resources =
            requests.iter().flat_map(|request| &request.resource_spans).filter_map(|spans| spans.resource.clone());
        let names = resources.filter_map(|resource| attributes(&resource.attributes).remove("service.name"));
        names.collect()
    }
}

fn attributes(all: &[opentelemetry_proto::tonic::common::v1::KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let pair = |pair: &opentelemetry_proto::tonic::common::v1::KeyValue| {
        let value = pair.value.as_ref().and_then(|value| value.value.as_ref()).map(text);
        (pair.key.clone(), value.unwrap_or_default())
    };
    all.iter().map(pair).collect()
}

const RULES: &str = "
domain: edge
descriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 1 } }]
---
rules: [{ id: api, key: user, limit: fixed 1/day }]
";

fn started(collector: SocketAddr, args: &[&str], variables: &[(&str, &str)]) -> Server {
    let endpoint = format!("http://{collector}");
    let (domain, rules) = RULES.split_once("---").unwrap();
    let always = ["--rules", "rules", "--traces-endpoint", &endpoint, "--traces-service", "the-gate"];
    let folder = tempfile::tempdir().unwrap();
    let rules_in = folder.path().join("rules");
    std::fs::create_dir(&rules_in).unwrap();
    std::fs::write(rules_in.join("edge.yaml"), domain).unwrap();
    std::fs::write(rules_in.join("rules.yaml"), rules).unwrap();
    let always = [&["--rules", rules_in.to_str().unwrap()], &always[2..]].concat();
    let variables = [&[("OTEL_BSP_SCHEDULE_DELAY", "50")], variables].concat();
    let server = Server::start_with(&[], &[&always[..], args].concat(), &variables);
    // The server has read the files, and this test does not change them.
    drop(folder);
    server
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn post(address: SocketAddr, path: &str, flags: &str, body: &str) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let request = agent.post(format!("http://{address}{path}")).header("content-type", "application/json");
    request.header("traceparent", format!("00-{TRACE}-{PARENT}-{flags}")).send(body).unwrap();
}

#[test]
fn a_request_is_a_span_in_the_trace_of_its_caller() {
    let (collector, address) = Collector::start();
    let server = started(address, &["--traces-sample", "0"], &[]);
    let body = r#"{"path":"/","user":"alice"}"#;
    post(server.address, "/v1/check", "01", body);
    post(server.address, "/v1/check", "01", body);
    let envoy = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;
    post(server.listener("Envoy"), "/json", "01", envoy);
    // Neither traces that the caller does not sample, nor, with a share of 0, new ones.
    post(server.address, "/v1/check", "00", body);
    server.check(body);
    let spans = until("three spans", || Some(collector.spans()).filter(|spans| spans.len() >= 3));
    assert_eq!(spans.len(), 3, "{spans:?}");
    for span in &spans {
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }
    let told: Vec<_> = spans.iter().map(|span| attributes(&span.attributes)).collect();
    let values = |name: &str| told.iter().map(|told| told[name].clone()).collect::<Vec<_>>();
    assert_eq!(values("tidegate.outcome"), ["allowed", "denied", "allowed"]);
    assert_eq!(values("tidegate.rule")[..2], ["api", "api"]);
    assert_eq!(values("tidegate.decided_by"), ["store"; 3]);
    assert_eq!(collector.services()[0], "the-gate");
}

#[test]
fn traces_begin_here_too_and_the_last_are_sent_before_the_server_ends() {
    let (collector, address) = Collector::start();
    let mut server = started(address, &["--traces-sample", "1"], &[("OTEL_BSP_SCHEDULE_DELAY", "3600000")]);
    server.check(r#"{"path":"/","user":"alice"}"#);
    let client = redis::Client::open(format!("redis://{}/", server.listener("Redis"))).unwrap();
    let mut client = client.get_connection().unwrap();
    redis::cmd("CL.THROTTLE").arg(&["k", "9", "1", "60"]).exec(&mut client).unwrap();
    drop(client);
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code(), Some(0), "{}", server.log());
    let mut names: Vec<String> = collector.spans().into_iter().map(|span| span.name).collect();
    names.sort();
    assert_eq!(names, ["tidegate.check", "tidegate.throttle"]);
}

#[test]
fn the_call_to_a_store_elsewhere_is_a_span_of_its_own() {
    let (collector, address) = Collector::start();
    let port = free_port();
    let _store = redis_server(port);
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let args = ["--traces-sample", "1", "--store-kind", "redis", "--store-redis-deadline", "10s"];
    let server = started(address, &args, &[("TIDEGATE_STORE_REDIS_URLS", url.as_str())]);
    until("the store", || (server.get("/readyz?store=required").status == 200).then_some(()));
    post(server.address, "/v1/check", "01", r#"{"path":"/","user":"alice"}"#);
    let spans = until("both spans", || Some(collector.spans()).filter(|spans| spans.len() >= 2));
    let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{spans:?}"));
    let (check, call) = (named("tidegate.check"), named("tidegate.store.decide"));
    assert_eq!((&call.parent_span_id, &call.trace_id), (&check.span_id, &check.trace_id));
    assert_eq!(attributes(&call.attributes)["db.system"], "redis");
    assert!(
        check.start_time_unix_nano <= call.start_time_unix_nano && call.end_time_unix_nano <= check.end_time_unix_nano
    );
}
