//! Notifications of a service manager such as systemd, also of a successor.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Stdio;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Process, Server, folder, free_port, tidegate, until};

const RULES: &str = "rules: [{ id: quota, limit: fixed 1000000/year }]";

fn told(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    let length = manager.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

/// A process that is no child of the test, until this is dropped.
struct Successor(Pid);

impl Successor {
    fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).unwrap();
    }

    /// Whether it has ended. Nobody may have waited for it yet.
    fn is_gone(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.as_raw_nonzero())).unwrap_or_default();
        status.is_empty() || status.contains("State:\tZ")
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.is_gone() {
            let _ = kill_process(self.0, Signal::KILL);
        }
    }
}

/// Remaining requests after one more.
fn left(port: u16) -> u64 {
    let url = format!("http://127.0.0.1:{port}/v1/check");
    let mut response = ureq::post(url).header("content-type", "application/json").send("{}").unwrap();
    let answer: serde_json::Value = serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap();
    answer["limits"][0]["remaining"].as_u64().unwrap()
}

#[test]
fn a_service_manager_is_told_of_each_step_and_of_a_successor_before_the_first_process_ends() {
    let folder = folder(&[("rules.yaml", RULES)]);
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let port = free_port();
    let mut command = tidegate(folder.path());
    command.args(["serve", "--rules", "rules.yaml", "--api-listen", &format!("127.0.0.1:{port}")]);
    command.args([
        "--rls-listen",
        "off",
        "--resp-listen",
        "off",
        "--admin-listen",
        "off",
        "--handover",
        "handover.sock",
        "--limits-stop-delay",
        "1h",
    ]);
    command.env("NOTIFY_SOCKET", folder.path().join("notify")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut first = Process(command.spawn().unwrap());
    assert_eq!(told(&manager), "READY=1");
    let mut before = left(port);
    let mut decided = || {
        let left = left(port);
        assert_eq!(left, before - 1, "every request is decided, and counted once");
        before = left;
    };
    kill_process(Pid::from_child(&first.0), Signal::HUP).unwrap();
    assert_eq!([told(&manager), told(&manager)], ["RELOADING=1", "READY=1"]);
    decided();

    kill_process(Pid::from_child(&first.0), Signal::USR2).unwrap();
    let named = told(&manager);
    let pid: i32 = named.strip_prefix("MAINPID=").unwrap_or_else(|| panic!("{named}")).parse().unwrap();
    let successor = Successor(Pid::from_raw(pid).unwrap());
    assert_ne!(pid, Pid::from_child(&first.0).as_raw_nonzero().get());
    assert_eq!(told(&manager), "READY=1");
    let status = until("the end of the first", || first.0.try_wait().unwrap());
    assert!(status.success(), "{status}");
    decided();

    successor.signal(Signal::TERM);
    assert_eq!(told(&manager), "STOPPING=1");
    // Told at once, and not after the delay.
    decided();
    successor.signal(Signal::TERM);
    until("the end of the successor", || successor.is_gone().then_some(()));
    manager.set_nonblocking(true).unwrap();
    assert!(manager.recv(&mut [0; 256]).is_err(), "the first process did not say that the service stops");
}

#[test]
fn a_successor_that_does_not_come_up_changes_nothing() {
    let rules = [("rules.yaml", RULES)];
    let server = Server::start(&rules, &["--rules", "rules.yaml", "--handover", "handover.sock"]);
    std::fs::write(server.path("rules.yaml"), "rules: [").unwrap();
    for _ in 0..2 {
        let ended = || server.log().matches("the successor has ended").count();
        let before = ended();
        server.signal(Signal::USR2);
        until("its end", || (ended() > before).then_some(()));
        assert_eq!(server.check("{}")["allowed"], true);
    }
    let without = Server::start(&rules, &["--rules", "rules.yaml"]);
    without.signal(Signal::USR2);
    until("the error", || without.log().contains("no successor can take over without `handover`").then_some(()));
    assert_eq!(without.check("{}")["allowed"], true);
}

/// A predecessor that hands over one listener, and no state.
struct Predecessor {
    at: UnixListener,
    socket: TcpListener,
}

impl Predecessor {
    /// Waits until a successor is up.
    fn successor(&self) -> UnixStream {
        let (mut stream, _) = self.at.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let sockets = [self.socket.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut descriptors = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.push(SendAncillaryMessage::ScmRights(&sockets)));
        sendmsg(&stream, &[IoSlice::new(b"!")], &mut descriptors, SendFlags::empty()).unwrap();
        assert_eq!(byte(&mut stream), b'r');
        stream
    }
}

fn byte(stream: &mut UnixStream) -> u8 {
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    byte[0]
}

#[test]
fn the_main_process_is_named_once_the_handover_is_certain() {
    let folder = folder(&[("rules.yaml", RULES)]);
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let path = folder.path().join("handover.sock");
    let predecessor =
        Predecessor { at: UnixListener::bind(&path).unwrap(), socket: TcpListener::bind("127.0.0.1:0").unwrap() };
    let start = || {
        let mut command = tidegate(folder.path());
        let api = predecessor.socket.local_addr().unwrap().to_string();
        command.args(["serve", "--rules", "rules.yaml", "--api-listen", &api, "--handover", "handover.sock"]);
        command.args(["--rls-listen", "off", "--resp-listen", "off", "--admin-listen", "off"]);
        command.env("NOTIFY_SOCKET", folder.path().join("notify"));
        Process(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let said_nothing = || {
        manager.set_nonblocking(true).unwrap();
        let received = manager.recv(&mut [0; 256]);
        manager.set_nonblocking(false).unwrap();
        received.is_err()
    };
    let failed = |mut successor: Process| {
        // It looks whether the predecessor still listens.
        drop(predecessor.at.accept().unwrap());
        let status = until("the end of the successor", || successor.0.try_wait().unwrap());
        let mut said = String::new();
        successor.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(1));
        assert!(said.contains("the server there has not confirmed the handover, and continues"), "{said}");
    };

    // The predecessor has waited for too long.
    let successor = start();
    drop(predecessor.successor());
    failed(successor);
    assert!(said_nothing());

    // It agrees, and then does not stop: it is the main process again.
    let successor = start();
    let mut stream = predecessor.successor();
    assert!(said_nothing());
    stream.write_all(b"g").unwrap();
    assert_eq!(told(&manager), format!("MAINPID={}", successor.0.id()));
    assert_eq!(byte(&mut stream), b't');
    drop(stream);
    failed(successor);
    assert_eq!(told(&manager), format!("MAINPID={}", std::process::id()));

    let successor = start();
    let mut stream = predecessor.successor();
    assert!(said_nothing());
    stream.write_all(b"g").unwrap();
    assert_eq!(told(&manager), format!("MAINPID={}", successor.0.id()));
    assert_eq!(byte(&mut stream), b't');
    assert!(said_nothing(), "it is not ready before the predecessor has left");
    let Predecessor { at, socket } = predecessor;
    drop(at);
    stream.write_all(b"l").unwrap();
    assert_eq!(told(&manager), "READY=1");
    let port = socket.local_addr().unwrap().port();
    drop(socket);
    assert_eq!(left(port), 999_999);
}
