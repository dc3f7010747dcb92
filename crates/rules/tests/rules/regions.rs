//! `regions`: mistakes, and warnings.

use tidegate_rules::{Loaded, RuleSet};

fn told(text: &str) -> String {
    match RuleSet::parse("rules.yaml", text) {
        Ok(Loaded { warnings, .. }) => warnings.to_string(),
        Err(findings) => findings.to_string(),
    }
}

#[test]
fn mistakes_say_where_they_are_and_what_to_write() {
    for (regions, problem, help) in [
        ("{ eu: 60%, us: 50% }", "the shares of all regions are 110% in total", "lower some of them"),
        ("{ eu: sixty }", "the share of `eu` cannot be `sixty`", "write 0% to 100%"),
        ("{ eu: 101% }", "the share of `eu` cannot be `101%`", "write 0% to 100%"),
        ("{ }", "`regions` is empty", "such as `{ eu: 60%, us: 40% }`"),
        ("60%", "`regions` must be a map, found text", "such as `{ eu: 60%, us: 40% }`"),
        ("{ 'e u': 100% }", "`e u` cannot be the name of a region", "letters, digits"),
        ("{ floor: 5% }", "`regions` without `shares`", "add `shares: { eu: 60%, us: 40% }`"),
        ("{ shares: { eu: 97%, us: 3% }, floor: 4% }", "`floor` is 4%, and `us` has a share of 3%", "lower the floor"),
        ("{ shares: { eu: 100% }, moves: sometimes }", "`moves` cannot be `sometimes`", "`allowed`"),
        ("{ shares: { eu: 100% }, flor: 4% }", "flor", "did you mean `floor`?"),
    ] {
        let text = format!("regions: {regions}\nrules: [{{ id: a, limit: 100/s }}]\n");
        let told = told(&text);
        assert!(told.contains(problem) && told.contains(help) && told.contains("rules.yaml:1:"), "{regions}: {told}");
    }
}

#[test]
fn rules_name_the_regions_of_the_file() {
    let file =
        |own: &str| format!("regions: {{ eu: 60%, us: 40% }}\nrules:\n  - {{ id: a, limit: 100/s, regions: {own} }}\n");
    assert_eq!(told(&file("{ eu: 10%, us: 90% }")), "");
    assert_eq!(told(&file("off")), "");
    let wrong = told(&file("{ eu: 10%, usa: 90% }"));
    assert!(wrong.contains("there is no region `usa`") && wrong.contains("did you mean `us`?"), "{wrong}");
    assert!(wrong.contains("rules.yaml:3:"), "{wrong}");
}

#[test]
fn shares_that_are_too_small_or_belong_to_nobody_are_a_warning() {
    let small = told("regions: { eu: 90%, us: 10% }\nrules: [{ id: a, limit: log 5/min }, { id: b, limit: 100/s }]");
    assert!(
        small.contains("10% of `log 5/min` admits nothing in `us`") && small.matches("admits nothing").count() == 1,
        "{small}"
    );
    let own = told("rules: [{ id: a, limit: log 5/min, regions: { eu: 90%, us: 10% } }]");
    assert!(own.contains("10% of `log 5/min` admits nothing in `us`"), "{own}");
    let rest = told("regions: { eu: 60%, us: 30% }\nrules: [{ id: a, limit: 100/s }]");
    assert!(rest.contains("10% of each limit belongs to no region"), "{rest}");
}
