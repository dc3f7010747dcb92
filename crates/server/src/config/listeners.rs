//! Settings of listeners.

use std::sync::Arc;
use std::time::Duration;

use tidegate_http::TrustedProxies;

use super::values::{address, choice, count, count_or_off, flag, span};
use super::{ConfigReader, HOUR, MS};
use crate::listen::{self, ListenerTls, TlsFiles};

impl ConfigReader<'_> {
    /// Settings of a listener. `None` on an error, `Some(None)` if it is off.
    pub(super) fn listener(
        &mut self,
        name: &str,
        protocols: &'static [&'static [u8]],
        proxies: Option<TrustedProxies>,
    ) -> Option<Option<listen::Settings>> {
        let address = self.value(&format!("{name}.listen"), address);
        let proxy_protocol = self.value(&format!("{name}.proxy_protocol"), flag);
        let connections = self.value(&format!("{name}.connections"), count(1, 10_000_000));
        let per_address = self.value("limits.connections_per_address", count_or_off(1, 10_000_000));
        let tls = self.listener_tls(&format!("{name}.tls"), protocols, address != Some(None));
        let grace = self.value("limits.stop_time", span(Duration::ZERO, HOUR));
        let handshake_time = self.value("limits.handshake_time", span(100 * MS, HOUR));
        let write_time = self.value("limits.write_time", span(100 * MS, HOUR));
        let keepalive_time = self.value("limits.keepalive_time", span(Duration::ZERO, HOUR));
        let settings = |address| {
            Some(listen::Settings {
                address,
                most_connections: connections,
                connections_per_address: per_address.map(|most| most.unwrap_or(usize::MAX)),
                trusted: proxies.clone()?,
                grace: grace?,
                handshake_time: handshake_time?,
                write_time: write_time?,
                keepalive_time: keepalive_time?,
                tls: tls?,
                proxies: proxies.clone().filter(|_| proxy_protocol == Some(true)),
            })
        };
        let listener = match address? {
            Some(address) => Some(settings(address)?),
            None => None,
        };
        if let Some(listener) = listener.as_ref().filter(|listener| !listener.address.ip().is_loopback()) {
            self.warn_of_exposure(name, listener);
        }
        Some(listener)
    }

    /// Warns about an unprotected listener that other machines can reach.
    fn warn_of_exposure(&mut self, name: &str, listener: &listen::Settings) {
        let is_set = |name: &str| self.layers.get(name).is_some_and(|found| !found.values.is_empty());
        let warning = match name {
            "admin" if listener.tls.is_none() => {
                "`admin.listen` can be reached from other machines without TLS, and its token can be read in transit: set `admin.tls`"
            }
            "resp" if !is_set("resp.password") && !is_set("resp.users") => {
                "`resp.listen` can be reached from other machines without a password: set `resp.password` or `resp.users`"
            }
            _ => return,
        };
        self.warnings.push(warning.to_owned());
    }

    fn listener_tls(
        &mut self,
        name: &str,
        protocols: &'static [&'static [u8]],
        is_open: bool,
    ) -> Option<Option<Arc<ListenerTls>>> {
        let kinds = [("off", TlsKind::Off), ("on", TlsKind::On), ("mutual", TlsKind::Mutual)];
        // Accepts booleans as `off` and `on`.
        let read = |value: &str| match value {
            "false" => Ok(TlsKind::Off),
            "true" => Ok(TlsKind::On),
            value => choice(&kinds)(value),
        };
        let kind = self.value(name, read)?;
        if kind == TlsKind::Off || !is_open {
            return Some(None);
        }
        let (certificate, key) = (self.path("tls.certificate"), self.path("tls.key"));
        let authorities = self.path("tls.client_ca");
        let (Some(certificate), Some(key)) = (certificate, key) else {
            self.wrong(name, "there is no certificate", "set `tls.certificate` and `tls.key`");
            return None;
        };
        if kind == TlsKind::Mutual && authorities.is_none() {
            self.wrong(
                name,
                "there are no CA certificates to verify clients with",
                "set `tls.client_ca`, or write `on`",
            );
            return None;
        }
        let client_authorities = authorities.filter(|_| kind == TlsKind::Mutual);
        match ListenerTls::load(TlsFiles { certificate, key, client_authorities }, protocols) {
            Ok(tls) => {
                let tls = Arc::new(tls);
                self.certificates.push(Arc::clone(&tls));
                Some(Some(tls))
            }
            Err(error) => {
                let culprit = ["tls.certificate", "tls.key", "tls.client_ca"]
                    .into_iter()
                    .find(|name| self.path(name).as_deref() == Some(error.path()));
                self.wrong(culprit.unwrap_or("tls.certificate"), &error.to_string(), "");
                None
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TlsKind {
    Off,
    On,
    Mutual,
}
