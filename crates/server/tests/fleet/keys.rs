//! `tidegate keys`: tiers of API keys.

use crate::fleet::TestFleet;

#[test]
fn a_tier_that_no_rule_knows_is_refused() {
    const RULES: &str = "
tiers: { from: store, default: free }
rules:
  - { id: plan, key: api_key, tiers: { free: 1/s, paid: 9/s } }
  - { id: trial, match: { tier: { glob: 'trial-*' } }, key: api_key, limit: 1/min }
";
    let place = TestFleet::with_nodes(&[]);
    place.write("tiers.yaml", RULES);
    place.write("tidegate.yaml", "rules: tiers.yaml\nsecrets: { key: 0f1e2d3c4b5a69788796a5b4c3d2e1f0 }\n");
    place.write("import.csv", "k_1,paid\nk_2,piad\n");
    let unchecked = place.run(&["keys", "set", "k_0", "piad"]);
    assert_eq!(unchecked.good(), "set: 1 API key\n");
    assert!(
        unchecked.err().contains("the tier was not checked, because no rules are published"),
        "{}",
        unchecked.err()
    );
    let refused = "error: the rules know no tier `piad`: did you mean `paid`? Known are free, paid. To set it in advance, add --force\n";
    let config = ["--config", "tidegate.yaml"];
    for (source, key) in [(["--rules", "tiers.yaml"], &[][..]), (config, &config[..])] {
        assert_eq!(place.run(&[&["keys", "set", "k_1", "piad"][..], &source].concat()).bad(), refused);
        assert_eq!(place.run(&[&["keys", "import", "import.csv"][..], &source].concat()).bad(), refused);
        let one = place.run(&[&["keys", "get", "k_1"], key].concat());
        assert!(one.bad().contains("the API key has no tier"), "nothing of the file is set");
        let good = place.run(&[&["keys", "set", "k_9", "paid"][..], &source].concat());
        assert_eq!(good.good(), "set: 1 API key\n");
        assert!(!good.err().contains("published"), "{}", good.err());
        place.run(&[&["keys", "set", "k_9", "trial-2"][..], &source].concat()).good();
        place.run(&[&["keys", "set", "k_8", "piad", "--force"][..], &source].concat()).good();
    }
    // Published rules are those that are in force, and those that are named come before them.
    place.run(&["rules", "push", "tiers.yaml"]).good();
    let published = "error: tiers.yaml of version 1 knows no tier `gold`. Known are free, paid. To set it in advance, add --force\n";
    assert_eq!(place.run(&["keys", "set", "k_1", "gold"]).bad(), published);
    place.write("next.yaml", &RULES.replace("paid:", "gold:"));
    place.run(&["keys", "set", "k_1", "gold", "--rules", "next.yaml"]).good();
    assert!(place.run(&["keys", "set", "k_1", "gold", "--rules", "broken.yaml"]).bad().contains("parsec"));
}

#[test]
fn names_of_tiers_from_elsewhere_stay_on_their_lines() {
    let place = TestFleet::with_nodes(&[]);
    let hash = "0".repeat(32);
    place.server.run::<u32>(&["HSET", "tidegate:{#steering}:tiers", &hash, "free\nffff  paid"]);
    let listed = place.run(&["keys", "list"]);
    assert_eq!(listed.good(), format!("{hash}  free\u{fffd}ffff  paid\n"));
}

#[test]
fn tiers_of_api_keys_are_managed() {
    let place = TestFleet::with_nodes(&[]);
    let key = ["--secrets-key", "0f1e2d3c4b5a69788796a5b4c3d2e1f0"];
    let run = |words: &[&str]| place.run(&[words, &key[..]].concat());
    assert!(run(&["keys", "get", "k_1"]).bad().contains("the API key has no tier"));
    assert_eq!(run(&["keys", "set", "k_1", "paid"]).good(), "set: 1 API key\n");
    assert_eq!(run(&["keys", "get", "k_1"]).good(), "paid\n");
    assert!(place.run(&["keys", "get", "k_1"]).bad().contains("no tier"), "another key makes other hashes");
    place.write("keys.csv", "# API key, tier\nk_2, free\n\nk_3,with,commas,enterprise\n");
    assert_eq!(run(&["keys", "import", "keys.csv"]).good(), "set: 2 API keys\n");
    assert_eq!(run(&["keys", "get", "k_3,with,commas"]).good(), "enterprise\n");
    let listed = place.run(&["keys", "list", "--format", "json"]).json();
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert!(!listed.to_string().contains("k_1"), "no API key is shown: {listed}");
    assert_eq!(run(&["keys", "remove", "k_1"]).good(), "removed\n");
    assert!(run(&["keys", "remove", "k_1"]).bad().contains("the API key has no tier"));
    for (text, problem) in [
        ("k_1 paid\n", "line 1 has no comma"),
        ("k_1,paid\n,free\n", "line 2 has no API key"),
        ("k_1,\n", "line 1: `` cannot name a tier"),
        ("# nothing\n", "`wrong.csv` contains no API keys"),
    ] {
        place.write("wrong.csv", text);
        let message = run(&["keys", "import", "wrong.csv"]);
        assert!(message.bad().contains(problem), "{}", message.err());
    }
    assert!(run(&["keys", "set", "k_1", ""]).bad().contains("cannot name a tier"));
}
