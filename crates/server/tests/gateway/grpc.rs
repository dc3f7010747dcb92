//! gRPC through the gateway, with a third-party client and server.

use crate::gateway::peers::{Gateway, Nobody, python, python_server};

const SERVER: &str = r#"
import grpc
from concurrent import futures
def upper(request, context):
    if request == b"fail":
        context.abort(grpc.StatusCode.NOT_FOUND, "there is no such thing")
    context.set_trailing_metadata((("x-sum", str(len(request))),))
    return request.upper()
def count(request, context):
    for number in range(int(request)):
        yield str(number).encode()
def join(requests, context):
    return b",".join(requests)
handlers = {"Upper": grpc.unary_unary_rpc_method_handler(upper), "Count": grpc.unary_stream_rpc_method_handler(count),
            "Join": grpc.stream_unary_rpc_method_handler(join)}
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Text", handlers),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
"#;

#[test]
fn calls_streams_statuses_and_trailers_pass_and_denials_speak_grpc() {
    let (_server, port) = python_server(SERVER);
    let rules = "rules: [{ id: counts, match: { path: /test.Text/Count }, limit: log 1/h }]";
    let gateway = Gateway::start(rules, &[&format!("h2c://127.0.0.1:{port}")], &[]);
    let script = r#"
import sys, grpc
channel = grpc.insecure_channel(sys.argv[1])
upper = channel.unary_unary("/test.Text/Upper")
answer, call = upper.with_call(b"hello", timeout=30)
print(answer.decode(), dict(call.trailing_metadata())["x-sum"])
try:
    upper(b"fail", timeout=30)
except grpc.RpcError as error:
    print(error.code().name, error.details())
print(channel.stream_unary("/test.Text/Join")(iter([b"a", b"b", b"c"]), timeout=30).decode())
count = channel.unary_stream("/test.Text/Count")
print(" ".join(part.decode() for part in count(b"3", timeout=30)))
try:
    list(count(b"3", timeout=30))
except grpc.RpcError as error:
    print(error.code().name)
"#;
    let said = python(script, &[&gateway.address.to_string()]);
    let expected = ["HELLO 5", "NOT_FOUND there is no such thing", "a,b,c", "0 1 2", "RESOURCE_EXHAUSTED"];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn an_upstream_that_is_down_is_told_in_grpc() {
    let nobody = Nobody::anywhere();
    let gateway = Gateway::start("rules: []", &[&nobody.url().replace("http:", "h2c:")], &[]);
    let script = r#"
import sys, grpc
try:
    grpc.insecure_channel(sys.argv[1]).unary_unary("/test.Text/Upper")(b"hello", timeout=30)
except grpc.RpcError as error:
    print(error.code().name, error.details())
"#;
    let said = python(script, &[&gateway.address.to_string()]);
    assert_eq!(said, "UNAVAILABLE The service behind this gateway cannot be reached.");
}
