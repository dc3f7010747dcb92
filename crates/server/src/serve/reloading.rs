//! What changes while the server runs: what its configuration says, as far as that needs no restart.

use std::path::PathBuf;

use tidegate_rules::{Diagnostics, Loaded, Secret};

use super::following::{follow_files, load_rules, put_in_force, warn_of_built_in_key};
use super::{Server, make_room_for_connections};
use crate::admin::Token;
use crate::browsers::Hosts;
use crate::config::{Changes, Configuration, Faults, Origin};
use crate::log;

/// Why a configuration that was read again is left aside.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("{0}")]
    Configuration(#[from] Faults),
    #[error("{0}")]
    Rules(Diagnostics),
}

/// A configuration that can be put in force.
struct Next {
    configuration: Configuration,
    /// The rules, if they come from elsewhere than before.
    rules: Option<Loaded>,
}

impl Server {
    /// Reads the configuration again, with its rules and certificates, and puts in force what can be while it runs.
    /// What cannot is named in the log, and stays. If anything is wrong, that is said, and all stays as it was.
    pub async fn reload(&mut self) {
        tracing::info!("reloading");
        let (origin, paths) = (self.origin.clone(), self.paths.clone());
        match tokio::task::spawn_blocking(move || read(&origin, &paths)).await {
            Ok(Ok(next)) => self.apply(next).await,
            Ok(Err(refused)) => {
                tracing::error!("the configuration cannot be used: the current one stays in force\n{refused}");
            }
            Err(error) => tracing::error!(%error, "the configuration could not be reloaded"),
        }
    }

    async fn apply(&mut self, Next { mut configuration, rules }: Next) {
        make_room_for_connections(&mut configuration);
        for warning in &configuration.warnings {
            tracing::warn!("{warning}");
        }
        log::change_level(&configuration.log.level);
        let listening = [
            (self.gateway.as_ref().map(|door| &door.listening), configuration.gateway),
            (self.api.as_ref().map(|door| &door.listening), configuration.api),
            (self.rls.as_ref().map(|door| &door.listening), configuration.rls),
            (self.resp.as_ref().map(|door| &door.listening), configuration.resp),
            (self.admin.as_ref(), configuration.admin),
        ];
        for (open, settings) in listening {
            if let (Some(open), Some(settings)) = (open, settings) {
                open.apply(settings);
            }
        }
        if let Some(gateway) = &self.gateway {
            gateway.door.apply(&configuration.forwarding);
        }
        if let Some(api) = &self.api {
            configuration.http.hosts = Hosts::of(api.address().ip(), configuration.hosts.api);
            api.door.apply(configuration.http);
        }
        if let Some(rls) = &self.rls {
            configuration.envoy.hosts = Hosts::of(rls.address().ip(), configuration.hosts.rls);
            rls.door.apply(configuration.envoy);
        }
        if let Some(resp) = &self.resp {
            resp.door.apply(configuration.redis_protocol);
        }
        self.certificates = configuration.certificates;
        self.hide_under(configuration.secrets);
        self.follow_rules(configuration.rules, rules).await;
        let changes = self.origin.take_over(configuration.origin);
        if let Some(admin) = &self.admin {
            let hosts = Hosts::of(admin.address().ip(), configuration.hosts.admin);
            self.operators.change(|settings| settings.hosts.clone_from(&hosts));
        }
        self.tell_operators(configuration.admin_token.as_ref(), configuration.open_metrics);
        say(&changes);
    }

    /// Without a key, state in memory keeps the one that it has: what was counted could not be found under another.
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
        let Some(loaded) = rules else {
            if let Some(watch) = &self.watch {
                watch.reload();
            }
            return;
        };
        match follow_files(&paths, loaded.files, &self.engine, &self.are_published, self.known) {
            Ok(watch) => {
                let before = std::mem::replace(&mut self.watch, watch);
                // Its thread may have to finish what it reads.
                let _ = tokio::task::spawn_blocking(move || drop(before)).await;
                self.paths = paths;
                self.engine.metrics().reloaded(None);
                if let Some(known) = self.known {
                    known.warn(&loaded.rules);
                }
                put_in_force(&self.engine, loaded.rules, &self.are_published);
            }
            Err(error) => tracing::error!(%error, "the current rules stay in force"),
        }
    }

    /// A token that is no longer written stays: nobody could know another.
    fn tell_operators(&self, token: Option<&Token>, open_metrics: bool) {
        let (paths, configuration) = (&self.paths, self.origin.shown());
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

fn read(origin: &Origin, paths: &[PathBuf]) -> Result<Next, Refused> {
    let configuration = origin.read_again()?;
    let is_elsewhere = configuration.rules != paths;
    let rules = is_elsewhere
        .then(|| load_rules(&configuration.rules, configuration.gateway.is_some(), configuration.rules_required))
        .transpose()
        .map_err(Refused::Rules)?;
    Ok(Next { configuration, rules })
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
