//! Load shedding by priority, and what it achieves under a load of three times the capacity.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::peers::{Gateway, Upstream};
use crate::ran::Ran;
use crate::support::{folder, tidegate, until};

const RULES: &str = "
rules:
  - { id: low, match: { path: /low }, key: 'header:x-client', limit: 1000000/s, priority: low }
  - { id: normal, match: { path: /normal }, key: 'header:x-client', limit: 1000000/s }
  - { id: high, match: { path: /high }, key: 'header:x-client', limit: 1000000/s, priority: high }
  - { id: critical, match: { path: /critical }, key: 'header:x-client', limit: 1000000/s, priority: critical }
";

/// Starts a gateway with a limit of one, in front of an upstream that answers `/held` only when it is released, and takes that one.
fn overloaded(args: &[&str]) -> (Gateway, Upstream, Arc<AtomicBool>, std::net::TcpStream) {
    use std::io::Write;

    let is_released = Arc::new(AtomicBool::new(false));
    let released = Arc::clone(&is_released);
    let upstream = Upstream::start(move |taken| {
        let (head, _) = taken.request()?;
        while head.contains("/held") && !released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        taken.answer("ok")
    });
    let always = ["--gateway-concurrency", "aimd 1..1", "--admin-open-metrics", "true"];
    let gateway = Gateway::start(RULES, &[&upstream.url()], &[&always[..], args].concat());
    let mut held = gateway.connect();
    held.write_all(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until("the upstream has it", || (upstream.heads().len() == 1).then_some(()));
    (gateway, upstream, is_released, held)
}

fn metrics(gateway: &Gateway) -> String {
    crate::peers::curl(&format!("http://{}/metrics", gateway.server.listener("Admin")), &[]).body
}

#[test]
fn while_the_limit_is_reached_low_priorities_are_shed_and_health_checks_never() {
    let shedding = ["--gateway-shedding", "enforce", "--gateway-shedding-exempt", "/healthz"];
    let (gateway, upstream, is_released, held) = overloaded(&shedding);
    let client = ["-H", "X-Client: ann"];
    let shed = until("low requests to be shed", || {
        let refused = gateway.curl("/low", &client);
        assert_eq!(refused.status, 503, "{refused:?}");
        (refused.json()["fault"] == "gateway").then_some(refused)
    });
    assert_eq!(shed.json()["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    let retry_after: u32 = shed.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&retry_after), "{retry_after}");
    let grpc = gateway.curl("/low", &["-H", "X-Client: ann", "-H", "Content-Type: application/grpc"]);
    assert_eq!(grpc.header("grpc-status"), Some("14"), "{grpc:?}");
    assert_eq!(upstream.heads().len(), 1);
    assert_eq!(gateway.curl("/critical", &client).status, 200, "it has its share of the limit");
    assert_eq!(gateway.curl("/healthz", &client).status, 200, "though it is normal, and the limit is reached");
    let shows = |part: &str| until(part, || metrics(&gateway).contains(part).then_some(()));
    shows(r#"tidegate_gateway_shed_requests_total{route="/",priority="critical"} 0"#);
    shows(r#"tidegate_gateway_shedding_requests_total{route="/",priority="critical"} 1"#);
    shows(r#"tidegate_gateway_errors_total{route="/",cause="shed"}"#);
    let text = metrics(&gateway);
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{text}"));
        line.trim().parse::<u64>().unwrap()
    };
    assert!(number(r#"tidegate_gateway_shed_requests_total{route="/",priority="low"}"#) >= 2);
    assert!((1..=128).contains(&number(r#"tidegate_gateway_shedding_threshold{route="/"}"#)), "{text}");
    is_released.store(true, Ordering::SeqCst);
    drop(held);
    until("low requests to be served again", || (gateway.curl("/low", &client).status == 200).then_some(()));
}

#[test]
fn in_shadow_mode_nothing_is_shed_and_all_is_counted() {
    let (gateway, _upstream, _released, _held) =
        overloaded(&["--gateway-shedding", "shadow", "--gateway-concurrency-mode", "shadow"]);
    until("requests that would be shed", || {
        assert_eq!(gateway.curl("/low", &["-H", "X-Client: ann"]).status, 200);
        let text = metrics(&gateway);
        let line =
            text.lines().find(|line| line.starts_with("tidegate_gateway_shed_requests_total") && line.contains("low"));
        line.is_some_and(|line| !line.ends_with(" 0")).then_some(())
    });
}

#[test]
fn rules_that_shed_are_counted_by_priority_and_mode() {
    const RULES: &str = "
rules:
  - { id: low, match: { path: /low }, limit: 1000000/s, priority: low }
  - { id: fleet, shed: { slots: 2, low: 50%, normal: 100%, high: 100% } }
  - { id: trial, mode: shadow, shed: { slots: 1, low: 100%, normal: 100%, high: 100% } }
";
    let is_released = Arc::new(AtomicBool::new(false));
    let released = Arc::clone(&is_released);
    let upstream = Upstream::start(move |taken| {
        let (head, _) = taken.request()?;
        while head.contains("/held") && !released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        taken.answer("ok")
    });
    let gateway = Gateway::start(RULES, &[&upstream.url()], &["--admin-open-metrics", "true"]);
    let mut held = gateway.connect();
    std::io::Write::write_all(&mut held, b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until("the upstream has it", || (upstream.heads().len() == 1).then_some(()));
    assert_eq!(gateway.curl("/low", &[]).status, 503, "half of the slots are taken");
    assert_eq!(gateway.curl("/", &[]).status, 200, "and half are free");
    for line in [
        r#"{rule="fleet",priority="low",mode="enforce",outcome="denied"} 1"#,
        r#"{rule="fleet",priority="low",mode="enforce",outcome="allowed"} 0"#,
        r#"{rule="fleet",priority="normal",mode="enforce",outcome="allowed"} 2"#,
        r#"{rule="fleet",priority="normal",mode="enforce",outcome="denied"} 0"#,
        r#"{rule="trial",priority="normal",mode="shadow",outcome="allowed"} 1"#,
        r#"{rule="trial",priority="normal",mode="shadow",outcome="denied"} 1"#,
    ] {
        let line = format!("tidegate_shed_decisions_total{line}\n");
        until(&line, || metrics(&gateway).contains(&line).then_some(()));
    }
    is_released.store(true, Ordering::SeqCst);
}

#[test]
fn an_upstream_that_is_down_is_no_overload() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.write("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
    });
    let health = ["--gateway-health-path", "/live", "--gateway-health-interval", "50ms"];
    // A limit that follows response times would measure how busy this machine is. The tests in virtual time have such limits.
    let args = ["--gateway-concurrency", "aimd 1..1", "--gateway-shedding", "enforce", "--admin-open-metrics", "true"];
    // The processors are busy with other tests: that is no overload here.
    let here = ["--gateway-shedding-busy", "100", "--gateway-shedding-wait", "10s"];
    let gateway = Gateway::start(RULES, &[&upstream.url()], &[&health[..], &args, &here].concat());
    until("the upstream is found down", || (gateway.curl("/low", &[]).status == 503).then_some(()));
    // Several windows, one after the other.
    for _ in 0..60 {
        assert_eq!(gateway.curl("/low", &[]).json()["fault"], "upstream");
    }
    assert!(metrics(&gateway).contains("tidegate_gateway_shedding_threshold{route=\"/\"} 0\n"));
}

#[test]
fn wrong_settings_are_told_with_what_to_write() {
    let file = "\
gateway:
  upstream: http://127.0.0.1:3000
  shedding: on
  shedding_exempt: [healthz, /live?x]
  shedding_wait: 20
  shedding_busy: 101
";
    let folder = folder(&[("t.yaml", file)]);
    let ran = Ran(tidegate(folder.path()).args(["config", "--config", "t.yaml"]).output().unwrap());
    for expected in [
        "t.yaml:3:13",
        "there is no `on`",
        "t.yaml:4:21",
        "`healthz` is not a path",
        "`/live?x` is not a path",
        "write one such as `/healthz`",
        "t.yaml:5:18",
        "t.yaml:6:18",
    ] {
        assert!(ran.bad().contains(expected), "{expected}: {}", ran.bad());
    }
}

/// The workers of the slow upstream, and the time that each takes for a request.
const WORKERS: usize = 8;
const SERVICE: Duration = Duration::from_millis(100);
/// The time after which clients give up.
const PATIENCE: Duration = Duration::from_secs(5);
/// The paths of the priorities.
const PATHS: [&str; 4] = ["/low", "/normal", "/high", "/critical"];
/// The paths of ten requests, in turn.
const MIX: [usize; 10] = [0, 1, 0, 2, 1, 0, 3, 1, 0, 2];

/// The work of the upstream's workers.
#[derive(Default)]
struct Work {
    requests: AtomicU64,
    micros: AtomicU64,
}

/// An upstream with a few workers and a long queue. It works on requests whose clients have gone, since it does not see that.
async fn slow_upstream() -> (SocketAddr, Arc<Work>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, work, workers) = (listener.local_addr().unwrap(), Arc::new(Work::default()), Semaphore::new(WORKERS));
    let (done, workers) = (Arc::clone(&work), Arc::new(workers));
    let serve = move |_: Request<Incoming>| {
        let (done, workers) = (Arc::clone(&done), Arc::clone(&workers));
        let working = tokio::spawn(async move {
            let _worker = workers.acquire().await.unwrap();
            let begun = Instant::now();
            sleep(SERVICE).await;
            done.requests.fetch_add(1, Ordering::Relaxed);
            done.micros.fetch_add(u64::try_from(begun.elapsed().as_micros()).unwrap(), Ordering::Relaxed);
        });
        async move {
            working.await.unwrap();
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serving = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(serve.clone()));
            tokio::spawn(serving);
        }
    });
    (address, work)
}

/// The machine has stalled if a request is sent this late.
const STALL: Duration = Duration::from_millis(50);

/// Requests of one path.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    sent: u32,
    /// Those answered with 200 before their client gave up.
    good: u32,
}

impl Served {
    fn part(self) -> f64 {
        f64::from(self.good) / f64::from(self.sent)
    }
}

/// The result of a run.
#[derive(Debug)]
struct Outcome {
    /// In the order of [`PATHS`].
    paths: [Served; 4],
    /// The part of the workers' time that was spent on requests whose clients got the response.
    goodput: f64,
    /// The longest time by which a request was sent late, because the machine had no time for it.
    late: Duration,
}

/// Sends requests three times as fast as the upstream can answer, at instants that do not depend on its responses. Those of the warm-up do
/// not count.
async fn overload(gateway: SocketAddr, work: &Work, warm_up: Duration, measured: Duration) -> Outcome {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut pace = interval(SERVICE / u32::try_from(WORKERS).unwrap() / 3);
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (begun, mut paths) = (Instant::now(), [Served::default(); 4]);
    let (mut answers, mut before, mut late) = (JoinSet::new(), None, Duration::ZERO);
    for number in 0.. {
        late = late.max(pace.tick().await.elapsed());
        let is_measured = begun.elapsed() >= warm_up;
        if begun.elapsed() >= warm_up + measured {
            break;
        }
        if is_measured && before.is_none() {
            before = Some((Instant::now(), work.requests.load(Ordering::Relaxed), work.micros.load(Ordering::Relaxed)));
        }
        let path = MIX[number % MIX.len()];
        let uri: Uri = format!("http://{gateway}{}", PATHS[path]).parse().unwrap();
        let request = Request::get(uri).header("x-client", (number * 7_919 % 400).to_string()).body(Empty::new());
        let answer = client.request(request.unwrap());
        answers.spawn(async move {
            let good = timeout(PATIENCE, async move {
                let response = answer.await.ok()?;
                let status = response.status();
                response.into_body().collect().await.ok()?;
                (status == 200).then_some(())
            });
            (path, is_measured, matches!(good.await, Ok(Some(()))))
        });
    }
    let (since, requests, micros) = before.unwrap();
    let (lasted, requests, micros) = (
        since.elapsed(),
        work.requests.load(Ordering::Relaxed) - requests,
        work.micros.load(Ordering::Relaxed) - micros,
    );
    while let Some(answer) = answers.join_next().await {
        let (path, is_measured, is_good) = answer.unwrap();
        if is_measured {
            paths[path].sent += 1;
            paths[path].good += u32::from(is_good);
        }
    }
    let good: u32 = paths.iter().map(|path| path.good).sum();
    let service = micros as f64 / requests.max(1) as f64;
    let goodput = f64::from(good) * service / (lasted.as_micros() as f64 * WORKERS as f64);
    Outcome { paths, goodput, late }
}

fn run(args: &[&str], warm_up: Duration, measured: Duration) -> Outcome {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (address, work) = runtime.block_on(slow_upstream());
    let gateway = Gateway::start(RULES, &[&format!("http://{address}")], args);
    let outcome = runtime.block_on(overload(gateway.address, &work, warm_up, measured));
    runtime.shutdown_background();
    outcome
}

#[test]
fn at_three_times_the_capacity_critical_requests_are_served_low_ones_shed_first_and_goodput_stays() {
    const SECOND: Duration = Duration::from_secs(1);
    let unprotected = std::thread::spawn(|| run(&[], 6 * SECOND, 6 * SECOND));
    // The workers sleep, so their capacity does not depend on the machine, nor does what it takes to overload them.
    let args = ["--gateway-concurrency", "gradient2 12..200", "--gateway-concurrency-shares", "critical=100"];
    // The processors are busy with other tests: that is no overload here.
    let here = ["--gateway-shedding", "enforce", "--gateway-shedding-busy", "100", "--gateway-shedding-wait", "10s"];
    let outcome = run(&[&args[..], &here].concat(), 12 * SECOND, 15 * SECOND);
    let unprotected = unprotected.join().unwrap();
    println!("with shedding: {outcome:?}\nwithout: {unprotected:?}");
    let [low, normal, high, critical] = outcome.paths.map(Served::part);
    assert!(low < high && high <= critical, "{outcome:?}");
    // A machine that stalls makes bursts of requests and of responses, which are no part of what is tested.
    if outcome.late < STALL && unprotected.late < STALL {
        assert!(critical >= 0.99, "{outcome:?}");
        assert!(low < normal && normal < high && low < 0.1, "{outcome:?}");
        assert!(outcome.goodput >= 0.9, "{outcome:?}");
        assert!(unprotected.goodput < 0.1, "without protection, nobody is served in time: {unprotected:?}");
    }
}
