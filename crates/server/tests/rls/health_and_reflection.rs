//! Health and reflection, and a Python client that gets the messages by reflection alone.

use std::process::Command;
use std::time::Duration;

use tidegate::rls::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::programs::python;
use super::support::Served;

const EDGE: &str = "
domain: edge
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 2 } }
";

#[tokio::test]
async fn health_tells_whether_the_listener_is_open() {
    let served = Served::new(EDGE).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", served.address)).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let mut check = async |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        client.check(request).await.map(|response| response.into_inner().status()).map_err(|status| status.code())
    };
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
        assert_eq!(check(service).await, Ok(ServingStatus::Serving), "{service}");
    }
    assert_eq!(check("somebody.else").await, Err(Code::NotFound));
    served.server.closing().await;
    assert_eq!(check("ratelimit").await, Ok(ServingStatus::NotServing));
}

#[tokio::test]
async fn probes_for_the_original_find_their_path() {
    let served = Served::new(EDGE).await;
    let url = format!("http://{}/healthcheck", served.address);
    let probe = || {
        let url = url.clone();
        let args = ["-s", "-w", " %{http_code}"];
        let run = move || Command::new("curl").args(args).arg(url).output().unwrap().stdout;
        async move { String::from_utf8(tokio::task::spawn_blocking(run).await.unwrap()).unwrap() }
    };
    assert_eq!(probe().await, "OK\n 200");
    served.server.closing().await;
    assert_eq!(probe().await, "not ready\n 503");
}

#[tokio::test]
async fn a_connection_that_has_lived_long_enough_is_told_to_end() {
    let settings = Settings { age: Some(Duration::from_millis(100)), ..Settings::default() };
    let served = Served::with(EDGE, settings).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    // The preface, and empty settings.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let (mut head, mut kinds) = ([0; 9], Vec::new());
    while stream.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut frame = vec![0; length as usize];
        stream.read_exact(&mut frame).await.unwrap();
        kinds.push(head[3]);
        if head[3] == 6 && head[4] == 0 {
            // A ping, whose acknowledgement is expected before the connection ends.
            head[4] = 1;
            stream.write_all(&[&head[..], &frame[..]].concat()).await.unwrap();
        }
    }
    assert!(kinds.contains(&7), "GOAWAY among the frames of kinds {kinds:?}");
}

/// Gets the messages by reflection, then sends four equal requests, and one with its own hits.
const ASK: &str = r#"
import sys
import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(sys.argv[1])
known = ProtoReflectionDescriptorDatabase(channel)
print(*sorted(known.get_services()))
pool = DescriptorPool(known)
method = pool.FindMethodByName("envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit")
Request, Response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
call = channel.unary_unary(
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    request_serializer=Request.SerializeToString,
    response_deserializer=Response.FromString,
)

def ask(**more):
    descriptor = dict(entries=[dict(key="user", value="alice")], **more)
    response = call(Request(domain="edge", descriptors=[descriptor]), timeout=60)
    status = response.statuses[0]
    limit = status.current_limit
    waits = [header.value for header in response.response_headers_to_add if header.key == "retry-after"]
    print(response.overall_code, status.code, status.limit_remaining, limit.requests_per_unit, limit.unit, len(waits))

for _ in range(3):
    ask()
ask(hits_addend=dict(value=0))
try:
    call(Request(domain="edge"), timeout=60)
except grpc.RpcError as error:
    print(error.code().name)
"#;

#[tokio::test]
async fn python_learns_the_messages_from_the_server_and_asks() {
    let served = Served::new(EDGE).await;
    let printed = python(ASK, &[&served.address.to_string()]).await;
    let lines: Vec<_> = printed.lines().collect();
    let services =
        "envoy.service.ratelimit.v3.RateLimitService grpc.health.v1.Health grpc.reflection.v1alpha.ServerReflection";
    assert_eq!(
        lines,
        [services, "1 1 1 2 6 0", "1 1 0 2 6 0", "2 2 0 2 6 1", "2 2 0 2 6 1", "INVALID_ARGUMENT"],
        "{printed}"
    );
}
