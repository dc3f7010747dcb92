//! Reload of the configuration in a running server.

use std::path::PathBuf;

use tidegate_rules::{Diagnostics, Loaded, Secret};

use super::rule_sources::{follow_files, load_rules, put_in_force, warn_of_built_in_key};
use super::{Server, make_room_for_connections};
use crate::admin::Token;
use crate::config::{Changes, ConfigErrors, ConfigSource, Configuration};
use crate::cross_site::AllowedHosts;
use crate::log;

/// Error of a reload.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error("{0}")]
    Configuration(#[from] ConfigErrors),
    #[error("{0}")]
    Rules(Diagnostics),
}

/// A valid configuration, ready to be applied.
struct NextConfiguration {
    configuration: Configuration,
    /// New rules, if their paths have changed.
    rules: Option<Loaded>,
}

impl Server {
    /// Reloads the configuration, rules and certificates, and applies all changes that need no restart. Other changes
    /// are logged. On any error, nothing changes.
    pub async fn reload(&mut self) {
        tracing::info!("reloading");
        let (source, paths) = (self.source.clone(), self.paths.clone());
        // Both need a restart, so the new configuration does not decide them.
        let (has_gateway, rules_required) = (self.known.is_some(), self.rules_required);
        match tokio::task::spawn_blocking(move || read(&source, &paths, has_gateway, rules_required)).await {
            Ok(Ok(next)) => self.apply(next).await,
            Ok(Err(refused)) => {
                tracing::error!("the configuration cannot be used: the current one stays in force\n{refused}");
            }
            Err(error) => tracing::error!(%error, "the configuration could not be reloaded"),
        }
    }

    async fn apply(&mut self, NextConfiguration { mut configuration, rules }: NextConfiguration) {
        make_room_for_connections(&mut configuration);
        for warning in &configuration.warnings {
            tracing::warn!("{warning}");
        }
        log::change_level(&configuration.log.level);
        self.stop_delay = configuration.stop_delay;
        let listening = [
            (self.gateway.as_ref().map(|open| &open.listening), configuration.gateway),
            (self.api.as_ref().map(|open| &open.listening), configuration.api),
            (self.rls.as_ref().map(|open| &open.listening), configuration.rls),
            (self.resp.as_ref().map(|open| &open.listening), configuration.resp),
            (self.admin.as_ref(), configuration.admin),
        ];
        for (open, settings) in listening {
            if let (Some(open), Some(settings)) = (open, settings) {
                open.apply(settings);
            }
        }
        if let Some(gateway) = &self.gateway {
            gateway.service.apply(&configuration.forwarding);
        }
        if let Some(api) = &self.api {
            configuration.http.hosts = AllowedHosts::of(api.address().ip(), configuration.hosts.api);
            api.service.apply(configuration.http);
        }
        if let Some(rls) = &self.rls {
            configuration.envoy.hosts = AllowedHosts::of(rls.address().ip(), configuration.hosts.rls);
            rls.service.apply(configuration.envoy);
        }
        if let Some(resp) = &self.resp {
            resp.service.apply(configuration.redis_protocol);
        }
        self.certificates = configuration.certificates;
        self.hide_under(configuration.secrets);
        self.follow_rules(configuration.rules, rules).await;
        let changes = self.source.take_over(configuration.source);
        if let Some(admin) = &self.admin {
            let hosts = AllowedHosts::of(admin.address().ip(), configuration.hosts.admin);
            self.operators.change(|settings| settings.hosts.clone_from(&hosts));
        }
        self.tell_operators(configuration.admin_token.as_ref(), configuration.open_metrics);
        say(&changes);
    }

    /// If no key is configured, state in memory keeps its current key: under another one, its counters would not be
    /// found.
    fn hide_under(&self, secret: Option<Secret>) {
        let limiter = self.engine.limiter();
        let present = limiter.rules().rules.secret().clone();
        let next = match secret {
            Some(secret) => secret,
            None if limiter.store().is_in_memory() => return,
            None => Secret::default(),
        };
        if next != present {
            limiter.hide_under(next);
            limiter.with_rules(|present| warn_of_built_in_key(&present.rules));
        }
    }

    async fn follow_rules(&mut self, paths: Vec<PathBuf>, rules: Option<Loaded>) {
        let Some(Loaded { rules, files, contents, .. }) = rules else {
            if let Some(watch) = &self.watch {
                watch.reload();
            }
            return;
        };
        let before = self.watch.take();
        // Dropping the watch waits for its thread, which therefore puts nothing in force after these rules.
        let _ = tokio::task::spawn_blocking(move || drop(before)).await;
        self.engine.metrics().reloaded(None);
        put_in_force(&self.engine, rules, &self.are_published, self.known);
        match follow_files(&paths, files, contents, &self.engine, &self.are_published, self.known) {
            Ok(watch) => self.watch = watch,
            Err(error) => tracing::error!(%error, "changes of the rules files take effect only after a restart"),
        }
        self.paths = paths;
    }

    /// If the token is removed from the configuration, the current one stays in force: operators would not know a
    /// new random one.
    fn tell_operators(&self, token: Option<&Token>, open_metrics: bool) {
        let (paths, configuration) = (&self.paths, self.source.shown());
        self.operators.change(|settings| {
            if let Some(token) = token {
                settings.token = token.clone();
            }
            settings.open_metrics = open_metrics;
            settings.rules.clone_from(paths);
            settings.configuration = configuration.clone();
        });
    }
}

fn read(
    source: &ConfigSource,
    paths: &[PathBuf],
    has_gateway: bool,
    rules_required: bool,
) -> Result<NextConfiguration, ReloadError> {
    let configuration = source.read_again()?;
    let is_elsewhere = configuration.rules != paths;
    let rules = is_elsewhere
        .then(|| load_rules(&configuration.rules, has_gateway, rules_required))
        .transpose()
        .map_err(ReloadError::Rules)?;
    Ok(NextConfiguration { configuration, rules })
}

fn say(changes: &Changes) {
    let Changes { applicable, need_restart } = changes;
    if !applicable.is_empty() {
        tracing::info!(settings = applicable.join(", "), "changed settings are in force");
    }
    if !need_restart.is_empty() {
        let settings = need_restart.join(", ");
        tracing::warn!(settings, "changed settings need a restart to take effect");
    }
}
