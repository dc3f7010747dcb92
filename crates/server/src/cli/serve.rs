//! `tidegate serve`: the server.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use anstream::AutoStream;
use tidegate_rules::RuleCounts;

use super::given::{GivenArgs, variables};
use super::{ERROR, FAINT, GOOD, STRONG, WARNING, plain};
use crate::admin::Token;
use crate::config::Configuration;
use crate::log::LogFormat;
use crate::serve::{self, Server, Signals};
use crate::{listen, log};

const EXAMPLES: &str = "\
Examples:
  tidegate serve                                        state in memory, example rules
  tidegate serve --rules rules.yaml                     your own rules, followed when they change
  tidegate serve --upstream http://localhost:3000 --rules rules.yaml   in front of your service, as a gateway
  tidegate serve --config tidegate.yaml                 settings from a file
  tidegate serve --redis redis://10.0.0.5:6379          state shared by a fleet

Each setting is a flag, a variable (--api-listen is TIDEGATE_API_LISTEN) and an entry of the file; a flag counts before a
variable, and a variable before the file. `-h` shows the usual ones, `--help` all of them.

Signals: SIGTERM and SIGINT finish what is in flight and exit with 0, SIGHUP reads the configuration, rules and certificates again.
Exit status: 0 if it was told to stop, 1 if it could not start, 2 if the command was not understood.";

/// Run the server.
///
/// It starts with no file at all: state in memory, a few example rules, all doors on this machine only. A gateway without rules
/// limits nothing: the example is not for real traffic. What listens where is printed when it is up.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    given: GivenArgs,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let configuration = match Configuration::load(&args.given.0, &variables()) {
        Ok(configuration) => configuration,
        Err(faults) => return refuse(&faults),
    };
    // Dropped last, when nothing more is logged.
    let flush = log::begin(&configuration.log)?;
    let log_format = configuration.log.format;
    for warning in &configuration.warnings {
        tracing::warn!("{warning}");
    }
    serve::runtime()?.block_on(async {
        let store = configuration.store.to_string();
        let is_example = configuration.rules.is_empty();
        let is_tls = |door: &Option<listen::Settings>| door.as_ref().is_some_and(|door| door.tls.is_some());
        let [gateway_tls, api_tls, rls_tls, resp_tls, admin_tls] =
            [&configuration.gateway, &configuration.api, &configuration.rls, &configuration.resp, &configuration.admin]
                .map(is_tls);
        // Before anything is open, so that none is missed.
        let signals = Signals::receive()?;
        let server = match Server::start(configuration).await {
            Ok(server) => server,
            Err(error) => {
                // Whatever was logged comes before it.
                flush.wait();
                return refuse(&error);
            }
        };
        let at = |address: Option<SocketAddr>, is_tls| address.map(|address| (address, is_tls));
        let (api, rls, resp) = (at(server.api(), api_tls), at(server.rls(), rls_tls), at(server.resp(), resp_tls));
        let (gateway, admin) = (at(server.gateway(), gateway_tls), at(server.admin(), admin_tls));
        let token = server.made_up_token().map(Token::reveal);
        let are_published = server.has_published_rules().await;
        let banner = Banner {
            gateway,
            api,
            rls,
            resp,
            admin,
            token,
            store: &store,
            rules: server.rules(),
            is_example,
            are_published,
        };
        banner.log();
        banner.print_aside(log_format);
        server.until_stopped(signals).await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Says why the server does not start.
pub(super) fn refuse(why: &impl fmt::Display) -> io::Result<ExitCode> {
    let text = plain(&why.to_string());
    let mut out = anstream::stderr().lock();
    if text.starts_with("error: ") || text.starts_with("warning: ") {
        write!(out, "{text}")?;
    } else {
        writeln!(out, "{ERROR}error{ERROR:#}: {text}")?;
    }
    Ok(ExitCode::FAILURE)
}

/// What a server says when it is up.
struct Banner<'b> {
    /// Where it listens, and whether it is encrypted.
    gateway: Option<(SocketAddr, bool)>,
    api: Option<(SocketAddr, bool)>,
    rls: Option<(SocketAddr, bool)>,
    resp: Option<(SocketAddr, bool)>,
    admin: Option<(SocketAddr, bool)>,
    /// What operators have to know, if nobody has told the server.
    token: Option<&'b str>,
    store: &'b str,
    rules: RuleCounts,
    is_example: bool,
    /// Whether the rules were published for the fleet.
    are_published: bool,
}

impl Banner<'_> {
    /// Says in the log that the server is up, and where it listens.
    fn log(&self) {
        let at = |listener: Option<(SocketAddr, bool)>| listener.map(|(address, _)| tracing::field::display(address));
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            gateway = at(self.gateway),
            api = at(self.api),
            rls = at(self.rls),
            resp = at(self.resp),
            admin = at(self.admin),
            store = self.store,
            rules = %self.rules,
            "the server is up"
        );
    }

    /// The banner for programs: one line of JSON.
    fn json(&self) -> String {
        let at = |listener: Option<(SocketAddr, bool)>| listener.map(|(address, _)| address.to_string());
        let banner = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "listeners": {
                "gateway": at(self.gateway),
                "api": at(self.api),
                "rls": at(self.rls),
                "resp": at(self.resp),
                "admin": at(self.admin),
            },
            "store": self.store,
            "rules": self.rules,
            "are_rules_published": self.are_published,
            "admin_token": self.token,
        });
        format!("{banner}\n")
    }

    /// Prints it to standard output, on a thread of its own: a server does not wait for somebody to read that.
    fn print_aside(&self, format: LogFormat) {
        let text = match format {
            LogFormat::Json => self.json().into_bytes(),
            LogFormat::Text => {
                let colours = AutoStream::choice(&io::stdout());
                let mut out = AutoStream::new(Vec::new(), colours);
                // It goes to memory.
                let _ = self.print(&mut out);
                out.into_inner()
            }
        };
        std::thread::spawn(move || {
            let mut out = io::stdout().lock();
            if let Err(error) = out.write_all(&text).and_then(|()| out.flush()) {
                tracing::debug!(%error, "nobody reads standard output");
            }
        });
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        let has_no_rules =
            self.is_example && !self.are_published && self.gateway.is_some() && self.rules == RuleCounts::default();
        let example = match self.is_example {
            _ if self.are_published => " (published for the fleet)",
            true if has_no_rules => ", so NOTHING IS LIMITED",
            true => " (the example: use your own with --rules FILE)",
            false => "",
        };
        writeln!(out, "{GOOD}tidegate {version} is up{GOOD:#}: state in {}, {}{example}", self.store, self.rules)?;
        if has_no_rules {
            writeln!(
                out,
                "\n  {WARNING}The gateway forwards every request.{WARNING:#} To limit them, write rules.yaml, for example"
            )?;
            writeln!(out, "\n    rules:\n      - {{ id: per-address, key: address, limit: 20/s burst 50 }}")?;
            writeln!(out, "\n  and add --rules rules.yaml; `tidegate init` writes a longer one.")?;
        }
        if let Some((address, encrypted)) = self.gateway {
            let url = format!("{}://{address}", if encrypted { "https" } else { "http" });
            writeln!(out, "\n  {STRONG}Gateway{STRONG:#}  {url}")?;
            writeln!(out, "         {FAINT}try{FAINT:#}  curl -i {url}/")?;
        }
        if let Some((address, encrypted)) = self.api {
            let url = format!("{}://{address}", if encrypted { "https" } else { "http" });
            writeln!(out, "\n  {STRONG}HTTP{STRONG:#}   {url}")?;
            let body = r#"{"method":"POST","path":"/login","address":"203.0.113.7"}"#;
            writeln!(out, "         {FAINT}try{FAINT:#}  curl -s {url}/v1/check --json '{body}'")?;
        }
        if let Some((address, encrypted)) = self.rls {
            let (scheme, plaintext) = if encrypted { ("https", "") } else { ("http", " -plaintext") };
            writeln!(out, "\n  {STRONG}Envoy{STRONG:#}  {address}, gRPC and {scheme}://{address}/json")?;
            let entries = r#"[{"key":"path","value":"/search"},{"key":"user","value":"alice"}]"#;
            let body = format!(r#"{{"domain":"tidegate","descriptors":[{{"entries":{entries}}}]}}"#);
            let service = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
            writeln!(out, "         {FAINT}try{FAINT:#}  curl -s {scheme}://{address}/json --json '{body}'")?;
            writeln!(out, "         {FAINT}or{FAINT:#}   grpcurl{plaintext} -d '{body}' {address} {service}")?;
        }
        if let Some((address, encrypted)) = self.resp {
            let (scheme, tls) = if encrypted { ("rediss", " --tls") } else { ("redis", "") };
            writeln!(out, "\n  {STRONG}Redis{STRONG:#}  {scheme}://{address}")?;
            let (host, port) = (address.ip(), address.port());
            writeln!(
                out,
                "         {FAINT}try{FAINT:#}  redis-cli{tls} -h {host} -p {port} CL.THROTTLE alice 15 30 60"
            )?;
        }
        if let Some((address, encrypted)) = self.admin {
            let url = format!("{}://{address}", if encrypted { "https" } else { "http" });
            writeln!(out, "\n  {STRONG}Admin{STRONG:#}  {url}")?;
            let token = self.token.map(|token| format!(" --token {token}")).unwrap_or_default();
            writeln!(out, "         {FAINT}try{FAINT:#}  tidegate top --admin {url}{token}")?;
            // Behind the sign that is never sent: the page takes it from there.
            let token = self.token.map(|token| format!("#token={token}")).unwrap_or_default();
            writeln!(out, "         {FAINT}or{FAINT:#}   open {url}/lab/{token}")?;
        }
        let pid = std::process::id();
        writeln!(
            out,
            "\nStop with Ctrl-C or `kill {pid}`; `kill -HUP {pid}` reads configuration, rules and certificates again."
        )?;
        out.flush()
    }
}
