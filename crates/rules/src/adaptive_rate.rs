//! Limits of a rule whose rate adapts to the service behind it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tidegate_core::adaptive::{OutcomeWindow, OverloadSignal, RateSteps, ServiceHealth};
use tidegate_core::lease::Leasing;
use tidegate_core::notation::write_span;
use tidegate_core::{Charge, Key, Limit, Micros, RuleId};

/// The present rate of a rule, between its bounds.
///
/// Listeners that forward requests report their outcomes to its [window](AdaptiveRate::window). When the window is over,
/// [`Limiter::adapt`](crate::Limiter::adapt) moves the rate.
#[derive(Debug)]
pub struct AdaptiveRate {
    rule: Arc<str>,
    pub(super) steps: RateSteps,
    period: Micros,
    window: OutcomeWindow,
    /// The present step.
    step: AtomicU32,
    decreases: AtomicU64,
    /// The names under which the store keeps the present step and the last decrease. No rule can have these names.
    ids: [RuleId; 2],
}

impl AdaptiveRate {
    pub(crate) fn new(rule: &str, steps: RateSteps, period: Micros, signals: &[OverloadSignal]) -> AdaptiveRate {
        AdaptiveRate {
            rule: rule.into(),
            steps,
            period,
            window: OutcomeWindow::new(signals, steps.every()),
            step: AtomicU32::new(steps.count()),
            decreases: AtomicU64::new(0),
            ids: ["step", "decrease"].map(|what| RuleId::new(&format!("{rule}@adapt/{what}"))),
        }
    }

    /// The id of the rule.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The present rate, in tokens.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.steps.tokens(self.step())
    }

    /// The lowest and the highest rate, in tokens.
    #[must_use]
    pub const fn bounds(&self) -> (u64, u64) {
        self.steps.bounds()
    }

    /// The period of the rate.
    #[must_use]
    pub const fn period(&self) -> Micros {
        self.period
    }

    /// A rate in its notation, such as `100/s`.
    #[must_use]
    pub fn rate_text(&self, tokens: u64) -> String {
        let period = write_span(self.period);
        let unit = period.strip_prefix('1').filter(|unit| unit.starts_with(char::is_alphabetic));
        format!("{tokens}/{}", unit.unwrap_or(&period))
    }

    /// Number of times that this process has lowered the rate.
    #[must_use]
    pub fn decreases(&self) -> u64 {
        self.decreases.load(Ordering::Relaxed)
    }

    /// The outcomes of the requests that the rule governs.
    #[must_use]
    pub const fn window(&self) -> &OutcomeWindow {
        &self.window
    }

    /// Sets the rate, in tokens: the greatest step that is not above it. For a rate that is known from elsewhere, as from a running
    /// server.
    pub fn set_tokens(&self, tokens: u64) {
        self.step.store(self.steps.step_at(tokens), Ordering::Relaxed);
    }

    pub(crate) fn step(&self) -> u32 {
        self.step.load(Ordering::Relaxed).min(self.steps.count())
    }

    pub(crate) const fn steps(&self) -> &RateSteps {
        &self.steps
    }

    /// Sets the step that the store returned.
    pub(crate) fn set_step(&self, step: u64) {
        self.step.store(u32::try_from(step).unwrap_or(u32::MAX).min(self.steps.count()), Ordering::Relaxed);
    }

    /// Changes the step without the store, while it is unavailable.
    pub(crate) fn move_alone(&self, health: ServiceHealth) {
        let step = self.step();
        match health {
            ServiceHealth::Overloaded(_) => {
                self.step.store(self.steps.lowered(step), Ordering::Relaxed);
                self.count_decrease();
            }
            ServiceHealth::Healthy | ServiceHealth::Unknown => self.set_step(u64::from(step) + 1),
        }
    }

    pub(crate) fn count_decrease(&self) {
        self.decreases.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts at the rate of `other`, within the bounds.
    pub(crate) fn continue_from(&self, other: &AdaptiveRate) {
        if self.period == other.period {
            self.set_tokens(other.tokens());
        }
        self.decreases.store(other.decreases(), Ordering::Relaxed);
    }

    /// The charge whose remaining tokens are the present step.
    pub(crate) fn step_charge<'a>(&'a self, key: &'a Key<'a>) -> Charge<'a> {
        self.charge(&self.ids[0], key, self.steps.bucket())
    }

    /// The charge for one decrease.
    pub(crate) fn decrease_charge<'a>(&'a self, key: &'a Key<'a>) -> Charge<'a> {
        self.charge(&self.ids[1], key, self.steps.decrease_limit())
    }

    fn charge<'a>(&self, id: &'a RuleId, key: &'a Key<'a>, limit: &'a Limit) -> Charge<'a> {
        Charge { leasing: Leasing::OFF, ..Charge::new(id, key, limit) }
    }
}

/// Displays the terms: `100/s..1000/s by aimd, down 30% on latency > 200ms or errors > 5%, up 5% of the range every 1s`.
impl fmt::Display for AdaptiveRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lowest, highest) = self.bounds();
        let signals: Vec<String> = self.window.signals().map(ToString::to_string).collect();
        write!(
            f,
            "{}..{} by aimd, down {}% on {}, up {}% of the range every {}",
            self.rate_text(lowest),
            self.rate_text(highest),
            self.steps.decrease_percent(),
            signals.join(" or "),
            self.steps.increase_percent(),
            write_span(self.steps.every()),
        )
    }
}
