//! Tests of regions: servers in two regions, and the command.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use tempfile::TempDir;
use tidegate_test_support::redis::Server;
use tidegate_test_support::{free_port, until};

use crate::support::ran::Ran;

const RULES: &str = "\
regions: { eu: 60%, us: 40% }
rules:
  - { id: api, limit: 100/s burst 200 }
  - { id: quota, limit: fixed 1000/day, regions: { eu: 90%, us: 10% } }
";

struct World {
    eu: Server,
    us: Server,
    folder: TempDir,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        World { eu: Server::start(), us: Server::start(), folder }
    }

    fn command(&self, words: &[&str], more_regions: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let regions = format!("eu={},us={}{more_regions}", self.eu.url(), self.us.url());
        command.args(words).current_dir(self.folder.path()).env("TIDEGATE_REGIONS", regions);
        command.env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR");
        command
    }

    fn run(&self, words: &[&str]) -> Ran {
        Ran(self.command(words, "").output().unwrap())
    }

    fn serve(&self, region: &str, url: &str) -> Running {
        let (port, admin) = (free_port(), free_port());
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .args(["serve", "--rules", "rules.yaml", "--region", region, "--redis", url])
            .current_dir(self.folder.path());
        command.args([
            "--api-listen",
            &format!("127.0.0.1:{port}"),
            "--rls-listen",
            "off",
            "--resp-listen",
            "off",
            "--admin-listen",
            &format!("127.0.0.1:{admin}"),
            "--admin-open-metrics",
            "true",
            // A name need not be unique.
            "--node-name",
            "tidegate",
        ]);
        Running { child: command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(), port, admin }
    }
}

#[test]
fn a_server_of_an_unknown_region_does_not_start() {
    let world = World::new();
    let off = ["--rls-listen", "off", "--resp-listen", "off", "--admin-listen", "off", "--api-listen", "127.0.0.1:0"];
    for store in [&[][..], &["--redis", &world.eu.url()]] {
        let refused = world.run(&[&["serve", "--rules", "rules.yaml", "--region", "ue"], store, &off].concat());
        let wanted = "there is no region `ue` in the rules: they have `eu`, `us`. Did you mean `eu`? Set `region`";
        assert!(refused.bad().contains(wanted), "{}", refused.err());
    }
}

struct Running {
    child: Child,
    port: u16,
    admin: u16,
}

impl Running {
    /// Limits in the response to a check, by rule.
    fn limits(&self) -> Option<Vec<u64>> {
        let url = format!("http://127.0.0.1:{}/v1/peek", self.port);
        let output =
            Command::new("curl").args(["-s", &url, "--json", r#"{"method":"GET","path":"/"}"#]).output().ok()?;
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        Some(answer["limits"].as_array()?.iter().filter_map(|limit| limit["limit"].as_u64()).collect())
    }

    /// Makes a request that counts.
    fn ask(&self) {
        let url = format!("http://127.0.0.1:{}/v1/check", self.port);
        let asked = Command::new("curl").args(["-s", &url, "--json", r#"{"method":"GET","path":"/"}"#]).output();
        assert!(asked.unwrap().status.success());
    }

    /// Waits until a metric, written with its labels, has a value.
    fn shows(&self, metric: &str, wanted: &str) {
        until(metric, || (self.metric(metric).as_deref() == Some(wanted)).then_some(()));
    }

    fn metric(&self, metric: &str) -> Option<String> {
        self.metrics().lines().find_map(|line| Some(line.strip_prefix(metric)?.trim().to_owned()))
    }

    fn metrics(&self) -> String {
        let url = format!("http://127.0.0.1:{}/metrics", self.admin);
        String::from_utf8(Command::new("curl").args(["-s", &url]).output().unwrap().stdout).unwrap()
    }

    fn applies(&self, limits: &[u64]) {
        until("the limits of the region", || (self.limits().as_deref() == Some(limits)).then_some(()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn servers_of_two_regions_follow_the_shares_that_an_operator_sets() {
    let mut world = World::new();
    let (eu, us) = (world.serve("eu", &world.eu.url()), world.serve("us", &world.us.url()));
    // Without a record, a region owns nothing.
    eu.applies(&[0, 0]);
    assert_eq!(world.run(&["regions", "init", "rules.yaml"]).good(), "recorded: eu, us\n");
    eu.applies(&[120, 900]);
    us.applies(&[80, 100]);
    assert_eq!(world.run(&["regions", "init", "rules.yaml"]).good(), "all regions have their records\n");
    assert_eq!(world.run(&["regions", "set", "eu=30", "us=70"]).good(), "moved: 30% from eu to us\n");
    eu.applies(&[60, 900]);
    us.applies(&[140, 100]);
    let moved = world.run(&["regions", "move", "2.5", "--from", "eu", "--to", "us", "--rule", "quota"]);
    assert_eq!(moved.good(), "moved: 2.5% from eu to us of rule quota\n");
    eu.applies(&[60, 875]);
    for (metric, value) in [
        (r#"tidegate_region_confirmed{region="eu"}"#, "1"),
        (r#"tidegate_region_share_ratio{region="eu",rule="quota"}"#, "0.875"),
        (r#"tidegate_region_floor_ratio{region="eu",rule="quota"}"#, "0.05"),
        // A node learns one reading later than the command that what it has sent has arrived.
        (r#"tidegate_region_parked_ratio{region="eu",rule="quota"}"#, "0"),
        (r#"tidegate_region_demand{region="eu",rule="quota"}"#, "0"),
    ] {
        eu.shows(metric, value);
    }
    let status = world.run(&["regions"]);
    let words: Vec<Vec<&str>> = status.good().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        words,
        [
            vec!["eu", "30%", "(all", "rules)", "floor", "5%"],
            vec!["eu", "87.5%", "quota", "floor", "5%"],
            vec!["us", "70%", "(all", "rules)", "floor", "5%"],
            vec!["us", "12.5%", "quota", "floor", "5%"],
        ]
    );
    // Servers of one name report their demand separately.
    let _second = world.serve("eu", &world.eu.url());
    until("two reports", || (world.eu.run::<u32>(&["HLEN", "tidegate:{#steering}:demand"]) == 2).then_some(()));
    for rule in ["", "quota"] {
        let metric = format!(r#"tidegate_region_demand{{region="eu",rule="{rule}"}}"#);
        until(&metric, || {
            // The first request of a rule only begins its average.
            eu.ask();
            eu.metric(&metric)?.parse::<f64>().is_ok_and(|demand| demand > 0.0).then_some(())
        });
    }
    world.us.kill();
    world.run(&["regions", "move", "10", "--from", "eu", "--to", "us", "--timeout", "1"]).bad();
    eu.shows(r#"tidegate_region_parked_ratio{region="eu",rule=""}"#, "0.1");
    eu.shows(r#"tidegate_region_share_ratio{region="eu",rule=""}"#, "0.2");
    assert_eq!(world.eu.run::<u32>(&["DEL", RECORD]), 1);
    eu.shows(r#"tidegate_region_confirmed{region="eu"}"#, "0");
    eu.applies(&[10, 50]);
}

#[test]
fn the_servers_of_regions_can_be_in_the_configuration_file() {
    let world = World::new();
    let file = world.folder.path().join("tidegate.yaml");
    let text = |regions: &str| format!("store:\n  redis:\n    prefix: shop\n    regions: {regions}\n");
    std::fs::write(&file, text(&format!("[eu={}, us={}]", world.eu.url(), world.us.url()))).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(words).current_dir(world.folder.path()).env_remove("TIDEGATE_REGIONS");
        Ran(command.output().unwrap())
    };
    assert_eq!(run(&["regions", "init", "rules.yaml", "--config", "tidegate.yaml"]).good(), "recorded: eu, us\n");
    assert!(run(&["regions", "-c", "tidegate.yaml"]).good().starts_with("eu       60%  (all rules)  floor 5%\n"));
    // The prefix comes from the file.
    assert_eq!(world.eu.run::<u32>(&["EXISTS", "shop:{#steering}:regions"]), 1);
    std::fs::write(&file, text("[eu=redis://a, redis://me:hunter2@b]")).unwrap();
    let told = run(&["regions", "-c", "tidegate.yaml"]);
    assert!(told.err().contains("tidegate.yaml:4:"), "{}", told.err());
    assert!(told.err().contains("a region has no name") && !told.err().contains("hunter2"), "{}", told.err());
}

#[test]
fn regions_on_the_command_line_override_only_the_servers_of_the_configuration_file() {
    let world = World::new();
    let text = "rules: rules.yaml\nstore: { redis: { prefix: shop } }\n";
    std::fs::write(world.folder.path().join("tidegate.yaml"), text).unwrap();
    assert_eq!(world.run(&["regions", "init", "rules.yaml", "-c", "tidegate.yaml"]).good(), "recorded: eu, us\n");
    assert_eq!(world.eu.run::<u32>(&["EXISTS", "shop:{#steering}:regions"]), 1);
    let moved = world.run(&["regions", "set", "eu=70", "us=30", "-c", "tidegate.yaml"]);
    // Without rules, the command prints a warning.
    assert_eq!((moved.good(), moved.err()), ("moved: 10% from us to eu\n", ""));
}

const RECORD: &str = "tidegate:{#steering}:regions";

#[test]
fn a_region_that_is_down_parks_a_share_and_can_be_retired() {
    let mut world = World::new();
    world.run(&["regions", "init", "rules.yaml"]).good();
    world.us.kill();
    let moved = world.run(&["regions", "move", "10", "--from", "eu", "--to", "us", "--timeout", "1"]);
    assert!(
        moved.out().starts_with("parked: 10% from eu to us: region `us`: Redis cannot be reached"),
        "{}",
        moved.out()
    );
    let status = world.run(&["regions", "--timeout", "1"]);
    let parked = "parked: 10% on the way to us, transfer 1; `tidegate regions resume`";
    assert!(status.out().contains(parked), "{}", status.out());
    // Nobody has begun to deliver it, because the region could not be asked whether it would receive it.
    let cancel = |number: &'static str| ["regions", "cancel", number, "--from", "eu", "--to", "us", "--timeout", "1"];
    assert_eq!(world.run(&cancel("1")).good(), "taken back: eu has 10% again\n");
    world.run(&["regions", "move", "10", "--from", "eu", "--to", "us", "--timeout", "1"]).bad();
    // A driver that has reached the region has begun to deliver the outgoing one, the first in the record, and its offer is over.
    let record: String = world.eu.run(&["GET", RECORD]);
    world.eu.run::<()>(&["SET", RECORD, &record.replacen(r#""offer":null"#, r#""offer":[1,1]"#, 1)]);
    let refused = world.run(&cancel("2"));
    assert!(refused.bad().contains("only `us` knows whether it has arrived"), "{}", refused.err());
    assert!(refused.err().contains("repeat with `--never-applied`"), "{}", refused.err());
    let sure = world.run(&[&cancel("2")[..], &["--never-applied"]].concat());
    assert_eq!(sure.good(), "taken back: eu has 10% again\n");
    assert!(sure.err().contains("it cannot move on until `tidegate regions resume` has asked us"), "{}", sure.err());
    let status = world.run(&["regions", "--timeout", "1"]);
    assert!(status.out().contains("reserved: 10% of these, taken back from us as transfer 2"), "{}", status.out());
    let refused = world.run(&["regions", "move", "50", "--from", "eu", "--to", "us", "--timeout", "1"]);
    assert!(refused.bad().contains("a part of the 10% that it has taken back"), "{}", refused.err());
    // What the other region has begun is not known.
    let resumed = world.run(&["regions", "resume", "--timeout", "1"]);
    assert!(
        resumed.out().is_empty() && resumed.bad().contains("region `us`: Redis cannot be reached"),
        "{}",
        resumed.err()
    );
    world.run(&["regions", "move", "10", "--from", "eu", "--to", "us", "--timeout", "1"]).bad();
    let refused = world.run(&["regions", "retire", "us"]);
    assert!(refused.err().contains("repeat with `--it-is-down`"), "{}", refused.err());
    let retired = world.run(&["regions", "retire", "us", "--it-is-down", "--timeout", "1"]);
    assert_eq!(retired.good(), "retired: eu has 50% more\nretired: eu has 10% more of rule quota\n");
}

/// What was moved stays, and a record of a later version is neither read nor written over.
#[test]
fn init_leaves_records_as_they_are() {
    let world = World::new();
    assert_eq!(world.run(&["regions", "init", "rules.yaml"]).good(), "recorded: eu, us\n");
    world.run(&["regions", "set", "eu=30", "us=70", "--rules", "rules.yaml"]).good();
    let rules = world.folder.path().join("rules.yaml");
    let text = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(&rules, text.replace("{ eu: 60%, us: 40% }", "{ eu: 50%, us: 50% }")).unwrap();
    assert_eq!(world.run(&["regions", "init", "rules.yaml"]).good(), "all regions have their records\n");
    assert!(world.run(&["regions"]).good().starts_with("eu       30%  (all rules)  floor 5%\n"));
    let record: String = world.eu.run(&["GET", RECORD]);
    let later = record.replace(r#""format":1"#, r#""format":2"#);
    assert_ne!(later, record);
    world.eu.run::<()>(&["SET", RECORD, &later]);
    for words in [&["regions", "init", "rules.yaml"][..], &["regions", "move", "1", "--from", "eu", "--to", "us"]] {
        let refused = world.run(words);
        assert!(refused.bad().contains("a later version of Tidegate has written it, in format 2"), "{}", refused.err());
    }
    let status = world.run(&["regions"]);
    assert!(
        status.bad().is_empty() && status.out().contains("in format 2, and this one reads format 1"),
        "{}",
        status.out()
    );
    assert_eq!(world.eu.run::<String>(&["GET", RECORD]), later);
}

/// The command runs as a process of its own, between two regions that answer and one that does not.
#[test]
fn shares_follow_demand_while_the_command_runs() {
    let world = World::new();
    world.run(&["regions", "init", "rules.yaml"]).good();
    let nowhere = format!(",ap=redis://127.0.0.1:{}", free_port());
    let words = ["regions", "balance", "--rules", "rules.yaml", "--timeout", "1"];
    let mut command = world.command(&words, &nowhere);
    let mut balancing = Balancing(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let (tell, told) = mpsc::channel();
    let output = BufReader::new(balancing.0.stdout.take().unwrap());
    let reader = std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let mut lines = Vec::new();
    until("two moves", || {
        let now: (u64, u64) = world.us.run(&["TIME"]);
        let report = format!(r#"{{"at":{},"rules":{{"":100.0}}}}"#, now.0 * 1_000_000 + now.1);
        world.us.run::<u32>(&["HSET", "tidegate:{#steering}:demand", "n-1", &report]);
        lines.extend(told.try_iter());
        (lines.iter().filter(|line| line.starts_with("moved: ")).count() >= 2).then_some(())
    });
    drop(balancing);
    let _ = reader.join();
    lines.extend(told.try_iter());
    let moved: Vec<&String> = lines.iter().filter(|line| line.starts_with("moved: ")).collect();
    assert_eq!(moved[..2], ["moved: 27.5% from eu to us", "moved: 13.75% from eu to us"], "{lines:?}");
    // Each remaining transfer is reported once.
    let errors: Vec<&String> = lines.iter().filter(|line| !line.starts_with("moved: ")).collect();
    assert!(errors.len() == 1 && errors[0].starts_with("error: region `ap`: Redis cannot be reached"), "{lines:?}");
}

struct Balancing(Child);

impl Drop for Balancing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_rule_with_regions_of_its_own_has_its_own_shares() {
    const RULES: &str = "
regions: { ap: 20%, eu: 50%, us: 30% }
rules:
  - { id: api, limit: 100/s }
  - { id: quota, limit: 1000/min, regions: { eu: 80%, us: 10% } }
";
    let (world, ap) = (World::new(), Server::start());
    std::fs::write(world.folder.path().join("three.yaml"), RULES).unwrap();
    let ap = format!(",ap={}", ap.url());
    let run = |words: &[&str]| Ran(world.command(words, &ap).output().unwrap());
    run(&["regions", "init", "three.yaml"]).good();
    let without = run(&["regions", "set", "--rule", "quota", "eu=50", "us=40"]);
    assert_eq!(without.good(), "moved: 30% from eu to us of rule quota\n");
    assert!(without.err().contains("warning: no rules are given"), "{}", without.err());
    let with = run(&["regions", "set", "--rule", "quota", "eu=40", "us=50", "ap=0", "--rules", "three.yaml"]);
    assert_eq!((with.good(), with.err()), ("moved: 10% from eu to us of rule quota\n", ""));
    let poison =
        run(&["regions", "move", "5", "--from", "eu", "--to", "ap", "--rule", "quota", "--rules", "three.yaml"]);
    assert_eq!(poison.bad(), "error: region `ap`: the region has no share of the rule `quota`\n");
    // A tenth belongs to nobody.
    let retired = run(&["regions", "retire", "us", "--to", "ap", "--it-is-down"]);
    assert_eq!(retired.good(), "retired: ap has 30% more\nretired: eu has 50% more of rule quota\n");
}

#[test]
fn mistakes_are_told() {
    let world = World::new();
    let told = |words: &[&str]| world.run(words).err().to_owned();
    assert!(
        told(&["regions", "set", "eu=70", "us=30"])
            .contains("region `eu` has no record: `tidegate regions init` creates it")
    );
    world.run(&["regions", "init", "rules.yaml"]).good();
    assert!(
        told(&["regions", "set", "eu=70", "us=40"]).contains("the shares are 110% together, and the regions have 100%")
    );
    assert!(told(&["regions", "set", "eu=70", "usa=30"]).contains("there is no region `usa`: configured are eu, us"));
    assert!(told(&["regions", "set", "eu=70"]).contains("`us` is missing: write the shares of all regions"));
    assert!(told(&["regions", "set", "eu=much", "us=30"]).contains("`much` is not a share: write 0% to 100%"));
    assert!(told(&["regions", "move", "50", "--from", "us", "--to", "eu"]).contains("the region has 40%"));
    assert!(
        told(&["regions", "move", "1", "--from", "us", "--to", "eu", "--rule", "x"])
            .contains("no share of the rule `x`")
    );
    let nowhere =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("regions").env_remove("TIDEGATE_REGIONS").output().unwrap();
    assert!(
        Ran(nowhere).err().contains("no region is given: write `--region NAME=URL` for each, set TIDEGATE_REGIONS")
    );
}
