//! Another server takes the place of one that is under load; rules and certificates change under it.

use std::process::{Command, Stdio};

use crate::peers::{Gateway, Nginx, gateway_address};
use crate::support::{Server, free_port, until};

/// Load by wrk for so many seconds. Says what it printed.
fn load(address: &str, seconds: u32) -> std::process::Child {
    let mut command = Command::new("wrk");
    // Some connections are used again and again, others for one request.
    command.args([
        "-t",
        "1",
        "-c",
        "20",
        "-d",
        &format!("{seconds}s"),
        "--timeout",
        "30s",
        &format!("http://{address}/"),
    ]);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Requests that each open a connection of their own, until told to stop. Says how many went wrong.
fn newcomers(
    address: String,
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
) -> std::thread::JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut wrong = Vec::new();
        while !stop.load(std::sync::atomic::Ordering::SeqCst) {
            let got = std::panic::catch_unwind(|| {
                crate::peers::curl(&format!("http://{address}/"), &["-H", "Connection: close"])
            });
            match got {
                Ok(got) if got.status == 200 => {}
                other => wrong.push(format!("{other:?}")),
            }
        }
        wrong
    })
}

fn well(output: std::process::Output) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
    let requests = text.lines().find_map(|line| line.trim().split_once(" requests in")?.0.parse::<u64>().ok());
    assert!(requests.unwrap() > 100, "{text}");
}

#[test]
fn a_server_is_succeeded_by_another_and_no_request_fails() {
    let nginx = Nginx::start(
        "server { listen 127.0.0.1:PORT; keepalive_requests 1000000; location / { return 200 ok; } }",
        &[],
    );
    let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
    let (address, meeting) = (format!("127.0.0.1:{port}"), folder.path().join("handover.sock"));
    let args = ["--gateway", &address, "--upstream", &nginx.url(), "--handover", meeting.to_str().unwrap()];
    let start = || Server::start(&[("rules.yaml", "rules: []")], &[&args[..], &["--rules", "rules.yaml"]].concat());
    let mut first = start();
    assert_eq!(gateway_address(&first.banner).to_string(), address);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (loading, newcomers) = (load(&address, 4), newcomers(address.clone(), std::sync::Arc::clone(&stop)));
    let mut second = start();
    assert!(first.ended().success(), "{}", first.log());
    let third = start();
    assert!(second.ended().success(), "{}", second.log());
    well(loading.wait_with_output().unwrap());
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(newcomers.join().unwrap(), Vec::<String>::new());
    assert!(third.log().contains("took over"), "{}", third.log());
}

#[test]
fn no_request_fails_while_rules_change() {
    let nginx = Nginx::start(
        "server { listen 127.0.0.1:PORT; keepalive_requests 1000000; location / { return 200 ok; } }",
        &[],
    );
    let gateway = Gateway::start("rules: []", &[&nginx.url()], &[]);
    let loading = load(&gateway.address.to_string(), 3);
    for number in 0..5 {
        let rules = format!("rules: [{{ id: r{number}, key: address, limit: 1000000/s burst 1000000 }}]");
        std::fs::write(gateway.server.path("rules.yaml"), rules).unwrap();
        gateway.server.signal(rustix::process::Signal::HUP);
        until("the new rules", || {
            (gateway.server.log().matches("new rules are in force").count() > number).then_some(())
        });
    }
    well(loading.wait_with_output().unwrap());
}
