//! The steps of transfers that have begun, one after the other.

use std::collections::BTreeMap;

use tidegate_core::regions::{
    ApplyError, CONFIRMED_AFTER, SETTLING_MARGIN, ShareLedger, TakeBackError, Transfer, TransferId, Undelivered,
};
use tokio::time::{Instant, sleep, sleep_until};

use super::region_driver::RegionsControl;
use super::region_outcome::{TakenBack, TransferOutcome};
use super::regions_error::RegionsError;

/// The number of offers whose end is awaited, while other drivers offer the transfer again.
const MOST_WAITS: usize = 4;

impl RegionsControl {
    /// Continues transfers that were seen among the outgoing ones at an instant, and waits for the nodes once.
    pub(super) async fn continue_transfers(&self, transfers: Vec<Transfer>, seen_at: Instant) -> Vec<TransferOutcome> {
        if !transfers.is_empty() {
            sleep_until(seen_at + CONFIRMED_AFTER.into()).await;
        }
        let mut outcomes = Vec::new();
        for transfer in transfers {
            outcomes.push(self.arrive(TransferOutcome::of(transfer)).await);
        }
        let has_arrived = |outcome: &&mut TransferOutcome| outcome.parked.is_none() && !outcome.is_taken_back;
        if outcomes.iter_mut().filter(has_arrived).any(|outcome| !outcome.transfer.slices.is_empty()) {
            // Calls that were sent by the larger share have run by then.
            sleep_until(seen_at + SETTLING_MARGIN.into()).await;
        }
        for outcome in outcomes.iter_mut().filter(has_arrived) {
            self.end(outcome).await;
        }
        outcomes
    }

    async fn arrive(&self, mut outcome: TransferOutcome) -> TransferOutcome {
        match self.deliver(&outcome.transfer).await {
            Ok(()) => {}
            // A driver was interrupted between the two steps of taking it back.
            Err(RegionsError::Apply { error: ApplyError::Withdrawn, .. }) => {
                let taken_back = self.take_back(&outcome.transfer, Undelivered::Withdrawn).await;
                outcome.is_taken_back = taken_back.is_ok();
                outcome.parked = taken_back.err().map(|error| error.to_string());
            }
            Err(error) => outcome.parked = Some(error.to_string()),
        }
        outcome
    }

    /// Brings the rights of a transfer that has arrived, and ends it. It stays outgoing if they cannot be brought now, and can be later.
    async fn end(&self, outcome: &mut TransferOutcome) {
        match self.bring_rights(&outcome.transfer).await {
            Ok(()) => {}
            Err(error) if error.is_transient() => {
                outcome.unfinished = Some(error.to_string());
                return;
            }
            Err(error) => outcome.stranded = Some(error.to_string()),
        }
        outcome.unfinished = self.finish(&outcome.transfer).await.err().map(|error| error.to_string());
    }

    /// Takes back a parked share: it belongs to the region again that gave it. The region that was to receive it is asked to refuse it from
    /// now on.
    ///
    /// If that region cannot be reached, only the record of the giving region is asked, which knows whether a driver was ever permitted to
    /// deliver the share. If one was, `never_applied` is the operator's word that the share has not arrived. The call waits until no
    /// driver may deliver it any longer. The share is then reserved until the other region can be told.
    ///
    /// # Errors
    /// If there is no such transfer, if it has or may have arrived, or if a region does not answer. Call it again, or
    /// [`resume`](RegionsControl::resume).
    pub async fn cancel(
        &self,
        from: &str,
        to: &str,
        number: u64,
        never_applied: bool,
    ) -> Result<TakenBack, RegionsError> {
        self.control(to)?;
        let is_it = |transfer: &&Transfer| transfer.to == to && transfer.number == number;
        let found = self.change(from, |ledger, _| ledger.outgoing.iter().find(is_it).cloned()).await?;
        let missing = || format!("region `{from}` has no transfer {number} to `{to}` on its way");
        let transfer = found.ok_or_else(|| RegionsError::Shares(missing()))?;
        for _ in 0..MOST_WAITS {
            let (undelivered, error) = match self.withdraw(&transfer).await {
                Ok(true) => (Undelivered::Withdrawn, None),
                Ok(false) => {
                    let problem =
                        format!("region `{to}` has received transfer {number}: `tidegate regions resume` ends it");
                    return Err(RegionsError::Shares(problem));
                }
                // What a lost record had received is gone with it. A new one must not receive it from a late driver.
                Err(error @ RegionsError::NoRecord { .. }) => (Undelivered::Asserted, Some(error)),
                Err(error) if !error.is_transient() => return Err(error),
                Err(error) if never_applied => (Undelivered::Asserted, Some(error)),
                Err(error) => (Undelivered::NeverOffered, Some(error)),
            };
            match self.take_back(&transfer, undelivered).await? {
                Ok(is_reserved) => return Ok(TakenBack { transfer, is_reserved }),
                Err(TakeBackError::StillOffered { left }) => sleep(left.into()).await,
                Err(unknown) => return Err(error.unwrap_or_else(|| RegionsError::Shares(unknown.to_string()))),
            }
        }
        Err(RegionsError::Shares(format!("others keep delivering transfer {number}; try again")))
    }

    /// The first step of taking back a transfer: the region that was to receive it never does. Returns `false` if it has arrived.
    ///
    /// # Errors
    /// If the region does not answer.
    pub async fn withdraw(&self, transfer: &Transfer) -> Result<bool, RegionsError> {
        let id = TransferId::of(transfer);
        match self.change(&transfer.to, |ledger, _| ledger.withdraw(&id)).await? {
            // It cannot arrive any more.
            Err(ApplyError::Outdated) => Ok(true),
            withdrawn => withdrawn.map_err(|error| RegionsError::Apply { region: transfer.to.clone(), error }),
        }
    }

    /// Returns whether the share is reserved.
    async fn take_back(
        &self,
        transfer: &Transfer,
        undelivered: Undelivered,
    ) -> Result<Result<bool, TakeBackError>, RegionsError> {
        let is_reserved = |ledger: &ShareLedger| ledger.all_reserved().any(|reserved| reserved.is(transfer));
        self.change(&transfer.from, |ledger, now| {
            ledger.take_back(transfer, undelivered, now).map(|_| is_reserved(ledger))
        })
        .await
    }

    /// Tells regions that could not be reached before which transfers were taken back. Returns those that had arrived after all.
    pub(super) async fn tell_taken_back(&self, ledgers: &BTreeMap<String, ShareLedger>) -> Vec<RegionsError> {
        let mut problems = Vec::new();
        let taken_back = ledgers.values().flat_map(|ledger| &ledger.taken_back);
        for transfer in taken_back.filter(|transfer| ledgers.contains_key(&transfer.to)) {
            // A region that is gone again is told the next time.
            let Ok(is_withdrawn) = self.withdraw(transfer).await else { continue };
            let told =
                self.change(&transfer.from, |ledger, _| ledger.acknowledge_take_back(transfer, !is_withdrawn)).await;
            if told.is_ok() && !is_withdrawn {
                problems.push(RegionsError::TakenBackAfterArrival {
                    region: transfer.to.clone(),
                    from: transfer.from.clone(),
                    share: transfer.amount,
                });
            }
        }
        problems
    }
}
