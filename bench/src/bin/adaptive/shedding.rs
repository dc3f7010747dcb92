//! Four priorities in front of the modelled server: the served fraction of each, with an adaptive limit alone and with
//! a shedder in front of it.

use tidegate_bench::report::Row;
use tidegate_core::adaptive::{AdaptiveConcurrency, ConcurrencyPermit, ControllerError, SampleOutcome, SampleWindow};
use tidegate_core::shed::{LoadShedder, OverloadBounds, ShedWindow};
use tidegate_core::{ManualClock, Micros, Timestamp};

use crate::model::{self, Limited, Random};

/// Shares of low, normal, high and critical requests. At three times the capacity, the last two add up to nine tenths
/// of it.
const MIX: [f64; 4] = [0.4, 0.3, 0.2, 0.1];
const SHARES: [f64; 4] = [0.0, 0.2, 0.3, 0.5];
/// The fraction of critical requests that should be served.
const AIM: f64 = 0.99;

struct FourPriorities {
    clock: ManualClock,
    limit: AdaptiveConcurrency<ManualClock>,
    shedder: Option<LoadShedder<ManualClock>>,
    random: Random,
    arrived: [u32; 4],
    admitted: [u32; 4],
}

impl FourPriorities {
    fn new(sheds: bool) -> Result<FourPriorities, ControllerError> {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let window = SampleWindow::default();
        let limit = AdaptiveConcurrency::seeded("gradient2 1..200".parse()?, window, &SHARES, clock.clone());
        let shedder = || LoadShedder::with(OverloadBounds::default(), ShedWindow::default(), 7, clock.clone());
        let shedder = sheds.then(shedder);
        Ok(FourPriorities { clock, limit, shedder, random: Random::new(), arrived: [0; 4], admitted: [0; 4] })
    }

    fn class(&mut self) -> usize {
        let mut chance = self.random.next();
        let mut is_it = |share: &f64| {
            chance -= share;
            chance < 0.0
        };
        MIX.iter().position(&mut is_it).unwrap_or(MIX.len() - 1)
    }
}

impl Limited for &mut FourPriorities {
    type Permit = ConcurrencyPermit<ManualClock>;

    fn admit(&mut self, _: usize, now: Timestamp) -> Option<Self::Permit> {
        self.clock.set(now);
        let (class, client) = (self.class(), (self.random.next() * 1e6) as u64);
        self.arrived[class] += 1;
        let is_full = self.limit.would_refuse(class);
        if self.shedder.as_ref().is_some_and(|shedder| !shedder.admits(class, client, is_full)) {
            return None;
        }
        let permit = self.limit.try_acquire(class)?;
        self.admitted[class] += 1;
        Some(permit)
    }

    fn end(&mut self, permit: Self::Permit, _: Micros, _: usize, now: Timestamp) {
        self.clock.set(now);
        permit.finish(SampleOutcome::Success);
    }
}

/// The served fraction of each priority, including the first minutes.
pub fn rows() -> Result<Vec<Row>, ControllerError> {
    let (mut limited, mut shed) = (FourPriorities::new(false)?, FourPriorities::new(true)?);
    let (_, with_shedding) = (model::run(&mut limited), model::run(&mut shed));
    let served = |of: &FourPriorities, class: usize| f64::from(of.admitted[class]) / f64::from(of.arrived[class]);
    let mut rows = vec![
        Row::larger_is_better("critical, served", served(&shed, 3), "aim", AIM, "of requests")
            .with_id("adaptive/critical"),
        Row::larger_is_better("throughput with shedding", with_shedding.throughput, "capacity", 1.0, "of capacity"),
    ];
    for (class, name) in ["low", "normal", "high", "critical"].into_iter().enumerate().rev() {
        let (ours, alone) = (served(&shed, class), served(&limited, class));
        rows.push(Row::larger_is_better(
            format!("{name}, served"),
            ours,
            "the adaptive limit alone",
            alone,
            "of requests",
        ));
    }
    Ok(rows)
}
