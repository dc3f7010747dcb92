//! Banner of `tidegate serve`: addresses of the listeners, and commands to try.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anstream::AutoStream;
use tidegate_rules::{Request, RuleCounts, RuleSet};

use super::{FAINT, GOOD, STRONG, WARNING, plain};
use crate::log::LogLineFormat;
use crate::resp;
use crate::serve::StoreFallback;
use crate::version;

/// Arguments of curl that declare a body as JSON. `--json` needs curl 7.82, and systems older than that are in use.
const AS_JSON: &str = "-H 'content-type: application/json' -d";

/// Banner printed once the server is up.
pub(super) struct Banner<'b> {
    /// Address of the listener, and whether it uses TLS.
    pub(super) gateway: Option<(SocketAddr, bool)>,
    pub(super) api: Option<(SocketAddr, bool)>,
    pub(super) rls: Option<(SocketAddr, bool)>,
    pub(super) resp: Option<(SocketAddr, bool)>,
    pub(super) admin: Option<(SocketAddr, bool)>,
    /// Admin token, if the server generated it.
    pub(super) token: Option<&'b str>,
    pub(super) store: &'b str,
    /// Outage of the store, and the failure policies in effect until it ends.
    pub(super) store_trouble: Option<StoreFallback>,
    pub(super) rules: RuleCounts,
    /// Request for the rate-limit service, as JSON, that matches the rules in force.
    pub(super) rls_example: Option<String>,
    /// A request for the HTTP API.
    pub(super) api_example: &'static str,
    /// User of the Redis listener, if it requires a password.
    pub(super) resp_user: Option<&'b str>,
    pub(super) is_example: bool,
    /// Whether the rules were published for the fleet.
    pub(super) are_published: bool,
}

impl Banner<'_> {
    /// Logs that the server is up, with the addresses of its listeners.
    pub(super) fn log(&self) {
        let at = |listener: Option<(SocketAddr, bool)>| listener.map(|(address, _)| tracing::field::display(address));
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            profile = version::PROFILE,
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
            "profile": version::PROFILE,
            "listeners": {
                "gateway": at(self.gateway),
                "api": at(self.api),
                "rls": at(self.rls),
                "resp": at(self.resp),
                "admin": at(self.admin),
            },
            "store": self.store,
            "store_trouble": self.store_trouble.as_ref().map(|trouble| &trouble.reason),
            "rules": self.rules,
            "are_rules_published": self.are_published,
            "admin_token": self.token,
        });
        format!("{banner}\n")
    }

    /// Prints it to standard output on a separate thread, so that a blocked reader does not block the server.
    pub(super) fn print_aside(&self, format: LogLineFormat) {
        let text = match format {
            LogLineFormat::Json => self.json().into_bytes(),
            LogLineFormat::Text => {
                let colours = AutoStream::choice(&io::stdout());
                let mut out = AutoStream::new(Vec::new(), colours);
                // Writing to memory cannot fail.
                let _ = self.print(&mut out);
                out.into_inner()
            }
        };
        std::thread::spawn(move || {
            let mut out = io::stdout().lock();
            if let Err(error) = out.write_all(&text).and_then(|()| out.flush()) {
                tracing::debug!(%error, "standard output cannot be written");
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
            true => " (example rules: use your own with --rules FILE)",
            false => "",
        };
        writeln!(out, "{GOOD}tidegate {version} is up{GOOD:#}: state in {}, {}{example}", self.store, self.rules)?;
        if let Some(StoreFallback { reason, fallbacks }) = &self.store_trouble {
            writeln!(
                out,
                "\n  {WARNING}The store does not answer{WARNING:#}: {}. Until it does, rules apply their failure policies: {}.",
                plain(reason),
                plain(fallbacks),
            )?;
        }
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
            writeln!(out, "         {FAINT}try{FAINT:#}  curl -s {url}/v1/check {AS_JSON} '{}'", self.api_example)?;
        }
        if let Some((address, encrypted)) = self.rls {
            let (scheme, plaintext) = if encrypted { ("https", "") } else { ("http", " -plaintext") };
            writeln!(out, "\n  {STRONG}Envoy{STRONG:#}  {address}, gRPC and {scheme}://{address}/json")?;
            if let Some(body) = self.rls_example.as_deref().map(quoted) {
                let service = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
                writeln!(out, "         {FAINT}try{FAINT:#}  curl -s {scheme}://{address}/json {AS_JSON} {body}")?;
                writeln!(out, "         {FAINT}or{FAINT:#}   grpcurl{plaintext} -d {body} {address} {service}")?;
            }
        }
        if let Some((address, encrypted)) = self.resp {
            let (scheme, tls) = if encrypted { ("rediss", " --tls") } else { ("redis", "") };
            writeln!(out, "\n  {STRONG}Redis{STRONG:#}  {scheme}://{address}")?;
            let (host, port) = (address.ip(), address.port());
            // `redis-cli` prompts for the password, which must not appear in the output.
            let login = match self.resp_user {
                None => String::new(),
                Some(resp::DEFAULT_USER) => " --askpass".to_owned(),
                Some(user) => format!(" --user {} --askpass", quoted(user)),
            };
            writeln!(
                out,
                "         {FAINT}try{FAINT:#}  redis-cli{tls}{login} -h {host} -p {port} CL.THROTTLE alice 15 30 60"
            )?;
        }
        if let Some((address, encrypted)) = self.admin {
            let url = format!("{}://{address}", if encrypted { "https" } else { "http" });
            writeln!(out, "\n  {STRONG}Admin{STRONG:#}  {url}")?;
            let token = self.token.map(|token| format!(" --token {token}")).unwrap_or_default();
            writeln!(out, "         {FAINT}try{FAINT:#}  tidegate top --admin {url}{token}")?;
            // In the fragment, which browsers do not send to servers: the page reads the token from there.
            let token = self.token.map(|token| format!("#token={token}")).unwrap_or_default();
            writeln!(out, "         {FAINT}or{FAINT:#}   open {url}/lab/{token}")?;
        }
        let slowness = version::slowness().map(|slowness| format!(", {slowness}")).unwrap_or_default();
        writeln!(out, "\n  {STRONG}Build{STRONG:#}  profile {}{slowness}", version::PROFILE)?;
        let pid = std::process::id();
        writeln!(
            out,
            "\nStop with Ctrl-C or `kill {pid}`; `kill -HUP {pid}` reloads configuration, rules and certificates."
        )?;
        out.flush()
    }
}

/// A request for the HTTP API: one that the rules limit, if one of the candidates is.
pub(super) fn api_example(rules: &RuleSet) -> &'static str {
    const LOGIN: &str = r#"{"method":"POST","path":"/login","address":"203.0.113.7"}"#;
    const HOME: &str = r#"{"method":"GET","path":"/","address":"203.0.113.7","user":"alice"}"#;
    let is_limited = |request: Request| !rules.matching(&request.address(CLIENT)).rules.is_empty();
    if is_limited(Request::new("POST", "/login")) { LOGIN } else { HOME }
}

/// A client's address for examples.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));

/// A request for the rate-limit service that matches these rules: Tidegate's rules if they have a domain, else the
/// first Envoy file.
pub(super) fn rls_example(rules: &RuleSet, own_domain: Option<&str>) -> Option<String> {
    let own = own_domain.filter(|_| !rules.rules().is_empty());
    let own = own.map(|domain| (domain, vec![("path", "/search"), ("user", "alice")]));
    let (domain, entries) =
        own.or_else(|| rules.domains().find_map(|domain| Some((domain.name(), domain.example()?))))?;
    let entry = |(key, value): (&str, &str)| serde_json::json!({ "key": key, "value": value });
    let entries: Vec<_> = entries.into_iter().map(entry).collect();
    Some(serde_json::json!({ "domain": domain, "descriptors": [{ "entries": entries }] }).to_string())
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", plain(word).replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(rules: &str, own_domain: Option<&str>) -> Option<String> {
        let rules = RuleSet::parse("rules.yaml", rules).unwrap_or_else(|findings| panic!("{findings}")).rules;
        rls_example(&rules, own_domain)
    }

    #[test]
    fn the_http_example_is_a_login_where_that_is_limited() {
        let example = |rules: &str| api_example(&RuleSet::parse("rules.yaml", rules).unwrap().rules);
        assert!(example("rules: [{ id: a, key: address, limit: 5/h }]").contains("/login"));
        assert!(example("rules: [{ id: a, match: { method: GET }, limit: 5/h }]").contains(r#""path":"/""#));
    }

    #[test]
    fn the_example_is_one_that_the_rules_know() {
        let own = "rules: [{ id: a, key: user, limit: 5/h }]";
        assert!(example(own, Some("mine")).unwrap().contains(r#""domain":"mine""#));
        assert_eq!(example(own, None), None);
        let envoy = "
domain: edge
descriptors:
  - key: generic_key
    value: it's
    descriptors: [{ key: remote_address, rate_limit: { unit: day, requests_per_unit: 1 } }]
";
        let request: serde_json::Value = serde_json::from_str(&example(envoy, Some("mine")).unwrap()).unwrap();
        let entries = serde_json::json!([
            { "key": "generic_key", "value": "it's" }, { "key": "remote_address", "value": "example" }
        ]);
        assert_eq!((&request["domain"], &request["descriptors"][0]["entries"]), (&"edge".into(), &entries));
        assert_eq!(example("domain: edge\ndescriptors: [{ key: a }]", Some("mine")), None);
    }

    #[test]
    fn no_word_breaks_out_of_its_quotes() {
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
