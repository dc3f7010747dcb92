//! Rights in running windows, between regions with different clocks: every order of a small number of steps under one key.
//! For each rule there is an order that admits too much without it.

use std::collections::{BTreeMap, HashSet};

use crate::limit::Limit;
use crate::regions::{Offer, RegionShare, SETTLING_MARGIN, Share, ShareLedger, SharedWindow, Transfer, WindowSlice};
use crate::time::{Micros, Timestamp};

/// A quarter of the limit is one token.
const LIMIT: &str = "fixed 4/min";
const START: Timestamp = Timestamp::from_secs(1_200_000);

/// A disabled rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Keys are not charged for their spending in a slice.
    Uncharged,
    /// Keys are read while nodes still count the share.
    Unconfirmed,
    /// Rights count although one of the regions was in another window.
    AnotherWindow,
    /// Rights move with a share that is partly unsettled.
    Unsettled,
    /// A share settles with the window, even if the window ends just after its arrival.
    NoMargin,
    /// A key is charged, and marked as charged, in a window in which the rights cannot count.
    MarkedEarly,
}

/// The regions, and the passage of time.
#[derive(Clone, Copy, Debug)]
struct RightsCase {
    shares: &'static [u32],
    /// By how many seconds the clock of each region is ahead.
    ahead: &'static [u64],
    /// The instants of steps, in seconds.
    instants: &'static [u64],
    /// Maximum number of transfers.
    transfers: u32,
    /// The shares that a transfer may move, in percent.
    amounts: &'static [u32],
}

impl RightsCase {
    fn clock(&self, instant: usize, region: usize) -> Timestamp {
        START + Micros::from_secs(self.instants[instant] + self.ahead[region])
    }

    fn window(&self, instant: usize, region: usize) -> usize {
        usize::try_from((self.instants[instant] + self.ahead[region]) / 60).unwrap()
    }
}

const TWO_REGIONS: RightsCase =
    RightsCase { shares: &[50, 50], ahead: &[0, 0], instants: &[0], transfers: 2, amounts: &[25, 50] };
/// The clocks differ at the end of the first window.
const TWO_CLOCKS: RightsCase =
    RightsCase { shares: &[50, 50], ahead: &[2, 0], instants: &[0, 59, 62], transfers: 2, amounts: &[25] };
const THREE_REGIONS: RightsCase =
    RightsCase { shares: &[50, 25, 25], ahead: &[0, 0, 0], instants: &[0], transfers: 2, amounts: &[25, 50] };

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Advances to the time of the next steps.
    Tick,
    /// A node of a region reads its record. Each region has one node.
    Read(usize),
    /// A node spends a token.
    Spend(usize),
    Begin {
        from: usize,
        to: usize,
        percent: u32,
    },
    Deliver,
    /// A driver reads what the key has spent in the giving region. Another driver may do so again.
    Look,
    /// The driver charges the key in the receiving region.
    Charge,
    /// The driver records the rights.
    Record,
    Finish,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    instant: usize,
    ledgers: Vec<ShareLedger>,
    /// The tokens of a window that the node of each region may spend.
    parts: Vec<u64>,
    /// The counter of the key in each region, in the region's present window.
    counters: Vec<u64>,
    /// The tokens spent in each window. Windows that have ended everywhere are no longer counted.
    spent: Vec<u64>,
    moving: Option<MovingRights>,
    begun: u32,
}

/// A transfer, and the state of the driver that moves its rights.
#[derive(Clone, PartialEq, Eq, Hash)]
struct MovingRights {
    from: usize,
    to: usize,
    transfer: Transfer,
    is_confirmed: bool,
    is_delivered: bool,
    seen: Option<SeenSpending>,
    /// The key is marked in the receiving region: it is not charged again.
    is_marked: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct SeenSpending {
    spent: u64,
    first: Timestamp,
    last: Timestamp,
    is_charged: bool,
}

fn limit() -> Limit {
    LIMIT.parse().unwrap()
}

impl World {
    fn new(case: &RightsCase) -> World {
        let ledger = |(number, percent): (usize, &u32)| {
            let shares = BTreeMap::from([(String::new(), RegionShare::new(Share::percent(*percent), Share::NONE))]);
            ShareLedger::new(&number.to_string(), shares, START)
        };
        let ledgers: Vec<ShareLedger> = case.shares.iter().enumerate().map(ledger).collect();
        let (none, spent) = (vec![0; ledgers.len()], vec![0; 3]);
        let parts = none.clone();
        let mut world = World { instant: 0, ledgers, parts, counters: none, spent, moving: None, begun: 0 };
        (0..case.shares.len()).for_each(|region| world.read(case, region));
        world
    }

    fn read(&mut self, case: &RightsCase, region: usize) {
        let share = self.ledgers[region].shares[""].settled("", &limit(), case.clock(self.instant, region));
        self.parts[region] = share.of(limit().capacity());
        if let Some(moving) = self.moving.as_mut().filter(|moving| moving.from == region) {
            moving.is_confirmed = true;
        }
    }

    /// The world after a step; `None` if the step is impossible or changes nothing.
    fn after(&self, case: &RightsCase, step: Step, mutant: Option<Mutant>) -> Option<World> {
        let is_possible = match step {
            Step::Tick | Step::Read(_) => true,
            Step::Spend(region) => self.counters[region] < self.parts[region],
            Step::Begin { .. } => self.moving.is_none() && self.begun < case.transfers,
            Step::Deliver | Step::Look | Step::Charge | Step::Record | Step::Finish => self.moving.is_some(),
        };
        if !is_possible {
            return None;
        }
        let mut next = self.clone();
        next.take(case, step, mutant)?;
        // The number of changes does not affect future steps.
        next.ledgers.iter_mut().for_each(|ledger| (ledger.version, ledger.moved_at) = (0, None));
        (next != *self).then_some(next)
    }

    fn take(&mut self, case: &RightsCase, step: Step, mutant: Option<Mutant>) -> Option<()> {
        let is = |other| mutant == Some(other);
        let instant = self.instant;
        match step {
            Step::Tick => return self.tick(case),
            Step::Read(region) => self.read(case, region),
            Step::Spend(region) => {
                self.counters[region] += 1;
                self.spent[case.window(instant, region)] += 1;
            }
            Step::Begin { from, to, percent } => {
                let transfer = self.begin(case, from, to, Share::percent(percent), is(Mutant::Unsettled))?;
                let (is_confirmed, is_delivered, seen, is_marked) = (false, false, None, false);
                self.moving = Some(MovingRights { from, to, transfer, is_confirmed, is_delivered, seen, is_marked });
                self.begun += 1;
            }
            Step::Deliver => {
                let moving = self.moving.as_mut().filter(|moving| moving.is_confirmed && !moving.is_delivered)?;
                let now = case.clock(instant, moving.to);
                let now = if is(Mutant::NoMargin) { now - SETTLING_MARGIN } else { now };
                let offered = Transfer { offer: Some(Offer::new(now, now)), ..moving.transfer.clone() };
                moving.is_delivered = self.ledgers[moving.to].apply(&offered, now).ok()?;
            }
            Step::Look => {
                let moving = self.moving.as_mut().filter(|moving| !moving.transfer.slices.is_empty())?;
                if !moving.is_confirmed && !is(Mutant::Unconfirmed) {
                    return None;
                }
                let clocks = (case.clock(instant, moving.from), case.clock(instant, moving.to));
                let first = moving.transfer.begun.min(clocks.0).min(clocks.1);
                let last = clocks.0.max(clocks.1);
                let is_running = |slice: &WindowSlice| slice.rights(first, last).are_of_one_window();
                let is_needed = !is(Mutant::AnotherWindow) && !is(Mutant::MarkedEarly);
                if is_needed && !moving.transfer.slices.iter().all(is_running) {
                    return None;
                }
                moving.seen = Some(SeenSpending { spent: self.counters[moving.from], first, last, is_charged: false });
            }
            Step::Charge => {
                let moving = self.moving.as_mut()?;
                let seen = moving.seen.as_mut().filter(|seen| !seen.is_charged)?;
                let charge: u64 = moving.transfer.slices.iter().map(|slice| slice.spent_of(seen.spent)).sum();
                let charge = if is(Mutant::Uncharged) || moving.is_marked { 0 } else { charge };
                moving.is_marked = true;
                // Spending above the limit is equivalent to the limit.
                self.counters[moving.to] = (self.counters[moving.to] + charge).min(limit().capacity());
                seen.is_charged = true;
            }
            Step::Record => {
                let moving = self.moving.as_ref()?;
                let seen = moving.seen.as_ref().filter(|seen| seen.is_charged)?;
                let last = seen.last.max(case.clock(instant, moving.to));
                let last = if is(Mutant::AnotherWindow) { seen.first } else { last };
                let rights = moving.transfer.slices.iter().map(|slice| slice.rights(seen.first, last));
                self.ledgers[moving.to].bring_rights(&moving.transfer, rights.collect());
            }
            Step::Finish => {
                let moving = self.moving.take().filter(|moving| moving.is_delivered)?;
                self.ledgers[moving.from].finish(&moving.transfer);
            }
        }
        Some(())
    }

    fn tick(&mut self, case: &RightsCase) -> Option<()> {
        let (before, now) = (self.instant, self.instant + 1);
        case.instants.get(now)?;
        self.instant = now;
        let regions = 0..self.counters.len();
        for region in regions.clone().filter(|&region| case.window(before, region) < case.window(now, region)) {
            self.counters[region] = 0;
        }
        let oldest = regions.map(|region| case.window(now, region)).min()?;
        self.spent[..oldest].fill(0);
        Some(())
    }

    fn begin(
        &mut self,
        case: &RightsCase,
        from: usize,
        to: usize,
        amount: Share,
        is_unsettled: bool,
    ) -> Option<Transfer> {
        let (now, windows) = (case.clock(self.instant, from), [SharedWindow { id: String::new(), limit: limit() }]);
        let ledger = &mut self.ledgers[from];
        let tokens = |ledger: &ShareLedger| ledger.shares[""].settled("", &limit(), now).of(limit().capacity());
        let before = tokens(ledger);
        let mut transfer = ledger.begin_with(&to.to_string(), "", amount, &windows, now).ok()?;
        if is_unsettled {
            let slice = WindowSlice { id: String::new(), limit: limit(), before, after: tokens(ledger) };
            transfer.slices = vec![slice];
            ledger.outgoing = vec![transfer.clone()];
        }
        Some(transfer)
    }

    /// The largest number of tokens spent in a window.
    fn most_spent(&self) -> u64 {
        self.spent.iter().copied().max().unwrap_or(0)
    }
}

fn all_steps(case: &RightsCase) -> Vec<Step> {
    let mut steps = vec![Step::Tick, Step::Deliver, Step::Look, Step::Charge, Step::Record, Step::Finish];
    for from in 0..case.shares.len() {
        steps.extend([Step::Read(from), Step::Spend(from)]);
        for to in (0..case.shares.len()).filter(|&to| to != from) {
            steps.extend(case.amounts.iter().map(|&percent| Step::Begin { from, to, percent }));
        }
    }
    steps
}

/// Visits all states. Returns their number, and the largest spending in a window.
fn search(case: &RightsCase) -> (usize, u64) {
    let (first, steps) = (World::new(case), all_steps(case));
    let (mut seen, mut open, mut most) = (HashSet::from([first.clone()]), vec![first], 0);
    while let Some(world) = open.pop() {
        most = most.max(world.most_spent());
        for next in steps.iter().filter_map(|step| world.after(case, *step, None)) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    (seen.len(), most)
}

/// Takes these steps, except for impossible ones. Returns the largest spending in a window.
fn spends(case: &RightsCase, steps: &[Step], mutant: Option<Mutant>) -> u64 {
    let (mut world, mut most) = (World::new(case), 0);
    for step in steps {
        world = world.after(case, *step, mutant).unwrap_or(world);
        most = most.max(world.most_spent());
    }
    most
}

#[test]
fn no_order_of_steps_spends_more_than_the_whole_in_a_window() {
    for (case, least) in [(TWO_REGIONS, 1_000), (TWO_CLOCKS, 10_000), (THREE_REGIONS, 10_000)] {
        let (states, most) = search(&case);
        assert_eq!(most, 4, "{case:?}");
        assert!(states > least, "{case:?}: {states} states");
    }
}

/// An order of steps that spends a whole window, and more than that if the rule is disabled.
fn counter_example(mutant: Mutant) -> (RightsCase, Vec<Step>) {
    use Step::{Begin, Charge, Deliver, Finish, Look, Read, Record, Spend, Tick};
    let begin = Begin { from: 0, to: 1, percent: 25 };
    let bring = [Deliver, Look, Charge, Record];
    match mutant {
        // The giving region has spent the token that it gives.
        Mutant::Uncharged => {
            let spent = [Spend(0), Spend(0), begin, Read(0)];
            (TWO_REGIONS, [&spent[..], &bring, &[Read(1), Spend(1), Spend(1), Spend(1)]].concat())
        }
        // The giving region spends the token after the driver has read the key.
        Mutant::Unconfirmed => {
            let early = [begin, Look, Charge, Spend(0), Spend(0), Read(0), Deliver, Record];
            (TWO_REGIONS, [&early[..], &[Read(1), Spend(1), Spend(1), Spend(1)]].concat())
        }
        // The giving region is in the next window, without spending; the receiving region is not.
        Mutant::AnotherWindow => {
            let spent = [Spend(0), Spend(0), begin, Read(0), Tick];
            (TWO_CLOCKS, [&spent[..], &bring, &[Read(1), Spend(1), Spend(1), Spend(1)]].concat())
        }
        // One of the two tokens passed on was spent in the region from which it came.
        Mutant::Unsettled => {
            let spent = [Spend(0), Spend(0), begin, Read(0), Deliver, Finish, Spend(1)];
            let on = [Begin { from: 1, to: 2, percent: 50 }, Read(1)];
            (THREE_REGIONS, [&spent[..], &on, &bring, &[Read(2), Spend(2), Spend(2), Spend(2)]].concat())
        }
        // The giving region has spent the token in the window that begins next in the receiving region.
        Mutant::NoMargin => {
            let spent = [Tick, Spend(0), Spend(0), begin, Read(0), Deliver, Tick];
            (TWO_CLOCKS, [&spent[..], &[Read(1), Spend(1), Spend(1), Spend(1)]].concat())
        }
        // The receiving region forgets the charge with its window, and the mark stays.
        Mutant::MarkedEarly => {
            let early = [Tick, Spend(0), Spend(0), begin, Read(0), Deliver, Look, Charge, Tick];
            let again = [Look, Charge, Record, Read(1), Spend(1), Spend(1), Spend(1)];
            (TWO_CLOCKS, [&early[..], &again].concat())
        }
    }
}

#[test]
fn each_rule_about_rights_is_needed() {
    use Mutant::{AnotherWindow, MarkedEarly, NoMargin, Uncharged, Unconfirmed, Unsettled};
    for mutant in [Uncharged, Unconfirmed, AnotherWindow, Unsettled, NoMargin, MarkedEarly] {
        let (case, steps) = counter_example(mutant);
        let spent = (spends(&case, &steps, None), spends(&case, &steps, Some(mutant)));
        assert_eq!(spent, (4, 5), "{mutant:?}");
    }
}

/// The unspent part of a quiet region's monthly quota is spent in the busy one.
#[test]
fn unspent_rights_are_spent_where_they_have_arrived() {
    let quiet = [Step::Begin { from: 0, to: 1, percent: 25 }, Step::Read(0), Step::Deliver];
    let bring = [Step::Look, Step::Charge, Step::Record];
    let spend = [Step::Read(1), Step::Spend(1), Step::Spend(1), Step::Spend(1)];
    assert_eq!(spends(&TWO_REGIONS, &[&quiet[..], &spend].concat(), None), 2);
    assert_eq!(spends(&TWO_REGIONS, &[&quiet[..], &bring, &spend].concat(), None), 3);
}

/// A driver charges the key and stops, and another one repeats it: what the key has spent of the slice is charged once.
#[test]
fn rights_are_charged_once() {
    let mut world = World::new(&TWO_REGIONS);
    let begun = [Step::Spend(0), Step::Spend(0), Step::Begin { from: 0, to: 1, percent: 25 }, Step::Read(0)];
    let bring = [Step::Deliver, Step::Look, Step::Charge, Step::Look, Step::Charge, Step::Record];
    for step in begun.into_iter().chain(bring) {
        world = world.after(&TWO_REGIONS, step, None).unwrap_or(world);
    }
    assert_eq!(world.counters, [2, 1]);
}
