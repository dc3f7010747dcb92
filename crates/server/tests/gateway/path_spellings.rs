//! No spelling of a path evades its rule, with third-party upstreams.

use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::gateway::peers::{Gateway, Nginx, Upstream, python_server};
use crate::support::spellings::{RULES, SERVED, node, rule_denies, served_as_login, spellings};
use crate::support::{Process, folder, free_port, until};

/// Two logins are allowed, and no spelling adds a third. With the policy `as-is`, spellings evade the rule at upstreams
/// that decode.
fn is_not_dodged(upstream: SocketAddr, decodes: bool) {
    let (upstream, targets) = (format!("http://{upstream}"), spellings());
    for policy in ["canonical", "strict"] {
        let gateway = Gateway::start(RULES, &[&upstream], &["--gateway-paths", policy]);
        let served = served_as_login(gateway.address, &targets);
        assert!(served.len() <= 2, "{policy}: {served:#?}");
        rule_denies(gateway.address, &served);
    }
    let gateway = Gateway::start(RULES, &[&upstream], &["--gateway-paths", "as-is"]);
    let served = served_as_login(gateway.address, &targets);
    assert_eq!(served.len() > 2, decodes, "as-is: {served:#?}");
}

#[test]
fn nginx_serves_no_login_past_the_rule() {
    let nginx = Nginx::start(
        &format!(
            "server {{ listen 127.0.0.1:PORT; default_type text/plain;
             location = /login {{ return 200 '{SERVED}'; }}
             location = /login/ {{ return 200 '{SERVED}'; }}
             location / {{ return 200 elsewhere; }} }}"
        ),
        &[],
    );
    is_not_dodged(nginx.address, true);
}

/// A program that listens on a port, with its files.
struct Program {
    address: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

impl Program {
    /// Starts the program. `PORT` in the file is replaced by its port.
    fn start(name: &str, args: &[&str], file: &str, text: &str) -> Program {
        let port = free_port();
        let folder = folder(&[(file, &text.replace("PORT", &port.to_string()))]);
        let mut command = Command::new(name);
        command.args(args).current_dir(folder.path()).env("HOME", folder.path());
        command.env("XDG_DATA_HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process(command.spawn().unwrap());
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        until(name, || {
            assert!(process.0.try_wait().unwrap().is_none(), "{name} ended");
            TcpStream::connect(address).ok()
        });
        Program { address, _process: process, _folder: folder }
    }
}

#[test]
#[ignore = "long: make nightly"]
fn caddy_serves_no_login_past_the_rule() {
    let file = format!(
        "{{\n\tadmin off\n}}\nhttp://127.0.0.1:PORT {{\n\thandle /login {{\n\t\trespond \"{SERVED}\"\n\t}}\n\
         \thandle /login/ {{\n\t\trespond \"{SERVED}\"\n\t}}\n\thandle {{\n\t\trespond elsewhere\n\t}}\n}}\n"
    );
    let caddy =
        Program::start("caddy", &["run", "--config", "Caddyfile", "--adapter", "caddyfile"], "Caddyfile", &file);
    is_not_dodged(caddy.address, true);
}

#[test]
#[ignore = "long: make nightly"]
fn haproxy_serves_no_login_past_the_rule() {
    let file = format!(
        "defaults\n  mode http\n  timeout client 60s\n  timeout connect 60s\n  timeout server 60s\n\
         frontend web\n  bind 127.0.0.1:PORT\n  acl login path,url_dec -m str /login /login/\n\
         \x20 http-request return status 200 content-type text/plain string \"{SERVED}\" if login\n\
         \x20 http-request return status 200 content-type text/plain string elsewhere\n"
    );
    let haproxy = Program::start("haproxy", &["-db", "-f", "haproxy.cfg"], "haproxy.cfg", &file);
    is_not_dodged(haproxy.address, true);
}

#[test]
fn flask_behind_gunicorn_serves_no_login_past_the_rule() {
    // The worker must end with its parent: the test kills the parent, which then cannot stop the worker.
    let script = format!(
        r#"
import ctypes, signal, socket
from flask import Flask
from gunicorn.app.base import BaseApplication
app = Flask("app")
@app.route("/login")
@app.route("/login/")
def login(): return "{SERVED}"
@app.route("/")
@app.route("/<path:path>")
def elsewhere(path=""): return "elsewhere"
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def post_fork(server, worker):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
class Application(BaseApplication):
    def load_config(self):
        self.cfg.set("bind", f"fd://{{listener.fileno()}}")
        self.cfg.set("loglevel", "critical")
        self.cfg.set("post_fork", post_fork)
    def load(self):
        return app
Application().run()
"#
    );
    let (_process, port) = python_server(&script);
    is_not_dodged(SocketAddr::from(([127, 0, 0, 1], port)), true);
    // gunicorn takes the beginning of the path from this header, from any client on the same machine.
    let upstream = format!("http://127.0.0.1:{port}");
    let gateway = Gateway::start(RULES, &[&upstream], &["--trusted-proxies", "192.0.2.1"]);
    for name in ["SCRIPT_NAME", "script_name", "Script_Name"] {
        let got = gateway.curl("/x/login", &["-H", &format!("{name}: /x")]);
        assert_eq!(got.body, "elsewhere", "{name}");
    }
}

#[test]
#[ignore = "long: make nightly"]
fn starlette_behind_uvicorn_serves_no_login_past_the_rule() {
    let script = format!(
        r#"
import socket, uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
async def login(request): return PlainTextResponse("{SERVED}")
async def elsewhere(request): return PlainTextResponse("elsewhere")
app = Starlette(routes=[Route("/login", login), Route("/login/", login), Route("/{{path:path}}", elsewhere)])
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])
"#
    );
    let (_process, port) = python_server(&script);
    is_not_dodged(SocketAddr::from(([127, 0, 0, 1], port)), true);
}

#[test]
#[ignore = "long: make nightly"]
fn node_serves_no_login_past_the_rule() {
    let (_process, address) = node();
    is_not_dodged(address, true);
}

/// The status for a target, and the target that the upstream received, if any.
fn asked(gateway: &Gateway, upstream: &Upstream, target: &str) -> (u16, Option<String>) {
    let before = upstream.heads().len();
    let got = gateway.raw(format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes());
    let status = got.split(' ').nth(1).unwrap().parse().unwrap();
    let head = upstream.heads().split_off(before).pop();
    (status, head.map(|head| head.split(' ').nth(1).unwrap().to_owned()))
}

#[test]
fn a_path_is_forwarded_as_the_rules_have_judged_it() {
    let upstream = Upstream::saying("ok");
    let gateway = Gateway::start("rules: []", &[&upstream.url()], &[]);
    for (target, forwarded) in [
        ("/a/b?x=//y/..%2f%", "/a/b?x=//y/..%2f%"),
        ("/a/b/?", "/a/b/?"),
        ("//a///b/", "/a/b/"),
        ("/a/./c/../b", "/a/b"),
        ("/../%2e%2e/%7euser", "/~user"),
        ("/caf%c3%a9%21", "/caf%C3%A9%21"),
        ("/a#b", "/a"),
        ("http://a//whole?x", "/whole?x"),
        ("http://a", "/"),
        ("http://a?x", "/?x"),
        ("/A.", "/A."),
    ] {
        assert_eq!(asked(&gateway, &upstream, target), (200, Some(forwarded.to_owned())), "{target}");
    }
    for refused in ["/a%2fb", "/a%5Cb", "/a\\b", "/a%00", "/a%0a", "/%2561", "/100%", "/a;b", "/a%3bb", "/%ff"] {
        assert_eq!(asked(&gateway, &upstream, refused), (400, None), "{refused}");
    }
    let told = gateway.curl("/a%2fb", &[]);
    let problem = told.json();
    assert_eq!((told.status, problem["fault"].as_str()), (400, Some("client")));
    assert!(problem["detail"].as_str().unwrap().contains("encoded slash"), "{problem}");
    assert_eq!(told.header("content-type"), Some("application/problem+json"));
    // A refused path does not close the connection, which serves other requests too.
    let two = b"GET /%2f HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let both = gateway.raw(two);
    assert!(both.starts_with("HTTP/1.1 400 ") && both.contains("HTTP/1.1 200 OK"), "{both}");
    let http2 = gateway.curl("//a/../%62", &["--http2-prior-knowledge", "--path-as-is"]);
    assert_eq!(http2.status, 200);
    assert!(upstream.last().starts_with("GET /b HTTP/1.1\r\n"), "{}", upstream.last());
    assert_eq!(gateway.curl("/a%2fb", &["--http2-prior-knowledge"]).status, 400);
}

#[test]
fn a_refused_path_costs_nothing() {
    let upstream = Upstream::saying("ok");
    let gateway = Gateway::start("rules: [{ id: all, limit: log 2/h }]", &[&upstream.url()], &[]);
    for _ in 0..5 {
        assert_eq!(asked(&gateway, &upstream, "/a%2fb").0, 400);
    }
    assert_eq!(gateway.left("all", "/a"), 2);
}

#[test]
fn each_route_may_take_paths_in_its_own_way() {
    let upstream = Upstream::saying("ok");
    let url = upstream.url();
    let routes = [
        format!("/raw {url} paths=as-is"),
        format!("/strict {url} paths=strict upgrades=off"),
        format!("loose.example {url} paths=as-is"),
    ];
    let args: Vec<&str> = routes.iter().flat_map(|route| ["--gateway-routes", route]).collect();
    let gateway = Gateway::start("rules: []", &[&url], &args);
    for (target, status, forwarded) in [
        ("/raw/a%2fb;c//d/%7e", 200, "/raw/a%2fb;c//d/%7e"),
        ("//raw/%2f", 200, "//raw/%2f"),
        ("/raw/../x//y", 200, "/x/y"),
        ("/raw/../x/%2f", 400, ""),
        ("/strict/a", 200, "/strict/a"),
        ("/strict//a", 400, ""),
        ("/strict/%7e", 400, ""),
        ("/strict/../x", 200, "/x"),
        ("/x/../strict/a", 400, ""),
        ("http://loose.example/a%2fb", 200, "/a%2fb"),
        ("/other//a", 200, "/other/a"),
        ("/other/%2f", 400, ""),
    ] {
        let forwarded = Some(forwarded).filter(|forwarded| !forwarded.is_empty()).map(str::to_owned);
        assert_eq!(asked(&gateway, &upstream, target), (status, forwarded), "{target}");
    }
}
