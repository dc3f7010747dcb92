//! Settings of the gateway.

use std::time::Duration;

use http::uri::PathAndQuery;
use tidegate_core::adaptive::{DEFAULT_SHARES, LimitController, SampleWindow};
use tidegate_core::shed::OverloadBounds;
use tidegate_rules::Priority;

use super::error::InvalidValue;
use super::values::{choice, count, flag, span, text};
use super::{ConfigReader, HOUR, MS};
use crate::api;
use crate::gateway::{
    OverloadExempt, PATH_POLICIES, Route, Settings, Shedding, Upgrades, UpstreamAddress, UpstreamLimit,
};

const UPSTREAM: &str = "gateway.upstream";
const ROUTES: &str = "gateway.routes";
const UPGRADES: &str = "gateway.upgrades";
const CONCURRENCY: &str = "gateway.concurrency";

/// Parses the share of a priority, such as `critical=50`.
fn share(text: &str) -> Result<(Priority, f64), InvalidValue> {
    let wrong =
        || InvalidValue::new(format!("`{text}` is not the share of a priority"), "write one such as `critical=50`");
    let (priority, percent) = text.split_once('=').ok_or_else(wrong)?;
    let percent = percent.trim_end_matches('%').parse::<u8>().ok().filter(|percent| *percent <= 100);
    Ok((priority.parse().map_err(|_| wrong())?, f64::from(percent.ok_or_else(wrong)?) / 100.0))
}

impl ConfigReader<'_> {
    /// Settings of the gateway, besides those shared with the HTTP API.
    pub(super) fn gateway(&mut self, http: &api::Settings) -> Option<Settings> {
        let upstreams = self
            .each(UPSTREAM, |text| text.parse::<UpstreamAddress>().map_err(|e| InvalidValue::new(e.problem, e.help)));
        let routes = self.each(ROUTES, |text| text.parse::<Route>().map_err(|e| InvalidValue::new(e.problem, e.help)));
        let api_key_header = self.header("gateway.api_key_header");
        let priority_header = self.header("gateway.priority_header");
        let keep_host = self.value("gateway.keep_host", flag);
        let underscores = self.value("gateway.underscores", flag);
        let upgrades = self.upgrades();
        let paths = self.value("gateway.paths", choice(&PATH_POLICIES));
        let via = self.value("gateway.via", flag);
        let write_time = self.value("limits.write_time", span(100 * MS, HOUR));
        let inspection_time = self.value("gateway.inspection_time", span(MS, HOUR));
        let body_time = self.value("gateway.body_time", span(MS, 30 * 24 * HOUR));
        let body_rate = self.value("gateway.body_rate", count(0, 1 << 30));
        let body_grace = self.value("gateway.body_grace", span(MS, HOUR));
        let tunnel_idle_time = self.value("gateway.tunnel_idle_time", span(MS, 30 * 24 * HOUR));
        let keepalive_time = self.value("limits.keepalive_time", span(Duration::ZERO, HOUR));
        let connect_time = self.value("gateway.connect_time", span(MS, HOUR));
        let response_time = self.value("gateway.response_time", span(MS, 24 * HOUR));
        let stall_time = self.value("gateway.stall_time", span(MS, 24 * HOUR));
        let pool_idle_time = self.value("gateway.pool_idle_time", span(Duration::ZERO, HOUR));
        let pool_idle_connections = self.value("gateway.pool_idle_connections", count(0, 1_000_000));
        let retries = self.value("gateway.retries", count(0, 10));
        let retry_percent = self.value("gateway.retry_percent", count(0, 100));
        let concurrency = self.concurrency();
        let backoff_time = self.value("gateway.backoff_time", span(Duration::ZERO, HOUR));
        let health_path = self.health_path();
        let shedding = self.shedding();
        let overload_exempt = self.overload_exempt(health_path.as_ref().and_then(Option::as_ref));
        let health_interval = self.value("gateway.health_interval", span(10 * MS, HOUR));
        let refund_unserved = self.value("gateway.refund_unserved", flag);
        let trust = self.trust("gateway.ca");
        let client_certificate = self.client_certificate();
        let mut routes = routes?;
        let upstreams = upstreams?;
        if !upstreams.is_empty() {
            routes.push(Route::of_everything(upstreams));
        }
        let is_off = |found: &super::layers::FoundValue| found.values.first().is_some_and(|value| value == "off");
        // The container image sets this variable, so it alone does not mean that a gateway is wanted.
        let is_meant = |name: &&str| *name != "gateway.listen" || !self.layers.is_set_by_variable(name);
        if routes.is_empty()
            && !self.layers.get("gateway.listen").is_some_and(is_off)
            && let Some(name) = self.layers.set_within("gateway.").find(is_meant)
        {
            let warning =
                format!("the gateway is off: `{name}` is set, but neither `gateway.upstream` nor `gateway.routes`");
            self.warnings.push(warning);
        }
        Some(Settings {
            routes,
            proxies: http.proxies.clone(),
            style: http.style,
            answers: http.answers.clone(),
            auth_headers: http.auth_headers.clone(),
            basic: http.basic,
            client_certificate: client_certificate?,
            api_key_header,
            priority_header,
            header_bytes: http.header_bytes,
            header_time: http.header_time,
            streams: http.streams,
            keep_host: keep_host?,
            underscores: underscores?,
            upgrades: upgrades?,
            paths: paths?,
            via: via?,
            write_time: write_time?,
            inspection_time: inspection_time?,
            body_time: body_time?,
            body_rate: body_rate? as u64,
            body_grace: body_grace?,
            tunnel_idle_time: tunnel_idle_time?,
            keepalive_time: keepalive_time?,
            connect_time: connect_time?,
            response_time: response_time?,
            stall_time: stall_time?,
            pool_idle_time: pool_idle_time?,
            pool_idle_connections: pool_idle_connections?,
            retries: u32::try_from(retries?).unwrap_or(u32::MAX),
            retry_percent: u32::try_from(retry_percent?).unwrap_or(u32::MAX),
            concurrency: concurrency?,
            shedding: shedding?,
            overload_exempt: overload_exempt?,
            backoff_time: backoff_time?,
            health_path: health_path?,
            health_interval: health_interval?,
            refund_unserved: refund_unserved?,
            trust: trust?,
            access_log: None,
        })
    }

    /// `Some(None)` if it is not set.
    fn concurrency(&mut self) -> Option<Option<UpstreamLimit>> {
        let is_shadow = self.value("gateway.concurrency_mode", choice(&[("enforce", false), ("shadow", true)]));
        let shares = self.each("gateway.concurrency_shares", share);
        let window = self.value("gateway.concurrency_window", |text| {
            text.parse::<SampleWindow>().map_err(|error| InvalidValue::new(error.to_string(), ""))
        });
        // `value` returns `None` both for an unset setting and on an error, but only an error adds to `errors`.
        let errors = self.errors.len();
        let controller = self.value(CONCURRENCY, |text| {
            text.parse::<LimitController>().map_err(|error| InvalidValue::new(error.to_string(), ""))
        });
        let Some(controller) = controller else { return (self.errors.len() == errors).then_some(None) };
        let mut of_each = DEFAULT_SHARES;
        for (priority, share) in shares? {
            of_each[priority as usize] = share;
        }
        Some(Some(UpstreamLimit { controller, window: window?, is_shadow: is_shadow?, shares: of_each }))
    }

    /// `Some(None)` if it is off, and `None` on an error.
    fn shedding(&mut self) -> Option<Option<Shedding>> {
        let is_shadow =
            self.value("gateway.shedding", choice(&[("off", None), ("shadow", Some(true)), ("enforce", Some(false))]));
        let wait = self.value("gateway.shedding_wait", span(MS, HOUR));
        let busy = self.value("gateway.shedding_busy", count(1, 100));
        let bounds = OverloadBounds { wait: wait?.into(), busy: busy? as f64 / 100.0, ..OverloadBounds::default() };
        Some(is_shadow?.map(|is_shadow| Shedding { is_shadow, bounds }))
    }

    fn overload_exempt(&mut self, health_path: Option<&PathAndQuery>) -> Option<OverloadExempt> {
        let paths = self.each("gateway.shedding_exempt", |text| match text.parse::<PathAndQuery>() {
            Ok(path) if text.starts_with('/') && path.query().is_none() => Ok(text.to_owned()),
            _ => Err(InvalidValue::new(format!("`{text}` is not a path"), "write one such as `/healthz`")),
        })?;
        Some(OverloadExempt { paths: paths.into(), health_path: health_path.map(|path| path.path().into()) })
    }

    fn upgrades(&mut self) -> Option<Upgrades> {
        let all =
            self.each(UPGRADES, |text| text.parse::<Upgrades>().map_err(|e| InvalidValue::new(e.problem, e.help)))?;
        if all.len() > 1 && all.contains(&Upgrades::none()) {
            self.wrong(UPGRADES, "`off` cannot be combined with protocols", "write `off` alone, or leave it out");
            return None;
        }
        Some(all.into_iter().fold(Upgrades::none(), Upgrades::and))
    }

    /// `Some(None)` if it is not set, and `None` on an error.
    fn health_path(&mut self) -> Option<Option<PathAndQuery>> {
        const NAME: &str = "gateway.health_path";
        let Some(path) = self.value(NAME, text) else { return Some(None) };
        match path.parse::<PathAndQuery>() {
            Ok(path) if path.as_str().starts_with('/') => Some(Some(path)),
            _ => {
                self.wrong(NAME, &format!("`{path}` is not a path"), "write one such as `/healthz`");
                None
            }
        }
    }

    /// All values of a list; `None` on an error.
    fn each<T>(&mut self, name: &str, read: impl Fn(&str) -> Result<T, InvalidValue>) -> Option<Vec<T>> {
        let found = self.layers.get(name)?;
        let errors = self.errors.len();
        let mut all = Vec::new();
        for (number, value) in found.values.iter().enumerate() {
            match read(value) {
                Ok(value) => all.push(value),
                Err(InvalidValue { problem, help }) => self.wrong_value(found, number, &problem, help),
            }
        }
        (self.errors.len() == errors).then_some(all)
    }
}
