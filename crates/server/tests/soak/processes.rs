//! Processes of a soak test: servers, a Redis with a replica and a sentinel, upstreams.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tidegate_test_support::free_port as free_redis_port;
use tidegate_test_support::redis::{Flavour, Server as RedisServer};

/// The sentinel's name for the primary.
const PRIMARY: &str = "soak";
/// The longest time that programs may take to start, to take over and to end. It is long because machines may be busy.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A sentinel that has not promoted anybody by then is asked again.
const FAILOVER_TIME: Duration = Duration::from_secs(10);

pub(crate) fn until<T>(what: &str, mut so: impl FnMut() -> Option<T>) -> T {
    let pause = Duration::from_millis(20);
    for _ in 0..TIMEOUT.as_millis() / pause.as_millis() {
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

/// A process that is killed on drop.
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

/// A primary, a replica, and the sentinel that promotes the replica if the primary fails.
pub(crate) struct Redis {
    servers: [RedisServer; 2],
    sentinel: RedisServer,
}

impl Redis {
    pub(crate) fn start() -> Redis {
        let primary = RedisServer::start();
        let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}\n", primary.port()));
        let port = free_redis_port();
        let config = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor {PRIMARY} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {PRIMARY} 1000\nsentinel failover-timeout {PRIMARY} 3000\n",
            primary.port()
        );
        let sentinel = RedisServer::launch_on(Flavour::Redis, port, &["--sentinel"], &config);
        let redis = Redis { servers: [primary, replica], sentinel };
        until("a replica that the sentinel knows", || redis.knows_a_replica());
        redis
    }

    pub(crate) fn sentinel_url(&self) -> String {
        self.sentinel.url()
    }

    pub(crate) const fn primary_name() -> &'static str {
        PRIMARY
    }

    fn knows_a_replica(&self) -> Option<()> {
        let replicas =
            self.sentinel.try_run::<Vec<HashMap<String, String>>>(&["SENTINEL", "REPLICAS", PRIMARY]).ok()?;
        let linked =
            |replica: &HashMap<String, String>| replica.get("master-link-status").is_some_and(|link| link == "ok");
        replicas.iter().any(linked).then_some(())
    }

    /// The number of promotions so far.
    pub(crate) fn promotions(&self) -> u64 {
        let about: HashMap<String, String> = self.sentinel.run(&["SENTINEL", "MASTER", PRIMARY]);
        about["config-epoch"].parse().unwrap()
    }

    fn primary_port(&self) -> Option<u16> {
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY];
        self.sentinel.try_run::<(String, u16)>(&ask).ok().map(|(_, port)| port)
    }

    fn primary(&mut self) -> &mut RedisServer {
        let port = until("a primary", || self.primary_port());
        let place = self.servers.iter().position(|server| server.port() == port).unwrap();
        &mut self.servers[place]
    }

    /// Suspends the primary for less time than the sentinel takes to notice.
    pub(crate) fn pause_primary(&mut self) {
        let primary = self.primary();
        primary.freeze();
        std::thread::sleep(Duration::from_millis(400));
        primary.thaw();
    }

    /// Kills the primary. The replica is promoted, and the killed server returns as its replica.
    pub(crate) fn kill_primary(&mut self) {
        let primary = self.primary();
        let killed = primary.port();
        primary.kill();
        until("a promotion", || self.primary_port().filter(|port| *port != killed));
        let returning = self.servers.iter_mut().find(|server| server.port() == killed).unwrap();
        returning.restart();
        until("the replica's return", || self.knows_a_replica());
    }

    /// Makes the sentinel promote the replica while the primary is healthy.
    pub(crate) fn fail_over(&mut self) {
        let before = self.primary().port();
        // The sentinel refuses for a while after a failover, and gives up if the replica does not respond in time.
        let mut asked: Option<Instant> = None;
        until("a promotion", || {
            if asked.is_none_or(|asked| asked.elapsed() > FAILOVER_TIME) {
                let begun = self.sentinel.try_run::<String>(&["SENTINEL", "FAILOVER", PRIMARY]);
                asked = begun.is_ok().then(Instant::now);
            }
            self.primary_port().filter(|port| *port != before)
        });
        until("the replica's return", || self.knows_a_replica());
    }
}

/// An nginx that responds with a few bytes, or with many.
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

    /// Kills the upstream, and restarts it after a moment.
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

/// A Tidegate server, with its log.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    process: Process,
    banner: String,
    log: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

impl Server {
    /// Runs `program serve` with all listeners on free ports.
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

    /// Address of a listener, from the banner.
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        let (_, rest) = self.banner.split_once(&format!("\n  {name} ")).unwrap();
        let words = rest.lines().next().unwrap().split([' ', ',', '/']);
        words.filter_map(|word| word.parse().ok()).next().unwrap_or_else(|| panic!("{}", self.banner))
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
    }

    /// Stops the server, and returns its log.
    pub(crate) fn stop(mut self) -> String {
        self.process.signal(Signal::TERM);
        let status = until("the server's end", || self.process.0.try_wait().unwrap());
        self.reading.join().unwrap();
        let log = self.log.lock().unwrap().clone();
        assert!(status.success(), "{} ends with {status}: {log}", self.name);
        log
    }
}
