//! The pace for one host: its limits, the routes under them, and the waiting requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::limit::{AnswerContext, PacedLimit, Ready};
use super::limit_key::{LimitKey, Named};
use super::routes::{RouteKey, RouteLimits};
use super::turn::{Behind, Earliest, Entry, ObservedAnswer, QueuePlace, Sent, Turn};
use super::waiting::{Waiting, WaitingLines};
use crate::limits::{LimitId, Unit};

/// Maximum number of limits that are remembered for a host.
const MOST_LIMITS: usize = 1_024;
/// Maximum number of lines of waiting requests that a request passes. It bounds the time to find out whether it may.
const MOST_PASSED: usize = 32;
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
    waiting: WaitingLines,
    /// Number of requests that have entered. Later requests wait behind earlier ones.
    numbers: u64,
    /// Number of requests that were sent.
    sent: u64,
    /// Number of requests in flight.
    in_flight: u64,
    /// Number of those without a known limit.
    unpaced: u64,
    /// The number of times that the limits were forgotten.
    epoch: u64,
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
        let turn = Arc::new(Notify::new());
        state.waiting.add(number, Waiting { limits, route, tokens, turn: Arc::clone(&turn) });
        Entry::Queued(QueuePlace { number, turn })
    }

    /// Sends a queued request if it is its turn.
    pub(crate) fn turn(&self, number: u64, now: Instant) -> Turn {
        let mut state = self.state();
        let Some(waiting) = state.waiting.get(number) else {
            return Turn::Behind(Behind { not_before: now, recheck_at: None });
        };
        let (limits, tokens) = (Arc::clone(&waiting.limits), waiting.tokens);
        let earliest = state.earliest(&limits, number, tokens, now);
        if earliest != Earliest::Now {
            state.waiting.pass_on(&limits, number);
        }
        match earliest {
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
        let waiting = state.waiting.get(number)?;
        let (limits, tokens) = (Arc::clone(&waiting.limits), waiting.tokens);
        if !state.waiting.is_head(&limits, number) {
            return None;
        }
        let may_go = |limit: &PacedLimit| match limit.ready(tokens, now) {
            Ready::Now => true,
            Ready::At(at) => at > last && limit.may_probe(silence, now),
            Ready::AfterAnswer(_) => false,
        };
        let mut known = limits.iter().filter_map(|key| Some((key, state.limits.get(key)?)));
        if !known.all(|(key, limit)| may_go(limit) && !state.delays_another(key, limit, number, tokens, now)) {
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
        state.waiting.notify_all();
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
        state.waiting.notify_first(state.charged(sent).map(|(key, _)| key).chain(&named));
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
        state.waiting.notify_first(state.charged(sent).map(|(key, _)| key));
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
        state.waiting.notify_first(state.charged(sent).map(|(key, _)| key));
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
            Some(denied) if denied.is_idle(now) && !self.waiting.have(&of_host) => {
                let limits = Arc::clone(limits);
                self.limits.remove(&of_host);
                limits
            }
            Some(_) => limits.iter().cloned().chain([of_host]).collect(),
        }
    }

    /// The time of the request with this number by all of these limits.
    ///
    /// It goes behind the waiting requests with the same limits, and behind any other one under one of its limits that it would
    /// delay. It passes those that another limit holds back if its limits leave room for them.
    fn earliest(&self, limits: &Named, number: u64, tokens: u64, now: Instant) -> Earliest {
        let is_head = self.waiting.is_head(limits, number);
        let (mut at, mut is_behind, mut recheck_at) = (now, false, Some(now));
        for (key, limit) in limits.iter().filter_map(|key| Some((key, self.limits.get(key)?))) {
            if !is_head || self.delays_another(key, limit, number, tokens, now) {
                (is_behind, recheck_at) = (true, None);
                at = at.max(self.not_before(key, limit, limits, number, now));
            }
            match limit.ready(tokens, now) {
                Ready::Now => {}
                Ready::At(of_limit) => at = at.max(of_limit),
                Ready::AfterAnswer(or_at) => {
                    is_behind = true;
                    recheck_at = recheck_at.map(|recheck_at| recheck_at.max(or_at));
                }
            }
        }
        match (is_behind, at > now) {
            (false, false) => Earliest::Now,
            (false, true) => Earliest::At(at),
            (true, _) => {
                Earliest::Behind(Behind { not_before: at, recheck_at: recheck_at.map(|recheck_at| recheck_at.max(at)) })
            }
        }
    }

    /// Whether a request that is sent now would delay one that entered before it and waits for the same limit.
    fn delays_another(&self, key: &LimitKey, limit: &PacedLimit, number: u64, tokens: u64, now: Instant) -> bool {
        self.waiting.heads_before(key, number).enumerate().any(|(passed, head)| {
            let others = head.limits.iter().filter(|other| *other != key).filter_map(|other| self.limits.get(other));
            let held_until = others.map(|other| match other.ready(head.tokens, now) {
                Ready::Now => now,
                Ready::At(at) | Ready::AfterAnswer(at) => at,
            });
            let held_until = held_until.max().unwrap_or(now);
            passed >= MOST_PASSED || !limit.has_room_for_both(tokens, head.tokens, held_until, now)
        })
    }

    /// An instant before which the request with this number cannot be sent, because those before it take what is left of a limit.
    fn not_before(&self, key: &LimitKey, limit: &PacedLimit, limits: &Named, number: u64, now: Instant) -> Instant {
        let Some(ends) = limit.ends(now) else { return now };
        let left = limit.left();
        let mut before = self.waiting.before(limits, number, left);
        for head in self.waiting.heads_before(key, number).take(MOST_PASSED).filter(|head| head.limits != *limits) {
            // Their other limits may leave room for fewer of them.
            let others = head.limits.iter().filter(|other| *other != key).filter_map(|other| self.limits.get(other));
            let most = others.map(PacedLimit::left).fold(left.saturating_sub(before), usize::min);
            before += self.waiting.before(&head.limits, number, most);
        }
        if before < left { now } else { ends }
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
        let context = AnswerContext { order: sent.order, sent: self.sent, unpaced: self.unpaced };
        for stated in answer.limits.iter().filter(|stated| stated.id.name.len() <= LONGEST_NAME) {
            let key = LimitKey::Stated(stated.id.clone());
            let Some(limit) = self.limit(&key, stated.unit, now) else { continue };
            limit.learn(stated, context, now, random);
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
        self.waiting.hold(&key, |waiting| waiting.route.host_denied() == key);
    }

    /// Forgets limits if there are too many: those that have recovered, or otherwise those that no request uses.
    fn make_room(&mut self, now: Instant) {
        if self.limits.len() >= MOST_LIMITS {
            self.limits.retain(|key, limit| !limit.is_idle(now) || self.waiting.have(key));
        }
        if self.limits.len() >= MOST_LIMITS {
            self.limits.retain(|key, limit| limit.has_in_flight() || self.waiting.have(key));
        }
    }

    /// Removes a waiting request, and notifies those that may have their turn now.
    fn remove(&mut self, number: u64) {
        if let Some(waiting) = self.waiting.remove(number) {
            self.waiting.notify_first(waiting.limits.iter());
        }
    }
}
