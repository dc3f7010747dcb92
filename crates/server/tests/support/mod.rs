//! The real server, for tests that send requests to it.
#![allow(dead_code, unreachable_pub, reason = "not every test needs everything")]
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

pub(crate) mod browser;
pub(crate) mod certificates;
pub(crate) mod ran;
pub(crate) mod spellings;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Waits until a condition holds, with a timeout that is long enough for a busy machine.
pub fn until<T>(what: &str, mut so: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3_000 {
        if let Some(found) = so() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("in vain: {what}");
}

/// A folder with these files.
pub fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// The program in a folder, without settings from the environment of the test run.
pub fn tidegate(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.current_dir(folder).env_remove("CLICOLOR_FORCE");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGATE_")) {
        command.env_remove(name);
    }
    command
}

/// A server that runs until dropped.
pub struct Server {
    process: Process,
    pub folder: TempDir,
    /// The banner that it printed.
    pub banner: String,
    pub address: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Runs `tidegate serve` with these files and arguments, on a free port.
    pub fn start(files: &[(&str, &str)], args: &[&str]) -> Server {
        Server::start_with(files, args, &[])
    }

    pub fn start_with(files: &[(&str, &str)], args: &[&str], variables: &[(&str, &str)]) -> Server {
        let folder = folder(files);
        let command = tidegate(folder.path());
        Server::run(command, folder, args, variables)
    }

    /// Like [`Server::start`], with this limit on open files.
    pub fn start_with_files(most: u32, args: &[&str]) -> Server {
        Server::start_by(&format!("ulimit -n {most} && exec"), &[], args)
    }

    /// Like [`Server::start`], with a standard error that is not read until [`Server::read_log`].
    pub fn start_unread(files: &[(&str, &str)], args: &[&str]) -> Server {
        let folder = folder(files);
        let command = tidegate(folder.path());
        Server::run_unread(command, folder, args, &[])
    }

    /// Like [`Server::start`], on one of the available cores.
    pub fn start_on_one_core(files: &[(&str, &str)], args: &[&str]) -> Server {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        let first = cores.trim().split([',', '-']).next().unwrap();
        Server::start_by(&format!("exec taskset -c {first}"), files, args)
    }

    /// Like [`Server::start`], with this text before the command in a shell.
    fn start_by(shell: &str, files: &[(&str, &str)], args: &[&str]) -> Server {
        let folder = folder(files);
        let program = tidegate(folder.path());
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{shell} \"$0\" \"$@\"")]).arg(program.get_program());
        command.current_dir(folder.path());
        Server::run(command, folder, args, &[])
    }

    fn run(command: Command, folder: TempDir, args: &[&str], variables: &[(&str, &str)]) -> Server {
        let mut server = Server::run_unread(command, folder, args, variables);
        server.read_log();
        server
    }

    /// Starts reading the server's log.
    pub fn read_log(&mut self) {
        let (mut stderr, written) = (self.process.0.stderr.take().unwrap(), Arc::clone(&self.log));
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(read @ 1..) = stderr.read(&mut bytes) {
                written.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
    }

    fn run_unread(mut command: Command, folder: TempDir, args: &[&str], variables: &[(&str, &str)]) -> Server {
        // Tests that need another address use a flag, which takes precedence over the variable.
        command.env("TIDEGATE_ADMIN_LISTEN", "127.0.0.1:0");
        command
            .args([
                "serve",
                "--api-listen",
                "127.0.0.1:0",
                "--rls-listen",
                "127.0.0.1:0",
                "--resp-listen",
                "127.0.0.1:0",
            ])
            .args(args)
            .envs(variables.iter().copied());
        let mut process = Process(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
        let mut banner = String::new();
        let is_whole =
            |banner: &str| banner.contains("\nStop with") || (banner.starts_with('{') && banner.ends_with('\n'));
        while !is_whole(&banner) {
            let read = stdout.read_line(&mut banner).unwrap();
            if read == 0 {
                let mut said = String::new();
                let _ = process.0.stderr.take().unwrap().read_to_string(&mut said);
                panic!("it ended early: {banner}{said}");
            }
        }
        if let Ok(said) = serde_json::from_str::<Value>(&banner) {
            // In the form for people, for tests that look for addresses in it.
            for (listener, name) in
                [("gateway", "Gateway"), ("api", "HTTP"), ("rls", "Envoy"), ("resp", "Redis"), ("admin", "Admin")]
            {
                if let Some(address) = said["listeners"][listener].as_str() {
                    banner.push_str(&format!("\n  {name}  http://{address}\n"));
                }
            }
        }
        let (_, http) = banner.split_once("\n  HTTP ").unwrap();
        let (_, url) = http.split_once("://").unwrap();
        let address = url.lines().next().unwrap().trim().parse().unwrap();
        Server { process, folder, banner, address, log: Arc::default() }
    }

    /// Address of a listener in the banner: `Envoy`, `Redis` or `Admin`.
    pub fn listener(&self, name: &str) -> SocketAddr {
        let (_, rest) = self.banner.split_once(&format!("\n  {name} ")).unwrap();
        let words = rest.lines().next().unwrap().split([' ', ',', '/']);
        words.filter_map(|word| word.parse().ok()).next().unwrap_or_else(|| panic!("{}", self.banner))
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn get(&self, path: &str) -> Answer {
        let mut request = agent().get(self.url(path));
        request = request.header("accept", "*/*");
        Answer::of(request.call())
    }

    pub fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let request =
            headers.iter().fold(agent().get(self.url(path)), |request, (name, value)| request.header(*name, *value));
        Answer::of(request.call())
    }

    /// GET from another listener, by its complete URL.
    pub fn get_from(&self, url: &str, headers: &[(&str, &str)]) -> Answer {
        let request = headers.iter().fold(agent().get(url), |request, (name, value)| request.header(*name, *value));
        Answer::of(request.call())
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        self.post_with(path, &[("content-type", "application/json")], body)
    }

    /// POST with these headers. Without a content type, the body is plain text.
    pub fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.post_to(&self.url(path), headers, body)
    }

    /// POST to another listener, by its complete URL.
    pub fn post_to(&self, url: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let request = agent().post(url);
        Answer::of(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send(body))
    }

    pub fn check(&self, body: &str) -> Value {
        self.post("/v1/check", body).good()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.0), signal).unwrap();
    }

    /// Waits until the server ends.
    pub fn ended(&mut self) -> ExitStatus {
        let child = &mut self.process.0;
        until("the server's end", || child.try_wait().unwrap())
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(60)))
        .build()
        .into()
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Answer {
    fn of(answer: Result<http::Response<ureq::Body>, ureq::Error>) -> Answer {
        let mut answer = answer.unwrap();
        let headers =
            answer.headers().iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
        Answer {
            status: answer.status().as_u16(),
            headers: headers.collect(),
            body: answer.body_mut().read_to_string().unwrap(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The JSON of a successful response.
    pub fn good(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A process that is killed on drop.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free when it was chosen.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
