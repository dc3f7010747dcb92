//! State of the watched server.

use std::collections::VecDeque;

use crate::metrics::{Denial, OwnRegion, RuleView, TierView, View};

/// Seconds of history kept for the graph.
const HISTORY: usize = 240;
/// Number of denials kept.
const DENIALS: usize = 50;

/// Event from the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FeedEvent {
    /// Current data.
    View(Box<View>),
    /// The connection was lost, for this reason.
    Lost(String),
}

/// State of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// No connection yet.
    Connecting,
    /// Connected: the data is current.
    Live,
    /// Disconnected: the data is stale.
    Lost(String),
}

/// Sort order of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Denied,
    Decided,
    Name,
}

impl Order {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Order::Denied => "denied",
            Order::Decided => "decided",
            Order::Name => "name",
        }
    }
}

/// The ranking of keys next to the one by traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecondRanking {
    Denials,
    /// By calls to Redis.
    StoreCalls,
}

/// Data of the server, and display options.
#[derive(Clone, Debug)]
pub(super) struct TopModel {
    pub(super) url: String,
    pub(super) link: LinkState,
    pub(super) order: Order,
    pub(super) ranking: SecondRanking,
    /// Whether the screen is paused: new views are ignored.
    pub(super) is_paused: bool,
    pub(super) view: Option<View>,
    before: Option<View>,
    /// Requests a second, the newest last.
    pub(super) history: VecDeque<u64>,
    pub(super) denials: VecDeque<Denial>,
}

/// Rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Speed {
    pub(super) allowed: f64,
    pub(super) denied: f64,
    pub(super) refused: f64,
}

impl Speed {
    pub(super) fn all(self) -> f64 {
        self.allowed + self.denied + self.refused
    }

    /// Percentage of denials.
    pub(super) fn drop_rate(self) -> f64 {
        if self.all() > 0.0 { 100.0 * (self.denied + self.refused) / self.all() } else { 0.0 }
    }
}

impl TopModel {
    pub(super) fn new(url: &str) -> TopModel {
        TopModel {
            url: url.to_owned(),
            link: LinkState::Connecting,
            order: Order::Denied,
            ranking: SecondRanking::Denials,
            is_paused: false,
            view: None,
            before: None,
            history: VecDeque::new(),
            denials: VecDeque::new(),
        }
    }

    pub(super) fn learn(&mut self, news: FeedEvent) {
        match news {
            FeedEvent::Lost(reason) => {
                self.link = LinkState::Lost(reason);
                // Requests while the connection was lost belong to no second on the screen.
                self.before = None;
            }
            FeedEvent::View(_) if self.is_paused => {}
            FeedEvent::View(view) => {
                let goes_on = self.link == LinkState::Live;
                self.link = LinkState::Live;
                self.before = self.view.take().filter(|before| goes_on && !restarted(before, &view));
                // After a reconnect, the server sends all denials that it keeps, known ones among them.
                let is_known = |denial: &Denial| self.denials.back().is_some_and(|last| denial.number <= last.number);
                if view.denials.first().is_some_and(is_known) {
                    self.denials.clear();
                }
                self.denials.extend(view.denials.iter().cloned());
                self.denials.drain(..self.denials.len().saturating_sub(DENIALS));
                self.view = Some(*view);
                if self.knows_speed() {
                    self.history.push_back(rounded(self.speed().all()));
                    self.history.drain(..self.history.len().saturating_sub(HISTORY));
                }
            }
        }
    }

    /// Pauses or resumes the screen.
    pub(super) const fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    pub(super) const fn sort_by_next(&mut self) {
        self.order = match self.order {
            Order::Denied => Order::Decided,
            Order::Decided => Order::Name,
            Order::Name => Order::Denied,
        };
    }

    /// Shows the other ranking of keys. A store in memory has only one.
    pub(super) fn rank_by_next(&mut self) {
        self.ranking = match self.ranking {
            SecondRanking::Denials if self.has_tier() => SecondRanking::StoreCalls,
            SecondRanking::Denials | SecondRanking::StoreCalls => SecondRanking::Denials,
        };
    }

    /// Whether a lease tier decides some requests before Redis.
    pub(super) fn has_tier(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.store.tier.is_some())
    }

    /// The region of the server, if it has one.
    pub(super) fn region(&self) -> Option<&OwnRegion> {
        self.view.as_ref().and_then(|view| view.region.as_ref())
    }

    /// Requests between the last two views, by the tier that decided them.
    pub(super) fn tier(&self) -> Option<TierView> {
        let now = self.view.as_ref()?.store.tier?;
        let before = self.before.as_ref().and_then(|before| before.store.tier).unwrap_or(now);
        Some(now.since(&before))
    }

    /// Whether there are two views to compute a rate from.
    pub(super) const fn knows_speed(&self) -> bool {
        self.before.is_some() && self.view.is_some()
    }

    fn between(&self) -> Option<(&View, &View, f64)> {
        let (before, now) = (self.before.as_ref()?, self.view.as_ref()?);
        let seconds = now.at_ms.saturating_sub(before.at_ms) as f64 / 1_000.0;
        (seconds > 0.0).then_some((before, now, seconds))
    }

    /// Rates of requests.
    pub(super) fn speed(&self) -> Speed {
        let Some((before, now, seconds)) = self.between() else { return Speed::default() };
        let (before, now) = (&before.requests, &now.requests);
        Speed {
            allowed: grown(before.allowed, now.allowed) / seconds,
            denied: grown(before.denied, now.denied) / seconds,
            refused: grown(before.refused, now.refused) / seconds,
        }
    }

    /// Rules with their rates, in the chosen order. Would-be denials of rules in shadow mode count as denials.
    pub(super) fn rules(&self) -> Vec<(&RuleView, Speed)> {
        let Some(view) = &self.view else { return Vec::new() };
        let mut rules: Vec<(&RuleView, Speed)> = view.rules.iter().map(|rule| (rule, self.speed_of(rule))).collect();
        rules.sort_by(|(one, fast), (other, faster)| {
            let by_name = || one.rule.cmp(&other.rule);
            match self.order {
                Order::Denied => {
                    let totals = || (other.denied + other.shadow_denied).cmp(&(one.denied + one.shadow_denied));
                    faster.denied.total_cmp(&fast.denied).then_with(totals).then_with(by_name)
                }
                Order::Decided => faster.all().total_cmp(&fast.all()).then_with(by_name),
                Order::Name => by_name(),
            }
        });
        rules
    }

    fn speed_of(&self, rule: &RuleView) -> Speed {
        let Some((before, _, seconds)) = self.between() else { return Speed::default() };
        let none = RuleView::default();
        let before = before.rules.iter().find(|known| known.rule == rule.rule).unwrap_or(&none);
        let grown = |of: fn(&RuleView) -> u64| grown(of(before), of(rule)) / seconds;
        Speed {
            allowed: grown(|rule| rule.allowed + rule.shadow_allowed),
            denied: grown(|rule| rule.denied + rule.shadow_denied),
            refused: grown(|rule| rule.refused),
        }
    }
}

/// Whether the counters were reset in between.
fn restarted(before: &View, now: &View) -> bool {
    let all = |view: &View| view.requests.allowed + view.requests.denied + view.requests.refused;
    all(now) < all(before) || now.at_ms <= before.at_ms
}

fn grown(before: u64, now: u64) -> f64 {
    now.saturating_sub(before) as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "speeds are small and not below zero")]
pub(super) fn rounded(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use tidegate_rules::Mode;

    use super::*;
    use crate::metrics::Requests;

    fn view(at_ms: u64, allowed: u64, denied: u64) -> FeedEvent {
        let rule = |name: &str, denied| RuleView { rule: name.to_owned(), denied, allowed, ..RuleView::default() };
        FeedEvent::View(Box::new(View {
            at_ms,
            requests: Requests { allowed, denied, refused: 0 },
            rules: vec![rule("a", denied / 2), rule("b", denied)],
            ..View::default()
        }))
    }

    #[test]
    fn speed_is_told_from_two_views_by_the_time_between_them() {
        let mut model = TopModel::new("http://a");
        model.learn(view(1_000, 10, 0));
        assert_eq!((model.knows_speed(), model.speed().all()), (false, 0.0));
        model.learn(view(3_000, 110, 50));
        assert_eq!((model.speed().allowed, model.speed().denied), (50.0, 25.0));
        assert_eq!(model.history, [75]);
        let rules: Vec<_> = model.rules().iter().map(|(rule, speed)| (rule.rule.as_str(), speed.denied)).collect();
        assert_eq!(rules, [("b", 25.0), ("a", 12.5)]);
    }

    #[test]
    fn a_server_that_started_anew_and_a_gap_are_no_speed() {
        let mut model = TopModel::new("http://a");
        model.learn(view(1_000, 1_000, 0));
        model.learn(view(2_000, 3, 0));
        assert!(!model.knows_speed());
        model.learn(view(3_000, 4, 0));
        assert_eq!(model.speed().all(), 1.0);
        model.learn(FeedEvent::Lost("gone".to_owned()));
        assert_eq!((model.link.clone(), model.knows_speed()), (LinkState::Lost("gone".to_owned()), false));
        model.learn(view(60_000, 1_000_000, 0));
        assert_eq!((model.link.clone(), model.speed().all()), (LinkState::Live, 0.0));
    }

    #[test]
    fn denials_that_the_server_sends_again_are_shown_once() {
        let denial = |&number: &u64| Denial {
            number,
            at_ms: 0,
            rule: "a".to_owned(),
            mode: Mode::Enforce,
            key: Vec::new(),
            retry_after_ms: None,
            without_store: false,
        };
        let view = |numbers: &[u64]| {
            let denials = numbers.iter().map(denial).collect();
            FeedEvent::View(Box::new(View { denials, ..View::default() }))
        };
        let shown = |model: &TopModel| model.denials.iter().map(|denial| denial.number).collect::<Vec<_>>();
        let mut model = TopModel::new("http://a");
        model.learn(view(&[1, 2]));
        model.learn(view(&[3]));
        assert_eq!(shown(&model), [1, 2, 3]);
        model.learn(FeedEvent::Lost("gone".to_owned()));
        model.learn(view(&[1, 2, 3, 4]));
        assert_eq!(shown(&model), [1, 2, 3, 4]);
        model.learn(FeedEvent::Lost("gone".to_owned()));
        // The numbers of another process begin at 1.
        model.learn(view(&[1, 2]));
        assert_eq!(shown(&model), [1, 2]);
    }

    #[test]
    fn rules_are_sorted_as_one_likes() {
        let mut model = TopModel::new("http://a");
        model.learn(view(1_000, 0, 0));
        model.learn(view(2_000, 0, 9));
        model.sort_by_next();
        model.sort_by_next();
        assert_eq!(model.order, Order::Name);
        assert_eq!(model.rules()[0].0.rule, "a");
        model.sort_by_next();
        assert_eq!(model.rules()[0].0.rule, "b");
    }
}
