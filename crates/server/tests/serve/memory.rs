//! A server with state in memory, under memory pressure.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Server, until};

const RULES: &str = "rules: [{ id: login, key: user, limit: 5/min }]";
const ADMIN_TOKEN: &str = "0123456789abcdef";

/// Spends one token of each of this many keys, through the Redis protocol.
fn flood(server: &Server, keys: usize) {
    let mut stream = TcpStream::connect(server.listener("Redis")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let commands: String = (0..keys).map(|number| format!("CL.THROTTLE random:{number} 0 1 86400\r\n")).collect();
    let mut reading = stream.try_clone().unwrap();
    let answers = std::thread::spawn(move || {
        let (mut answered, mut bytes) = (0, [0; 65_536]);
        while answered < keys {
            let read = reading.read(&mut bytes).unwrap();
            assert!(read > 0, "{answered} of {keys} were answered");
            answered += bytes[..read].iter().filter(|byte| **byte == b'*').count();
        }
    });
    stream.write_all(commands.as_bytes()).unwrap();
    answers.join().unwrap();
}

#[test]
fn a_flood_of_keys_leaves_other_rules_exact_and_is_logged_and_counted() {
    let args = ["--rules", "rules.yaml", "--store-keys", "2000", "--admin-token", ADMIN_TOKEN];
    let server = Server::start(&[("rules.yaml", RULES)], &args);
    flood(&server, 3_000);
    for number in 0..200 {
        let answer = server.check(&format!(r#"{{"user":"user {number}"}}"#));
        assert_eq!((&answer["allowed"], &answer["limits"][0]["remaining"]), (&true.into(), &4.into()), "{number}");
    }
    let warned = |what: &str| until(what, || server.log().lines().find(|line| line.contains(what)).map(str::to_owned));
    assert!(warned("the store is filling up").contains("store.keys"));
    let line = warned("no room for new keys of a rule");
    assert!(line.contains("@cl.throttle") && line.contains("store.keys"), "{line}");

    let mut stream = TcpStream::connect(server.listener("Admin")).unwrap();
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let value = |series: &str| -> u64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series}: {metrics}")).parse().unwrap()
    };
    assert_eq!(value("tidegate_memory_rule_keys_used{rule=\"login\"}"), 200);
    assert_eq!(value("tidegate_memory_rule_overflowed_total{rule=\"login\"}"), 0);
    assert!(value("tidegate_memory_overflowed_total") >= 1_600);
    assert!(value("tidegate_memory_keys_used") <= value("tidegate_memory_keys_max"));
}
