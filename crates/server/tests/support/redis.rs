//! A real Redis.
#![allow(dead_code, unreachable_pub, reason = "not every test needs everything")]
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A Redis with a socket in a folder of its own. Ends when dropped.
pub struct Redis {
    process: Child,
    folder: TempDir,
}

impl Redis {
    pub fn start() -> Redis {
        let folder = tempfile::tempdir().unwrap();
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(folder.path())
            .arg("--unixsocket")
            .arg(folder.path().join("socket"))
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let redis = Redis { process, folder };
        let client = redis::Client::open(redis.url()).unwrap();
        let answers =
            || client.get_connection().is_ok_and(|mut connection| redis::cmd("PING").exec(&mut connection).is_ok());
        let answered = (0..12_000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            answers()
        });
        assert!(answered, "Redis does not answer");
        redis
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    /// What it answers to a command.
    pub fn run<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut connection = redis::Client::open(self.url()).unwrap().get_connection().unwrap();
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(*word);
        });
        command.query(&mut connection).unwrap()
    }

    /// Has it stand still: it answers nothing, and its connections stay open.
    pub fn pause(&self) {
        kill_process(Pid::from_child(&self.process), Signal::STOP).unwrap();
    }

    pub fn go_on(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).unwrap();
    }

    /// How often a script was called there, as it counts itself.
    pub fn calls(&self) -> u64 {
        let mut connection = redis::Client::open(self.url()).unwrap().get_connection().unwrap();
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
        line.and_then(|line| line.split(['=', ',']).nth(1)).map_or(0, |calls| calls.parse().unwrap())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
