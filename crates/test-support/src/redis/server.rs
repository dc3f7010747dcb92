//! A single server.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use redis::{Connection, FromRedisValue, ToRedisArgs};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{free_port, until};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Environment variable with the program to use instead of `redis-server`: another version, or Valkey.
const PROGRAM: &str = "TIDEGATE_TEST_REDIS_SERVER";

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// `redis-server`, or the program in `TIDEGATE_TEST_REDIS_SERVER`.
    Redis,
    /// `valkey-server`.
    Valkey,
}

impl Flavour {
    /// The installed kinds. Always contains Redis, without which there is nothing to test.
    pub fn present() -> Vec<Flavour> {
        let valkey = on_path(&Flavour::Valkey.program()).then_some(Flavour::Valkey);
        [Some(Flavour::Redis), valkey].into_iter().flatten().collect()
    }

    fn program(self) -> OsString {
        match self {
            Flavour::Redis => std::env::var_os(PROGRAM).unwrap_or_else(|| "redis-server".into()),
            Flavour::Valkey => "valkey-server".into(),
        }
    }

    /// Settings that tests need and that older servers do not support. Older servers behave in this way by default.
    fn newer_settings(self) -> &'static str {
        static REDIS: OnceLock<bool> = OnceLock::new();
        let is_old = |flavour: Flavour| {
            let output = Command::new(flavour.program()).arg("--version").output().expect("a server's version");
            String::from_utf8_lossy(&output.stdout).contains(" v=6.")
        };
        if self == Flavour::Redis && *REDIS.get_or_init(|| is_old(self)) { "" } else { "enable-debug-command yes\n" }
    }
}

fn on_path(program: &OsStr) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A server without persistence, which is stopped when this is dropped.
#[derive(Debug)]
pub struct Server {
    flavour: Flavour,
    port: u16,
    folder: TempDir,
    arguments: &'static [&'static str],
    /// A program that runs the server, such as `taskset`, with its arguments.
    runner: &'static [&'static str],
    process: Child,
}

impl Server {
    /// Starts a server with the default configuration.
    pub fn start() -> Server {
        Server::start_with("")
    }

    /// Starts a server with additional lines in its configuration.
    pub fn start_with(config: &str) -> Server {
        Server::start_as(Flavour::Redis, config)
    }

    /// Starts a server of this kind with additional lines in its configuration.
    pub fn start_as(flavour: Flavour, config: &str) -> Server {
        let server = Server::launch(flavour, config);
        server.wait_until_ready();
        server
    }

    /// Starts a server without waiting for it, so that several can start concurrently. In the configuration, `{folder}`
    /// stands for the server's folder.
    pub fn launch(flavour: Flavour, config: &str) -> Server {
        Server::launch_at(flavour, free_port(), config)
    }

    /// Like [`launch`](Self::launch), on this port.
    pub fn launch_at(flavour: Flavour, port: u16, config: &str) -> Server {
        let common = format!(
            "port {port}\nbind 127.0.0.1\nsave \"\"\nappendonly no\ndaemonize no\n\
             unixsocket {{folder}}/socket\nrepl-diskless-sync yes\nrepl-diskless-sync-delay 0\n\
             repl-ping-replica-period 1\n"
        );
        Server::launch_on(flavour, port, &[], &(common + flavour.newer_settings() + config))
    }

    /// Starts a server on the first CPU core and waits until it answers.
    pub fn start_pinned() -> Server {
        let mut server = Server::launch(Flavour::Redis, "");
        server.runner = &["taskset", "-c", "0"];
        server.restart();
        server
    }

    /// Starts a server with only this configuration.
    pub fn launch_on(flavour: Flavour, port: u16, arguments: &'static [&'static str], config: &str) -> Server {
        let folder = tempfile::tempdir().expect("a folder for a server");
        let path = folder.path().to_str().expect("a folder whose name is text");
        let config = config.replace("{folder}", path) + &format!("\ndir {path}\n");
        fs::write(folder.path().join("server.conf"), config).expect("a server's configuration");
        let process = spawn(flavour, folder.path(), arguments, &[]);
        Server { flavour, port, folder, arguments, runner: &[], process }
    }

    /// Polls until the server answers.
    pub fn wait_until_ready(&self) {
        until("a server that answers", || self.try_run::<String>(&["PING"]).ok());
    }

    /// The process id.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// The server's folder: configuration, log and socket.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The TCP port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The path of the Unix socket.
    pub fn unix_socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// `unix:///path/to/socket`.
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.unix_socket().display())
    }

    /// The server's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A connection of the `redis` crate, which is independent of our client.
    ///
    /// # Errors
    /// Fails if the server cannot be reached within a few seconds.
    pub fn connect(&self) -> redis::RedisResult<Connection> {
        let connection = redis::Client::open(self.url())?.get_connection_with_timeout(TIMEOUT)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        Ok(connection)
    }

    /// Runs a command on a new connection.
    ///
    /// # Errors
    /// Fails if the server does not answer, or answers with an error.
    pub fn try_run<T: FromRedisValue>(&self, command: &[impl ToRedisArgs]) -> redis::RedisResult<T> {
        run_on(&mut self.connect()?, command)
    }

    /// Runs a command that must not fail.
    ///
    /// # Panics
    /// Panics if the command fails.
    pub fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_run(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Kills the process, like a crash. Its data is lost.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Restarts the server on the same port, and waits until it answers.
    pub fn restart(&mut self) {
        self.relaunch();
        self.wait_until_ready();
    }

    /// Restarts the server on the same port, without waiting for it.
    pub fn relaunch(&mut self) {
        self.kill();
        self.process = spawn(self.flavour, self.folder.path(), self.arguments, self.runner);
    }

    /// Suspends the process: it does not answer, but its connections stay open.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a suspended process.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// The number of calls of a script, according to the server's statistics.
    pub fn script_calls(&self) -> u64 {
        let stats: String = self.run(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
        line.and_then(|line| line.split(['=', ',']).nth(1)).map_or(0, |calls| calls.parse().expect("a count"))
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("a signal to a server of ours");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(flavour: Flavour, folder: &Path, arguments: &[&str], runner: &[&str]) -> Child {
    let log = File::options().create(true).append(true).open(folder.join("log")).expect("a server's log");
    let program = flavour.program();
    let words: Vec<&OsStr> = runner.iter().map(OsStr::new).chain([program.as_os_str()]).collect();
    Command::new(words[0])
        .args(&words[1..])
        .arg(folder.join("server.conf"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a server's log"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()))
}

/// Runs a command on an open connection.
///
/// # Errors
/// Fails if the server does not answer, or answers with an error.
pub fn run_on<T: FromRedisValue>(connection: &mut Connection, command: &[impl ToRedisArgs]) -> redis::RedisResult<T> {
    let mut words = redis::Cmd::new();
    for word in command {
        words.arg(word);
    }
    words.query(connection)
}
