//! Sources of keys: files that are polled, and a URL that is fetched.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::{Clock, Timestamp};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Verifier;
use super::fetch::{FetchError, Url, fetch};
use super::keys::{KeyError, VerificationKey};
use crate::certificate_authorities::CertificateAuthorities;

/// Contents of a file with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Jwks,
    Pem,
    Secret,
}

/// A key file, with the contents last read.
#[derive(Clone)]
pub(crate) struct KeyFile {
    path: PathBuf,
    kind: FileKind,
    contents: Vec<u8>,
    keys: Vec<VerificationKey>,
}

impl std::fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyFile").field("path", &self.path).field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// Error of a key file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyFileError {
    #[error("`{}` cannot be read: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: std::io::Error },
    #[error("`{}` cannot be used: {reason}", path.display())]
    Unusable { path: PathBuf, reason: KeyError },
}

impl KeyFile {
    pub(crate) fn jwks(path: &Path) -> Result<KeyFile, KeyFileError> {
        KeyFile::read(path, FileKind::Jwks)
    }

    pub(crate) fn pem(path: &Path) -> Result<KeyFile, KeyFileError> {
        KeyFile::read(path, FileKind::Pem)
    }

    pub(crate) fn secret(path: &Path) -> Result<KeyFile, KeyFileError> {
        KeyFile::read(path, FileKind::Secret)
    }

    fn read(path: &Path, kind: FileKind) -> Result<KeyFile, KeyFileError> {
        let contents =
            std::fs::read(path).map_err(|reason| KeyFileError::Unreadable { path: path.to_owned(), reason })?;
        let keys = match kind {
            FileKind::Jwks => VerificationKey::from_jwks(&contents, true),
            FileKind::Pem => VerificationKey::from_pem(&contents),
            FileKind::Secret => VerificationKey::secret(&contents).map(|key| vec![key]),
        };
        let keys = keys.map_err(|reason| KeyFileError::Unusable { path: path.to_owned(), reason })?;
        Ok(KeyFile { path: path.to_owned(), kind, contents, keys })
    }
}

/// Settings for fetching keys.
#[derive(Clone, Debug)]
pub struct FetchSettings {
    pub(crate) url: Url,
    pub(crate) trust: CertificateAuthorities,
    /// Timeout of a fetch.
    pub timeout: Duration,
    /// Maximum size of a key set, in bytes.
    pub most_bytes: usize,
    /// Interval between fetches.
    pub interval: Duration,
    /// Minimum time between two fetches, however many tokens name an unknown key.
    pub min_interval: Duration,
}

/// Sources of keys.
pub(super) struct Sources {
    files: Vec<KeyFile>,
    /// The last fetched key set, with its keys; `None` before the first fetch.
    fetched: Option<(Vec<u8>, Vec<VerificationKey>)>,
}

impl Sources {
    pub(super) fn new(files: Vec<KeyFile>) -> Sources {
        Sources { files, fetched: None }
    }

    pub(super) fn keys(&self) -> Vec<VerificationKey> {
        let fetched = self.fetched.iter().flat_map(|(_, keys)| keys);
        self.files.iter().flat_map(|file| &file.keys).chain(fetched).cloned().collect()
    }
}

/// Start of a period without usable keys, and its reason.
#[derive(Debug, Default)]
pub(super) struct KeySetOutage(Mutex<Option<(Timestamp, String)>>);

impl KeySetOutage {
    /// Records a problem. Returns whether it starts an outage.
    fn begin(&self, at: Timestamp, reason: String) -> bool {
        let mut outage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = outage.as_ref().map(|(since, _)| *since);
        *outage = Some((since.unwrap_or(at), reason));
        since.is_none()
    }

    fn present(&self) -> Option<(Timestamp, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the outage. Returns whether there was one.
    fn end(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }
}

/// Whether tokens can be verified, and whether the keys are up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysHealth {
    /// Number of keys in force.
    pub keys: usize,
    /// Time and reason of the failure since which the keys may be outdated; `None` if they are up to date.
    pub problem: Option<(Timestamp, String)>,
}

/// Backoff after a failed fetch. Doubles each time, up to the interval.
const FIRST_RETRY: Duration = Duration::from_secs(1);

impl Verifier {
    /// Whether tokens can be verified, and whether the keys are up to date.
    #[must_use]
    pub fn health(&self) -> KeysHealth {
        let problem = self.fetch_outage.present().or_else(|| self.file_outage.present());
        KeysHealth { keys: self.ring.load().keys.len(), problem }
    }

    /// Reloads the files, and puts changed keys in force. An unusable file changes nothing, unless it is a key set
    /// whose keys were all removed. Both cases are logged once.
    pub fn reload_files(&self, now: Timestamp) {
        let mut sources = self.sources();
        let (mut is_new, mut problem) = (false, None);
        for file in &mut sources.files {
            match std::fs::read(&file.path) {
                Ok(contents) if contents == file.contents => continue,
                _ => {}
            }
            match KeyFile::read(&file.path, file.kind) {
                Ok(read) => (*file, is_new) = (read, true),
                Err(error) => {
                    problem = Some(error.to_string());
                    if matches!(&error, KeyFileError::Unusable { reason, .. } if reason.is_without_keys()) {
                        is_new |= !file.keys.is_empty();
                        file.keys.clear();
                    }
                }
            }
        }
        if is_new {
            self.put_in_force(&sources);
            tracing::info!(keys = sources.keys().len(), "new token keys are in force");
        }
        match problem {
            Some(reason) => {
                if self.file_outage.begin(now, reason.clone()) {
                    tracing::error!(reason, keys = sources.keys().len(), "token keys cannot be used");
                }
            }
            None => {
                if self.file_outage.end() {
                    tracing::info!("token keys can be used again");
                }
            }
        }
    }

    /// Fetches keys until `stop`: at the start, at each interval, and when a token names an unknown key. A failed fetch
    /// changes nothing. Returns immediately if no URL is set.
    pub async fn keep_current(self: Arc<Self>, clock: impl Clock, stop: CancellationToken) {
        let Some(settings) = &self.settings.fetch else { return };
        let mut retry = FIRST_RETRY;
        loop {
            let begun = Instant::now();
            let fetched = tokio::select! {
                () = stop.cancelled() => return,
                fetched = self.fetch_once() => fetched,
            };
            let next = match fetched {
                Ok(()) => {
                    self.counts.fetched.fetch_add(1, Ordering::Relaxed);
                    if self.fetch_outage.end() {
                        tracing::info!(url = %settings.url, "token keys can be fetched again");
                    }
                    retry = FIRST_RETRY;
                    settings.interval
                }
                Err(error) => {
                    self.counts.fetch_failed.fetch_add(1, Ordering::Relaxed);
                    self.tell_failure(settings, clock.now(), &error);
                    let next = retry;
                    retry = (retry * 2).min(settings.interval.max(FIRST_RETRY));
                    next.min(settings.interval)
                }
            };
            let wanted = async {
                sleep_until(begun + settings.min_interval).await;
                self.unknown_key.notified().await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(next) => {}
                () = wanted => {}
            }
        }
    }

    /// Fetches keys once, if a URL is set.
    pub(crate) async fn fetch_once(&self) -> Result<(), FetchError> {
        let Some(settings) = &self.settings.fetch else { return Ok(()) };
        let fetching = fetch(&settings.url, &settings.trust, settings.most_bytes);
        let text = timeout(settings.timeout, fetching).await.unwrap_or(Err(FetchError::TooSlow))?;
        self.take(text)
    }

    pub(super) fn take(&self, text: Vec<u8>) -> Result<(), FetchError> {
        let mut sources = self.sources();
        if sources.fetched.as_ref().is_some_and(|(before, keys)| *before == text && !keys.is_empty()) {
            return Ok(());
        }
        let keys = match VerificationKey::from_jwks(&text, false) {
            Ok(keys) => keys,
            Err(error) => {
                // An issuer that revokes all keys serves an empty set. This is reported as an error, but the revoked
                // keys must not be trusted any more.
                if error.is_without_keys() && sources.fetched.as_ref().is_some_and(|(_, keys)| !keys.is_empty()) {
                    sources.fetched = Some((text, Vec::new()));
                    self.put_in_force(&sources);
                }
                return Err(FetchError::Unusable(error));
            }
        };
        sources.fetched = Some((text, keys));
        self.put_in_force(&sources);
        tracing::info!(keys = sources.keys().len(), "new token keys are in force");
        Ok(())
    }

    fn tell_failure(&self, settings: &FetchSettings, now: Timestamp, error: &FetchError) {
        if !self.fetch_outage.begin(now, error.to_string()) {
            return;
        }
        let (url, keys) = (&settings.url, self.ring.load().keys.len());
        if keys == 0 {
            tracing::error!(%url, %error, "token keys cannot be fetched: NO TOKEN CAN BE VERIFIED until they can");
        } else {
            tracing::error!(%url, %error, keys, "token keys cannot be fetched: the current keys stay in force");
        }
    }
}
