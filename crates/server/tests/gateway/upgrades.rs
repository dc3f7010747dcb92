//! Connections that change to another protocol: WebSocket, by a client and a server that we did not write.

use crate::peers::{Gateway, python, python_server};
use crate::support::until;

const RULES: &str = "
rules:
  - { id: slots, key: address, limit: concurrent 2 ttl 1min }
  - { id: tokens, key: address, limits: [{ limit: fixed 1000/h, cost: 100, reserve: 1min }] }
";

const SERVER: &str = r#"
import asyncio, websockets.asyncio.server as server
async def echo(socket):
    async for message in socket:
        if message == "leave":
            return
        await socket.send(message)
async def main():
    async with server.serve(echo, "127.0.0.1", 0, max_size=None) as serving:
        print(serving.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().create_future()
asyncio.run(main())
"#;

#[test]
fn a_websocket_passes_and_holds_its_slot_until_it_ends() {
    let (_server, port) = python_server(SERVER);
    let gateway = Gateway::start(RULES, &[&format!("http://127.0.0.1:{port}")], &[]);
    let script = r#"
import sys, json, urllib.request, websockets
from websockets.sync.client import connect
url, api = sys.argv[1], sys.argv[2]
def left():
    question = json.dumps({"method": "GET", "path": "/", "address": "127.0.0.1"}).encode()
    request = urllib.request.Request(api, question, {"Content-Type": "application/json"})
    limits = json.load(urllib.request.urlopen(request))["limits"]
    return [limit["remaining"] for limit in limits]
large = "x" * (1 << 20)
with connect(url, max_size=None) as one:
    one.send("hello"); assert one.recv() == "hello"
    print(left())
    with connect(url, max_size=None) as other:
        other.send(large); assert other.recv() == large
        print(left())
        try:
            connect(url)
        except websockets.exceptions.InvalidStatus as refused:
            print(refused.response.status_code)
    one.send(b"\x00\x01"); assert one.recv() == b"\x00\x01"
    one.send("leave")
    try:
        one.recv()
    except websockets.exceptions.ConnectionClosedOK:
        print("left")
"#;
    let said = python(script, &[&format!("ws://{}/", gateway.address), &gateway.server.url("/v1/peek")]);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["[1, 900]", "[0, 800]", "429", "left"]);
    until("the slots", || (gateway.left("slots", "/") == 2).then_some(()));
}

#[test]
fn a_client_that_vanishes_frees_its_slot() {
    let (_server, port) = python_server(SERVER);
    let gateway = Gateway::start(RULES, &[&format!("http://127.0.0.1:{port}")], &[]);
    let script = "
import os, sys
from websockets.sync.client import connect
socket = connect(sys.argv[1])
socket.send('hello'); socket.recv()
os._exit(0)
";
    python(script, &[&format!("ws://{}/", gateway.address)]);
    gateway.until_left("slots", "/", 2);
}

#[test]
fn an_upstream_that_vanishes_frees_the_slot() {
    let (server, port) = python_server(SERVER);
    let gateway = Gateway::start(RULES, &[&format!("http://127.0.0.1:{port}")], &[]);
    let mut stream = gateway.connect();
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut seen = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut seen).unwrap();
    assert_eq!(&seen, b"HTTP/1.1 101");
    gateway.until_left("slots", "/", 1);
    drop(server);
    std::io::Read::read_to_end(&mut stream, &mut Vec::new()).unwrap();
    gateway.until_left("slots", "/", 2);
}

#[test]
fn a_tunnel_through_which_nothing_passes_is_closed_and_frees_its_slot() {
    let (_server, port) = python_server(SERVER);
    let upstream = format!("http://127.0.0.1:{port}");
    let gateway = Gateway::start(RULES, &[&upstream], &["--gateway-tunnel-idle-time", "300ms"]);
    let script = "
import sys
from websockets.sync.client import connect
socket = connect(sys.argv[1], ping_interval=None)
socket.send('hello'); print(socket.recv())
try:
    socket.recv()
except Exception as closed:
    print(type(closed).__name__)
";
    let said = python(script, &[&format!("ws://{}/", gateway.address)]);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["hello", "ConnectionClosedError"]);
    gateway.until_left("slots", "/", 2);
}
