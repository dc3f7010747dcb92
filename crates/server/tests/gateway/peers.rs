//! The gateway as a process, and its peers on both sides.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpSocket;

use crate::support::{Process, Server, free_port, until};

pub(crate) const NO_RULES: &str = "rules: []";

/// A server with a gateway.
pub(crate) struct Gateway {
    pub(crate) server: Server,
    pub(crate) address: SocketAddr,
}

impl Gateway {
    /// Starts a gateway in front of these upstreams, with these rules.
    pub(crate) fn start(rules: &str, upstreams: &[&str], args: &[&str]) -> Gateway {
        Gateway::with_files(&[("rules.yaml", rules)], upstreams, args)
    }

    pub(crate) fn with_files(files: &[(&str, &str)], upstreams: &[&str], args: &[&str]) -> Gateway {
        let mut all = vec!["--rules", "rules.yaml", "--gateway", "127.0.0.1:0"];
        all.extend(upstreams.iter().flat_map(|upstream| ["--upstream", upstream]));
        all.extend(args);
        let server = Server::start(files, &all);
        let address = gateway_address(&server.banner);
        Gateway { server, address }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends these bytes, and reads everything until the peer closes the connection.
    pub(crate) fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) fn curl(&self, path: &str, args: &[&str]) -> Curled {
        curl(&self.url(path), args)
    }

    /// The remaining amount under a rule for a client of this address.
    pub(crate) fn left(&self, rule: &str, path: &str) -> u64 {
        let question = format!(r#"{{"method":"GET","path":"{path}","address":"127.0.0.1"}}"#);
        let answer: Value = self.server.post("/v1/peek", &question).good();
        let limits = answer["limits"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let limit = limits.iter().find(|limit| limit["id"] == rule).unwrap_or_else(|| panic!("{answer}"));
        limit["remaining"].as_u64().unwrap()
    }

    /// Waits until this much is left.
    pub(crate) fn until_left(&self, rule: &str, path: &str, left: u64) {
        until(&format!("{left} left of {rule}"), || (self.left(rule, path) == left).then_some(()));
    }
}

pub(crate) fn gateway_address(banner: &str) -> SocketAddr {
    let (_, gateway) = banner.split_once("\n  Gateway ").unwrap_or_else(|| panic!("{banner}"));
    let (_, url) = gateway.split_once("://").unwrap();
    url.lines().next().unwrap().trim().parse().unwrap()
}

/// The response received by curl.
#[derive(Debug)]
pub(crate) struct Curled {
    pub(crate) status: u16,
    /// The head, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Curled {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) fn curl(url: &str, args: &[&str]) -> Curled {
    let mut command = Command::new("curl");
    let output = command.args(["-sS", "-i", "--max-time", "60"]).args(args).arg(url).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Skips heads before the last one: `100 Continue`.
    let mut rest = text.as_str();
    loop {
        let (head, body) = rest.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{output:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        if status == 100 {
            rest = body;
            continue;
        }
        return Curled { status, head: head.to_ascii_lowercase(), body: body.to_owned() };
    }
}

/// A real nginx, with this text inside `http`. `PORT` is replaced by its port.
pub(crate) struct Nginx {
    pub(crate) address: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

impl Nginx {
    pub(crate) fn start(http: &str, files: &[(&str, &str)]) -> Nginx {
        let (folder, port) = (crate::support::folder(files), free_port());
        let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {kind};"))
            .join("\n");
        let http = http.replace("PORT", &port.to_string());
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;\nevents {{}}\nhttp {{ access_log off;\n{temp}\n{http}\n}}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), text).unwrap();
        let mut command = Command::new("nginx");
        command.args(["-e", "error.log", "-c", "nginx.conf", "-p"]).arg(folder.path());
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process(command.spawn().unwrap());
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        until("nginx", || {
            assert!(process.0.try_wait().unwrap().is_none(), "nginx ended");
            TcpStream::connect(address).ok()
        });
        Nginx { address, _process: process, _folder: folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A real HAProxy as an upstream that responds by itself, with this text in its frontend.
pub(crate) struct HaProxy {
    address: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

impl HaProxy {
    pub(crate) fn start(frontend: &str) -> HaProxy {
        let port = free_port();
        let text = format!(
            "defaults\n  mode http\n  timeout client 60s\n  timeout connect 60s\n  timeout server 60s\nfrontend f\n  bind 127.0.0.1:{port}{frontend}\n"
        );
        let folder = crate::support::folder(&[("haproxy.cfg", &text)]);
        let mut command = Command::new("haproxy");
        command.args(["-db", "-f", "haproxy.cfg"]).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process(command.spawn().unwrap());
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        until("HAProxy", || {
            assert!(process.0.try_wait().unwrap().is_none(), "HAProxy ended");
            TcpStream::connect(address).ok()
        });
        HaProxy { address, _process: process, _folder: folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// An upstream that handles each connection with a function, and records the heads of requests.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

/// A connection from the gateway.
pub(crate) struct Taken {
    reader: BufReader<TcpStream>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    pub(crate) fn start(serve: impl Fn(&mut Taken) -> std::io::Result<()> + Send + Sync + 'static) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, heads) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let (kept, serve) = (Arc::clone(&heads), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (heads, serve) = (Arc::clone(&kept), Arc::clone(&serve));
                std::thread::spawn(move || {
                    stream.set_nodelay(true).unwrap();
                    let mut taken = Taken { reader: BufReader::new(stream), heads };
                    while serve(&mut taken).is_ok() {}
                });
            }
        });
        Upstream { address, heads }
    }

    /// Answers every request with the same text.
    pub(crate) fn saying(text: &'static str) -> Upstream {
        Upstream::start(move |taken| {
            taken.request()?;
            taken.answer(text)
        })
    }

    /// Answers one request, closes the connection, and stops listening.
    pub(crate) fn that_leaves() -> (String, JoinHandle<Nobody>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let leaving = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            drop(listener);
            let nobody = Nobody::at(address);
            let mut taken = Taken { reader: BufReader::new(stream), heads: Arc::default() };
            taken.request().unwrap();
            taken.answer("ok").unwrap();
            nobody
        });
        (format!("http://{address}"), leaving)
    }

    /// Answers each request with its body.
    pub(crate) fn echo() -> Upstream {
        Upstream::start(|taken| {
            let (_, body) = taken.request()?;
            taken.answer(&body)
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    /// The head of the last request.
    pub(crate) fn last(&self) -> String {
        self.heads().pop().unwrap()
    }
}

/// An address without a listener, reserved until dropped.
pub(crate) struct Nobody {
    address: SocketAddr,
    _bound: TcpSocket,
}

impl Nobody {
    pub(crate) fn anywhere() -> Nobody {
        Nobody::at("127.0.0.1:0".parse().unwrap())
    }

    /// Reserves an address whose listener has just closed.
    pub(crate) fn at(address: SocketAddr) -> Nobody {
        let bound = TcpSocket::new_v4().unwrap();
        bound.set_reuseaddr(true).unwrap();
        // A process that is being spawned shares the listener until it executes its own program.
        until("the address is free", || bound.bind(address).ok());
        Nobody { address: bound.local_addr().unwrap(), _bound: bound }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A gateway without rules in front of an upstream that records its requests.
pub(crate) struct Between {
    pub(crate) upstream: Upstream,
    pub(crate) gateway: Gateway,
}

impl Between {
    pub(crate) fn start() -> Between {
        let upstream = Upstream::echo();
        let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
        Between { upstream, gateway }
    }
}

impl Taken {
    /// The head of the next request, unchanged.
    pub(crate) fn head(&mut self) -> std::io::Result<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if self.reader.read_until(b'\n', &mut head)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        self.heads.lock().unwrap().push(head.clone());
        Ok(head)
    }

    /// The next request, with its body.
    pub(crate) fn request(&mut self) -> std::io::Result<(String, String)> {
        let head = self.head()?;
        let lower = head.to_ascii_lowercase();
        let field = |name: &str| lower.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let mut body = Vec::new();
        if let Some(length) = field("content-length:") {
            body.resize(length.parse().unwrap(), 0);
            self.reader.read_exact(&mut body)?;
        } else if field("transfer-encoding:") == Some("chunked") {
            loop {
                let mut line = String::new();
                self.reader.read_line(&mut line)?;
                let size = usize::from_str_radix(line.trim(), 16).unwrap();
                let mut chunk = vec![0; size + 2];
                self.reader.read_exact(&mut chunk)?;
                if size == 0 {
                    break;
                }
                body.extend_from_slice(&chunk[..size]);
            }
        }
        Ok((head, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Reads the next request. Returns the length of its body without storing it.
    pub(crate) fn body_length(&mut self) -> std::io::Result<usize> {
        let head = self.head()?.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        if let Some(length) = length {
            let length = length.trim().parse().unwrap();
            std::io::copy(&mut self.reader.by_ref().take(length as u64), &mut std::io::sink())?;
            return Ok(length);
        }
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            std::io::copy(&mut self.reader.by_ref().take(size as u64 + 2), &mut std::io::sink())?;
            if size == 0 {
                return Ok(length);
            }
            length += size;
        }
    }

    pub(crate) fn answer(&mut self, body: &str) -> std::io::Result<()> {
        self.write(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
    }

    pub(crate) fn write(&mut self, text: &str) -> std::io::Result<()> {
        self.reader.get_mut().write_all(text.as_bytes())
    }

    /// The next line, unchanged.
    pub(crate) fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line),
        }
    }

    /// Waits until the gateway closes the connection.
    pub(crate) fn until_closed(&mut self) {
        let _ = self.reader.read_to_end(&mut Vec::new());
    }

    pub(crate) fn close(&mut self) -> std::io::Result<()> {
        self.reader.get_mut().shutdown(std::net::Shutdown::Both)?;
        Err(std::io::ErrorKind::UnexpectedEof.into())
    }
}

/// The folder of Python packages that `tools/setup` installs.
fn python_packages() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).unwrap();
    let packages = cache.join("tidegate/python");
    assert!(packages.is_dir(), "there is no {}: run tools/setup", packages.display());
    packages
}

fn python_command(script: &str, args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", python_packages()).arg("-c").arg(script).args(args);
    command
}

/// Runs a Python script to its end, and returns its output.
pub(crate) fn python(script: &str, args: &[&str]) -> String {
    let output = python_command(script, args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Starts a Python script that runs until the test ends, and first prints its port.
pub(crate) fn python_server(script: &str) -> (Process, u16) {
    let mut process = Process(python_command(script, &[]).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (process, line.trim().parse().unwrap())
}
