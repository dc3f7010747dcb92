//! Every algorithm decides exactly like its model, on any trace and with any clock.

use proptest::prelude::*;
use tidegate_core::Limit;
use tidegate_core::limit::ChargeMark;
use tidegate_core::receipt::ReceiptId;

use crate::properties::model::{
    BucketModel, FixedWindowModel, Model, ModelMark, SlidingLogModel, SlidingWindowModel, SlotsModel, answer,
};
use tidegate_test_support::limits::{
    Bucket, buckets, calendar_windows, concurrencies, fixed_windows, sliding_logs, sliding_windows_of_one_part,
    sliding_windows_of_several_parts,
};
use tidegate_test_support::traces::{KeyOperation, Step, TraceClock, starts, traces};

/// An admission, with its position in the engine's state and in the model's.
struct Admission {
    id: u128,
    mark: ChargeMark,
    spot: ModelMark,
}

fn follow(limit: &Limit, mut model: impl Model, start: u64, steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut state, mut hands) = (limit.fresh(), TraceClock::at(start));
    let mut admissions: Vec<Admission> = Vec::new();
    for (id, &(by, op)) in (1..).zip(steps) {
        let now = hands.go(by, limit);
        let micros = now.as_micros();
        prop_assert_eq!(limit.resync(&mut state, now), model.resync(micros));
        match op {
            KeyOperation::Decide(cost) => {
                let cost = cost.of(limit);
                let decision = limit.evaluate(&state, cost, now);
                prop_assert_eq!(decision, answer(&model, cost, micros));
                hands.remember_wait(&decision);
                if decision.is_allowed() && cost > 0 {
                    let mark = limit.charge(&mut state, cost, now, ReceiptId::new(id));
                    admissions.push(Admission { id, mark, spot: model.charge(cost, micros, id) });
                }
            }
            KeyOperation::Penalize(cost) => {
                limit.charge(&mut state, cost.of(limit), now, ReceiptId::new(id));
                model.charge(cost.of(limit), micros, id);
            }
            KeyOperation::Credit(cost) => {
                let cost = cost.of(limit);
                prop_assert_eq!(limit.credit(&mut state, cost, now), model.credit(cost, micros));
            }
            KeyOperation::Refund { which, cost } if !admissions.is_empty() => {
                let Admission { id, mark, spot } = *which.get(&admissions);
                let given = limit.refund(&mut state, cost.of(limit), mark, now, ReceiptId::new(id));
                prop_assert_eq!(given, model.refund(cost.of(limit), spot, micros, id));
            }
            KeyOperation::Renew { which } if !admissions.is_empty() => {
                let Admission { id, mark, .. } = *which.get(&admissions);
                let renewed = limit.renew(&mut state, mark, now, ReceiptId::new(id));
                prop_assert_eq!(renewed.is_some(), model.renew(micros, id));
            }
            KeyOperation::Refund { .. } | KeyOperation::Renew { .. } => {}
        }
        prop_assert_eq!(limit.is_recovered(&state, now), !model.counts(micros));
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::properties::cases(1_000))]

    #[test]
    fn a_token_bucket_answers_as_its_model(bucket in buckets(), start in starts(), steps in traces()) {
        follow(&Bucket::token_bucket(bucket), BucketModel::new(bucket), start, &steps)?;
    }

    #[test]
    fn gcra_answers_as_its_model(bucket in buckets(), start in starts(), steps in traces()) {
        follow(&Bucket::gcra(bucket), BucketModel::new(bucket), start, &steps)?;
    }

    #[test]
    fn a_meter_answers_as_its_model(bucket in buckets(), start in starts(), steps in traces()) {
        follow(&Bucket::meter(bucket), BucketModel::new(bucket), start, &steps)?;
    }

    #[test]
    fn a_shaper_answers_as_its_model(bucket in buckets(), start in starts(), steps in traces()) {
        follow(&Bucket::shaper(bucket), BucketModel::shaper(bucket), start, &steps)?;
    }

    #[test]
    fn a_fixed_window_answers_as_its_model(limit in fixed_windows(), start in starts(), steps in traces()) {
        follow(&limit.into(), FixedWindowModel::new(limit), start, &steps)?;
    }

    #[test]
    fn a_calendar_window_answers_as_its_model(limit in calendar_windows(), start in starts(), steps in traces()) {
        follow(&limit.into(), FixedWindowModel::new(limit), start, &steps)?;
    }

    #[test]
    fn a_sliding_window_answers_as_its_model(
        limit in sliding_windows_of_one_part(), start in starts(), steps in traces(),
    ) {
        follow(&limit.into(), SlidingWindowModel::new(limit), start, &steps)?;
    }

    #[test]
    fn a_sliding_window_of_parts_answers_as_its_model(
        limit in sliding_windows_of_several_parts(), start in starts(), steps in traces(),
    ) {
        follow(&limit.into(), SlidingWindowModel::new(limit), start, &steps)?;
    }

    #[test]
    fn a_sliding_log_answers_as_its_model(limit in sliding_logs(), start in starts(), steps in traces()) {
        follow(&limit.into(), SlidingLogModel::new(limit), start, &steps)?;
    }

    #[test]
    fn concurrency_answers_as_its_model(limit in concurrencies(), start in starts(), steps in traces()) {
        follow(&limit.into(), SlotsModel::new(limit), start, &steps)?;
    }
}
