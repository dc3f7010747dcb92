use super::*;

const GOOD: &str = "limit=20/s+burst+50&limit=fixed+20/s&traffic=poisson+30/s&for=10s&seed=7&speed=max";

fn wrong(query: &str) -> Vec<(String, String)> {
    let errors = RunRequest::read(query, false).unwrap_err();
    errors.into_iter().map(|error| (error.field, error.message)).collect()
}

#[test]
fn a_query_is_a_whole_run() {
    let request = RunRequest::read(GOOD, false).unwrap();
    assert_eq!(request.limits.iter().map(ToString::to_string).collect::<Vec<_>>(), ["20/s burst 50", "fixed 20/s"]);
    assert_eq!((request.traffic.to_string().as_str(), request.seed), ("poisson 30/s", 7));
    assert_eq!((request.length, request.pace, request.holding), (Micros::from_secs(10), RunPace::Fastest, None));
    assert_eq!(request.most_arrivals(), 500_000);
    let sparse = RunRequest::read("limit=5/s&traffic=steady+1/s", false).unwrap();
    assert_eq!((sparse.length, sparse.seed, sparse.pace), (Micros::from_secs(60), 1, RunPace::Times(1.0)));
}

#[test]
fn a_limit_may_adapt_to_a_server() {
    let query = |limit: &str, server: &str| format!("limit={limit}&traffic=poisson+30/s{server}&speed=max");
    let adaptive = "100/s+adapt+10/s+on+latency+%3E+1s";
    let request = RunRequest::read(&query(adaptive, "&server=2+x+40ms"), false).unwrap();
    assert_eq!(request.texts, ["100/s adapt 10/s on latency > 1s"]);
    assert_eq!(request.server.map(|server| server.to_string()).as_deref(), Some("2 x 40ms"));
    assert!(request.adaptations[0].is_some());
    let request = RunRequest::read(&query("gradient2+4..90", "&server=2+x+40ms"), false).unwrap();
    assert_eq!((request.texts[0].as_str(), request.limits[0].capacity()), ("gradient2 4..90", 90));
    for (limit, server, field) in [
        (adaptive, "", "server"),
        ("vegas", "", "server"),
        ("vegas+9..1", "&server=2+x+40ms", "limit.0"),
        ("aimd+backoff+2", "&server=2+x+40ms", "limit.0"),
        (adaptive, "&server=2", "server"),
        ("5/s+adapt+10/s+on+latency+%3E+1s", "&server=2+x+40ms", "limit.0"),
        ("100/s+adapt+10/s", "&server=2+x+40ms", "limit.0"),
        ("shaper+5/s+queue+5", "&server=2+x+40ms", "server"),
    ] {
        assert_eq!(wrong(&query(limit, server))[0].0, field, "{limit} {server}");
    }
}

#[test]
fn a_limit_may_be_leased_by_a_fleet() {
    let query = |limit: &str, more: &str| format!("limit={limit}&limit=2000/s&traffic=poisson+30/s{more}&speed=max");
    let request = RunRequest::read(&query("2000/s+burst+500+fleet+20", ""), false).unwrap();
    assert_eq!((request.texts[0].as_str(), request.limits[0].capacity()), ("2000/s burst 500 fleet 20", 500));
    assert_eq!(request.fleets, [Some(20), None]);
    for (limit, more, field) in [
        ("2000/s+fleet+0", "", "limit.0"),
        ("2000/s+fleet+many", "", "limit.0"),
        ("2000/parsec+fleet+3", "", "limit.0"),
        ("5/min+fleet+3", "", "limit.0"),
        ("log+2000/s+fleet+3", "", "limit.0"),
        ("2000/s+fleet+3", "&server=2+x+40ms", "server"),
    ] {
        assert_eq!(wrong(&query(limit, more))[0].0, field, "{limit} {more}");
    }
    let redis = RunRequest::read("limit=2000/s+fleet+2&traffic=steady+1/s&store=redis&run=a", true).unwrap_err();
    assert_eq!(redis[0].field, "store");
}

#[test]
fn every_field_at_fault_is_named() {
    let errors = wrong("limit=5/s&limit=5/parsec&traffic=rain&for=soon&seed=x&speed=0&store=disk&lenght=1&holding=1x");
    let fields: Vec<&str> = errors.iter().map(|(field, _)| field.as_str()).collect();
    assert_eq!(fields, ["lenght", "limit.1", "traffic", "for", "seed", "speed", "holding", "store"]);
    assert_eq!(wrong("")[0].0, "limit.0");
    assert_eq!(wrong(&format!("{GOOD}&seed=8"))[0].1, "it occurs twice: remove one");
    assert_eq!(wrong("limit=1/s&limit=1/s&limit=1/s&limit=1/s&limit=1/s&traffic=steady+1/s")[0].0, "limit.4");
}

#[test]
fn runs_that_are_too_large_are_refused() {
    for (query, field) in [
        ("limit=1/s&traffic=steady+1/s&for=400day&speed=max", "for"),
        ("limit=1/s&traffic=steady+1/s&for=2h&speed=1", "speed"),
        ("limit=1/s&traffic=steady+1/s+clients+200000&speed=max", "traffic"),
        ("limit=1/s&traffic=steady+1/s+as+5000000&speed=max", "traffic"),
        ("limit=1/s&traffic=square+1/day+0+every+2us&for=1day&speed=max", "traffic"),
        ("limit=1/s&traffic=boundary+0+every+1us&for=1h&speed=max", "traffic"),
        ("limit=1/s&traffic=steady+1/s&store=redis", "store"),
    ] {
        assert_eq!(wrong(query)[0].0, field, "{query}");
    }
    let redis = RunRequest::read("limit=1/s&traffic=steady+1/s&store=redis&run=a&speed=2", true).unwrap_err();
    assert_eq!(redis[0].field, "speed");
    let request = RunRequest::read("limit=1/s&traffic=steady+20000/s", false).unwrap();
    assert!(request.too_many(1_200_000.0).is_some() && request.too_many(100_000.0).is_none());
}
