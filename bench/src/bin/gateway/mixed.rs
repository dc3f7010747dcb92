//! Mixed load for several minutes: small and large responses, bodies, denials, and clients that disconnect. Memory
//! should not grow, no slot should leak, and no unexpected status should occur.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::servers::{Headers, Running, pinned};

const RULES: &str = "
rules:
  - { id: slots, key: address, limit: concurrent 1000 ttl 1min }
  - { id: address, key: address, limit: 1000000/s burst 1000000 }
  - { id: few, match: { path: /few }, limit: 50/s burst 50 }
";

const SCRIPT: &str = r#"
local paths = { "/", "/file", "/few", "/other" }
local number = 0
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() counts = {} end
function request()
  number = number + 1
  if number % 7 == 0 then return wrk.format("POST", "/", nil, string.rep("y", 5000)) end
  return wrk.format("GET", paths[number % 4 + 1])
end
function response(status) counts[status] = (counts[status] or 0) + 1 end
function done(summary)
  local all = {}
  for _, thread in ipairs(threads) do
    for status, count in pairs(thread:get("counts")) do all[status] = (all[status] or 0) + count end
  end
  for status, count in pairs(all) do print("status", status, count) end
  print("broken", summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout)
end
"#;

pub fn run(minutes: u64) {
    let upstream = Running::upstream();
    let gateway = Running::ours(upstream.address, RULES, Headers::Usual);
    let script = std::env::temp_dir().join(format!("tidegate-mixed-{}.lua", std::process::id()));
    std::fs::write(&script, SCRIPT).expect("a file");
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let wrk = pinned(1, "wrk")
        .args(["-t", "1", "-c", "100", "-d", &format!("{minutes}m"), "-s"])
        .arg(&script)
        .arg(format!("http://{}/", gateway.address))
        .stdout(Stdio::piped())
        .spawn()
        .expect("wrk is installed");
    println!("minute  MB");
    let mut minute = 0;
    while Instant::now() < until {
        let next = Instant::now() + Duration::from_secs(if minute == 0 { 10 } else { 60 }).min(until - Instant::now());
        while Instant::now() < next {
            leave_in_the_middle(gateway.address);
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("{minute:6}  {:.1}", gateway.resident() as f64 / 1e6);
        minute += 1;
    }
    let output = wrk.wait_with_output().expect("wrk ends");
    let _ = std::fs::remove_file(&script);
    print!("{}", String::from_utf8_lossy(&output.stdout));
    std::thread::sleep(Duration::from_secs(1));
    println!("slots: {}", peek(gateway.api));
}

/// Requests a large response, and disconnects when it begins to arrive.
fn leave_in_the_middle(server: SocketAddr) {
    let Ok(mut stream) = TcpStream::connect(server) else { return };
    let _ = stream.write_all(b"GET /file HTTP/1.1\r\nHost: bench\r\n\r\n");
    let _ = stream.read(&mut [0; 100]);
}

/// The remaining quota under the limits.
fn peek(api: SocketAddr) -> String {
    let body = r#"{"method":"GET","path":"/","address":"127.0.0.1"}"#;
    let mut stream = TcpStream::connect(api).expect("the API");
    let request = format!(
        "POST /v1/peek HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("the API reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the API answers");
    answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()
}
