//! Many concurrent requests, of several kinds.

use std::process::{Command, Stdio};

use crate::gateway::peers::{Gateway, Nginx};

const RULES: &str = "
rules:
  - { id: slots, key: address, limit: concurrent 1000 ttl 1min }
  - { id: each, key: address, limit: 1000000/s burst 1000000 }
  - { id: few, match: { path: /few }, limit: 50/s burst 50 }
";

#[test]
fn mixed_load_leaves_nothing_behind_and_nothing_unexplained() {
    let nginx = Nginx::start(
        "server { listen 127.0.0.1:PORT; root .; keepalive_requests 1000; location /few { return 200 few; }
         location /echo { return 200 $request_length; } }",
        &[("large.txt", &"x".repeat(300_000)), ("small.txt", "small")],
    );
    let gateway = Gateway::start(RULES, &[&nginx.url()], &[]);
    let script = gateway.server.path("mixed.lua");
    std::fs::write(
        &script,
        r#"
local paths = { "/small.txt", "/large.txt", "/few", "/nothing" }
local number = 0
statuses = {}
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() counts = {} end
function request()
  number = number + 1
  if number % 5 == 0 then return wrk.format("POST", "/echo", nil, string.rep("y", 5000)) end
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
"#,
    )
    .unwrap();
    // Clients that disconnect in the middle, concurrently.
    let leavers: Vec<_> = (0..20)
        .map(|_| {
            let mut command = Command::new("curl");
            command.args([
                "-s",
                "-o",
                "/dev/null",
                "--limit-rate",
                "50k",
                "--max-time",
                "1",
                &gateway.url("/large.txt"),
            ]);
            command.stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let output = Command::new("wrk")
        .args(["-t", "1", "-c", "50", "-d", "3s", "--timeout", "30s", "-s"])
        .args([script.to_str().unwrap(), &gateway.url("/")])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for mut leaver in leavers {
        leaver.wait().unwrap();
    }
    let fields = text.lines().filter_map(|line| line.strip_prefix("status\t")?.split_once('\t'));
    let statuses: std::collections::BTreeMap<u16, u64> =
        fields.map(|(status, count)| (status.parse().unwrap(), count.parse().unwrap())).collect();
    assert!(statuses.keys().all(|status| [200, 404, 429].contains(status)), "{text}");
    assert!(statuses[&200] > 100 && statuses[&404] > 10, "{text}");
    assert!(text.contains("broken\t0"), "{text}");
    gateway.until_left("slots", "/", 1_000);
}
