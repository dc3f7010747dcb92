//! Upgraded connections: WebSocket, and protocols that are not allowed, with third-party clients and servers.

use crate::gateway::peers::{Gateway, NO_RULES, Upstream, python, python_server};
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

/// A tunnel may stay open for days, so it does not count towards the adaptive limit.
#[test]
fn an_open_websocket_takes_no_place_of_the_adaptive_limit() {
    let (_server, port) = python_server(SERVER);
    let limit = ["--gateway-concurrency", "aimd 1..1"];
    let gateway = Gateway::start("rules: []", &[&format!("http://127.0.0.1:{port}")], &limit);
    let script = r#"
import sys
from websockets.sync.client import connect
with connect(sys.argv[1]) as one:
    one.send("hello"); assert one.recv() == "hello"
    with connect(sys.argv[1]) as other:
        other.send("hello"); print(other.recv())
"#;
    assert_eq!(python(script, &[&format!("ws://{}/", gateway.address)]).trim(), "hello");
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
    let gateway = Gateway::start(RULES, &[&upstream], &["--gateway-tunnel-idle-time", "3s"]);
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

/// hypercorn with its defaults, which include the upgrade to HTTP/2. Reports how often `/login` was served, and the
/// received headers.
const HYPERCORN: &str = r#"
import asyncio, json, socket
from hypercorn.asyncio import serve
from hypercorn.config import Config
logins = 0
async def app(scope, receive, send):
    global logins
    if scope["type"] != "http":
        return
    logins += scope["path"] == "/login"
    names = [name.decode() for name, _ in scope["headers"]]
    said = {"logins": logins, "http": scope["http_version"], "names": names}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(said).encode()})
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = Config()
config.bind = [f"fd://{listener.fileno()}"]
config.errorlog = None
asyncio.run(serve(app, config))
"#;

/// Requests an upgrade to HTTP/2 and, if granted, sends a thousand logins through it. Prints the status of the first
/// request, its body, and how many logins were answered with 200.
const H2C_CLIENT: &str = r#"
import base64, socket, sys
import h2.config, h2.connection, h2.events
connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
settings = connection.initiate_upgrade_connection()
host, port = sys.argv[1].split(":")
wire = socket.create_connection((host, int(port)))
wire.settimeout(60)
upgrade = sys.argv[2].replace("SETTINGS", settings.decode())
wire.sendall(f"GET / HTTP/1.1\r\nHost: a\r\n{upgrade}\r\n".encode())
got = b""
while b"\r\n\r\n" not in got:
    more = wire.recv(65536)
    assert more, got
    got += more
head, rest = got.split(b"\r\n\r\n", 1)
print(head.split()[1].decode())
served = 0
if head.split()[1] == b"101":
    wire.sendall(connection.data_to_send())
    todo, open_streams, stream = 1000, 0, 3
    events = connection.receive_data(rest)
    while served < 1000:
        while todo and open_streams < 50:
            fields = [(":method", "POST"), (":path", "/login"), (":authority", "a"), (":scheme", "http")]
            connection.send_headers(stream, fields, end_stream=True)
            stream, todo, open_streams = stream + 2, todo - 1, open_streams + 1
        wire.sendall(connection.data_to_send())
        data = wire.recv(65536)
        if not data:
            break
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                served += dict(event.headers).get(b":status") == b"200"
            elif isinstance(event, h2.events.DataReceived):
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                open_streams -= 1
else:
    while b"}" not in rest:
        more = wire.recv(65536)
        assert more, rest
        rest += more
    print(rest.split(b"\r\n")[0 if rest.startswith(b"{") else 1].decode())
print(served)
"#;

#[test]
fn an_upgrade_to_http_2_is_no_tunnel_past_the_rules() {
    let (_server, port) = python_server(HYPERCORN);
    let upstream = format!("http://127.0.0.1:{port}");
    let rules = "rules: [{ id: login, match: { path: /login }, limit: log 2/h }]";
    for args in [&[][..], &["--gateway-upgrades", "foo"], &["--gateway-upgrades", "off"]] {
        let gateway = Gateway::start(rules, &[&upstream], args);
        let address = gateway.address.to_string();
        for upgrade in [
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: SETTINGS\r\n",
            "Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: SETTINGS\r\n",
            "Connection: upgrade\r\nUpgrade: H2C, bar\r\nHTTP2-Settings: SETTINGS\r\n",
            "Connection: upgrade\r\nUpgrade: foo\r\nUpgrade: h2c\r\nHTTP2-Settings: SETTINGS\r\n",
            "HTTP2-Settings: SETTINGS\r\n",
        ] {
            let said = python(H2C_CLIENT, &[&address, upgrade]);
            let [status, body, served] = said.lines().collect::<Vec<_>>()[..] else { panic!("{upgrade}: {said}") };
            assert_eq!((status, served), ("200", "0"), "{upgrade}: {said}");
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!((&body["http"], &body["logins"]), (&"1.1".into(), &0.into()), "{upgrade}: {said}");
            let names = body["names"].as_array().unwrap();
            assert!(!names.contains(&"http2-settings".into()), "{upgrade}: {said}");
        }
    }
}

/// The status of a request with these lines, and the head that the upstream received.
fn asked(gateway: &Gateway, upstream: &Upstream, target: &str, lines: &str) -> (String, String) {
    let got = gateway.raw(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{lines}\r\n").as_bytes());
    (got.split(' ').nth(1).unwrap_or_default().to_owned(), upstream.last().to_ascii_lowercase())
}

/// An upstream that answers every request with 101 and this field, and closes the connection.
fn switching_to(upgrade: &'static str) -> Upstream {
    Upstream::start(move |taken| {
        taken.request()?;
        taken.write(&format!("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n{upgrade}\r\n"))?;
        taken.close()
    })
}

#[test]
fn only_what_is_on_the_allow_list_is_asked_for() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        taken.close()
    });
    let routes =
        [format!("/foo {} upgrades=foo+WebSocket", upstream.url()), format!("/none {} upgrades=off", upstream.url())];
    let gateway =
        Gateway::start(NO_RULES, &[&upstream.url()], &["--gateway-routes", &routes[0], "--gateway-routes", &routes[1]]);
    for (target, asked_for, passed_on) in [
        ("/", "websocket", Some("websocket")),
        ("/", "WebSocket", Some("websocket")),
        ("/", "foo", None),
        ("/", "foo, websocket, h2c", Some("websocket")),
        ("/", "", None),
        ("/", "websocket/13", Some("websocket/13")),
        ("/", "h2c", None),
        ("/", "TLS/1.0", None),
        ("/foo/x", "foo/2, bar, websocket", Some("foo/2, websocket")),
        ("/none", "websocket", None),
    ] {
        let lines = format!("Connection: close, Upgrade\r\nUpgrade: {asked_for}\r\n");
        let (status, head) = asked(&gateway, &upstream, target, &lines);
        let found = head.lines().find_map(|line| line.strip_prefix("upgrade: "));
        assert_eq!((status.as_str(), found), ("200", passed_on), "{asked_for}: {head}");
        assert_eq!(head.contains("\r\nconnection: upgrade\r\n"), passed_on.is_some(), "{asked_for}: {head}");
    }
    // HTTP/1.0 has no upgrades, and an `Upgrade` that `Connection` does not name is ignored.
    let lines = "Connection: close\r\nUpgrade: websocket\r\n";
    assert!(!asked(&gateway, &upstream, "/", lines).1.contains("\r\nupgrade:"));
    gateway.raw(b"GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert!(!upstream.last().to_ascii_lowercase().contains("\r\nupgrade:"), "{}", upstream.last());
}

#[test]
fn an_upstream_switches_to_nothing_that_was_not_asked_for() {
    let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    for (answer, lines, status) in [
        ("Upgrade: websocket\r\n", websocket, "101"),
        ("Upgrade: WebSocket\r\n", websocket, "101"),
        ("Upgrade: h2c\r\n", websocket, "502"),
        ("Upgrade: websocket, h2c\r\n", websocket, "502"),
        ("Upgrade: websocket\r\nUpgrade: h2c\r\n", websocket, "502"),
        ("Upgrade: foo\r\n", websocket, "502"),
        ("", websocket, "502"),
        ("Upgrade: ,\r\n", websocket, "502"),
        ("Upgrade: websocket\r\n", "Connection: close\r\n", "502"),
        ("Upgrade: h2c\r\n", "Connection: Upgrade, close\r\nUpgrade: h2c\r\n", "502"),
        ("Upgrade: foo\r\n", "Connection: Upgrade, close\r\nUpgrade: foo\r\n", "502"),
    ] {
        let upstream = switching_to(answer);
        let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &["--gateway-retries", "0"]);
        let mut lines = lines.to_owned();
        if status == "502" && !lines.contains("close") {
            lines = lines.replace("Connection: ", "Connection: close, ");
        }
        assert_eq!(asked(&gateway, &upstream, "/", &lines).0, status, "{answer} for {lines}");
    }
}

#[test]
fn protocols_that_carry_requests_cannot_be_allowed() {
    let upstream = Upstream::saying("ok");
    let route = format!("/x {} upgrades=websocket+h2c", upstream.url());
    for (args, told) in [
        (["--gateway-upgrades", "h2c"], "`h2c` would carry requests past the rules"),
        (["--gateway-upgrades", "HTTP/2.0"], "`HTTP/2.0` would carry requests past the rules"),
        (["--gateway-upgrades", "tls/1.0"], "`tls/1.0` would carry requests past the rules"),
        (["--gateway-upgrades", "*"], "`*` is not a protocol"),
        (["--gateway-upgrades", "web socket"], "`web socket` is not a protocol"),
        (["--gateway-routes", &route], "`h2c` would carry requests past the rules"),
    ] {
        let folder = crate::support::folder(&[]);
        let mut command = crate::support::tidegate(folder.path());
        let ran = crate::support::ran::Ran(
            command.args(["config", "--upstream", &upstream.url()]).args(args).output().unwrap(),
        );
        assert!(ran.bad().contains(told), "{told}: {}", ran.bad());
    }
}
