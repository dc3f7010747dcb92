//! One server.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Connection, FromRedisValue, ToRedisArgs};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::ports;
use super::wait::until;

const PATIENCE: Duration = Duration::from_secs(5);

/// Whose server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Redis,
    Valkey,
}

impl Flavour {
    /// Those that this machine has. Redis is always among them: without it there is nothing to test.
    pub(crate) fn present() -> Vec<Flavour> {
        let valkey = on_path(Flavour::Valkey.program()).then_some(Flavour::Valkey);
        [Some(Flavour::Redis), valkey].into_iter().flatten().collect()
    }

    const fn program(self) -> &'static str {
        match self {
            Flavour::Redis => "redis-server",
            Flavour::Valkey => "valkey-server",
        }
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A server that keeps nothing on disk, and ends when this is dropped.
pub(crate) struct Server {
    flavour: Flavour,
    port: u16,
    folder: TempDir,
    arguments: &'static [&'static str],
    process: Child,
}

impl Server {
    /// A server as it comes.
    pub(crate) fn start() -> Server {
        Server::start_with("")
    }

    /// A server with more lines in its configuration.
    pub(crate) fn start_with(config: &str) -> Server {
        Server::start_as(Flavour::Redis, config)
    }

    pub(crate) fn start_as(flavour: Flavour, config: &str) -> Server {
        let server = Server::launch(flavour, config);
        server.wait_until_ready();
        server
    }

    /// Starts a server and does not wait for it, so that several can start together. In its configuration `{folder}` is
    /// the folder that it has to itself.
    pub(crate) fn launch(flavour: Flavour, config: &str) -> Server {
        Server::launch_at(flavour, ports::free(), config)
    }

    /// The same, on a port that one has already.
    pub(crate) fn launch_at(flavour: Flavour, port: u16, config: &str) -> Server {
        let common = format!(
            "port {port}\nbind 127.0.0.1\nsave \"\"\nappendonly no\ndaemonize no\nenable-debug-command yes\n\
             unixsocket {{folder}}/socket\nrepl-diskless-sync yes\nrepl-diskless-sync-delay 0\n\
             repl-ping-replica-period 1\n"
        );
        Server::launch_on(flavour, port, &[], &(common + config))
    }

    /// Starts a server with this configuration and no other.
    pub(crate) fn launch_on(flavour: Flavour, port: u16, arguments: &'static [&'static str], config: &str) -> Server {
        let folder = tempfile::tempdir().expect("a folder for a server");
        let path = folder.path().to_str().expect("a folder whose name is text");
        let config = config.replace("{folder}", path) + &format!("\ndir {path}\n");
        fs::write(folder.path().join("server.conf"), config).expect("a server's configuration");
        let process = spawn(flavour, folder.path(), arguments);
        Server { flavour, port, folder, arguments, process }
    }

    pub(crate) fn wait_until_ready(&self) {
        until("a server that answers", || self.try_run::<String>(&["PING"]).ok());
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    pub(crate) fn unix_socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// What the server has written about itself.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A connection of the test's own, through a client that is not ours.
    pub(crate) fn connect(&self) -> redis::RedisResult<Connection> {
        let connection = redis::Client::open(self.url())?.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    pub(crate) fn try_run<T: FromRedisValue>(&self, command: &[impl ToRedisArgs]) -> redis::RedisResult<T> {
        run_on(&mut self.connect()?, command)
    }

    /// Runs a command that must not fail.
    pub(crate) fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_run(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Ends the process with no warning, as a crash would, and forgets all that it held.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again on the same port, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        self.relaunch();
        self.wait_until_ready();
    }

    /// Starts it again on the same port, and does not wait.
    pub(crate) fn relaunch(&mut self) {
        self.kill();
        self.process = spawn(self.flavour, self.folder.path(), self.arguments);
    }

    /// Makes the process stand still: it neither answers nor goes away.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
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

fn spawn(flavour: Flavour, folder: &Path, arguments: &[&str]) -> Child {
    let log = File::options().create(true).append(true).open(folder.join("log")).expect("a server's log");
    Command::new(flavour.program())
        .arg(folder.join("server.conf"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a server's log"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{} does not start: {error}", flavour.program()))
}

/// Runs a command on a connection that one already has.
pub(crate) fn run_on<T: FromRedisValue>(
    connection: &mut Connection,
    command: &[impl ToRedisArgs],
) -> redis::RedisResult<T> {
    let mut words = redis::Cmd::new();
    for word in command {
        words.arg(word);
    }
    words.query(connection)
}
