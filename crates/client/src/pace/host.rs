//! The pace towards one host: its limits, the routes under them, and the requests that wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::limit::{News, PacedLimit, Ready};
use super::routes::{LimitKey, Named, Route, Routes};
use crate::limits::{LimitId, ServerLimit, Unit};

/// The most limits that are remembered of a host.
const MOST_LIMITS: usize = 1_024;
/// Longer names are ignored.
const LONGEST_NAME: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct HostPace {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    limits: HashMap<LimitKey, PacedLimit>,
    routes: Routes,
    waiting: HashMap<u64, Waiting>,
    /// The number of requests that entered: the later ones wait behind the earlier ones.
    numbers: u64,
    /// The number of requests that were sent.
    sent: u64,
    /// Requests in flight, and those of them that are under no known limit.
    in_flight: u64,
    unpaced: u64,
}

#[derive(Debug)]
struct Waiting {
    limits: Named,
    route: Route,
    tokens: u64,
    turn: Arc<Notify>,
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Sent {
    /// It was the nth request that was sent.
    order: u64,
    limits: Named,
    /// Its cost for each of the limits: 0 for those that are not known any more.
    costs: Vec<u64>,
}

impl Sent {
    /// The limits that it counts towards, with its costs.
    fn charged(&self) -> impl Iterator<Item = (&LimitKey, u64)> {
        self.limits.iter().zip(self.costs.iter().copied()).filter(|(_, cost)| *cost > 0)
    }

    fn is_unpaced(&self) -> bool {
        self.costs.iter().all(|cost| *cost == 0)
    }
}

/// A place in the queues of its limits.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) number: u64,
    pub(crate) turn: Arc<Notify>,
}

#[derive(Debug)]
pub(crate) enum Entry {
    Sent(Sent),
    Queued(Place),
}

#[derive(Debug)]
pub(crate) enum Turn {
    Sent(Sent),
    /// First in line, but not before this instant.
    At(Instant),
    /// Not before another request has been sent or answered.
    Behind,
}

/// The parts of an answer that the pace learns from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) route: Route,
    pub(crate) limits: &'a [ServerLimit],
    /// The wait that it asks for if it was denied.
    pub(crate) denied_for: Option<Duration>,
    /// Whether the denial is for all routes.
    pub(crate) is_host_wide: bool,
    /// Whether the answer says that its route has no other limits.
    pub(crate) is_complete: bool,
}

impl HostPace {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request if nothing holds it back, and otherwise queues it. The route is asked for only if any limits are known.
    pub(crate) fn enter(&self, route: impl FnOnce() -> Route, tokens: u64, now: Instant) -> Entry {
        let mut state = self.state();
        state.numbers += 1;
        let number = state.numbers;
        if state.limits.is_empty() {
            return Entry::Sent(state.send_unpaced());
        }
        let route = route();
        let limits = state.limits_of(route, now);
        if state.first_instant(&limits, number, tokens, now) == Ready::Now {
            return Entry::Sent(state.send(limits, tokens, now));
        }
        for id in limits.iter() {
            if let Some(limit) = state.limits.get_mut(id) {
                limit.queue.insert(number);
            }
        }
        let turn = Arc::new(Notify::new());
        state.waiting.insert(number, Waiting { limits, route, tokens, turn: Arc::clone(&turn) });
        Entry::Queued(Place { number, turn })
    }

    /// Sends a queued request if it is its turn.
    pub(crate) fn turn(&self, number: u64, now: Instant) -> Turn {
        let mut state = self.state();
        let Some(waiting) = state.waiting.get(&number) else { return Turn::Behind };
        let (limits, tokens) = (Arc::clone(&waiting.limits), waiting.tokens);
        match state.first_instant(&limits, number, tokens, now) {
            Ready::Now => {
                let sent = state.send(limits, tokens, now);
                state.remove(number);
                Turn::Sent(sent)
            }
            Ready::At(at) => Turn::At(at),
            Ready::AfterAnswer => Turn::Behind,
        }
    }

    /// Removes a request from the queues.
    pub(crate) fn leave(&self, number: u64) {
        self.state().remove(number);
    }

    /// Learns from the answer to a request.
    pub(crate) fn answered(&self, sent: &Sent, answer: Answer<'_>, now: Instant, random: f64) {
        let mut state = self.state();
        state.ended(sent);
        let named = state.learn(sent, answer, now, random);
        state.wake_first(sent.charged().map(|(key, _)| key).chain(&named));
    }

    /// Counts the end of a request whose answer states no limits. False if limits are known, so that there may be more to learn.
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
        state.wake_first(sent.charged().map(|(key, _)| key));
    }

    /// Takes back a request that had its turn at this instant and is not sent now.
    #[cfg(feature = "adaptive")]
    pub(crate) fn unsend(&self, sent: &Sent, now: Instant) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
        state.unpaced = state.unpaced.saturating_sub(u64::from(sent.is_unpaced()));
        for (key, cost) in sent.charged() {
            if let Some(limit) = state.limits.get_mut(key) {
                limit.unsend(cost, now);
            }
        }
        state.wake_first(sent.charged().map(|(key, _)| key));
    }

    /// The number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    #[cfg(test)]
    pub(super) fn known_limits(&self) -> usize {
        self.state().limits.len()
    }

    /// The number of requests that were sent and not answered.
    pub(crate) fn in_flight(&self) -> u64 {
        self.state().in_flight
    }

    /// The limits that the host has stated, each with its quota, what is left of it, and the time until its window ends.
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

impl State {
    /// The limits of a route that begins now.
    fn limits_of(&mut self, route: Route, now: Instant) -> Named {
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

    /// The earliest instant by all of these limits for the request with this number.
    fn first_instant(&self, limits: &[LimitKey], number: u64, tokens: u64, now: Instant) -> Ready {
        let mut first = Ready::Now;
        for limit in limits.iter().filter_map(|id| self.limits.get(id)) {
            if limit.queue.first().is_some_and(|head| *head < number) {
                return Ready::AfterAnswer;
            }
            first = match (first, limit.ready(tokens, now)) {
                (Ready::AfterAnswer, _) | (_, Ready::AfterAnswer) => Ready::AfterAnswer,
                (Ready::At(one), Ready::At(other)) => Ready::At(one.max(other)),
                (Ready::At(at), Ready::Now) | (Ready::Now, Ready::At(at)) => Ready::At(at),
                (Ready::Now, Ready::Now) => Ready::Now,
            };
        }
        first
    }

    fn send(&mut self, limits: Named, tokens: u64, now: Instant) -> Sent {
        let costs =
            limits.iter().map(|key| self.limits.get_mut(key).map_or(0, |limit| limit.send(tokens, now))).collect();
        self.sent += 1;
        self.in_flight += 1;
        let sent = Sent { order: self.sent, limits, costs };
        self.unpaced += u64::from(sent.is_unpaced());
        sent
    }

    /// Sends a request while no limits are known.
    fn send_unpaced(&mut self) -> Sent {
        self.sent += 1;
        self.in_flight += 1;
        self.unpaced += 1;
        Sent { order: self.sent, limits: self.routes.unlimited(), costs: Vec::new() }
    }

    fn ended(&mut self, sent: &Sent) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.unpaced = self.unpaced.saturating_sub(u64::from(sent.is_unpaced()));
        for (key, cost) in sent.charged() {
            if let Some(limit) = self.limits.get_mut(key) {
                limit.ended(cost);
            }
        }
    }

    /// Learns from an answer. Returns the limits that it is about.
    fn learn(&mut self, sent: &Sent, answer: Answer<'_>, now: Instant, random: f64) -> Vec<LimitKey> {
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
            for (key, _) in sent.charged().filter(|(key, _)| !named.contains(key)) {
                if let Some(limit) = self.limits.get_mut(key) {
                    limit.relax(now);
                }
            }
        }
        if !named.is_empty() || answer.is_complete {
            self.routes.learn(answer.route, named.clone());
        }
        named
    }

    /// The limit with this key, unless there are too many to remember another.
    fn limit(&mut self, key: &LimitKey, unit: Unit, now: Instant) -> Option<&mut PacedLimit> {
        if self.limits.len() >= MOST_LIMITS && !self.limits.contains_key(key) {
            return None;
        }
        Some(self.limits.entry(key.clone()).or_insert_with(|| PacedLimit::new(unit, now)))
    }

    /// Holds all requests of the route's partition back, also those that wait already.
    fn hold_host(&mut self, route: Route, wait: Duration, now: Instant, random: f64) {
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

    /// Forgets limits if there are too many: those that have recovered, and else those that no request is under.
    fn make_room(&mut self, now: Instant) {
        if self.limits.len() >= MOST_LIMITS {
            self.limits.retain(|_, limit| !limit.is_idle(now));
        }
        if self.limits.len() >= MOST_LIMITS {
            self.limits.retain(|_, limit| limit.is_used());
        }
    }

    /// Removes a waiting request, and tells those that are first in line now.
    fn remove(&mut self, number: u64) {
        let Some(waiting) = self.waiting.remove(&number) else { return };
        for id in waiting.limits.iter() {
            if let Some(limit) = self.limits.get_mut(id) {
                limit.queue.remove(&number);
            }
        }
        self.wake_first(waiting.limits.iter());
    }

    /// Tells the requests that are first in the queues of these limits.
    fn wake_first<'l>(&self, limits: impl Iterator<Item = &'l LimitKey>) {
        for head in limits.filter_map(|id| self.limits.get(id)?.queue.first()) {
            if let Some(waiting) = self.waiting.get(head) {
                waiting.turn.notify_one();
            }
        }
    }
}
