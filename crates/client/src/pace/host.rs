//! The pace for one host: its limits, the routes under them, and the waiting requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::limit::{News, PacedLimit, Ready};
use super::limit_key::{LimitKey, Named};
use super::routes::{RouteKey, RouteLimits};
use super::turn::{Behind, Earliest, Entry, ObservedAnswer, QueuePlace, Sent, Turn};
use crate::limits::{LimitId, Unit};

/// Maximum number of limits that are remembered for a host.
const MOST_LIMITS: usize = 1_024;
/// Limits with longer names, or with longer partitions that a server names, are ignored.
pub(super) const LONGEST_NAME: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct HostPace {
    state: Mutex<HostState>,
}

#[derive(Debug, Default)]
struct HostState {
    limits: HashMap<LimitKey, PacedLimit>,
    routes: RouteLimits,
    waiting: HashMap<u64, Waiting>,
    /// Number of requests that have entered. Later requests wait behind earlier ones.
    numbers: u64,
    /// Number of requests that were sent.
    sent: u64,
    /// Number of requests in flight, followed by the number of those without a known limit.
    in_flight: u64,
    unpaced: u64,
    /// The number of times that the limits were forgotten.
    epoch: u64,
}

#[derive(Debug)]
struct Waiting {
    limits: Named,
    route: RouteKey,
    tokens: u64,
    turn: Arc<Notify>,
}

impl HostPace {
    fn state(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request if nothing delays it, and otherwise queues it. `route` is called only if any limits are known.
    pub(crate) fn enter(&self, route: impl FnOnce() -> RouteKey, tokens: u64, now: Instant) -> Entry {
        let mut state = self.state();
        state.numbers += 1;
        let number = state.numbers;
        if state.limits.is_empty() {
            return Entry::Sent(state.send_unpaced());
        }
        let route = route();
        let limits = state.limits_of(route, now);
        if state.earliest(&limits, number, tokens, now) == Earliest::Now {
            return Entry::Sent(state.send(limits, tokens, now));
        }
        for id in limits.iter() {
            if let Some(limit) = state.limits.get_mut(id) {
                limit.queue.insert(number);
            }
        }
        let turn = Arc::new(Notify::new());
        state.waiting.insert(number, Waiting { limits, route, tokens, turn: Arc::clone(&turn) });
        Entry::Queued(QueuePlace { number, turn })
    }

    /// Sends a queued request if it is its turn.
    pub(crate) fn turn(&self, number: u64, now: Instant) -> Turn {
        let mut state = self.state();
        let Some(waiting) = state.waiting.get(&number) else {
            return Turn::Behind(Behind { not_before: now, look_at: None });
        };
        let (limits, tokens) = (Arc::clone(&waiting.limits), waiting.tokens);
        match state.earliest(&limits, number, tokens, now) {
            Earliest::Now => {
                let sent = state.send(limits, tokens, now);
                state.remove(number);
                Turn::Sent(sent)
            }
            Earliest::At(at) => Turn::At(at),
            Earliest::Behind(behind) => Turn::Behind(behind),
        }
    }

    /// Sends a queued request whose turn comes after `last`, if it is the first in line and there has been no answer about the
    /// limits that hold it back for some time, at least `silence`: they may have changed.
    pub(crate) fn probe(&self, number: u64, last: Instant, silence: Duration, now: Instant) -> Option<Sent> {
        let mut state = self.state();
        let waiting = state.waiting.get(&number)?;
        let (limits, tokens) = (Arc::clone(&waiting.limits), waiting.tokens);
        let may_go = |limit: &PacedLimit| match limit.ready(tokens, now) {
            Ready::Now => true,
            Ready::At(at) => at > last && limit.may_probe(silence, now),
            Ready::AfterAnswer(_) => false,
        };
        if !limits.iter().filter_map(|key| state.limits.get(key)).all(|limit| limit.is_first(number) && may_go(limit)) {
            return None;
        }
        for key in limits.iter() {
            if let Some(limit) = state.limits.get_mut(key) {
                limit.probed(now);
            }
        }
        let sent = Sent { is_probe: true, ..state.send(limits, tokens, now) };
        state.remove(number);
        Some(sent)
    }

    /// Forgets all limits and denials. Requests that wait are sent.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.limits.clear();
        state.routes = RouteLimits::default();
        state.epoch += 1;
        state.unpaced = state.in_flight;
        state.waiting.values().for_each(|waiting| waiting.turn.notify_one());
    }

    /// Removes a request from the queues.
    pub(crate) fn leave(&self, number: u64) {
        self.state().remove(number);
    }

    /// Updates the limits from the answer to a request.
    pub(crate) fn answered(&self, sent: &Sent, answer: ObservedAnswer<'_>, now: Instant, random: f64) {
        let mut state = self.state();
        state.ended(sent);
        let named = state.learn(sent, answer, now, random);
        state.wake_first(state.charged(sent).map(|(key, _)| key).chain(&named));
    }

    /// Counts the end of a request whose answer states no limits. `false` if limits are known, so that the answer must be
    /// processed.
    pub(crate) fn ended_unlimited(&self, sent: &Sent) -> bool {
        let mut state = self.state();
        let is_unlimited = state.limits.is_empty();
        if is_unlimited {
            state.ended(sent);
        }
        is_unlimited
    }

    /// Counts the end of a request without an answer.
    pub(crate) fn abandoned(&self, sent: &Sent) {
        let mut state = self.state();
        state.ended(sent);
        state.wake_first(state.charged(sent).map(|(key, _)| key));
    }

    /// Takes back a request that had its turn at this instant but is not sent now.
    #[cfg(feature = "adaptive")]
    pub(crate) fn unsend(&self, sent: &Sent, now: Instant) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
        state.unpaced = state.unpaced.saturating_sub(u64::from(state.is_unpaced(sent)));
        for (key, cost) in state.charged(sent) {
            if let Some(limit) = state.limits.get_mut(key) {
                limit.unsend(cost, now);
            }
        }
        state.wake_first(state.charged(sent).map(|(key, _)| key));
    }

    /// The number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    #[cfg(test)]
    pub(super) fn known_limits(&self) -> usize {
        self.state().limits.len()
    }

    /// The number of requests that were sent and are not answered yet.
    pub(crate) fn in_flight(&self) -> u64 {
        self.state().in_flight
    }

    /// The limits stated by the host, each with its quota, the remaining quota, and the time until its window ends.
    pub(crate) fn standing(&self, now: Instant) -> Vec<(LimitId, (u64, u64, Duration))> {
        let state = self.state();
        let stated = state.limits.iter().filter_map(|(key, limit)| match key {
            LimitKey::Stated(id) => Some((id.clone(), limit.standing(now))),
            LimitKey::RouteDenied(_) | LimitKey::HostDenied(_) => None,
        });
        let mut standing: Vec<_> = stated.collect();
        standing.sort();
        standing
    }
}

impl HostState {
    /// The limits of a route for a new request.
    fn limits_of(&mut self, route: RouteKey, now: Instant) -> Named {
        let limits = self.routes.limits_of(route);
        let of_host = route.host_denied();
        match self.limits.get(&of_host) {
            None => Arc::clone(limits),
            Some(denied) if denied.is_idle(now) => {
                let limits = Arc::clone(limits);
                self.limits.remove(&of_host);
                limits
            }
            Some(_) => limits.iter().cloned().chain([of_host]).collect(),
        }
    }

    /// The time of the request with this number by all of these limits.
    fn earliest(&self, limits: &[LimitKey], number: u64, tokens: u64, now: Instant) -> Earliest {
        let (mut at, mut is_behind, mut look_at) = (now, false, Some(now));
        for limit in limits.iter().filter_map(|id| self.limits.get(id)) {
            if !limit.is_first(number) {
                (is_behind, look_at) = (true, None);
                at = at.max(limit.not_before(number, now));
            }
            match limit.ready(tokens, now) {
                Ready::Now => {}
                Ready::At(of_limit) => at = at.max(of_limit),
                Ready::AfterAnswer(or_at) => {
                    is_behind = true;
                    look_at = look_at.map(|look_at| look_at.max(or_at));
                }
            }
        }
        match (is_behind, at > now) {
            (false, false) => Earliest::Now,
            (false, true) => Earliest::At(at),
            (true, _) => Earliest::Behind(Behind { not_before: at, look_at: look_at.map(|look_at| look_at.max(at)) }),
        }
    }

    /// The limits that a request in flight counts towards, with its costs.
    fn charged<'s>(&self, sent: &'s Sent) -> impl Iterator<Item = (&'s LimitKey, u64)> + use<'s> {
        let costs: &[u64] = if sent.epoch == self.epoch { &sent.costs } else { &[] };
        sent.limits.iter().zip(costs.iter().copied()).filter(|(_, cost)| *cost > 0)
    }

    fn is_unpaced(&self, sent: &Sent) -> bool {
        self.charged(sent).next().is_none()
    }

    fn send(&mut self, limits: Named, tokens: u64, now: Instant) -> Sent {
        let costs =
            limits.iter().map(|key| self.limits.get_mut(key).map_or(0, |limit| limit.send(tokens, now))).collect();
        self.sent += 1;
        self.in_flight += 1;
        let sent = Sent { order: self.sent, limits, costs, epoch: self.epoch, is_probe: false };
        self.unpaced += u64::from(self.is_unpaced(&sent));
        sent
    }

    /// Sends a request while no limits are known.
    fn send_unpaced(&mut self) -> Sent {
        self.sent += 1;
        self.in_flight += 1;
        self.unpaced += 1;
        let (limits, epoch) = (self.routes.unlimited(), self.epoch);
        Sent { order: self.sent, limits, costs: Vec::new(), epoch, is_probe: false }
    }

    fn ended(&mut self, sent: &Sent) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.unpaced = self.unpaced.saturating_sub(u64::from(self.is_unpaced(sent)));
        for (key, cost) in self.charged(sent) {
            if let Some(limit) = self.limits.get_mut(key) {
                limit.ended(cost);
            }
        }
    }

    /// Updates the limits from an answer. Returns the limits to which the answer applies.
    fn learn(&mut self, sent: &Sent, answer: ObservedAnswer<'_>, now: Instant, random: f64) -> Vec<LimitKey> {
        if answer.limits.is_empty() && answer.denied_for.is_none() && self.limits.is_empty() {
            return Vec::new();
        }
        self.make_room(now);
        let mut named = Vec::new();
        let mut explains_denial = false;
        let news = News { order: sent.order, sent: self.sent, unpaced: self.unpaced };
        for stated in answer.limits.iter().filter(|stated| stated.id.name.len() <= LONGEST_NAME) {
            let key = LimitKey::Stated(stated.id.clone());
            let Some(limit) = self.limit(&key, stated.unit, now) else { continue };
            limit.learn(stated, news, now, random);
            if let (Some(wait), 0) = (answer.denied_for, stated.remaining) {
                limit.exhaust(wait, now, random);
                explains_denial = true;
            }
            named.push(key);
        }
        match answer.denied_for {
            Some(wait) if answer.is_host_wide => self.hold_host(answer.route, wait, now, random),
            Some(wait) if !explains_denial => {
                let key = answer.route.denied();
                if let Some(limit) = self.limit(&key, Unit::Requests, now) {
                    limit.exhaust(wait, now, random);
                    named.push(key);
                }
                self.routes.learn_exact(answer.route, named.clone());
                return named;
            }
            Some(_) | None => {}
        }
        if answer.is_complete {
            for (key, _) in self.charged(sent).filter(|(key, _)| !named.contains(key)) {
                if let Some(limit) = self.limits.get_mut(key) {
                    limit.relax(now, sent.is_probe);
                }
            }
        }
        if !named.is_empty() || answer.is_complete {
            self.routes.learn(answer.route, named.clone());
        }
        named
    }

    /// The limit with this key. `None` if there are already too many limits.
    fn limit(&mut self, key: &LimitKey, unit: Unit, now: Instant) -> Option<&mut PacedLimit> {
        if self.limits.len() >= MOST_LIMITS && !self.limits.contains_key(key) {
            return None;
        }
        Some(self.limits.entry(key.clone()).or_insert_with(|| PacedLimit::new(unit, now)))
    }

    /// Delays all requests of the route's partition, including those that already wait.
    fn hold_host(&mut self, route: RouteKey, wait: Duration, now: Instant, random: f64) {
        let key = route.host_denied();
        let Some(limit) = self.limit(&key, Unit::Requests, now) else { return };
        limit.exhaust(wait, now, random);
        let of_partition = self.waiting.iter_mut().filter(|(_, waiting)| waiting.route.host_denied() == key);
        for (number, waiting) in of_partition.filter(|(_, waiting)| !waiting.limits.contains(&key)) {
            waiting.limits = waiting.limits.iter().cloned().chain([key.clone()]).collect();
            if let Some(limit) = self.limits.get_mut(&key) {
                limit.queue.insert(*number);
            }
        }
    }

    /// Forgets limits if there are too many: those that have recovered, or otherwise those that no request uses.
    fn make_room(&mut self, now: Instant) {
        if self.limits.len() >= MOST_LIMITS {
            self.limits.retain(|_, limit| !limit.is_idle(now));
        }
        if self.limits.len() >= MOST_LIMITS {
            self.limits.retain(|_, limit| limit.is_used());
        }
    }

    /// Removes a waiting request, and notifies the requests that are now first.
    fn remove(&mut self, number: u64) {
        let Some(waiting) = self.waiting.remove(&number) else { return };
        for id in waiting.limits.iter() {
            if let Some(limit) = self.limits.get_mut(id) {
                limit.queue.remove(&number);
            }
        }
        self.wake_first(waiting.limits.iter());
    }

    /// Notifies the requests that are first in the queues of these limits.
    fn wake_first<'l>(&self, limits: impl Iterator<Item = &'l LimitKey>) {
        for head in limits.filter_map(|id| self.limits.get(id)?.queue.first()) {
            if let Some(waiting) = self.waiting.get(head) {
                waiting.turn.notify_one();
            }
        }
    }
}
