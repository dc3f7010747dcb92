//! Regions as an operator meets them: servers in two regions, and the command.

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tidegate_test_redis::{Server, until};

use crate::ran::Ran;

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

    fn run(&self, words: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let regions = format!("eu={},us={}", self.eu.url(), self.us.url());
        command.args(words).current_dir(self.folder.path()).env("TIDEGATE_REGIONS", regions);
        command.env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR");
        Ran(command.output().unwrap())
    }

    fn serve(&self, region: &str, url: &str) -> Running {
        let (port, admin) = (tidegate_test_redis::free_port(), tidegate_test_redis::free_port());
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
        ]);
        Running { child: command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(), port, admin }
    }
}

struct Running {
    child: Child,
    port: u16,
    admin: u16,
}

impl Running {
    /// The limits in the answer to a check, by rule.
    fn limits(&self) -> Option<Vec<u64>> {
        let url = format!("http://127.0.0.1:{}/v1/peek", self.port);
        let output =
            Command::new("curl").args(["-s", &url, "--json", r#"{"method":"GET","path":"/"}"#]).output().ok()?;
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        Some(answer["limits"].as_array()?.iter().filter_map(|limit| limit["limit"].as_u64()).collect())
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
    let world = World::new();
    let (eu, us) = (world.serve("eu", &world.eu.url()), world.serve("us", &world.us.url()));
    // Without a record, servers decide by the floor.
    eu.applies(&[10, 50]);
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
    let metrics = eu.metrics();
    for line in [
        r#"tidegate_region_confirmed{region="eu"} 1"#,
        r#"tidegate_region_share_ratio{region="eu",rule="quota"} 0.875"#,
        r#"tidegate_region_floor_ratio{region="eu",rule="quota"} 0.05"#,
        r#"tidegate_region_parked_ratio{region="eu",rule="quota"} 0"#,
        r#"tidegate_region_demand{region="eu",rule="quota"} 0"#,
    ] {
        assert!(metrics.lines().any(|known| known == line), "{line} is not in\n{metrics}");
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
    // The prefix is that of the file.
    assert_eq!(world.eu.run::<u32>(&["EXISTS", "shop:{#steering}:regions"]), 1);
    std::fs::write(&file, text("[eu=redis://a, redis://me:hunter2@b]")).unwrap();
    let told = run(&["regions", "-c", "tidegate.yaml"]);
    assert!(told.err().contains("tidegate.yaml:4:"), "{}", told.err());
    assert!(told.err().contains("a region has no name") && !told.err().contains("hunter2"), "{}", told.err());
}

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
    assert!(status.out().contains("parked: 10% on the way to us; `tidegate regions resume`"), "{}", status.out());
    let refused = world.run(&["regions", "retire", "us"]);
    assert!(refused.err().contains("repeat with `--it-is-down`"), "{}", refused.err());
    let retired = world.run(&["regions", "retire", "us", "--it-is-down", "--timeout", "1"]);
    assert_eq!(retired.good(), "retired: eu has 50% more\nretired: eu has 10% more of rule quota\n");
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
    assert!(told(&["regions", "set", "eu=much", "us=30"]).contains("`much` is no share: write 0% to 100%"));
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
