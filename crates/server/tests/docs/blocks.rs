//! The test that holds each block of the guides. A block without one is listed here with the reason.
//!
//! The first match decides: [`HELD`] by a test of its subject, [`NOT_RUN`], and otherwise by its label and its text. A block without a
//! kind fails [`every_block_has_a_kind`]. To give it one, write it as one of the kinds below, test it where its subject is tested and
//! add a line to [`HELD`], or say in [`NOT_RUN`] why it cannot be tested.

use std::collections::BTreeMap;
use std::path::Path;

use crate::docs::guide::{Block, Guide, guides, is_rules, plain, repository};
use crate::docs::{commands, sessions, snippets};

/// The check of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Commands, each of which has a [`Fate`].
    Commands,
    /// The output of the commands in the block before, compared where they run.
    Output,
    /// Read by the program, or by the program that it is for: [`snippets`].
    Snippet(snippets::Reader),
    /// Compiled: as a documentation test, or as a part of `examples/tests/snippets.rs`.
    Compiled,
    Held(&'static Held),
    NotRun(&'static str),
}

/// The way in which a command is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    /// As written, with files only: [`commands`].
    Alone,
    /// Starts a server: its flags are read by `tidegate config`, and the tests start servers with free ports.
    Server,
    /// As written, with the ports of a server of the test: [`sessions`].
    Session,
    /// Sets a variable or an alias for the commands after it.
    Setting,
    /// A target of the Makefile, which exists.
    Make,
    Held(&'static Held),
    NotRun(&'static str),
}

/// A block, or a command, that another test takes from the guide or repeats.
#[derive(Debug, PartialEq)]
pub(crate) struct Held {
    guide: &'static str,
    /// Label of the block. Empty for a command.
    label: &'static str,
    begin: &'static str,
    /// File with the test, from `crates`.
    file: &'static str,
    test: &'static str,
}

const fn held(
    guide: &'static str,
    label: &'static str,
    begin: &'static str,
    file: &'static str,
    test: &'static str,
) -> Held {
    Held { guide, label, begin, file, test }
}

const PROXIES: &str = "server/tests/serve/proxies.rs";
const ENVOY: &str = "server/tests/rls/envoy.rs";
const ALGORITHMS: &str = "../examples/tests/guide.rs";
const RULES: &str = "rules/tests/rules/guide.rs";
const IDENTITY: &str = "server/tests/identity/guide.rs";
const OPERATING: &str = "server/tests/docs/operating.rs";
const FIRST: &str = "server/tests/docs/commands.rs";
const DENIAL: &str = "getting_started_ends_with_a_denial";
const TOP: &str = "server/src/cli/top/draw/tests.rs";
const LIVE: &str = "server/tests/admin/live_feed.rs";
const ONCE: &str = "the_program_shows_what_it_sees_once";
const REGIONS: &str = "server/tests/fleet/regions.rs";
const SHARES: &str = "servers_of_two_regions_follow_the_shares_that_an_operator_sets";
const ALGORITHM_GUIDE: &str = "choosing-an-algorithm.md";
const EXAMPLES: &str = "server/tests/docs/examples.rs";

static HELD: &[Held] = &[
    held("README.md", "text", "tidegate 0.1.0 is up", EXAMPLES, "the_server_greets_as_the_readme_shows"),
    held("caddy.md", "caddyfile", "", PROXIES, "caddy_limits_as_its_guide_says"),
    held("haproxy.md", "haproxy", "", PROXIES, "haproxy_limits_as_its_guide_says"),
    held("haproxy.md", "lua", "", PROXIES, "haproxy_limits_as_its_guide_says"),
    held("nginx.md", "nginx", "", PROXIES, "nginx_limits_as_its_guide_says"),
    held("traefik.md", "yaml", "entryPoints:", PROXIES, "traefik_limits_as_its_guide_says"),
    held("traefik.md", "yaml", "http:", PROXIES, "traefik_limits_as_its_guide_says"),
    held(ALGORITHM_GUIDE, "greedy", "", ALGORITHMS, "a_greedy_client_gets_as_much_as_the_guide_states"),
    held(ALGORITHM_GUIDE, "largest", "", ALGORITHMS, "every_limit_that_the_guide_calls_the_largest_is"),
    held(ALGORITHM_GUIDE, "trace", "", ALGORITHMS, "every_trace_in_the_guide_matches_the_engine"),
    held("envoy.md", "yaml", "static_resources:", ENVOY, "envoy_asks_and_obeys"),
    held("envoy.md", "yaml", "rate_limits:", ENVOY, "envoy_knows_the_actions_of_the_guide"),
    held("fleet.md", "console", "", "server/tests/fleet/mod.rs", "the_guide_shows_what_the_program_prints"),
    held(
        "fleet.md",
        "text",
        "node ",
        "server/tests/fleet/mod.rs",
        "a_node_that_lags_or_refuses_is_listed_and_sets_the_exit_status",
    ),
    held(
        "fleet.md",
        "text",
        "ACL SETUSER",
        "redis/tests/fleet_control/servers.rs",
        "users_who_may_do_only_what_they_need",
    ),
    held("gateway.md", "console", "$ cat rules.yaml", EXAMPLES, "the_gateway_answers_as_its_guide_shows"),
    held("gateway.md", "console", "HTTP/1.1 429", EXAMPLES, "the_gateway_answers_as_its_guide_shows"),
    held("gateway.md", "console", "$ curl -i", EXAMPLES, "the_gateway_answers_as_its_guide_shows"),
    held("getting-started.md", "", "python3 ", FIRST, DENIAL),
    held("getting-started.md", "", "for i in ", FIRST, DENIAL),
    held("getting-started.md", "text", "501\n", FIRST, DENIAL),
    held("getting-started.md", "", "curl -i ", FIRST, DENIAL),
    held("getting-started.md", "", "tidegate top", LIVE, ONCE),
    held("http-api.md", "console", "", "server/tests/serve/decisions.rs", "the_guide_shows_what_the_server_answers"),
    held(
        "identity.md",
        "",
        "tidegate explain rules.yaml --config",
        IDENTITY,
        "explain_says_what_a_token_yields_or_why_it_is_invalid",
    ),
    held("identity.md", "text", "token ", IDENTITY, "explain_says_what_a_token_yields_or_why_it_is_invalid"),
    held("identity.md", "text", "warning:", EXAMPLES, "check_warns_of_unknown_users_as_the_guide_shows"),
    held("lab.md", "", "tidegate lab", "server/tests/docs/examples.rs", "the_lab_streams_a_run_as_its_guide_shows"),
    held("lab.md", "", "curl ", "server/tests/docs/examples.rs", "the_lab_streams_a_run_as_its_guide_shows"),
    held(
        "middleware.md",
        "json",
        "",
        "http/tests/replies/refusals.rs",
        "a_denial_names_the_denying_limits_and_the_time_to_wait",
    ),
    held("operating.md", "text", "HTTP/1.1 401", OPERATING, "the_admin_api_answers_as_its_guide_shows"),
    held("operating.md", "text", "tidegate top", TOP, "all_there_is_to_see_fits_on_a_small_terminal"),
    held("operating.md", "text", "leases ", TOP, "leases_and_hot_keys_of_a_redis_store_are_shown"),
    held(
        "operating.md",
        "text",
        "tidegate_",
        "server/tests/admin/deploy.rs",
        "alerts_and_dashboard_name_only_existing_metrics",
    ),
    held(
        "operating.md",
        "text",
        "ERROR tidegate::serve::reload",
        "server/tests/serve/config_reload.rs",
        "a_broken_file_is_refused_with_its_place_and_changes_nothing",
    ),
    held(
        "operating.md",
        "json",
        "{\"time\"",
        "server/tests/gateway/access_log.rs",
        "a_json_line_tells_what_was_asked_decided_and_answered",
    ),
    held("operating.md", "json", "", OPERATING, "the_admin_api_answers_as_its_guide_shows"),
    held(
        "operating.md",
        "console",
        "$ tidegate state show",
        "server/tests/serve/state.rs",
        "a_restart_forgets_nothing_if_there_is_a_file",
    ),
    held("operating.md", "", "tidegate top", LIVE, ONCE),
    held("redis-protocol.md", "text", "> ", EXAMPLES, "the_redis_listener_answers_as_its_guide_shows"),
    held("regions.md", "", "tidegate regions", REGIONS, SHARES),
    held(
        "regions.md",
        "",
        "tg ",
        "server/tests/admin/openapi.rs",
        "the_responses_of_the_admin_listener_are_as_described",
    ),
    held("regions.md", "text", "eu ", REGIONS, SHARES),
    held("replay.md", "console", "", "server/tests/replay.rs", "the_guide_shows_what_the_program_prints"),
    held("rules.md", "yaml,bad", "", RULES, "errors_in_the_guide_are_those_that_are_printed"),
    held("rules.md", "yaml,warned", "", RULES, "errors_in_the_guide_are_those_that_are_printed"),
    held("rules.md", "text", "error:", RULES, "errors_in_the_guide_are_those_that_are_printed"),
    held("rules.md", "text", "warning:", RULES, "errors_in_the_guide_are_those_that_are_printed"),
    held("rules.md", "yaml,main.yaml", "", RULES, "the_files_that_the_guide_shows_load_together"),
    held("rules.md", "yaml,teams/search.yaml", "", RULES, "the_files_that_the_guide_shows_load_together"),
    held("rules.md", "yaml,rules.test.yaml", "", EXAMPLES, "scenarios_pass_and_fail_as_the_guide_shows"),
    held("rules.md", "console", "$ tidegate test", EXAMPLES, "scenarios_pass_and_fail_as_the_guide_shows"),
    held("rules.md", "text", "failed ", EXAMPLES, "scenarios_pass_and_fail_as_the_guide_shows"),
    held(
        "sizing.md",
        "",
        "tidegate bench",
        "server/tests/cli/bench.rs",
        "a_benchmark_measures_checks_listeners_and_a_redis",
    ),
];

/// Commands that no test runs, by how they begin, with the reason.
pub(crate) const COMMANDS_NOT_RUN: &[(&str, &str)] = &[
    ("curl -fsSLO ", "downloads a release; tests/dist.rs compares the names of the files"),
    ("sha256sum ", "checks a download; tests/dist.rs checks the sums of the files that it makes"),
    ("tar -xzf ", "unpacks a download; tests/dist.rs unpacks the archive that it makes"),
    ("gh ", "needs GitHub"),
    ("sudo ", "changes the machine; tests/dist.rs installs, upgrades and removes the package in a folder"),
    ("systemctl ", "needs systemd; serve/service_manager.rs takes its place"),
    ("docker ", "needs a container engine; serve/deploy.rs reads the files"),
    ("kubectl ", "needs a cluster; serve/kubernetes.rs checks the manifests against their schemas"),
    ("helm ", "needs a cluster; serve/kubernetes.rs renders the chart"),
    ("grpcurl ", "is not packaged; rls/health_and_reflection.rs asks by reflection from Python"),
    ("cargo install ", "compiles everything anew"),
    ("cargo build ", "compiles everything anew"),
    ("git clone ", "needs the public repository"),
];

/// Blocks that no test reads, by guide, label and beginning, with the reason.
const NOT_RUN: &[(&str, &str, &str, &str)] = &[
    (
        "from-governor.md",
        "rust,ignore",
        "use std::num::NonZeroU32;\nuse governor",
        "governor's interface, for comparison",
    ),
    (
        "operating.md",
        "text",
        "/var/log/tidegate/access.log {",
        "for logrotate; gateway/access_log.rs renames the file and sends the signal",
    ),
];

/// Guides whose Rust snippets are documentation tests: those that a library includes as documentation.
fn is_documentation(guide: &str) -> bool {
    let sources = ["examples/src/lib.rs", "crates/lab/src/lib.rs"];
    let include = format!("/docs/{guide}\")]");
    sources.iter().any(|file| {
        let text = std::fs::read_to_string(repository().join(file)).unwrap();
        text.lines().any(|line| line.starts_with("#[doc = include_str!(") && line.ends_with(&include))
    })
}

/// Whether a snippet is a part of the compiled ones: its lines, at another depth.
fn is_compiled(block: &str) -> bool {
    let compiled = std::fs::read_to_string(repository().join("examples/tests/snippets.rs")).unwrap();
    let lines = |text: &str| text.lines().map(|line| format!("{}\n", line.trim())).collect::<String>();
    lines(&compiled).contains(&lines(block))
}

/// How the block at this place is checked.
pub(crate) fn kind(guide: &Guide, at: usize) -> Option<Kind> {
    let block = &guide.blocks[at];
    let (label, text) = (block.label.as_str(), block.text.as_str());
    let is_this = |name: &str, of: &str, begin: &str| name == guide.name && of == label && text.starts_with(begin);
    if let Some(held) = HELD.iter().find(|held| is_this(held.guide, held.label, held.begin)) {
        return Some(Kind::Held(held));
    }
    if let Some((.., reason)) = NOT_RUN.iter().find(|(name, of, begin, _)| is_this(name, of, begin)) {
        return Some(Kind::NotRun(reason));
    }
    match label {
        "sh" | "console" if !block.commands().is_empty() => Some(Kind::Commands),
        "rust" | "rust,no_run" if is_documentation(&guide.name) || is_compiled(text) => Some(Kind::Compiled),
        _ => snippets::reader(label, text).map(Kind::Snippet).or_else(|| is_output(guide, at).then_some(Kind::Output)),
    }
}

/// Whether a block follows commands whose output is compared with it.
fn is_output(guide: &Guide, at: usize) -> bool {
    let Some(last) = at.checked_sub(1).and_then(|before| guide.blocks[before].commands().pop()) else { return false };
    let is_text = ["text", "json"].contains(&guide.blocks[at].label.as_str());
    is_text && matches!(fate(&guide.name, &last.command), Some(Fate::Alone | Fate::Session))
}

/// How a command of a guide is run.
pub(crate) fn fate(guide: &str, command: &str) -> Option<Fate> {
    let is_this = |held: &&Held| held.guide == guide && held.label.is_empty() && command.starts_with(held.begin);
    if let Some(held) = HELD.iter().find(is_this) {
        return Some(Fate::Held(held));
    }
    if let Some((_, reason)) = COMMANDS_NOT_RUN.iter().find(|(begin, _)| command.starts_with(begin)) {
        return Some(Fate::NotRun(reason));
    }
    if is_setting(command) {
        return Some(Fate::Setting);
    }
    let parts: Vec<String> = command.split("&&").map(plain).collect();
    if parts.iter().all(|part| commands::is_alone(part)) {
        return Some(Fate::Alone);
    }
    if command.starts_with("tidegate serve ") {
        return Some(Fate::Server);
    }
    if command.split(' ').any(|word| word == "make") {
        return Some(Fate::Make);
    }
    sessions::runs(guide, &parts).then_some(Fate::Session)
}

fn is_setting(command: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_assignment = command.split_once('=').is_some_and(|(name, value)| is_name(name) && !value.contains(' '));
    command.starts_with("export ") || command.starts_with("alias ") || is_assignment
}

/// What is wrong with a call of `make`: a target or a benchmark that does not exist.
fn wrong_in_make(command: &str) -> Option<String> {
    let makefile = std::fs::read_to_string(repository().join("Makefile")).unwrap();
    let bench = std::fs::read_to_string(repository().join("bench/run")).unwrap();
    let benchmarks = bench.split_once("all=(").and_then(|(_, rest)| rest.split_once(')')).unwrap().0;
    let words = command.split_whitespace().skip_while(|word| *word != "make").skip(1);
    let mut targets = 0;
    for word in words {
        match word.split_once('=') {
            Some(("ONLY", name)) if !benchmarks.split(' ').any(|known| known == name) => {
                return Some(format!("no benchmark {name}"));
            }
            Some(_) => {}
            None if makefile.contains(&format!("\n{word}:")) => targets += 1,
            None => return Some(format!("no target {word}")),
        }
    }
    (targets != 1).then(|| "one target".to_owned())
}

/// What is wrong with a command, if it is of the repository.
fn wrong_in_command(guide: &str, command: &str) -> Option<String> {
    match fate(guide, command) {
        None => Some("nothing runs it".to_owned()),
        Some(Fate::Make) => wrong_in_make(command),
        Some(Fate::NotRun(_)) => {
            let files =
                command.split([' ', '=']).filter(|word| word.starts_with("deploy/") || word.starts_with("crates/"));
            let mut missing = files.filter(|file| !repository().join(file).exists());
            missing.next().map(|file| format!("no file {file}"))
        }
        Some(_) => None,
    }
}

#[test]
fn every_block_has_a_kind() {
    let mut wrong = Vec::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for guide in guides() {
        if guide.prose.lines().any(|line| line.trim_start().starts_with("```") || line.starts_with("~~~")) {
            wrong.push(format!("{}: a fence that is indented, or of tildes", guide.name));
        }
        for (at, Block { label, line, .. }) in guide.blocks.iter().enumerate() {
            let kind = kind(&guide, at);
            let Some(kind) = kind else {
                wrong.push(format!("{}:{line}: a block `{label}` that nothing checks", guide.name));
                continue;
            };
            let name = format!("{kind:?}");
            *seen.entry(name.split('(').next().unwrap().to_owned()).or_default() += 1;
            for shown in guide.blocks[at].commands() {
                if kind == Kind::Commands
                    && let Some(problem) = wrong_in_command(&guide.name, &shown.command)
                {
                    wrong.push(format!("{}:{line}: {}: {problem}", guide.name, shown.command));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "see the head of {}:\n{}", file!(), wrong.join("\n"));
    println!("{seen:?}");
    assert!(seen["NotRun"] <= 4, "{seen:?}");
}

#[test]
fn tests_that_hold_blocks_exist_and_hold_some() {
    let guides = guides();
    for held in HELD {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(held.file);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{held:?}: {error}"));
        assert!(text.contains(&format!("fn {}", held.test)), "{held:?}: no such test");
        let guide =
            guides.iter().find(|guide| guide.name == held.guide).unwrap_or_else(|| panic!("{held:?}: no guide"));
        let is_block = |at: usize| kind(guide, at) == Some(Kind::Held(held));
        let is_command = |block: &Block| {
            block.commands().iter().any(|shown| fate(held.guide, &shown.command) == Some(Fate::Held(held)))
        };
        let is_used = (0..guide.blocks.len()).any(is_block) || guide.blocks.iter().any(is_command);
        assert!(is_used, "{held:?}: there is no such block");
    }
    for (begin, _) in COMMANDS_NOT_RUN {
        let mut commands = guides.iter().flat_map(|guide| &guide.blocks).flat_map(Block::commands);
        assert!(commands.any(|shown| shown.command.starts_with(begin)), "no guide has a command `{begin}`");
    }
    for (name, label, begin, _) in NOT_RUN {
        let mut blocks = guides.iter().filter(|guide| guide.name == *name).flat_map(|guide| &guide.blocks);
        assert!(
            blocks.any(|block| block.is(label) && block.text.starts_with(begin)),
            "{name} has no such block: {begin}"
        );
    }
}

#[test]
fn a_block_without_a_kind_is_noticed() {
    let block = |label: &str, text: &str| Block { label: label.to_owned(), text: text.to_owned(), line: 1 };
    let blocks = vec![
        block("sh", "rm -rf /"),
        block("text", "deleted"),
        block("yaml", "what: ever"),
        block("rust", "fn never_compiled() {}"),
        block("python", "print()"),
    ];
    let guide = Guide { name: "new.md".to_owned(), prose: String::new(), blocks };
    assert_eq!(kind(&guide, 0), Some(Kind::Commands));
    assert!(wrong_in_command("new.md", "rm -rf /").is_some());
    assert_eq!((1..5).filter_map(|at| kind(&guide, at)).collect::<Vec<_>>(), []);
    assert!(wrong_in_make("make nothing").is_some() && wrong_in_make("make bench ONLY=nothing").is_some());
    assert_eq!(wrong_in_make("MINUTES=10 make bench ONLY=gateway"), None);
    assert!(wrong_in_command("deploying.md", "kubectl apply -f deploy/nothing.yaml").is_some());
    assert!(is_rules("tiers: {}\nrules: [{ id: a, limit: 1/s }]") && !is_rules("rules: [rules.yaml]"));
}
