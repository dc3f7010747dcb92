//! The gateway, nginx as a proxy, and nginx as the upstream, each in a separate process.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidegate::config::{Configuration, StartupArgs};
use tidegate::serve::{Server, Signals};

const ASKED: &str = "serve-gateway";

/// Three rules that match every request, and deny none.
pub const THREE_RULES: &str = "
rules:
  - { id: address, key: address, limit: 1000000/s burst 1000000 }
  - { id: host, key: host, limit: 1000000/s burst 1000000 }
  - { id: everyone, limit: gcra 10000000/s burst 1000000 }
";
/// Rules that deny nearly everything.
pub const FEW: &str = "rules: [{ id: few, key: address, limit: 1/h burst 1 }]";
pub const NONE: &str = "rules: []";

/// A token of `alice`, valid until 2100, signed with HS256 and [`SECRET`].
pub const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbGljZSIsImlzcyI6ImJlbmNoIiwiYXVkIjoiYmVuY2giLCJleHAiOjQxMDI0NDQ4MDB9.8NN_jij57CA76BZ9ADfyaMb9n4p7NAiU5H26sNafqEI";
const SECRET: &str = "tidegate-bench-secret-of-thirty-two-bytes!";

/// Headers that the gateway adds to forwarded responses.
#[derive(Clone, Copy)]
pub enum Headers {
    /// The default headers.
    Usual,
    /// No headers, like nginx.
    None,
}

impl Headers {
    const fn name(self) -> &'static str {
        match self {
            Headers::Usual => "usual-headers",
            Headers::None => "no-headers",
        }
    }
}

/// Whether this process was started as a server.
pub fn is_asked_for() -> bool {
    std::env::args().nth(1).as_deref() == Some(ASKED)
}

/// Serves until killed: the whole server, in its own runtime.
pub fn serve() {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [upstream, rules, headers, settings @ ..] = &arguments[..] else {
        panic!("an upstream, a rules file and a choice of headers")
    };
    let settings = settings.iter().filter_map(|setting| setting.split_once('='));
    let (x_ratelimit, ietf) = if headers == Headers::None.name() { ("off", "false") } else { ("delta", "true") };
    tidegate::serve::runtime().expect("a runtime").block_on(async {
        let any = "127.0.0.1:0".to_owned();
        let flags = [
            ("rules", rules.clone()),
            ("gateway.listen", any.clone()),
            ("gateway.upstream", upstream.clone()),
            ("gateway.connections", "100000".to_owned()),
            ("limits.header_time", "1h".to_owned()),
            ("headers.x_ratelimit", x_ratelimit.to_owned()),
            ("headers.ietf", ietf.to_owned()),
            ("api.listen", any.clone()),
            ("rls.listen", "off".to_owned()),
            ("resp.listen", "off".to_owned()),
            ("admin.listen", "off".to_owned()),
        ];
        let settings = settings.map(|(name, value)| (name, value.to_owned()));
        let flags = flags.into_iter().chain(settings).map(|(name, value)| (name.to_owned(), vec![value])).collect();
        let configuration =
            Configuration::load(&StartupArgs { file: None, flags }, &[]).expect("settings that make sense");
        let signals = Signals::receive().expect("signals");
        let server = Server::start(configuration).await.expect("a server");
        println!("{} {}", server.gateway().expect("the gateway"), server.api().expect("the API"));
        server.until_stopped(signals).await;
    });
}

/// A server that stops on drop.
pub struct Running {
    process: Child,
    pub address: SocketAddr,
    /// Address of Tidegate's HTTP API.
    pub api: SocketAddr,
    _files: Option<Files>,
}

impl Running {
    /// Tidegate's gateway.
    pub fn ours(upstream: SocketAddr, rules: &str, headers: Headers) -> Running {
        Running::ours_with(upstream, rules, headers, &[])
    }

    /// Tidegate's gateway with further settings, as `name=value`. A value `FOLDER/file` refers to a file in its folder,
    /// where `secret` is that of [`TOKEN`].
    pub fn ours_with(upstream: SocketAddr, rules: &str, headers: Headers, settings: &[&str]) -> Running {
        let files = Files::new(&[("rules.yaml", rules), ("secret", SECRET)]);
        let program = std::env::current_exe().expect("this program");
        let mut command = pinned(0, program);
        command.args([ASKED, &format!("http://{upstream}")]).arg(files.0.join("rules.yaml"));
        let folder = files.0.display().to_string();
        command.arg(headers.name()).args(settings.iter().map(|setting| setting.replace("FOLDER", &folder)));
        command.stdout(Stdio::piped());
        let mut process = command.spawn().expect("taskset is installed");
        let line = BufReader::new(process.stdout.take().expect("its output")).lines().next();
        let line = line.expect("a line").expect("text");
        let (address, api) = line.split_once(' ').expect("two addresses");
        let parse = |text: &str| text.parse().expect("an address");
        Running { process, address: parse(address), api: parse(api), _files: Some(files) }
    }

    /// nginx as a reverse proxy, with these directives in front of `proxy_pass`.
    pub fn nginx_proxy(upstream: SocketAddr, zone: &str, limit: &str) -> Running {
        let http = format!(
            "{zone} upstream back {{ server {upstream}; keepalive 256; keepalive_requests 1000000000; }}
             server {{ listen 127.0.0.1:PORT backlog=4096; keepalive_requests 1000000000; {limit}
             location / {{ proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection \"\";
             proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header Host $http_host; }} }}"
        );
        Running::nginx(0, &http)
    }

    /// The upstream, on the core of the load: nginx, which responds with a few bytes.
    pub fn upstream() -> Running {
        Running::upstream_on(1)
    }

    /// The upstream, on this core.
    pub fn upstream_on(core: usize) -> Running {
        let http = "server { listen 127.0.0.1:PORT backlog=4096; keepalive_requests 1000000000; root .;
            location / { return 200 \"hello, world\\n\"; } location /file { try_files /large.txt =404; } }";
        Running::nginx(core, http)
    }

    fn nginx(core: usize, http: &str) -> Running {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|kind| format!("{kind}_temp_path {kind};"));
        let text = format!(
            "daemon off; worker_processes 1; pid nginx.pid; error_log error.log; worker_rlimit_nofile 100000; user root;
             events {{ worker_connections 50000; }}
             http {{ access_log off; {} client_header_timeout 1h; {} }}",
            temp.join(" "),
            http.replace("PORT", &port.to_string())
        );
        let files = Files::new(&[("nginx.conf", &text), ("large.txt", &"x".repeat(100_000))]);
        let mut command = pinned(core, "nginx");
        command.args(["-e", "error.log", "-c", "nginx.conf", "-p"]).arg(&files.0).current_dir(&files.0);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nginx is installed");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let nginx = Running { process, address, api: address, _files: Some(files) };
        for _ in 0..1_000 {
            if TcpStream::connect(address).is_ok() {
                return nginx;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("nginx does not listen");
    }

    /// Processor time used by the server's threads so far.
    pub fn processor_time(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("its threads");
        let used = tasks.filter_map(|task| {
            let schedule = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            schedule.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(used.sum())
    }

    /// Resident memory in bytes, including child processes.
    pub fn resident(&self) -> u64 {
        let pid = self.process.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let all = std::iter::once(pid.to_string()).chain(children.split_whitespace().map(str::to_owned));
        all.map(|pid| {
            let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
            let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
            pages * rustix::param::page_size() as u64
        })
        .sum()
    }

    /// Pauses the server. Requests wait until it continues.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.process.id().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // nginx stops its workers only on SIGTERM, and a paused process does not handle it.
        self.signal(Signal::TERM);
        self.go_on();
        let _ = self.process.wait();
    }
}

/// A temporary folder, removed on drop.
struct Files(PathBuf);

impl Files {
    fn new(files: &[(&str, &str)]) -> Files {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidegate-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        // Logs are in a subfolder, because the server watches the folder of the rules.
        std::fs::create_dir_all(folder.join("logs")).expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.join(name), text).expect("a file");
        }
        Files(folder)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn pinned(core: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(program);
    command
}
