//! `tidegate call`: requests through the client, to see the limits of a service.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::num::NonZeroU32;
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, Service, service_fn};

use super::serve::refuse;
use super::{ERROR, FAINT, STRONG, plain};
use crate::certificate_authorities::CertificateAuthorities;

const EXAMPLES: &str = "\
Examples:
  tidegate call http://127.0.0.1:8000/
  tidegate call https://api.example.com/v1/things -n 100 -c 10
  tidegate call https://api.example.com/v1/things -H 'Authorization: Bearer TOKEN'

Each attempt has a connection of its own, over HTTP/1.1. Redirections are not followed.";

/// Call a URL as a client that keeps to its limits, and print what it learned of them.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The URL: http://… or https://…
    #[arg(value_name = "URL", value_parser = url)]
    url: Uri,

    /// Number of calls.
    #[arg(long, short = 'n', value_name = "NUMBER", default_value = "1")]
    calls: NonZeroU32,

    /// Calls at the same time.
    #[arg(long, short, value_name = "NUMBER", default_value = "1")]
    concurrency: NonZeroU32,

    /// Method. Only idempotent ones are retried.
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    method: Method,

    /// Header of the requests, such as 'Authorization: Bearer TOKEN'. May be repeated.
    #[arg(long, short = 'H', value_name = "HEADER", value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,

    /// Most retries of a call.
    #[arg(long, value_name = "NUMBER", default_value = "2")]
    retries: u32,

    /// Longest wait of a call for its turn, or before a retry, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    longest_wait: u32,

    /// File with the certificates to trust for https, as PEM, instead of those that browsers trust.
    #[arg(long, value_name = "FILE", value_parser = trust)]
    ca: Option<CertificateAuthorities>,
}

/// Parses a URL that can be called.
fn url(text: &str) -> Result<Uri, String> {
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

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let target = match Target::of(&args.url, args.ca.as_ref()) {
        Ok(target) => Arc::new(target),
        Err(problem) => return refuse(&problem),
    };
    let layer = ClientLayer::new().retries(args.retries).longest_wait(Duration::from_secs(args.longest_wait.into()));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let start = Instant::now();
    let outcomes = runtime.block_on(call_all(args, &layer, &target));
    let mut out = anstream::stdout().lock();
    print(&mut out, &outcomes, layer.snapshot().values().next(), start.elapsed())?;
    let is_refused = |outcome: &String| !outcome.starts_with(['1', '2', '3']);
    Ok(if outcomes.keys().any(is_refused) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn call_all(args: &Args, layer: &ClientLayer, target: &Arc<Target>) -> Outcomes {
    let slots = Arc::new(Semaphore::new(usize::try_from(args.concurrency.get()).unwrap_or(usize::MAX)));
    let service = {
        let target = Arc::clone(target);
        layer.layer(service_fn(move |request| send(Arc::clone(&target), request)))
    };
    let (mut calls, mut outcomes) = (JoinSet::new(), Outcomes::new());
    for _ in 0..args.calls.get() {
        // Never closed, so it never fails.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { break };
        let (mut service, request) = (service.clone(), request(args));
        calls.spawn(async move {
            let ended = match service.call(request).await {
                Ok(response) => outcome(response).await,
                Err(error) => with_causes(&*error),
            };
            drop(slot);
            ended
        });
        while let Some(Ok(ended)) = calls.try_join_next() {
            *outcomes.entry(ended).or_default() += 1;
        }
    }
    while let Some(ended) = calls.join_next().await {
        *outcomes.entry(ended.unwrap_or_else(|error| error.to_string())).or_default() += 1;
    }
    outcomes
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
async fn outcome(response: Response<Incoming>) -> String {
    let (head, mut body) = response.into_parts();
    while let Some(frame) = body.frame().await {
        if let Err(error) = frame {
            return with_causes(&error);
        }
    }
    match head.extensions.get::<Hint>() {
        Some(hint) => format!("{}, asks to wait for {:?}", head.status, hint.wait),
        None => head.status.to_string(),
    }
}

/// An error and what caused it, unless its text says so already.
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

fn print(out: &mut impl Write, outcomes: &Outcomes, known: Option<&HostSnapshot>, took: Duration) -> io::Result<()> {
    for (outcome, count) in outcomes {
        let is_error = !outcome.starts_with(|c: char| c.is_ascii_digit());
        let style = if is_error { ERROR } else { STRONG };
        writeln!(out, "{count:>6} × {style}{}{style:#}", plain(outcome))?;
    }
    let Some(known) = known else { return Ok(()) };
    let HostSnapshot { calls, retries, denials, budget_refusals, waits, waited, retry_waited, pace_refusals, .. } =
        known;
    writeln!(
        out,
        "{calls} calls in {took:.1?}: {denials} denials, {retries} retries, {waits} waited for their turn, {waited:.1?} together"
    )?;
    if !retry_waited.is_zero() {
        writeln!(out, "the retries waited {retry_waited:.1?} together")?;
    }
    if *budget_refusals > 0 {
        writeln!(out, "{budget_refusals} retries were over the budget")?;
    }
    if *pace_refusals > 0 {
        writeln!(out, "{pace_refusals} calls were not sent: they would have waited too long")?;
    }
    if known.limits.is_empty() {
        writeln!(out, "{FAINT}no limits learned{FAINT:#}")?;
    }
    for limit in &known.limits {
        let name = if limit.id.name.is_empty() { "unnamed" } else { &limit.id.name };
        let (quota, left, ends_in) = (limit.quota, limit.left, limit.ends_in);
        writeln!(out, "limit {STRONG}{}{STRONG:#}: {left} of {quota} left, for {ends_in:.1?}", plain(name))?;
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
    /// The server of a URL. With TLS its certificate must be signed by one that is `trusted`, or else by one that browsers trust.
    fn of(url: &Uri, trusted: Option<&CertificateAuthorities>) -> Result<Target, String> {
        let (port, is_tls) = match url.scheme_str() {
            Some("http") => (80, false),
            Some("https") => (443, true),
            _ => return Err("it begins with neither `http://` nor `https://`".to_owned()),
        };
        let authority = url.authority().ok_or("it has no host")?;
        if authority.as_str().contains('@') {
            return Err("a user name in the URL is not sent: pass -H 'Authorization: …' instead".to_owned());
        }
        let invalid = || "it has an invalid host".to_owned();
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
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

/// Makes one attempt, on a connection of its own.
async fn send(target: Arc<Target>, request: Attempt) -> Result<Response<Incoming>, BoxError> {
    let unsent = |error: io::Error| Unsent(error.into());
    let stream = TcpStream::connect((target.host.as_str(), target.port)).await.map_err(unsent)?;
    match &target.tls {
        None => exchange(stream, &target, request).await,
        Some((name, trust)) => {
            let stream = trust.http1_connector().connect(name.clone(), stream).await.map_err(unsent)?;
            exchange(stream, &target, request).await
        }
    }
}

async fn exchange<T>(stream: T, target: &Target, mut request: Attempt) -> Result<Response<Incoming>, BoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    if let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(path);
    }
    request.headers_mut().entry(HOST).or_insert_with(|| target.authority.clone());
    Ok(sender.send_request(request).await?)
}
