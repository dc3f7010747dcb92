//! The programs of a soak: servers of ours, a Redis with a replica and a sentinel, upstreams.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::clients::Resp;

/// The name by which the sentinel knows the primary.
const PRIMARY: &str = "soak";
/// How long programs may take to come up, to take over and to end. A busy machine may take its time.
const PATIENCE: Duration = Duration::from_secs(60);
/// A sentinel that has not promoted anybody by then is asked again.
const FAILOVER_TIME: Duration = Duration::from_secs(10);

pub(crate) fn until<T>(what: &str, mut so: impl FnMut() -> Option<T>) -> T {
    let pause = Duration::from_millis(20);
    for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
        if let Some(found) = so() {
            return found;
        }
        std::thread::sleep(pause);
    }
    panic!("in vain: {what}");
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), port)
}

/// A process that ends with this.
pub(crate) struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Process {
        Process(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A primary, a replica, and the sentinel that promotes the one when the other is gone.
pub(crate) struct Redis {
    folder: PathBuf,
    servers: [(u16, Process); 2],
    sentinel: (u16, Process),
}

impl Redis {
    pub(crate) fn start(folder: &Path) -> Redis {
        let (first, second, sentinel) = (free_port(), free_port(), free_port());
        let servers = [(first, server(folder, first, None)), (second, server(folder, second, Some(first)))];
        let file = folder.join("sentinel.conf");
        let text = format!(
            "port {sentinel}\nbind 127.0.0.1\nsentinel monitor {PRIMARY} 127.0.0.1 {first} 1\n\
             sentinel down-after-milliseconds {PRIMARY} 1000\nsentinel failover-timeout {PRIMARY} 3000\n"
        );
        fs::write(&file, text).unwrap();
        let mut command = Command::new("redis-server");
        command.arg(&file).arg("--sentinel").current_dir(folder).stdout(Stdio::null());
        let redis = Redis { folder: folder.to_owned(), servers, sentinel: (sentinel, Process::start(&mut command)) };
        until("a replica that the sentinel knows", || redis.knows_a_replica());
        redis
    }

    pub(crate) fn sentinel_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.sentinel.0)
    }

    pub(crate) const fn primary_name() -> &'static str {
        PRIMARY
    }

    fn knows_a_replica(&self) -> Option<()> {
        let mut sentinel = Resp::connect(local(self.sentinel.0)).ok()?;
        let said = sentinel.ask(&format!("SENTINEL REPLICAS {PRIMARY}")).ok()?;
        (said.contains("master-link-status") && said.contains("\nok")).then_some(())
    }

    /// How often a replica was promoted.
    pub(crate) fn promotions(&self) -> u64 {
        let mut sentinel = Resp::connect(local(self.sentinel.0)).unwrap();
        let said = sentinel.ask(&format!("SENTINEL MASTER {PRIMARY}")).unwrap();
        let mut lines = said.lines().skip_while(|line| *line != "config-epoch");
        lines.nth(2).and_then(|epoch| epoch.parse().ok()).unwrap_or_else(|| panic!("{said}"))
    }

    fn primary_port(&self) -> Option<u16> {
        let mut sentinel = Resp::connect(local(self.sentinel.0)).ok()?;
        let said = sentinel.ask(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {PRIMARY}")).ok()?;
        said.lines().rev().find_map(|line| line.trim().parse().ok())
    }

    fn primary(&mut self) -> &mut (u16, Process) {
        let port = until("a primary", || self.primary_port());
        let place = self.servers.iter().position(|(known, _)| *known == port).unwrap();
        &mut self.servers[place]
    }

    /// Has the primary stand still, for less time than the sentinel takes to notice.
    pub(crate) fn pause_primary(&mut self) {
        let (_, process) = self.primary();
        process.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(400));
        process.signal(Signal::CONT);
    }

    /// Kills the primary. The other one is promoted, and the killed one comes back as its replica.
    pub(crate) fn kill_primary(&mut self) {
        let folder = self.folder.clone();
        let (killed, process) = self.primary();
        let killed = *killed;
        process.kill();
        let promoted = until("a promotion", || self.primary_port().filter(|port| *port != killed));
        let place = self.servers.iter().position(|(port, _)| *port == killed).unwrap();
        self.servers[place].1 = server(&folder, killed, Some(promoted));
        until("the replica's return", || self.knows_a_replica());
    }

    /// Has the sentinel promote the replica while the primary is well.
    pub(crate) fn fail_over(&mut self) {
        let (before, _) = *self.primary();
        let mut sentinel = Resp::connect(local(self.sentinel.0)).unwrap();
        // It refuses for a while after another one, and gives up if the replica does not answer in time.
        let mut asked: Option<Instant> = None;
        until("a promotion", || {
            if asked.is_none_or(|asked| asked.elapsed() > FAILOVER_TIME) {
                let said = sentinel.ask(&format!("SENTINEL FAILOVER {PRIMARY}")).ok()?;
                asked = said.starts_with("+OK").then(Instant::now);
            }
            self.primary_port().filter(|port| *port != before)
        });
        until("the replica's return", || self.knows_a_replica());
    }
}

fn server(folder: &Path, port: u16, replica_of: Option<u16>) -> Process {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--repl-diskless-sync-delay", "0", "--dir"]).arg(folder).stdout(Stdio::null());
    if let Some(primary) = replica_of {
        command.args(["--replicaof", "127.0.0.1", &primary.to_string()]);
    }
    let process = Process::start(&mut command);
    until("Redis", || Resp::connect(local(port)).ok()?.ask("PING").ok()?.starts_with("+PONG").then_some(()));
    process
}

/// An nginx that answers with a few bytes, or with many.
pub(crate) struct Upstream {
    folder: PathBuf,
    pub(crate) address: SocketAddr,
    process: Process,
}

impl Upstream {
    pub(crate) fn start(folder: &Path, name: &str) -> Upstream {
        let (folder, address) = (folder.join(name), local(free_port()));
        fs::create_dir_all(&folder).unwrap();
        let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|kind| format!("{kind}_temp_path {kind};"));
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log; events {{ worker_connections 4096; }}
             http {{ access_log off; {} server {{ listen {address}; root .;
             location / {{ return 200 ok; }} location /large {{ try_files /large.txt =404; }} }} }}",
            temp.join(" ")
        );
        fs::write(folder.join("nginx.conf"), text).unwrap();
        fs::write(folder.join("large.txt"), "x".repeat(300_000)).unwrap();
        let process = nginx(&folder, address);
        Upstream { folder, address, process }
    }

    /// Dies, is gone for a moment, and comes back.
    pub(crate) fn restart(&mut self) {
        self.process.kill();
        std::thread::sleep(Duration::from_millis(500));
        self.process = nginx(&self.folder, self.address);
    }
}

fn nginx(folder: &Path, address: SocketAddr) -> Process {
    let mut command = Command::new("nginx");
    command.args(["-e", "error.log", "-c", "nginx.conf", "-p"]).arg(folder).current_dir(folder);
    let process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    until("nginx", || TcpStream::connect(address).ok());
    process
}

/// A server of ours, with what it logs.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    process: Process,
    banner: String,
    log: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

impl Server {
    /// Runs `program serve` with all listeners at free ports.
    pub(crate) fn start(program: &Path, folder: &Path, name: &'static str, arguments: &[&str]) -> Server {
        let mut command = Command::new(program);
        command.arg("serve").current_dir(folder);
        for listener in ["api", "rls", "resp", "admin"] {
            command.args([&format!("--{listener}-listen"), "127.0.0.1:0"]);
        }
        command.args(arguments).args(["--admin-open-metrics", "true"]);
        let mut process = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let log = Arc::new(Mutex::new(String::new()));
        let (mut stderr, written) = (process.0.stderr.take().unwrap(), Arc::clone(&log));
        let reading = std::thread::spawn(move || {
            let mut bytes = [0; 8_192];
            while let Ok(read @ 1..) = stderr.read(&mut bytes) {
                written.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("\nStop with") {
            assert!(stdout.read_line(&mut banner).unwrap() > 0, "{name} ended early: {}", log.lock().unwrap());
        }
        Server { name, process, banner, log, reading }
    }

    /// Where the banner says that a listener is.
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        let (_, rest) = self.banner.split_once(&format!("\n  {name} ")).unwrap();
        let words = rest.lines().next().unwrap().split([' ', ',', '/']);
        words.filter_map(|word| word.parse().ok()).next().unwrap_or_else(|| panic!("{}", self.banner))
    }

    /// Bytes of memory that it occupies.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
    }

    /// Has it end, and returns what it logged.
    pub(crate) fn stop(mut self) -> String {
        self.process.signal(Signal::TERM);
        let status = until("the server's end", || self.process.0.try_wait().unwrap());
        self.reading.join().unwrap();
        let log = self.log.lock().unwrap().clone();
        assert!(status.success(), "{} ends with {status}: {log}", self.name);
        log
    }
}
