//! The key that secrets are hidden under, for commands that show hashes and are no server.

use std::path::PathBuf;

use tidegate_rules::{RuleSet, Secret};

use super::given::variables;
use crate::config::{Configuration, Faults, Given, key_needed_note, secret_given};

/// Where to find `secrets.key`. As everywhere, variables count too.
#[derive(clap::Args)]
pub(super) struct SecretArgs {
    /// The server's configuration file, of which `secrets.key` is used: secrets are shown as hashes under it.
    /// [env: TIDEGATE_CONFIG]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The key itself, if it stands in no file. [env: TIDEGATE_SECRETS_KEY]
    #[arg(long, value_name = "KEY")]
    secrets_key: Option<String>,
}

impl SecretArgs {
    /// The key that is set; `None` if there is none.
    pub(super) fn secret(&self) -> Result<Option<Secret>, Faults> {
        secret_given(&self.given(), &variables())
    }

    /// The whole configuration of the server.
    pub(super) fn configuration(&self) -> Result<Configuration, Faults> {
        Configuration::load(&self.given(), &variables())
    }

    fn given(&self) -> Given {
        let key = self.secrets_key.iter().map(|key| ("secrets.key".to_owned(), vec![key.clone()]));
        Given { file: self.config.clone(), flags: key.collect() }
    }
}

/// What is to be said of rules that need a key of the installation; `None` if they do not, or if one is set here.
pub(super) fn note(rules: &RuleSet) -> Option<String> {
    let has_key = || secret_given(&Given::default(), &variables()).is_ok_and(|secret| secret.is_some());
    key_needed_note(rules).filter(|_| !has_key())
}
