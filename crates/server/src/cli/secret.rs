//! The key that secrets are hashed with, for commands other than the server.

use std::path::PathBuf;

use tidegate_rules::{RuleSet, Secret};

use super::settings_args::variables;
use crate::config::{ConfigErrors, Configuration, FILE_VARIABLE, StartupArgs, key_needed_note, secret_given};

/// Source of `secrets.key`. The environment variable works as well.
#[derive(clap::Args)]
pub(super) struct SecretArgs {
    /// Configuration file of the server. Secrets are shown as hashes under its `secrets.key`. [env: TIDEGATE_CONFIG]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Key of the hashes, if it is not in a file. [env: TIDEGATE_SECRETS_KEY]
    #[arg(long, value_name = "KEY")]
    secrets_key: Option<String>,
}

impl SecretArgs {
    /// The configured key; `None` if there is none.
    pub(super) fn secret(&self) -> Result<Option<Secret>, ConfigErrors> {
        secret_given(&self.given(), &variables())
    }

    /// The whole configuration of the server.
    pub(super) fn configuration(&self) -> Result<Configuration, ConfigErrors> {
        Configuration::load(&self.given(), &variables())
    }

    /// Whether a configuration file is named, here or by the environment variable.
    pub(super) fn names_file(&self) -> bool {
        self.config.is_some() || std::env::var_os(FILE_VARIABLE).is_some_and(|file| !file.is_empty())
    }

    fn given(&self) -> StartupArgs {
        let key = self.secrets_key.iter().map(|key| ("secrets.key".to_owned(), vec![key.clone()]));
        StartupArgs { file: self.config.clone(), flags: key.collect() }
    }
}

/// Note on rules that need `secrets.key`; `None` if no rule does, or if it is set here.
pub(super) fn note(rules: &RuleSet) -> Option<String> {
    let has_key = || secret_given(&StartupArgs::default(), &variables()).is_ok_and(|secret| secret.is_some());
    key_needed_note(rules).filter(|_| !has_key())
}
