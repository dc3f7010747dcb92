//! Moves shares between regions by writing the records of the regions one after the other.
//!
//! Every step can be repeated, and any driver that finds an outgoing transfer can continue it. The protocol is described in
//! [`tidegate_core::regions`].

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::regions::{ApplyError, BeginError, Share, ShareLedger, SharedWindow, Transfer};
use tidegate_core::{Limit, Timestamp};
use tokio::time::Instant;

use super::control::FleetControl;
use super::error::FleetError;
use super::region_moves::moves;
use super::region_outcome::{Resumption, TransferOutcome};
use super::region_record::RegionRecord;
use super::regions_error::RegionsError;

/// The most attempts to read all records while shares are moved.
pub(super) const MOST_READINGS: usize = 20;

/// The Redis servers of all regions.
#[derive(Clone)]
pub struct RegionsControl {
    pub(super) regions: BTreeMap<String, FleetControl>,
    /// The limits whose rights in running windows move with shares, by the names of shares in records.
    pub(super) windows: Arc<BTreeMap<String, Vec<SharedWindow>>>,
    /// The limits for which an arrived share has to settle, with the ids that their states belong to, by the names that records use.
    pub(super) limits: Arc<BTreeMap<String, Vec<(String, Limit)>>>,
}

impl RegionsControl {
    /// The regions with their Redis servers.
    #[must_use]
    pub fn new(regions: BTreeMap<String, FleetControl>) -> RegionsControl {
        RegionsControl { regions, windows: Arc::default(), limits: Arc::default() }
    }

    /// Lets shares that follow demand wait until the last ones have settled for these limits, by the names that records use.
    #[must_use]
    pub fn with_limits(self, limits: BTreeMap<String, Vec<(String, Limit)>>) -> RegionsControl {
        RegionsControl { limits: Arc::new(limits), ..self }
    }

    /// The names of all regions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.regions.keys().map(String::as_str)
    }

    pub(super) fn control(&self, region: &str) -> Result<&FleetControl, RegionsError> {
        let unknown =
            || RegionsError::Unknown { region: region.to_owned(), all: self.regions.keys().cloned().collect() };
        self.regions.get(region).ok_or_else(unknown)
    }

    /// The record of each region, or the reason why it cannot be read.
    pub async fn records(&self) -> BTreeMap<String, Result<RegionRecord, FleetError>> {
        let reading = self.regions.iter().map(|(region, control)| {
            let control = control.clone();
            (region.clone(), tokio::spawn(async move { control.region_record().await }))
        });
        let reading: Vec<_> = reading.collect();
        let mut records = BTreeMap::new();
        for (region, task) in reading {
            let record = task.await.unwrap_or_else(|_| Err(FleetError::unreachable("the runtime shuts down")));
            records.insert(region, record);
        }
        records
    }

    /// The ledgers of the regions except `without`. All regions must answer, and their ledgers must be consistent.
    pub(super) async fn ledgers(&self, without: Option<&str>) -> Result<BTreeMap<String, ShareLedger>, RegionsError> {
        let mut ledgers = BTreeMap::new();
        for (region, record) in self.records().await {
            if without != Some(region.as_str()) {
                let ledger = own_ledger(&region, record)?;
                ledgers.insert(region, ledger);
            }
        }
        check_all_current(&ledgers)?;
        Ok(ledgers)
    }

    /// The same, as they were at one instant: transfers between these regions leave the sum the same.
    pub(super) async fn ledgers_at_once(&self, without: &str) -> Result<BTreeMap<String, ShareLedger>, RegionsError> {
        for _ in 0..MOST_READINGS {
            let (first, second) = (self.ledgers(Some(without)).await?, self.ledgers(Some(without)).await?);
            if first == second {
                return Ok(second);
            }
        }
        Err(RegionsError::Shares("others kept moving shares meanwhile; try again".to_owned()))
    }

    /// Changes the record of a region that has one.
    pub(super) async fn change<T>(
        &self,
        region: &str,
        mut change: impl FnMut(&mut ShareLedger, Timestamp) -> T,
    ) -> Result<T, RegionsError> {
        let changed = self.control(region)?.change_region_record(|ledger, now| match ledger {
            None => (None, Err(RegionsError::NoRecord { region: region.to_owned() })),
            Some(ledger) if ledger.region != region => {
                (None, Err(RegionsError::Foreign { region: region.to_owned(), found: ledger.region }))
            }
            Some(ledger) => {
                let mut changed = ledger.clone();
                let said = change(&mut changed, now);
                ((changed != ledger).then_some(changed), Ok(said))
            }
        });
        changed.await.map_err(|error| RegionsError::Region { region: region.to_owned(), error })?
    }

    /// The first step of a transfer: the share no longer belongs to `from`. Begins nothing that `to` could not receive. A region that
    /// cannot be reached is not asked: the share is parked until it can be.
    ///
    /// # Errors
    /// If the region does not answer, or has no such share to give away, or if the other one has none that could grow. Also if the record of
    /// one of them [has lost changes](ShareLedger::is_behind) that a region which answers knows of.
    pub async fn begin(&self, from: &str, to: &str, rule: &str, amount: Share) -> Result<Transfer, RegionsError> {
        let control = self.control(to)?;
        let mut records = self.records().await;
        let record = match records.remove(to) {
            Some(Err(away @ FleetError::Unreachable { .. })) => Err(away),
            // Read after the others, which therefore know of none of its transfers that began later.
            _ => control.region_record().await,
        };
        let mut known = readable(records).0;
        match own_ledger(to, record) {
            Ok(ledger) if !ledger.shares.contains_key(rule) => {
                let error = BeginError::UnknownRule { rule: rule.to_owned() };
                return Err(RegionsError::Begin { region: to.to_owned(), error });
            }
            Ok(ledger) => {
                check_current(&ledger, known.values())?;
                known.insert(to.to_owned(), ledger);
            }
            Err(RegionsError::Region { error: FleetError::Unreachable { .. }, .. }) => {}
            Err(error) => return Err(error),
        }
        self.begin_known(from, to, rule, amount, &known).await
    }

    /// The same for a region that is known to have a share of the rule. `known` are ledgers that were read before.
    pub(super) async fn begin_known(
        &self,
        from: &str,
        to: &str,
        rule: &str,
        amount: Share,
        known: &BTreeMap<String, ShareLedger>,
    ) -> Result<Transfer, RegionsError> {
        let begin = |ledger: &mut ShareLedger, now| {
            // A number that is used twice would count as received, and a version that grows again would confirm what nodes know to be lost.
            check_current(ledger, known.values())?;
            let begun = ledger.begin_with(to, rule, amount, &self.windows_of(rule, now), now);
            begun.map_err(|error| RegionsError::Begin { region: from.to_owned(), error })
        };
        self.change(from, begin).await?
    }

    /// The third and the fourth step: the share is offered, and arrives. Before this, the nodes of the giving region must have confirmed that
    /// they no longer use it.
    ///
    /// # Errors
    /// Fails if a region does not answer, or the share cannot arrive.
    pub async fn deliver(&self, transfer: &Transfer) -> Result<(), RegionsError> {
        match self.offer(transfer).await? {
            Some(offered) => self.deliver_offered(&offered).await,
            None => Ok(()),
        }
    }

    /// The third step: the giving region offers the share, so that it can be delivered for [`OFFER_LASTS`]. Returns the transfer with the
    /// offer; `None` if it has arrived. Offers nothing that the receiving region would not take, or that it cannot be asked about.
    ///
    /// # Errors
    /// Fails if a region does not answer, if the share cannot arrive, or if the record of one of them
    /// [has lost changes](ShareLedger::is_behind).
    ///
    /// [`OFFER_LASTS`]: tidegate_core::regions::OFFER_LASTS
    pub async fn offer(&self, transfer: &Transfer) -> Result<Option<Transfer>, RegionsError> {
        let (giver, _) = self.ledger_of(&transfer.from).await?;
        let (receiver, receiver_now) = self.ledger_of(&transfer.to).await?;
        check_current(&receiver, [&giver])?;
        let is_awaited = awaits(&receiver, transfer)?;
        let offered = self.change(&transfer.from, |ledger, now| {
            check_current(ledger, [&receiver])?;
            Ok(if is_awaited { ledger.offer(transfer, receiver_now, now) } else { None })
        });
        let offered = offered.await??;
        if is_awaited && offered.is_none() && awaits(&self.ledger_of(&transfer.to).await?.0, transfer)? {
            // Another driver has taken it back.
            return Err(RegionsError::Apply { region: transfer.to.clone(), error: ApplyError::NotOffered });
        }
        Ok(offered)
    }

    /// The ledger of a region, and the time of its store.
    async fn ledger_of(&self, region: &str) -> Result<(ShareLedger, Timestamp), RegionsError> {
        let record = self.control(region)?.region_record().await;
        let now = record.as_ref().map_or(Timestamp::EPOCH, |record| record.now);
        Ok((own_ledger(region, record)?, now))
    }

    /// The fourth step: a share that was [offered](RegionsControl::offer) arrives.
    ///
    /// # Errors
    /// Fails if the region does not answer, or cannot receive the share.
    pub async fn deliver_offered(&self, transfer: &Transfer) -> Result<(), RegionsError> {
        let applied = self.change(&transfer.to, |ledger, now| ledger.apply(transfer, now)).await?;
        applied.map(drop).map_err(|error| RegionsError::Apply { region: transfer.to.clone(), error })
    }

    /// The last step of a transfer that has arrived.
    ///
    /// # Errors
    /// Fails if a region does not answer, or if the record of the giving one [has lost changes](ShareLedger::is_behind).
    pub async fn finish(&self, transfer: &Transfer) -> Result<(), RegionsError> {
        let (receiver, _) = self.ledger_of(&transfer.to).await?;
        let finish = |ledger: &mut ShareLedger, _| {
            check_current(ledger, [&receiver])?;
            ledger.finish(transfer);
            Ok(())
        };
        self.change(&transfer.from, finish).await?
    }

    /// Moves a share, and continues all other transfers as well.
    ///
    /// # Errors
    /// Fails if the transfer cannot begin.
    pub async fn move_share(
        &self,
        from: &str,
        to: &str,
        rule: &str,
        amount: Share,
    ) -> Result<Resumption, RegionsError> {
        let begun = self.begin(from, to, rule, amount).await?;
        let mut resumed = self.resume().await;
        if !resumed.outcomes.iter().any(|outcome| outcome.transfer.is(&begun)) {
            // The region that gives it cannot be read any more, or another driver has ended the transfer.
            let unread = resumed.problems.iter().find(|problem| problem.is_about(from)).map(ToString::to_string);
            resumed.outcomes.push(TransferOutcome { parked: unread, ..TransferOutcome::of(begun) });
        }
        Ok(resumed)
    }

    /// Moves shares until the regions have these, which must be all regions with a share of the rule, and no more than they have together.
    ///
    /// # Errors
    /// If a region does not answer, or the shares cannot be reached. Some transfers may have begun then.
    pub async fn set(&self, rule: &str, targets: &BTreeMap<String, Share>) -> Result<Resumption, RegionsError> {
        for region in targets.keys() {
            self.control(region)?;
        }
        // Parked shares would be missing in the sums.
        let before = self.resume().await;
        let mut of_rule = before.outcomes.iter().filter(|outcome| outcome.transfer.rule == rule);
        if let Some(reason) = of_rule.find_map(|outcome| outcome.parked.as_ref()) {
            return Err(RegionsError::Shares(format!("a share is parked, so shares cannot be set: {reason}")));
        }
        let ledgers = self.ledgers(None).await?;
        for (from, to, amount) in moves(rule, targets, &ledgers)? {
            self.begin_known(&from, &to, rule, amount, &ledgers).await?;
        }
        Ok(self.resume().await)
    }

    /// Continues all outgoing transfers that there are, and waits for the nodes once. A transfer that cannot arrive is parked.
    pub async fn resume(&self) -> Resumption {
        let (ledgers, mut problems) = readable(self.records().await);
        let (seen_at, outgoing) = (Instant::now(), ledgers.values().flat_map(|ledger| &ledger.outgoing));
        let outcomes = self.continue_transfers(outgoing.cloned().collect(), seen_at).await;
        problems.extend(self.tell_taken_back(&ledgers).await);
        Resumption { outcomes, problems }
    }
}

/// The ledgers that could be read, and the reasons why others could not. A region without a record has begun nothing.
pub(super) fn readable(
    records: BTreeMap<String, Result<RegionRecord, FleetError>>,
) -> (BTreeMap<String, ShareLedger>, Vec<RegionsError>) {
    let (mut ledgers, mut problems) = (BTreeMap::new(), Vec::new());
    for (region, record) in records {
        match own_ledger(&region, record) {
            Ok(ledger) => drop(ledgers.insert(region, ledger)),
            Err(RegionsError::NoRecord { .. }) => {}
            Err(problem) => problems.push(problem),
        }
    }
    (ledgers, problems)
}

/// The ledger of a region, which has to be its own.
pub(super) fn own_ledger(region: &str, record: Result<RegionRecord, FleetError>) -> Result<ShareLedger, RegionsError> {
    let ledger = record.map_err(|error| RegionsError::Region { region: region.to_owned(), error })?.ledger;
    let ledger = ledger.ok_or_else(|| RegionsError::NoRecord { region: region.to_owned() })?;
    if ledger.region != region {
        return Err(RegionsError::Foreign { region: region.to_owned(), found: ledger.region });
    }
    Ok(ledger)
}

/// Fails if a record is older than another one knows it.
pub(super) fn check_all_current(ledgers: &BTreeMap<String, ShareLedger>) -> Result<(), RegionsError> {
    ledgers.values().try_for_each(|ledger| check_current(ledger, ledgers.values()))
}

/// Fails if a record is older than others know it. They must have been read earlier, if shares may move meanwhile.
fn check_current<'l>(
    ledger: &ShareLedger,
    others: impl IntoIterator<Item = &'l ShareLedger>,
) -> Result<(), RegionsError> {
    match others.into_iter().find(|other| ledger.is_behind(other)) {
        Some(other) => Err(RegionsError::Behind { region: ledger.region.clone(), other: other.region.clone() }),
        None => Ok(()),
    }
}

/// Whether a region would take the transfer. `false` if it has.
fn awaits(receiver: &ShareLedger, transfer: &Transfer) -> Result<bool, RegionsError> {
    let receives = receiver.receives(transfer);
    receives.map_err(|error| RegionsError::Apply { region: transfer.to.clone(), error })
}

/// The part of what all regions have together that neither these regions own nor their transfers carry.
pub(super) fn rest(rule: &str, total: Share, ledgers: &[&ShareLedger]) -> Share {
    let has_arrived = |transfer: &Transfer| {
        ledgers.iter().any(|ledger| ledger.region == transfer.to && ledger.has_received(transfer))
    };
    ledgers.iter().fold(total, |left, ledger| {
        let own = ledger.shares.get(rule).map_or(Share::NONE, |region| region.share);
        let outgoing = ledger.outgoing.iter().filter(|transfer| transfer.rule == rule && !has_arrived(transfer));
        outgoing.fold(left - own, |left, transfer| left - transfer.amount)
    })
}
