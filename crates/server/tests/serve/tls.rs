//! TLS listeners, with curl as the client.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::support::certificates::{authority, issued};
use crate::support::{Server, folder, until};

/// The protocol and the status printed by curl, or its error.
fn curl(server: &Server, folder: &Path, args: &[&str]) -> Result<String, i32> {
    let mut command = Command::new("curl");
    command.args(["-s", "-o", "/dev/null", "-w", "%{http_version} %{http_code}", "--max-time", "60"]).args(args);
    let output = command.current_dir(folder).arg(format!("https://{}/healthz", server.address)).output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(output.status.code().unwrap())
    }
}

const TLS: [&str; 6] = ["--api-tls", "on", "--tls-certificate", "server.pem", "--tls-key", "server-key.pem"];

#[test]
fn a_tls_listener_picks_up_a_new_certificate_while_open() {
    let (first, second) = (authority("first"), authority("second"));
    let (certificate, key) = issued(&first);
    let server = Server::start(&[("server.pem", &certificate), ("server-key.pem", &key)], &TLS);
    assert!(server.banner.contains("https://127.0.0.1:"), "{}", server.banner);
    let folder = folder(&[("first.pem", &first.pem()), ("second.pem", &second.pem())]);
    let asking = |args: &[&str]| curl(&server, folder.path(), args);
    assert_eq!(asking(&["--cacert", "first.pem"]).as_deref(), Ok("2 200"));
    assert_eq!(asking(&["--cacert", "first.pem", "--http1.1"]).as_deref(), Ok("1.1 200"));
    assert!(asking(&["--cacert", "second.pem"]).is_err());

    // Replacing only the certificate makes the files unusable, and changes nothing.
    let (certificate, key) = issued(&second);
    std::fs::write(server.path("server.pem"), &certificate).unwrap();
    until("the complaint", || server.log().contains("certificates cannot be used").then_some(()));
    assert_eq!(asking(&["--cacert", "first.pem"]).as_deref(), Ok("2 200"));
    std::fs::write(server.path("server-key.pem"), &key).unwrap();
    server.signal(Signal::HUP);
    until("the new certificate", || asking(&["--cacert", "second.pem"]).ok());
    assert!(asking(&["--cacert", "first.pem"]).is_err());
}

#[test]
fn plain_http_on_a_tls_port_gets_an_explanation() {
    let (certificate, key) = issued(&authority("ours"));
    let server = Server::start(&[("server.pem", &certificate), ("server-key.pem", &key)], &TLS);
    let url = format!("http://{}/healthz", server.address);
    let output = Command::new("curl").args(["-s", "-i", "--max-time", "60", &url]).output().unwrap();
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
}

#[test]
fn a_listener_can_require_client_certificates() {
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    let (certificate, key) = issued(&ours);
    let files = [("server.pem", certificate.as_str()), ("server-key.pem", &key), ("clients.pem", &theirs.pem())];
    let args = [&["--api-tls", "mutual", "--tls-client-ca", "clients.pem"], &TLS[2..]].concat();
    let server = Server::start(&files, &args);
    let ((good, good_key), (bad, bad_key)) = (issued(&theirs), issued(&ours));
    let folder = folder(&[
        ("ca.pem", &ours.pem()),
        ("good.pem", &good),
        ("good-key.pem", &good_key),
        ("bad.pem", &bad),
        ("bad-key.pem", &bad_key),
    ]);
    let asking = |args: &[&str]| curl(&server, folder.path(), &[&["--cacert", "ca.pem"], args].concat());
    assert_eq!(asking(&["--cert", "good.pem", "--key", "good-key.pem"]).as_deref(), Ok("2 200"));
    assert!(asking(&["--cert", "bad.pem", "--key", "bad-key.pem"]).is_err());
    assert!(asking(&[]).is_err());
}

#[test]
fn whom_a_connection_comes_from_stands_in_its_proxy_header() {
    let rules = "rules: [{ id: address, key: address, limit: log 1/h }]";
    let server = Server::start(&[("rules.yaml", rules)], &["--rules", "rules.yaml", "--api-proxy-protocol", "true"]);
    let ask = |args: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "60"]).args(args);
        command.args(["-H", "X-Forwarded-Method: GET", "-H", "X-Forwarded-Uri: /"]);
        let output = command.arg(server.url("/v1/auth")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // The source is not a trusted proxy, so it cannot make requests on behalf of others.
    let mut stream = server.connect();
    let request =
        "PROXY TCP4 203.0.113.7 192.0.2.1 4711 80\r\nGET /v1/auth HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("203.0.113.7 is not one of"), "{answer}");
    assert_eq!(ask(&["--haproxy-protocol"]), "200");
    assert_eq!(ask(&["--haproxy-protocol"]), "429");
    // Without the header, there is no response.
    assert_eq!(ask(&[]), "000");
}
