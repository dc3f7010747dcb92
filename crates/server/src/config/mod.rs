//! Configuration of a server.
//!
//! All settings are in one table (`table/mod.rs`). The value of each comes from a flag, else from a variable, else from
//! the file, else from the table's default (`layers.rs`), and is then parsed (here). All errors are reported together,
//! with their positions and suggested fixes.

mod answers;
mod config_source;
mod error;
mod gateway;
mod identity;
mod known_facts;
mod layers;
mod listeners;
mod observability;
mod print;
mod reference;
mod regions;
mod secrets;
mod setting;
mod store;
mod table;
mod values;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};
use tidegate_core::Micros;
use tidegate_http::{Audience, ForwardingHeader, HeaderStyle, IetfForm, ResetForm, TrustedProxies};
use tidegate_redis::fleet::NodeIdentity;
use tidegate_rules::{Charging, DomainTerms, OnStoreFailure, Secret};

pub use self::config_source::{Changes, ConfigSource};
pub use self::error::{ConfigError, ConfigErrors};
pub(crate) use self::known_facts::KnownFacts;
pub(crate) use self::layers::FILE_VARIABLE;
pub use self::layers::StartupArgs;
use self::layers::{FoundValue, Layers};
pub(crate) use self::print::{ShownSetting, commented_file, shown};
pub(crate) use self::reference::reference;
pub use self::regions::{RegionServers, RegionServersError};
pub(crate) use self::secrets::{built_in_key_warning, key_needed_note, secret_given};
pub use self::store::StoreSettings;
pub(crate) use self::table::SETTINGS;
pub(crate) use self::values::socket_address;
use self::values::{choice, count, flag, header, login, span, span_or_off, text, token};
use crate::admin::Token;
use crate::cross_site::AllowedHosts;
use crate::identity::jwt;
use crate::listen::{self, ListenerTls};
use crate::rls::MetadataStyle;
use crate::{access_log, api, log, resp, rls, traces};

/// Configuration of a server.
#[derive(Debug)]
pub struct Configuration {
    /// Rules files, or folders of them; empty for the built-in example.
    pub rules: Vec<PathBuf>,
    /// Whether each folder among them must contain a file at startup.
    pub rules_required: bool,
    /// The name of this server in lists of servers.
    pub node: NodeIdentity,
    /// The region of this server.
    pub region: Option<String>,
    /// The Redis servers of all regions, for moving shares.
    pub regions: RegionServers,
    /// The time after a signal to stop in which the server is not ready, and still accepts connections.
    pub stop_delay: Duration,
    /// Socket for the handover to a successor, if any.
    pub handover: Option<PathBuf>,
    /// Store of the state.
    pub store: StoreSettings,
    /// Key that secrets are hashed with, if set. [`Configuration::secret`] provides the default.
    pub secrets: Option<Secret>,
    /// Listener of the gateway, if enabled.
    pub gateway: Option<listen::Settings>,
    /// Further settings of the gateway.
    pub forwarding: crate::gateway::Settings,
    /// Verification of tokens, if enabled.
    pub jwt: Option<jwt::Settings>,
    /// Listener of the HTTP API, if enabled.
    pub api: Option<listen::Settings>,
    /// Further settings of the HTTP API.
    pub http: api::Settings,
    /// Listener of the Envoy rate-limit service, if enabled.
    pub rls: Option<listen::Settings>,
    /// Further settings of the Envoy rate-limit service.
    pub envoy: rls::Settings,
    /// Redis-protocol listener, if enabled.
    pub resp: Option<listen::Settings>,
    /// Further settings of the Redis-protocol listener.
    pub redis_protocol: resp::Settings,
    /// Admin listener, if enabled.
    pub admin: Option<listen::Settings>,
    /// Admin token; `None` to generate one.
    pub admin_token: Option<Token>,
    /// Whether `/metrics` is served without the token.
    pub open_metrics: bool,
    /// Host names that listeners serve, besides those of this machine.
    pub hosts: HostNames,
    /// Source of the values.
    pub source: ConfigSource,
    /// Log settings.
    pub log: log::Settings,
    /// Access log, if enabled.
    pub access_log: Option<access_log::Settings>,
    /// Traces, if enabled.
    pub traces: Option<traces::Settings>,
    /// Certificates in use, for reloading when their files change.
    pub certificates: Vec<Arc<ListenerTls>>,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Host names that listeners serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames {
    /// The HTTP listener.
    pub api: Vec<String>,
    /// The JSON endpoint of the listener for Envoy.
    pub rls: Vec<String>,
    /// The admin listener.
    pub admin: Vec<String>,
}

impl Configuration {
    /// Reads flags, environment variables and the configuration file, if there is one.
    ///
    /// # Errors
    /// All errors.
    pub fn load(given: &StartupArgs, variables: &[(String, String)]) -> Result<Configuration, ConfigErrors> {
        let (layers, warnings) = Layers::collect(given, variables)?;
        let mut reading = ConfigReader { layers: &layers, errors: Vec::new(), certificates: Vec::new(), warnings };
        let configuration = reading.configuration(ConfigSource::new(given, variables, &layers));
        match configuration {
            Some(configuration) if reading.errors.is_empty() => Ok(configuration),
            _ => Err(ConfigErrors(reading.errors)),
        }
    }
}

/// Parses values, and collects errors.
struct ConfigReader<'l> {
    layers: &'l Layers,
    errors: Vec<ConfigError>,
    certificates: Vec<Arc<ListenerTls>>,
    warnings: Vec<String>,
}

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// ALPN protocols of HTTP listeners.
const HTTP_PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];
const ADMIN_PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// Failure policies, for decisions without a rule.
const POLICIES: [(&str, OnStoreFailure); 3] = [
    ("allow", OnStoreFailure::Allow { at_most: None }),
    ("deny", OnStoreFailure::Deny),
    ("local", OnStoreFailure::Local { percent: 100 }),
];

impl ConfigReader<'_> {
    fn configuration(&mut self, source: ConfigSource) -> Option<Configuration> {
        let rules = self.paths("rules");
        let rules_required = self.value("rules_required", flag);
        let node = self.node();
        let region = self.region();
        let regions = self.regions();
        let proxies = self.proxies();
        let log = self.log();
        let access_log = self.access_log();
        let traces = self.traces();
        let store = self.store();
        let secrets = self.secrets();
        let http = self.http(proxies.clone().unwrap_or_default());
        let redis_protocol = self.redis_protocol();
        let gateway = self.listener("gateway", HTTP_PROTOCOLS, proxies.clone());
        let forwarding = http.as_ref().and_then(|http| self.gateway(http));
        let jwt = self.jwt();
        let api = self.listener("api", HTTP_PROTOCOLS, proxies.clone());
        let rls = self.listener("rls", HTTP_PROTOCOLS, proxies.clone());
        let envoy = http.as_ref().and_then(|http| self.envoy(http));
        let resp = self.listener("resp", &[], proxies.clone());
        let admin = self.listener("admin", ADMIN_PROTOCOLS, proxies.clone());
        let admin_token = self.value("admin.token", token);
        let open_metrics = self.value("admin.open_metrics", flag);
        let stop_delay = self.value("limits.stop_delay", span(Duration::ZERO, HOUR));
        proxies?;
        Some(Configuration {
            rules,
            rules_required: rules_required?,
            node: node?,
            region: region?,
            regions: regions?,
            stop_delay: stop_delay?,
            handover: self.path("handover"),
            store: store?,
            secrets,
            gateway: gateway?.filter(|_| forwarding.as_ref().is_some_and(crate::gateway::Settings::has_upstreams)),
            forwarding: forwarding?,
            jwt: jwt?,
            api: api?,
            http: http?,
            admin: admin?,
            admin_token,
            open_metrics: open_metrics?,
            hosts: HostNames {
                api: self.texts("api.hosts"),
                rls: self.texts("rls.hosts"),
                admin: self.texts("admin.hosts"),
            },
            source,
            rls: rls?,
            envoy: envoy?,
            resp: resp?,
            redis_protocol: redis_protocol?,
            log: log?,
            access_log: access_log?,
            traces: traces?,
            certificates: std::mem::take(&mut self.certificates),
            warnings: std::mem::take(&mut self.warnings),
        })
    }

    /// The value of a setting; `None` if it has none, or on an error.
    fn value<T>(&mut self, name: &str, read: impl Fn(&str) -> Result<T, error::InvalidValue>) -> Option<T> {
        let found = self.layers.get(name)?;
        match read(found.values.first()?) {
            Ok(value) => Some(value),
            Err(error::InvalidValue { problem, help }) => {
                self.wrong_value(found, 0, &problem, help);
                None
            }
        }
    }

    fn wrong_value(&mut self, found: &FoundValue, number: usize, problem: &str, help: String) {
        let problem = format!("`{}`: {problem}", found.setting.name);
        let error = self.layers.error(found, number, problem, help);
        // Several listeners read the same settings, so the same error may occur repeatedly.
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Records an error in one of several values of a setting.
    fn wrong_one(&mut self, name: &str, number: usize, wrong: error::InvalidValue) {
        if let Some(found) = self.layers.get(name) {
            self.wrong_value(found, number, &wrong.problem, wrong.help);
        }
    }

    /// Records an error in the first value of a setting.
    fn wrong(&mut self, name: &str, problem: &str, help: impl Into<String>) {
        if let Some(found) = self.layers.get(name) {
            self.wrong_value(found, 0, problem, help.into());
        }
    }

    fn texts(&self, name: &str) -> Vec<String> {
        self.layers.get(name).map(|found| found.values.clone()).unwrap_or_default()
    }

    fn paths(&self, name: &str) -> Vec<PathBuf> {
        let Some(found) = self.layers.get(name) else { return Vec::new() };
        found.values.iter().map(|value| self.layers.path(found, value)).collect()
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.paths(name).into_iter().next()
    }

    fn proxies(&mut self) -> Option<TrustedProxies> {
        let headers =
            [("x-forwarded-for", ForwardingHeader::XForwardedFor), ("forwarded", ForwardingHeader::Forwarded)];
        let header = self.value("forwarding_header", choice(&headers));
        let found = self.layers.get("trusted_proxies")?;
        let errors = self.errors.len();
        for (number, value) in found.values.iter().enumerate() {
            if let Err(error) = TrustedProxies::parse([value], ForwardingHeader::XForwardedFor) {
                // The error includes the suggestion.
                self.wrong_value(found, number, &error.to_string(), String::new());
            }
        }
        if self.errors.len() > errors {
            return None;
        }
        TrustedProxies::parse(&found.values, header?).ok()
    }

    fn node(&mut self) -> Option<NodeIdentity> {
        let node = NodeIdentity::here();
        match self.value("node.name", text) {
            None => Some(node),
            Some(name) => match node.named(&name) {
                Ok(node) => Some(node),
                Err(error) => {
                    // The error includes the suggestion.
                    self.wrong("node.name", &error.to_string(), "");
                    None
                }
            },
        }
    }

    /// `None` on an error, `Some(None)` if it is not set.
    fn region(&mut self) -> Option<Option<String>> {
        let Some(name) = self.value("region", text) else { return Some(None) };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
        if !name.is_empty() && name.len() <= 100 && name.chars().all(fits) {
            return Some(Some(name));
        }
        let help = "write 1 to 100 letters, digits, `-`, `_`, `.` or `:`, as in the `regions` of the rules";
        self.wrong("region", &format!("`{name}` cannot name a region"), help);
        None
    }

    fn http(&mut self, proxies: TrustedProxies) -> Option<api::Settings> {
        let header_bytes = self.value("limits.header_bytes", count(8_192, 1 << 20));
        let header_time = self.value("limits.header_time", span(100 * MS, HOUR));
        let body_bytes = self.value("limits.body_bytes", count(1_024, 1 << 28));
        let request_time = self.value("limits.request_time", span(100 * MS, HOUR));
        let streams = self.value("limits.streams", count(1, 100_000));
        let style = self.style();
        let answers = self.local_replies();
        let names = api::AuthHeaders {
            user: self.header("auth.user_header"),
            api_key: self.header("auth.api_key_header"),
            tier: self.header("auth.tier_header"),
        };
        let paths = self.value("auth.paths", choice(&crate::gateway::PATH_POLICIES));
        let basic = self.value("auth.basic", flag);
        let store_required = self.value("store.required", flag);
        let hold_time = self.value("auth.hold_time", span(Duration::ZERO, HOUR));
        Some(api::Settings {
            header_bytes: header_bytes?,
            header_time: header_time?,
            body_bytes: body_bytes?,
            request_time: request_time?,
            streams: u32::try_from(streams?).unwrap_or(u32::MAX),
            proxies,
            style: style?,
            answers: answers?,
            auth_headers: names,
            basic: basic?,
            hosts: AllowedHosts::any(),
            paths: paths?,
            store_required: store_required?,
            hold_time: hold_time?,
        })
    }

    fn envoy(&mut self, http: &api::Settings) -> Option<rls::Settings> {
        let style = &http.style;
        let own_domain = self.value("rls.domain", |value| Ok((value != "off").then(|| value.to_owned())));
        let on_store_failure = self.value("rls.on_store_failure", choice(&POLICIES));
        let styles = [
            ("never", MetadataStyle::Never),
            ("needed", MetadataStyle::WhereNeeded),
            ("always", MetadataStyle::Always),
        ];
        let metadata = self.value("rls.metadata", choice(&styles));
        let idle = self.value("rls.idle_time", span(100 * MS, 24 * HOUR));
        let age = self.value("rls.connection_age", span_or_off(100 * MS, 365 * 24 * HOUR));
        let age_grace = self.value("rls.connection_grace", span(Duration::ZERO, 24 * HOUR));
        let x_ratelimit = self.value("rls.x_ratelimit", flag)?;
        let on_allowed = self.value("rls.on_allowed", flag)?;
        let always = self.texts("rls.always_charge");
        let terms = DomainTerms { on_store_failure: on_store_failure?, ..DomainTerms::default() };
        let domains = always.into_iter().map(|domain| (domain, DomainTerms { charging: Charging::Always, ..terms }));
        Some(rls::Settings {
            own_domain: own_domain?,
            terms,
            domains: domains.collect(),
            headers: HeaderStyle {
                on_allowed: style.on_allowed && on_allowed,
                x_ratelimit: style.x_ratelimit.filter(|_| x_ratelimit),
                ..*style
            },
            metadata: metadata?,
            idle: idle?,
            age: age?,
            age_grace: age_grace?,
            store_required: http.store_required,
            ..rls::Settings::default()
        })
    }

    fn redis_protocol(&mut self) -> Option<resp::Settings> {
        let password = self.value("resp.password", text);
        let mut users = password.map(resp::Users::password).unwrap_or_default();
        for (number, value) in self.texts("resp.users").iter().enumerate() {
            match login(value) {
                Ok((name, password)) => users = users.and(name, password),
                Err(wrong) => self.wrong_one("resp.users", number, wrong),
            }
        }
        let on_store_failure = self.value("resp.on_store_failure", choice(&POLICIES));
        let store_deadline = self.value("resp.store_deadline", span(MS, Duration::from_secs(60)));
        let idle = self.value("resp.idle_time", span(100 * MS, 24 * HOUR));
        let commands = self.value("resp.transaction_commands", count(1, 1_000_000));
        let bytes = self.value("resp.transaction_bytes", count(1 << 10, 1 << 30));
        Some(resp::Settings {
            users,
            on_store_failure: on_store_failure?,
            store_deadline,
            idle: Some(idle?),
            transaction: resp::TransactionBounds { commands: commands?, bytes: bytes? },
            ..resp::Settings::default()
        })
    }

    fn header(&mut self, name: &str) -> Option<HeaderName> {
        self.value(name, header)
    }

    fn style(&mut self) -> Option<HeaderStyle> {
        let resets = [("delta", Some(ResetForm::Delta)), ("epoch", Some(ResetForm::Epoch)), ("off", None)];
        let x_ratelimit = self.value("headers.x_ratelimit", choice(&resets));
        let forms =
            [("draft-11", Some(IetfForm::Draft11)), ("off", None), ("true", Some(IetfForm::Draft11)), ("false", None)];
        let ietf = self.value("headers.ietf", choice(&forms));
        let partition_key = self.value("headers.partition_key", flag);
        let statuses = [
            ("413", StatusCode::PAYLOAD_TOO_LARGE),
            ("429", StatusCode::TOO_MANY_REQUESTS),
            ("400", StatusCode::BAD_REQUEST),
            ("422", StatusCode::UNPROCESSABLE_ENTITY),
        ];
        let too_large = self.value("headers.too_large_status", choice(&statuses));
        let bucket = self.value("headers.bucket", flag);
        let reset_after = self.value("headers.reset_after", flag);
        let on_allowed = self.value("headers.on_allowed", flag);
        let audiences = [("everyone", Audience::Everyone), ("authenticated", Audience::Authenticated)];
        let audience = self.value("headers.audience", choice(&audiences));
        let jitter = self.value("headers.jitter", span(Duration::ZERO, HOUR));
        Some(HeaderStyle {
            x_ratelimit: x_ratelimit?,
            ietf: ietf?,
            partition_key: partition_key?,
            bucket: bucket?,
            reset_after: reset_after?,
            on_allowed: on_allowed?,
            audience: audience?,
            jitter: Micros::from(jitter?),
            too_large: too_large?,
        })
    }
}
