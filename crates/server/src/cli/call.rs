//! `tidegate call`: requests through the client, to see the limits of a service.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tidegate_client::{BoxError, ClientLayer, Hint, HostSnapshot, ReplayBody, Unsent};
use tidegate_core::Micros;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tower::{Layer, Service, service_fn};

use super::serve::refuse;
use super::{ERROR, FAINT, STRONG, plain};
use crate::authority::bare_host;
use crate::certificate_authorities::CertificateAuthorities;

const EXAMPLES: &str = "\
Examples:
  tidegate call http://127.0.0.1:8000/
  tidegate call https://api.example.com/v1/things -n 100 -c 10
  tidegate call https://api.example.com/v1/things -H 'Authorization: Bearer TOKEN'

Each attempt opens a connection, over HTTP/1.1. Redirects are not followed. Ctrl-C stops the calls and prints the results so far.

Exit status: 0 if all calls succeeded, 1 if not, 2 on a usage error, 130 on Ctrl-C.";

/// Exit status after Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Call a URL with a client that respects rate limits, and print the limits that it learned.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// URL to call: http://… or https://…
    #[arg(value_name = "URL", value_parser = url)]
    url: Uri,

    /// Number of calls.
    #[arg(long, short = 'n', value_name = "NUMBER", default_value = "1", value_parser = at_least_one)]
    calls: NonZeroU32,

    /// Maximum number of concurrent calls.
    #[arg(long, short, value_name = "NUMBER", default_value = "1", value_parser = at_least_one)]
    concurrency: NonZeroU32,

    /// Request method. Only idempotent methods are retried.
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    method: Method,

    /// Request header, such as 'Authorization: Bearer TOKEN'. May be repeated.
    #[arg(long, short = 'H', value_name = "HEADER", value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,

    /// Maximum number of retries of a call.
    #[arg(long, value_name = "NUMBER", default_value = "2")]
    retries: u32,

    /// Maximum wait of a call for its turn or before a retry: 500ms, 30s or 1min. A number alone is in seconds.
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = wait)]
    longest_wait: Duration,

    /// Timeout for connecting, for the response to begin, and between two parts of its body. Written like --longest-wait.
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = timeout_span)]
    timeout: Duration,

    /// CA certificates for https, as PEM. Default: the certificate authorities that browsers trust.
    #[arg(long, value_name = "FILE", value_parser = trust)]
    ca: Option<CertificateAuthorities>,
}

fn at_least_one(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| "write a whole number, at least 1".to_owned())
}

/// Parses a span of time, or a number of seconds.
fn wait(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let span: Result<Micros, _> = text.parse();
    span.map(Duration::from).map_err(|_| "write a time such as 500ms, 30s or 1min".to_owned())
}

/// Parses a span of time in which something can happen.
fn timeout_span(text: &str) -> Result<Duration, String> {
    wait(text).and_then(|span| if span.is_zero() { Err("write a time longer than 0".to_owned()) } else { Ok(span) })
}

/// Parses a URL that can be called.
fn url(text: &str) -> Result<Uri, String> {
    if !text.contains("://") && !text.starts_with('/') {
        return Err(format!("it begins with neither `http://` nor `https://`: write http://{text}"));
    }
    let url = text.parse().map_err(|_| "it is not a URL".to_owned())?;
    Target::of(&url, None).map(|_| url)
}

/// Parses `Name: value`.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write it as 'Name: value'")?;
    let name = name.trim().parse().map_err(|_| format!("{name:?} is not the name of a header"))?;
    Ok((name, value.trim().parse().map_err(|_| "the value has characters that a header cannot have")?))
}

/// Reads the certificates of a file.
fn trust(file: &str) -> Result<CertificateAuthorities, String> {
    let pem = fs::read(file).map_err(|error| error.to_string())?;
    CertificateAuthorities::of(&pem)
}

/// The number of calls that ended in each way.
type Outcomes = BTreeMap<String, u32>;

/// Results of a run.
#[derive(Default)]
struct CallResults {
    outcomes: Outcomes,
    /// Number of calls not made or not finished when the run was interrupted.
    unfinished: Option<u32>,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let target = match Target::of(&args.url, args.ca.as_ref()) {
        Ok(target) => Arc::new(target),
        Err(problem) => return refuse(&problem),
    };
    let layer = ClientLayer::new().retries(args.retries).longest_wait(args.longest_wait);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let start = Instant::now();
    let results = runtime.block_on(call_all(args, &layer, &target));
    let took = start.elapsed();
    runtime.shutdown_background();
    let mut out = anstream::stdout().lock();
    print_outcomes(&mut out, &results.outcomes)?;
    if let Some(unfinished) = results.unfinished {
        writeln!(out, "{ERROR}interrupted{ERROR:#}: {unfinished} of {} not made or not answered", args.calls)?;
    }
    if let Some(known) = layer.snapshot().values().next() {
        print_host(&mut out, known, took)?;
    }
    let is_refused = |outcome: &String| !outcome.starts_with(['1', '2', '3']);
    Ok(match results.unfinished {
        Some(_) => ExitCode::from(INTERRUPTED),
        None if results.outcomes.keys().any(is_refused) => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    })
}

async fn call_all(args: &Args, layer: &ClientLayer, target: &Arc<Target>) -> CallResults {
    let most = usize::try_from(args.concurrency.get()).unwrap_or(usize::MAX);
    let timeout = args.timeout;
    let service = {
        let target = Arc::clone(target);
        layer.layer(service_fn(move |request| send(Arc::clone(&target), timeout, request)))
    };
    let mut interrupt = pin!(async {
        if tokio::signal::ctrl_c().await.is_err() {
            // The signal handler cannot be installed, so Ctrl-C ends the process as usual.
            std::future::pending::<()>().await;
        }
    });
    let (mut calls, mut results, mut left) = (JoinSet::new(), CallResults::default(), args.calls.get());
    loop {
        while left > 0 && calls.len() < most {
            let (mut service, request) = (service.clone(), request(args));
            calls.spawn(async move {
                match service.call(request).await {
                    Ok(response) => outcome(response, timeout).await,
                    Err(error) => with_causes(&*error),
                }
            });
            left -= 1;
        }
        tokio::select! {
            biased;
            () = &mut interrupt => {
                while let Some(ended) = calls.try_join_next() {
                    results.add(ended);
                }
                let unanswered = u32::try_from(calls.len()).unwrap_or(u32::MAX);
                results.unfinished = Some(left.saturating_add(unanswered));
                return results;
            }
            ended = calls.join_next() => match ended {
                Some(ended) => results.add(ended),
                None => return results,
            },
        }
    }
}

impl CallResults {
    fn add(&mut self, ended: Result<String, JoinError>) {
        *self.outcomes.entry(ended.unwrap_or_else(|error| error.to_string())).or_default() += 1;
    }
}

fn request(args: &Args) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::default());
    *request.method_mut() = args.method.clone();
    *request.uri_mut() = args.url.clone();
    let agent = HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, agent);
    for (name, value) in &args.header {
        request.headers_mut().append(name, value.clone());
    }
    request
}

/// The status of a response, and the wait that it asks for. Reads its body to the end.
async fn outcome(response: Response<Incoming>, timeout: Duration) -> String {
    let (head, mut body) = response.into_parts();
    loop {
        match in_time(timeout, "the rest of the response", body.frame()).await {
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(error))) => return with_causes(&error),
            Ok(None) => break,
            Err(silent) => return silent.to_string(),
        }
    }
    match head.extensions.get::<Hint>() {
        Some(hint) => format!("{}, asks to wait for {:?}", head.status, hint.wait),
        None => head.status.to_string(),
    }
}

/// An error and its causes, unless its text contains them already.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// `1 retry`, `2 retries`.
fn counted(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

fn print_outcomes(out: &mut impl Write, outcomes: &Outcomes) -> io::Result<()> {
    for (outcome, count) in outcomes {
        let is_error = !outcome.starts_with(|c: char| c.is_ascii_digit());
        let style = if is_error { ERROR } else { STRONG };
        writeln!(out, "{count:>6} × {style}{}{style:#}", plain(outcome))?;
    }
    Ok(())
}

/// Prints what the client has learned about the host.
fn print_host(out: &mut impl Write, known: &HostSnapshot, took: Duration) -> io::Result<()> {
    let HostSnapshot { calls, retries, denials, budget_refusals, waits, waited, retry_waited, pace_refusals, .. } =
        known;
    let (calls, denials) = (counted(*calls, "call", "calls"), counted(*denials, "denial", "denials"));
    let waits = match waits {
        0 => String::new(),
        1 => format!(", 1 waited for its turn, {waited:.1?}"),
        waits => format!(", {waits} waited for their turn, {waited:.1?} in total"),
    };
    writeln!(out, "{calls} in {took:.1?}: {denials}, {}{waits}", counted(*retries, "retry", "retries"))?;
    if !retry_waited.is_zero() {
        match retries {
            1 => writeln!(out, "the retry waited {retry_waited:.1?}")?,
            _ => writeln!(out, "the retries waited {retry_waited:.1?} in total")?,
        }
    }
    if *budget_refusals > 0 {
        writeln!(out, "{} over the budget", counted(*budget_refusals, "retry was", "retries were"))?;
    }
    if *pace_refusals > 0 {
        let not_sent = counted(*pace_refusals, "call was not sent: it", "calls were not sent: they");
        writeln!(out, "{not_sent} would have waited too long")?;
    }
    if known.limits.is_empty() {
        writeln!(out, "{FAINT}no limits learned{FAINT:#}")?;
    }
    for limit in &known.limits {
        let name = if limit.id.name.is_empty() { "unnamed" } else { &limit.id.name };
        let (quota, left, ends_in) = (limit.quota, limit.left, limit.ends_in);
        let until = if ends_in.is_zero() { String::new() } else { format!(", for {ends_in:.1?}") };
        writeln!(out, "limit {STRONG}{}{STRONG:#}: {left} of {quota} left{until}", plain(name))?;
    }
    Ok(())
}

/// The server to connect to.
struct Target {
    host: String,
    port: u16,
    authority: HeaderValue,
    /// The name that the certificate must have, and the trusted authorities; `None` without TLS.
    tls: Option<(ServerName<'static>, CertificateAuthorities)>,
}

impl Target {
    /// The server of a URL. With TLS, its certificate must be signed by a `trusted` authority, or by one that browsers
    /// trust if none are given.
    fn of(url: &Uri, trusted: Option<&CertificateAuthorities>) -> Result<Target, String> {
        let (port, is_tls) = match url.scheme_str() {
            Some("http") => (80, false),
            Some("https") => (443, true),
            _ => {
                return Err(
                    "it begins with neither `http://` nor `https://`: write one such as http://127.0.0.1:8080/"
                        .to_owned(),
                );
            }
        };
        let authority = url.authority().ok_or("it has no host")?;
        if authority.as_str().contains('@') {
            return Err("a user name in the URL is not sent: pass -H 'Authorization: …' instead".to_owned());
        }
        let invalid = || "it has an invalid host".to_owned();
        let host = bare_host(authority).to_owned();
        let tls = match is_tls {
            true => {
                let name = ServerName::try_from(host.clone()).map_err(|_| invalid())?;
                Some((name, trusted.cloned().unwrap_or_else(CertificateAuthorities::web)))
            }
            false => None,
        };
        let port = authority.port_u16().unwrap_or(port);
        let authority = HeaderValue::try_from(authority.as_str()).map_err(|_| invalid())?;
        Ok(Target { host, port, authority, tls })
    }
}

type Attempt = Request<ReplayBody<Full<Bytes>>>;

/// The server has been silent for too long.
#[derive(Debug, thiserror::Error)]
#[error("timed out after {timeout:?} without {awaited}")]
struct Silent {
    timeout: Duration,
    awaited: &'static str,
}

/// Waits for a part of the exchange with a server.
async fn in_time<T>(timeout: Duration, awaited: &'static str, part: impl Future<Output = T>) -> Result<T, Silent> {
    tokio::time::timeout(timeout, part).await.map_err(|_| Silent { timeout, awaited })
}

/// Makes one attempt, on a connection of its own.
async fn send(target: Arc<Target>, timeout: Duration, request: Attempt) -> Result<Response<Incoming>, BoxError> {
    let unsent = |error: io::Error| Unsent(error.into());
    let silent = |error: Silent| Unsent(error.into());
    let connect = TcpStream::connect((target.host.as_str(), target.port));
    let stream = in_time(timeout, "a connection", connect).await.map_err(silent)?.map_err(unsent)?;
    match &target.tls {
        None => exchange(stream, &target, timeout, request).await,
        Some((name, trust)) => {
            let handshake = trust.http1_connector().connect(name.clone(), stream);
            let stream = in_time(timeout, "a TLS handshake", handshake).await.map_err(silent)?.map_err(unsent)?;
            exchange(stream, &target, timeout, request).await
        }
    }
}

async fn exchange<T>(
    stream: T,
    target: &Target,
    timeout: Duration,
    mut request: Attempt,
) -> Result<Response<Incoming>, BoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    if let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(path);
    }
    request.headers_mut().entry(HOST).or_insert_with(|| target.authority.clone());
    Ok(in_time(timeout, "a response", sender.send_request(request)).await??)
}
