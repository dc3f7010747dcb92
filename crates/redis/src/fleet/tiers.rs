//! Tiers of API keys, which a fleet stores in one hash.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_rules::{FoundTier, LONGEST_TIER, TierDirectory, TierLookup};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::control::FleetControl;
use super::error::FleetError;
use super::follower::NoRuntime;
use super::session::FleetSession;
use crate::link::{Announcements, Bound, Commands, RespReply};

/// Maximum number of look-ups or changes in one call.
const AT_ONCE: usize = 500;
/// Maximum length of an entry in bytes. A longer entry counts as broken.
const LARGEST_ENTRY: usize = 4 << 10;
/// Length of the name of an entry: a hash in hexadecimal digits.
const NAME: usize = 32;
/// Time between two attempts to connect.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of entries of one page of a list.
const PAGE: usize = 1_000;

/// A running task that looks up tiers, which stops when this is dropped.
#[derive(Debug)]
pub struct ServingTiers {
    directory: Arc<TierDirectory>,
    task: JoinHandle<()>,
}

impl ServingTiers {
    /// The directory that it serves.
    #[must_use]
    pub const fn directory(&self) -> &Arc<TierDirectory> {
        &self.directory
    }
}

impl Drop for ServingTiers {
    fn drop(&mut self) {
        self.task.abort();
        self.directory.close();
    }
}

impl FleetControl {
    /// Looks up the tiers that requests need, on its own connection. A look-up that is not answered within `deadline` of the request
    /// has failed, however many were asked for before it.
    ///
    /// # Errors
    /// Fails outside a Tokio runtime.
    pub fn serve_tiers(&self, directory: Arc<TierDirectory>, deadline: Duration) -> Result<ServingTiers, NoRuntime> {
        let runtime = Handle::try_current().map_err(|_| NoRuntime)?;
        let (control, of_task) = (self.clone(), Arc::clone(&directory));
        // Before the task runs, so that the first request also waits for its tier.
        directory.open();
        let task = runtime.spawn(async move {
            let mut tier_session = TierSession { control, session: None, connect_after: Instant::now() };
            // The look-ups that wait, with the instants at which they have failed, the earliest first.
            let mut waiting: VecDeque<(Instant, Vec<TierLookup>)> = VecDeque::new();
            loop {
                let Some((until, mut lookups)) = waiting.pop_front() else {
                    let wanted = of_task.wanted().await;
                    waiting.push_back((Instant::now() + deadline, wanted));
                    continue;
                };
                if lookups.len() > AT_ONCE {
                    waiting.push_front((until, lookups.split_off(AT_ONCE)));
                }
                let found = {
                    let mut call = pin!(timeout_at(until, tier_session.look_up(&lookups)));
                    loop {
                        tokio::select! {
                            found = &mut call => break found.ok().flatten(),
                            wanted = of_task.wanted() => waiting.push_back((Instant::now() + deadline, wanted)),
                        }
                    }
                };
                if found.is_none() {
                    tier_session.session = None;
                }
                let mut found = found.into_iter().flatten();
                for lookup in lookups {
                    of_task.found(lookup, found.next().unwrap_or(FoundTier::Failed));
                }
            }
        });
        Ok(ServingTiers { directory, task })
    }

    /// Sets the tiers of API keys, by the [names](TierLookup::names) of their entries.
    ///
    /// # Errors
    /// Fails if Redis does not answer. Some tiers may have been set in that case.
    pub async fn set_tiers(&self, entries: &[(String, String)]) -> Result<(), FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let key = session.keys.tiers();
        for entries in entries.chunks(AT_ONCE) {
            let mut words: Vec<&[u8]> = vec![b"HSET".as_slice(), key.as_bytes()];
            words.extend(entries.iter().flat_map(|(name, tier)| [name.as_bytes(), tier.as_bytes()]));
            session.number(&words).await?;
        }
        Ok(())
    }

    /// Removes the tiers of API keys. Returns the number of keys that had one.
    ///
    /// # Errors
    /// Fails if Redis does not answer.
    pub async fn remove_tiers(&self, names: &[String]) -> Result<u64, FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let key = session.keys.tiers();
        let mut removed = 0;
        for names in names.chunks(AT_ONCE) {
            let mut words: Vec<&[u8]> = vec![b"HDEL".as_slice(), key.as_bytes()];
            words.extend(names.iter().map(String::as_bytes));
            removed += session.number(&words).await?;
        }
        Ok(removed)
    }

    /// The entry of an API key.
    ///
    /// # Errors
    /// Fails if Redis does not answer.
    pub async fn tier(&self, lookup: &TierLookup) -> Result<FoundTier, FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let found = session.tiers(std::slice::from_ref(lookup)).await?;
        Ok(found.into_iter().next().unwrap_or(FoundTier::Missing))
    }

    /// All entries, with their names. An entry that is changed meanwhile may be missing or appear twice.
    ///
    /// # Errors
    /// Fails if Redis does not answer.
    pub async fn all_tiers(&self) -> Result<Vec<(String, String)>, FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let (key, mut cursor, mut all) = (session.keys.tiers(), "0".to_owned(), Vec::new());
        loop {
            let count = PAGE.to_string();
            let words: [&[u8]; 5] = [b"HSCAN", key.as_bytes(), cursor.as_bytes(), b"COUNT", count.as_bytes()];
            // A small hash is returned completely, whatever the count.
            let bound = Bound::strings(8 * PAGE, 8 * PAGE * (NAME + LONGEST_TIER));
            let commands = Commands::new().with(&words, bound);
            let pages = session.values(&commands, page).await?.map_err(|(_, fault)| fault)?;
            let Some((next, entries)) = pages.into_iter().next() else { return Ok(all) };
            all.extend(entries);
            if next == "0" {
                return Ok(all);
            }
            cursor = next;
        }
    }
}

struct TierSession {
    control: FleetControl,
    session: Option<FleetSession>,
    connect_after: Instant,
}

impl TierSession {
    async fn connect(&mut self) {
        if self.session.is_none() && Instant::now() >= self.connect_after {
            self.connect_after = Instant::now() + RECONNECT_AFTER;
            self.session = self.control.connect(Announcements::Unwanted).await.ok();
        }
    }

    /// The results of look-ups, in order. `None` if Redis did not answer.
    async fn look_up(&mut self, lookups: &[TierLookup]) -> Option<Vec<FoundTier>> {
        if let Some(session) = &mut self.session
            && let Ok(found) = session.tiers(lookups).await
        {
            return Some(found);
        }
        // The server may have closed an idle connection.
        self.session = None;
        self.connect().await;
        self.session.as_mut()?.tiers(lookups).await.ok()
    }
}

impl FleetSession {
    async fn number(&mut self, words: &[&[u8]]) -> Result<u64, FleetError> {
        let commands = Commands::new().with(words, Bound::string(0));
        let numbers = self.values(&commands, |reply| match reply {
            RespReply::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        });
        let numbers = numbers.await?.map_err(|(_, fault)| fault)?;
        Ok(numbers.first().copied().unwrap_or(0))
    }

    /// The entries of API keys, in their order.
    async fn tiers(&mut self, lookups: &[TierLookup]) -> Result<Vec<FoundTier>, FleetError> {
        let key = self.keys.tiers();
        let names: Vec<Vec<String>> = lookups.iter().map(|lookup| lookup.names().collect()).collect();
        let mut words: Vec<&[u8]> = vec![b"HMGET".as_slice(), key.as_bytes()];
        words.extend(names.iter().flatten().map(String::as_bytes));
        let number = words.len() - 2;
        let commands = Commands::new().with(&words, Bound::strings(number, number * LARGEST_ENTRY));
        let found = self.values(&commands, entries).await?.map_err(|(_, fault)| fault)?;
        let mut found = found.into_iter().next().unwrap_or_default().into_iter();
        let first = |names: &Vec<String>| {
            let of_key: Vec<Option<Vec<u8>>> = found.by_ref().take(names.len()).collect();
            of_key.into_iter().flatten().next().map_or(FoundTier::Missing, FoundTier::Entry)
        };
        Ok(names.iter().map(first).collect())
    }
}

fn entries(reply: &RespReply<'_>) -> Option<Vec<Option<Vec<u8>>>> {
    Some(reply.items()?.iter().map(|item| item.text().map(<[u8]>::to_vec)).collect())
}

/// Parses a cursor and alternating names and tiers.
fn page(reply: &RespReply<'_>) -> Option<(String, Vec<(String, String)>)> {
    let text = |reply: &RespReply<'_>| Some(String::from_utf8_lossy(reply.text()?).into_owned());
    let [cursor, entries] = reply.items()? else { return None };
    let words: Vec<String> = entries.items()?.iter().map(text).collect::<Option<_>>()?;
    let pairs = words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    Some((text(cursor)?, pairs))
}
