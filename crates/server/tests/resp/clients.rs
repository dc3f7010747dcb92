//! Third-party clients.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use tidegate::resp::{Settings, Users};
use tokio::time::Instant;

use crate::resp::support::{Server, error, run};

/// The output of redis-cli for these input lines.
fn redis_cli(server: &Server, arguments: &[&str], lines: &str) -> String {
    let mut process = Command::new("redis-cli")
        .args(["-p", &server.address().port().to_string()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("redis-cli comes with redis-server");
    process.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn redis_cli_asks() {
    let server = Server::start();
    let lines = "PING\nCL.THROTTLE user123 15 30 3600 1\nTG.CHECK method GET path /api/x user alice\nTG.CHEK\n";
    let printed = redis_cli(&server, &["--no-raw"], lines);
    assert!(
        printed
            .starts_with("PONG\n1) (integer) 0\n2) (integer) 16\n3) (integer) 15\n4) (integer) -1\n5) (integer) 120\n"),
        "{printed}"
    );
    assert!(printed.contains("1) \"allowed\"\n 2) (integer) 1\n"), "{printed}");
    assert!(printed.contains("(error) ERR unknown command 'TG.CHEK'"), "{printed}");
}

#[test]
fn redis_cli_runs_a_transaction() {
    let server = Server::start();
    let lines = "MULTI\nCL.THROTTLE k 0 1 86400\nCL.THROTTLE k 0 1 86400 0\nEXEC\nDEL k other\nMULTI\nGET k\nEXEC\n";
    let printed = redis_cli(&server, &["--no-raw"], lines);
    let first = "OK\nQUEUED\nQUEUED\n1) 1) (integer) 0\n   2) (integer) 1\n   3) (integer) 0\n   4) (integer) -1\n   5) (integer) 86400\n2) 1)";
    assert!(printed.starts_with(first), "{printed}");
    assert!(printed.contains("\n(integer) 1\nOK\n(error) ERR unknown command 'GET'"), "{printed}");
    assert!(printed.contains("(error) EXECABORT Transaction discarded because of previous errors."), "{printed}");
}

#[test]
fn redis_cli_asks_in_resp3() {
    let server = Server::start();
    let printed = redis_cli(&server, &["--no-raw", "-3"], "TG.CHECK path /api/x user alice\nINFO server\nQUIT\n");
    assert!(printed.contains("1# \"allowed\" => (true)\n"), "{printed}");
    assert!(printed.contains("tidegate_version:"), "{printed}");
}

#[test]
fn redis_cli_lists_the_commands() {
    let server = Server::start();
    let printed = redis_cli(
        &server,
        &[],
        "COMMAND COUNT\nCOMMAND LIST\nCOMMAND DOCS tg.check\nCOMMAND INFO cl.throttle nope\nCOMMAND GETKEYS CL.THROTTLE k 1 2 3\n",
    );
    for text in ["22\n", "cl.throttle\n", "Decides a request by the rules", "\nk\n"] {
        assert!(printed.contains(text), "{text} in {printed}");
    }
}

/// Starts like an interactive session: with COMMAND DOCS, and HELP from it.
#[test]
fn redis_cli_shows_help_from_command_docs() {
    let server = Server::start();
    let printed = redis_cli(&server, &[], "HELP TG.CHECK\nHELP CL.THROTTLE\n");
    assert!(printed.contains("Decides a request by the rules"), "{printed}");
    assert!(printed.contains("key max_burst count period [quantity]"), "{printed}");
}

#[test]
fn redis_cli_shows_a_password() {
    let server = Server::with(Settings { users: Users::password("s3cret").and("ann", "tea"), ..Settings::default() });
    let ping = |arguments: &[&str]| redis_cli(&server, &[&["--no-auth-warning"], arguments].concat(), "PING\n");
    assert_eq!(ping(&["-a", "s3cret"]), "PONG\n");
    assert_eq!(ping(&["--user", "ann", "-a", "tea"]), "PONG\n");
    assert!(ping(&[]).starts_with("NOAUTH "));
}

/// The distribution's Python client, with the distribution's interpreter.
#[test]
fn the_python_client_asks() {
    const SCRIPT: &str = r#"
import redis, sys
client = redis.Redis(host="127.0.0.1", port=int(sys.argv[1]), password="s3cret", client_name="snake", decode_responses=True)
assert client.ping()
assert client.client_getname() == "snake"
assert client.execute_command("CL.THROTTLE", "user123", 15, 30, 3600, 1) == [0, 16, 15, -1, 120]
with client.pipeline(transaction=False) as pipeline:
    for _ in range(100):
        pipeline.execute_command("CL.THROTTLE", "k", 9, 1, 86400)
    limited = [answer[0] for answer in pipeline.execute()]
assert limited == [0] * 10 + [1] * 90, limited
with client.pipeline() as pipeline:
    for _ in range(5):
        pipeline.execute_command("CL.THROTTLE", "atomic", 2, 1, 86400)
    pipeline.delete("atomic", "nobody")
    pipeline.execute_command("THROTTLE", "atomic", 10, 1, 86400)
    answers = pipeline.execute()
assert [answer[0] for answer in answers[:5]] == [0, 0, 0, 1, 1], answers
assert answers[5:] == [1, [1, 10, 9, 86400, 0]], answers
with client.pipeline() as pipeline:
    pipeline.execute_command("CL.THROTTLE", "refused", 2, 1, 86400)
    pipeline.execute_command("CL.THROTTLE", "refused", 2, "one", 86400)
    try:
        pipeline.execute()
        sys.exit("a refused command was run")
    except redis.ResponseError as error:
        assert "count must be a whole number" in str(error), error
assert client.execute_command("CL.THROTTLE", "refused", 2, 1, 86400, 0)[2] == 3
assert client.delete("refused", "atomic") == 1
assert client.info("server")["redis_version"]
flat = client.execute_command("TG.CHECK", "path", "/api/x", "user", "alice")
answer = dict(zip(flat[::2], flat[1::2]))
assert answer["allowed"] == 1 and answer["remaining"] == 2, answer
assert client.info("server")["tidegate_version"]
assert client.select(0)
try:
    client.execute_command("GET", "k")
    sys.exit("GET was answered")
except redis.ResponseError as error:
    assert "unknown command" in str(error), error
try:
    redis.Redis(host="127.0.0.1", port=int(sys.argv[1]), password="wrong").ping()
    sys.exit("a wrong password was taken")
except redis.RedisError as error:
    assert "WRONGPASS" in str(error) or isinstance(error, redis.AuthenticationError), error
print("done")
"#;
    let server = Server::with(Settings { users: Users::password("s3cret"), ..Settings::default() });
    let output = Command::new("/usr/bin/python3")
        .args(["-c", SCRIPT, &server.address().port().to_string()])
        .output()
        .expect("python3 is installed");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_rust_client_greets_with_a_name_and_a_password() {
    let server = Server::with(Settings { users: Users::password("s3cret").and("ann", "tea"), ..Settings::default() });
    for (login, version) in
        [(":s3cret", ""), ("ann:tea", ""), ("ann:tea", "?protocol=resp3"), ("default:s3cret", "?protocol=resp3")]
    {
        let client = redis::Client::open(format!("redis://{login}@{}/{version}", server.address())).unwrap();
        let mut connection = client.get_connection().unwrap();
        assert_eq!(run::<String>(&mut connection, "PING hello").unwrap(), "hello");
        let info: String = run(&mut connection, "CLIENT INFO").unwrap();
        assert!(info.contains("lib-name=redis-rs"), "{info}");
    }
    for login in [":wrong", "ann:s3cret", "nobody:tea"] {
        let client = redis::Client::open(format!("redis://{login}@{}/", server.address())).unwrap();
        assert!(client.get_connection().is_err(), "{login}");
    }
}

#[test]
fn unauthenticated_clients_get_noauth() {
    let server = Server::with(Settings { users: Users::password("s3cret"), ..Settings::default() });
    let mut raw = server.raw();
    for line in ["PING", "CL.THROTTLE k 1 1 1", "NOPE", "HELLO 3", "CLIENT LIST", "TG.CHECK user alice"] {
        assert!(raw.ask(line).starts_with("-NOAUTH "), "{line}");
    }
    assert!(raw.ask("AUTH wrong").starts_with("-WRONGPASS "));
    assert!(raw.ask("AUTH default s3cret more").starts_with("-ERR wrong number of arguments for 'auth' command"));
    assert!(raw.ask("HELLO 2 AUTH default wrong").starts_with("-WRONGPASS "));
    assert!(raw.ask("HELLO 4").starts_with("-NOPROTO "));
    assert_eq!(raw.ask("AUTH s3cret"), "+OK");
    assert_eq!(raw.ask("PING"), "+PONG");
    assert_eq!(raw.ask("RESET"), "+RESET");
    assert!(raw.ask("PING").starts_with("-NOAUTH "));
    // Stricter bounds apply before authentication.
    raw.send("*11\r\n");
    assert!(raw.line().starts_with("-ERR Protocol error: invalid multibulk length"));
    assert_eq!(raw.rest(), "");
    let open = Server::start();
    assert!(error(&mut open.client(), "AUTH s3cret").contains("this server has no password"));
}

#[test]
fn those_who_guess_passwords_are_slowed_down_and_cut_off() {
    let server = Server::with(Settings { users: Users::password("s3cret"), ..Settings::default() });
    let begun = Instant::now();
    for _ in 0..4 {
        let mut raw = server.raw();
        raw.send("AUTH wrong\r\n".repeat(1_000));
        let said = raw.rest();
        assert_eq!(said.matches("-WRONGPASS ").count(), 8, "{said}");
        assert_eq!(said.lines().count(), 8, "nothing else is answered");
    }
    // Each attempt but the first waits for 50 ms.
    assert!(begun.elapsed() >= Duration::from_millis(31 * 50), "{:?}", begun.elapsed());
    // The right password works from the same address, even in quotes, whose unquoting must happen only once.
    let mut raw = server.raw();
    assert_eq!(raw.ask("AUTH \"s3cret\""), "+OK");
    assert_eq!(raw.ask("PING"), "+PONG");
}

#[test]
fn a_client_says_what_clients_say_when_they_connect() {
    let server = Server::start();
    let mut raw = server.raw();
    for (line, answer) in [
        ("CLIENT SETNAME me", "+OK"),
        ("CLIENT SETINFO LIB-NAME lib", "+OK"),
        ("CLIENT SETINFO lib-ver 1.0", "+OK"),
        ("CLIENT NO-EVICT on", "+OK"),
        ("CLIENT NO-TOUCH OFF", "+OK"),
        ("CLIENT REPLY ON", "+OK"),
        ("SELECT 0", "+OK"),
        ("CLIENT SETNAME \"two words\"", "-ERR a name has at most 256 ASCII characters, without spaces"),
        ("SELECT 1", "-ERR DB index is out of range: there is only 0"),
        ("CLIENT REPLY OFF", "-ERR replies cannot be turned off here"),
        ("PING hi", "$2"),
    ] {
        assert_eq!(raw.ask(line), answer, "{line}");
    }
    raw.expect("hi\r\n");
    assert!(raw.ask("CLIENT ID").starts_with(':'));
    assert!(raw.ask("CLIENT KILL 1").starts_with("-ERR unknown subcommand"));
    assert!(raw.ask("HELLO 3 NOPE").starts_with("-ERR syntax error in HELLO"));
}
