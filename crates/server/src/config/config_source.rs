//! Source of a configuration, for reloading and comparison.

use std::fmt;

use super::layers::{Layers, StartupArgs};
use super::print::{ShownSetting, show};
use super::setting::Setting;
use super::{ConfigErrors, Configuration};

/// Sources of a configuration, and the values found there.
#[derive(Clone)]
pub struct ConfigSource {
    given: StartupArgs,
    variables: Vec<(String, String)>,
    settings: Vec<HeldSetting>,
}

#[derive(Clone)]
struct HeldSetting {
    setting: &'static Setting,
    values: Vec<String>,
    shown: ShownSetting,
}

/// Differences between two configurations, by the names of settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changes that a running server can apply.
    pub applicable: Vec<&'static str>,
    /// Changes that need a restart.
    pub need_restart: Vec<&'static str>,
}

impl ConfigSource {
    pub(super) fn new(given: &StartupArgs, variables: &[(String, String)], layers: &Layers) -> ConfigSource {
        let held = |(found, shown): (&super::layers::FoundValue, ShownSetting)| HeldSetting {
            setting: found.setting,
            values: found.values.clone(),
            shown,
        };
        let settings = layers.found.iter().zip(show(layers)).map(held).collect();
        ConfigSource { given: given.clone(), variables: variables.to_vec(), settings }
    }

    /// Reads the file again, with the same flags and variables.
    ///
    /// # Errors
    /// All errors.
    pub fn read_again(&self) -> Result<Configuration, ConfigErrors> {
        Configuration::load(&self.given, &self.variables)
    }

    /// All settings with their origins; secrets are hidden.
    #[must_use]
    pub fn shown(&self) -> serde_json::Value {
        let shown: Vec<&ShownSetting> = self.settings.iter().map(|held| &held.shown).collect();
        // Serialization of text and lists cannot fail.
        serde_json::to_value(shown).unwrap_or_default()
    }

    /// Adopts the values of `next` that need no restart. Returns the changes.
    pub fn take_over(&mut self, next: ConfigSource) -> Changes {
        let mut changes = Changes::default();
        // Both lists contain all settings in the same order.
        for (held, next) in self.settings.iter_mut().zip(next.settings) {
            let name = next.setting.name;
            match (held.values != next.values, next.setting.needs_restart) {
                (true, true) => {
                    changes.need_restart.push(name);
                    continue;
                }
                (true, false) => changes.applicable.push(name),
                (false, _) => {}
            }
            *held = next;
        }
        changes
    }
}

/// Omits values, since some are secret.
impl fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigSource").field("file", &self.given.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(flags: &[(&str, &str)]) -> ConfigSource {
        let flags = flags.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()])).collect();
        Configuration::load(&StartupArgs { file: None, flags }, &[]).unwrap().source
    }

    fn value(source: &ConfigSource, name: &str) -> String {
        let shown = source.shown();
        let setting = shown.as_array().unwrap().iter().find(|setting| setting["name"] == name).unwrap().clone();
        setting["value"][0].as_str().unwrap().to_owned()
    }

    #[test]
    fn changes_that_need_a_restart_are_reported_each_time_and_not_applied() {
        let mut present = source(&[]);
        for _ in 0..2 {
            let next = source(&[
                ("api.listen", "127.0.0.1:1"),
                ("store.keys", "5000"),
                ("store.required", "true"),
                ("headers.ietf", "false"),
            ]);
            let changes = present.take_over(next);
            assert_eq!(changes.need_restart, ["api.listen", "store.keys"]);
            assert_eq!(value(&present, "api.listen"), "127.0.0.1:8080");
            assert_eq!(value(&present, "headers.ietf"), "false");
        }
        assert_eq!(present.take_over(source(&[])).applicable, ["store.required", "headers.ietf"]);
        assert_eq!(present.take_over(source(&[])), Changes::default());
    }

    #[test]
    fn addresses_the_store_where_requests_go_who_users_are_traces_and_logs_need_a_restart_and_nothing_else_does() {
        const SECTIONS: [&str; 5] = ["store.", "traces.", "gateway.", "auth.jwt.", "access_log."];
        const EXCEPTIONS: [&str; 4] =
            ["store.required", "gateway.tls", "gateway.proxy_protocol", "gateway.connections"];
        const OTHERS: [&str; 10] = [
            "node.name",
            "region",
            "rules_required",
            "log.format",
            "log.queue_bytes",
            "log.repeats",
            "handover",
            "auth.client_certificate",
            "auth.basic",
            "redis",
        ];
        for Setting { name, needs_restart, .. } in super::super::SETTINGS.iter() {
            let is_within = SECTIONS.iter().any(|section| name.starts_with(section)) && !EXCEPTIONS.contains(name);
            let expected = name.ends_with(".listen") || is_within || OTHERS.contains(name);
            assert_eq!(*needs_restart, expected, "{name}");
        }
    }
}
