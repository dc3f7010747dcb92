//! The Redis of a fleet, as named by arguments.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tidegate_redis::fleet::FleetControl;
use tidegate_redis::link::Tls;
use tidegate_redis::{PrefixError, Settings, SettingsError};

use super::{ERROR, plain_text};

/// Connection to Redis.
#[derive(clap::Args)]
#[command(next_help_heading = "Redis")]
pub(super) struct RedisArgs {
    /// URL of Redis: redis://[user:password@]host[:port][/database], or rediss:// for TLS. For a cluster, one or
    /// several nodes, separated by commas.
    #[arg(long = "redis", value_name = "URL", env = "TIDEGATE_REDIS", hide_env_values = true)]
    #[arg(required = true, value_delimiter = ',')]
    urls: Vec<String>,

    /// Name of the primary, if the URLs are those of sentinels.
    #[arg(long, value_name = "NAME")]
    sentinel: Option<String>,

    /// Redis user, if the URL does not contain one. With sentinels, the users in the URLs are for the sentinels.
    #[arg(
        id = "redis_user",
        long = "redis-user",
        value_name = "NAME",
        env = "TIDEGATE_REDIS_USER",
        hide_env_values = true
    )]
    user: Option<String>,

    /// Redis password, if the URL does not contain one.
    #[arg(long = "redis-password", value_name = "PASSWORD", env = "TIDEGATE_REDIS_PASSWORD", hide_env_values = true)]
    password: Option<String>,

    /// CA certificates for the server, as PEM. Default: the certificate authorities that browsers trust.
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// Client certificate, as PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key of the client certificate, as PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Prefix of all keys. Fleets with different prefixes do not see each other.
    #[arg(long, value_name = "PREFIX", default_value = "tidegate")]
    prefix: String,

    /// Timeout for a reply, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
}

/// Invalid connection arguments.
#[derive(Debug, thiserror::Error)]
enum ArgumentError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    #[error("`{}` cannot be read: {error}", file.display())]
    File { file: PathBuf, error: io::Error },
    #[error("certificates are for TLS: write rediss:// instead of redis://")]
    NoTls,
}

impl RedisArgs {
    /// Whether a Redis is given. Always true if the arguments are required.
    pub(super) const fn is_given(&self) -> bool {
        !self.urls.is_empty()
    }

    /// Connects and runs `work`, or prints the error.
    pub(super) fn with<T, E: std::error::Error>(
        &self,
        work: impl AsyncFnOnce(FleetControl) -> Result<T, E>,
    ) -> io::Result<Result<T, ExitCode>> {
        let control = match self.control() {
            Ok(control) => control,
            Err(error) => return report(&error, ExitCode::from(2)),
        };
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return report(&error, ExitCode::FAILURE),
        };
        match runtime.block_on(work(control)) {
            Ok(done) => Ok(Ok(done)),
            Err(error) => {
                let failed = report(&error, ExitCode::FAILURE)?;
                if let Some(help) = self.login_help(&error.to_string()) {
                    writeln!(anstream::stderr(), "  = {help}")?;
                }
                Ok(failed)
            }
        }
    }

    /// Suggestion after a login that Redis rejects, or for a user without permission.
    fn login_help(&self, error: &str) -> Option<String> {
        let has = |word: &str| error.contains(word);
        let give = "give the password with `--redis-password` (TIDEGATE_REDIS_PASSWORD) and the user, if it is not the default \
                    one, with `--redis-user` (TIDEGATE_REDIS_USER), or both in the URL: redis://USER:PASSWORD@HOST";
        let is_given = self.password.is_some() || self.urls.iter().any(|url| url.contains('@'));
        if has("NOPERM") {
            let rights =
                "the user may not run these commands or touch these keys: docs/fleet.md lists the rights it needs";
            return Some(rights.to_owned());
        }
        let is_refused = has("NOAUTH") || has("WRONGPASS") || has("invalid password") || has("without any password");
        is_refused.then(|| match is_given {
            true => format!("the user or the password is wrong: {give}"),
            false => format!("this Redis requires a password: {give}"),
        })
    }

    fn control(&self) -> Result<FleetControl, ArgumentError> {
        let mut settings = match &self.sentinel {
            Some(name) => Settings::sentinel(name, &self.urls)?,
            None => Settings::from_urls(&self.urls)?,
        };
        if self.user.is_some() {
            settings.login.user.clone_from(&self.user);
        }
        if self.password.is_some() {
            settings.login.password.clone_from(&self.password);
        }
        settings.tls = self.tls(settings.tls)?;
        settings.connect_timeout = Duration::from_secs(self.timeout);
        Ok(FleetControl::new(&settings)?.with_prefix(&self.prefix)?.with_timeout(Duration::from_secs(self.timeout)))
    }

    fn tls(&self, tls: Option<Tls>) -> Result<Option<Tls>, ArgumentError> {
        let authorities = self.tls_ca.as_deref().map(contents).transpose()?;
        let identity = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some((contents(certificate)?, contents(key)?)),
            (None | Some(_), None) | (None, Some(_)) => None,
        };
        match tls {
            Some(_) => Ok(Some(Tls { authorities, identity })),
            None if authorities.is_some() || identity.is_some() => Err(ArgumentError::NoTls),
            None => Ok(None),
        }
    }
}

fn contents(file: &Path) -> Result<Vec<u8>, ArgumentError> {
    std::fs::read(file).map_err(|error| ArgumentError::File { file: file.to_owned(), error })
}

fn report<T>(error: &dyn std::error::Error, code: ExitCode) -> io::Result<Result<T, ExitCode>> {
    writeln!(anstream::stderr(), "{ERROR}error{ERROR:#}: {}", plain_text(&error.to_string()))?;
    Ok(Err(code))
}

/// Expected version and author of a change.
#[derive(clap::Args)]
pub(super) struct SignatureArgs {
    /// Publish only if the current version is this one. 0: only if nothing is published yet.
    #[arg(long, value_name = "VERSION")]
    pub(super) expect: Option<u64>,

    /// Author of the change, shown in the history. Default: your user name and host name.
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
}

impl SignatureArgs {
    /// Name of the author.
    pub(super) fn who(&self) -> String {
        self.who.clone().unwrap_or_else(user_at_host)
    }
}

/// User name and host name.
fn user_at_host() -> String {
    let user = ["USER", "LOGNAME", "USERNAME"].iter().find_map(|name| std::env::var(name).ok());
    let user = user.filter(|user| !user.is_empty()).unwrap_or_else(|| "somebody".to_owned());
    format!("{user}@{}", tidegate_redis::fleet::NodeIdentity::here().host())
}
