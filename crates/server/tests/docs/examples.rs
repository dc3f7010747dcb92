//! Examples of the guides that need servers, proxies or files of their own.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::docs::commands::{is_shown, said, shell};
use crate::docs::guide::{Block, Shown, guide};
use crate::docs::sessions::upstream;
use crate::support::{Process, Server, folder, free_port};

#[test]
fn the_server_greets_as_the_readme_shows() {
    let guide = guide("README.md");
    let shown = guide.labelled("text").find(|block| block.starts_with("tidegate ")).unwrap();
    let server = Server::start(&[], &[]);
    let here = shown.replace("127.0.0.1:8080", &server.address.to_string());
    let dense = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in here.lines() {
        assert!(dense(&server.banner).contains(&dense(line)), "{line} is not in\n{}", server.banner);
    }
}

/// The lines of a response, in which the dates are the same.
fn dateless(response: &str) -> Vec<&str> {
    let lines = response.lines().map(str::trim_end);
    lines.map(|line| if line.starts_with("date: ") { "date: …" } else { line }).collect()
}

#[test]
fn the_gateway_answers_as_its_guide_shows() {
    let guide = guide("gateway.md");
    let mut consoles = guide.blocks.iter().filter(|block| block.is("console"));
    let commands = consoles.next().unwrap().commands();
    let [Shown { output: rules, .. }, started, first] = &commands[..] else { panic!("{commands:?}") };
    let denied = consoles.next().unwrap().text.as_str();
    let unreachable = consoles.next().unwrap().commands().remove(0);

    let (greeting, dead) = (upstream(), format!("http://127.0.0.1:{}", free_port()));
    let args = |upstream| ["--rules", "rules.yaml", "--gateway", "127.0.0.1:0", "--upstream", upstream];
    let server = Server::start(&[("rules.yaml", rules)], &args(&greeting));
    assert!(started.command.starts_with("tidegate serve --upstream "), "{started:?}");
    let banner = started.output.replace("127.0.0.1:8000", &server.listener("Gateway").to_string());
    assert!(is_shown(&banner, &server.banner), "{}", server.banner);
    let ask = |server: &Server, command: &str| {
        let place = server.folder.path();
        let here = command.replace("127.0.0.1:8000", &server.listener("Gateway").to_string());
        String::from_utf8(shell(place, &here.replace("curl ", "curl -s ")).stdout).unwrap()
    };
    assert_eq!(dateless(&ask(&server, &first.command)), dateless(&first.output));
    ask(&server, &first.command);
    assert_eq!(dateless(&ask(&server, &first.command)), dateless(denied));

    let server = Server::start(&[("rules.yaml", "rules: []\n")], &args(&dead));
    assert_eq!(dateless(&ask(&server, &unreachable.command)), dateless(&unreachable.output));
}

#[test]
fn check_warns_of_unknown_users_as_the_guide_shows() {
    let guide = guide("identity.md");
    let warning = guide.labelled("text").find(|block| block.starts_with("warning: ")).unwrap();
    let configuration = "gateway: { upstream: http://127.0.0.1:3000 }\n";
    let rules = "rules: [{ id: per-user, key: user, limit: 20/s }]\n";
    let place = folder(&[("rules.yaml", rules), ("tidegate.yaml", configuration)]);
    let printed = said(&shell(place.path(), "tidegate check rules.yaml --with tidegate.yaml"));
    assert!(printed.contains(warning), "{printed}");
}

#[test]
fn the_lab_streams_a_run_as_its_guide_shows() {
    let guide = guide("lab.md");
    let mut commands = guide.blocks.iter().flat_map(Block::commands);
    let opened = commands.next().unwrap();
    let run = commands.find(|shown| shown.command.starts_with("curl ")).unwrap();
    assert_eq!(opened.command, "tidegate lab");

    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["lab", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
    let mut lab = Process(command.spawn().unwrap());
    let mut lines = BufReader::new(lab.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut printed = String::new();
    let address = loop {
        let line = lines.next().unwrap();
        printed.push_str(&format!("{line}\n"));
        if let Some((_, url)) = printed.split_once("http://").filter(|_| line.starts_with("Stop")) {
            break url.split('/').next().unwrap().to_owned();
        }
    };
    let here = |text: &str| text.replace("127.0.0.1:9700", &address);
    assert!(is_shown(&here(&opened.output), &printed), "{printed}");
    let output = shell(folder(&[]).path(), &here(&run.command));
    let printed = said(&output);
    assert!(is_shown(&run.output, &printed), "{printed}\nis not\n{}", run.output);
}

#[test]
fn the_redis_listener_answers_as_its_guide_shows() {
    let guide = guide("redis-protocol.md");
    let server = Server::start(&[], &[]);
    let port = server.listener("Redis").port();
    let mut asked = 0;
    for block in guide.labelled("text") {
        let Some((command, shown)) = block.strip_prefix("> ").and_then(|block| block.split_once('\n')) else {
            continue;
        };
        let output = shell(server.folder.path(), &format!("redis-cli --no-raw -p {port} {command}"));
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(is_shown(shown, &printed), "{command}\n{printed}\nis not\n{shown}");
        asked += 1;
    }
    assert!(asked >= 2, "{asked}");
}

#[test]
fn scenarios_pass_and_fail_as_the_guide_shows() {
    let guide = guide("rules.md");
    let scenarios = guide.labelled("yaml,rules.test.yaml").next().unwrap();
    let is_test = |shown: &Shown| shown.command.starts_with("tidegate test");
    let passed = guide.blocks.iter().flat_map(Block::commands).find(is_test).unwrap();
    let failed = guide.labelled("text").find(|block| block.starts_with("failed ")).unwrap();
    let run = |rules: &str| {
        let place = folder(&[("rules.yaml", rules), ("rules.test.yaml", scenarios)]);
        said(&shell(place.path(), &passed.command))
    };
    let rules = guide.rules().unwrap();
    assert_eq!(run(rules).trim_end(), passed.output);
    let looser = rules.replace("log 5/min", "log 6/min");
    assert!(run(&looser).starts_with(failed), "{}", run(&looser));
}
