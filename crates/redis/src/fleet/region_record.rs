//! Reading and changing the record of a region in its Redis.

use tidegate_core::Timestamp;
use tidegate_core::regions::ShareLedger;

use super::control::FleetControl;
use super::error::FleetError;
use super::session::FleetSession;
use super::stored_ledger::{self, LARGEST_LEDGER};
use crate::link::{Announcements, Bound, Commands};

/// Maximum number of attempts of a change, while concurrent changes succeed.
const MOST_ATTEMPTS: usize = 20;

/// The record of a region at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionRecord {
    /// The record; `None` if there is none.
    pub ledger: Option<ShareLedger>,
    /// The time of the Redis's clock.
    pub now: Timestamp,
}

impl FleetControl {
    /// Reads the record of this Redis's region.
    ///
    /// # Errors
    /// Fails if Redis does not answer, or its data cannot be read.
    pub async fn region_record(&self) -> Result<RegionRecord, FleetError> {
        self.connect(Announcements::Unwanted).await?.region_record().await
    }

    /// Changes the record. `change` gets the record with the time of Redis, and returns what to write, or `None` to leave
    /// it. It is called again after a concurrent change. Returns the second result of `change`.
    ///
    /// If the answer is lost, the change may have been made: read the record again to find out.
    ///
    /// # Errors
    /// Fails if Redis does not answer, if its data cannot be read or would be too large, or if others keep changing it.
    pub(super) async fn change_region_record<T>(
        &self,
        mut change: impl FnMut(Option<ShareLedger>, Timestamp) -> (Option<ShareLedger>, T),
    ) -> Result<T, FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let key = session.keys.regions();
        for _ in 0..MOST_ATTEMPTS {
            let watch = Commands::new().with(&[b"WATCH", key.as_bytes()], Bound::string(0));
            session.values(&watch, |_| Some(())).await?.map_err(|(_, fault)| fault)?;
            let RegionRecord { ledger, now } = session.region_record().await?;
            let (changed, said) = change(ledger, now);
            let Some(changed) = changed else { return Ok(said) };
            let text = stored_ledger::write(&changed);
            if text.len() > LARGEST_LEDGER {
                return Err(FleetError::TooLarge { key, most: LARGEST_LEDGER });
            }
            let (channel, version) = (session.keys.news(), changed.version.to_string());
            let commands = Commands::new()
                .with(&[b"SET", key.as_bytes(), text.as_bytes()], Bound::string(0))
                .with(&[b"PUBLISH", channel.as_bytes(), version.as_bytes()], Bound::string(0));
            if session.write(commands).await? {
                return Ok(said);
            }
        }
        Err(FleetError::busy("others kept changing the record"))
    }
}

impl FleetSession {
    /// The record of the region. The clock is read first, so that the record is at least as recent as the returned time.
    pub(super) async fn region_record(&mut self) -> Result<RegionRecord, FleetError> {
        let (key, now) = (self.keys.regions(), self.time().await?);
        let bytes = self.string(&key, LARGEST_LEDGER).await?;
        Ok(RegionRecord { ledger: stored_ledger::read(&key, &bytes)?, now })
    }
}
