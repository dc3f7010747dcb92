//! The pace towards one host: its limits, the routes under them, and the requests that wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::limit::{News, PacedLimit, Ready};
use super::routes::{Route, Routes};
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
    limits: HashMap<LimitId, PacedLimit>,
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
    limits: Arc<[LimitId]>,
    route: Route,
    tokens: u64,
    turn: Arc<Notify>,
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Sent {
    /// It was the nth request that was sent.
    order: u64,
    route: Route,
    /// The limits that it counts towards, with its costs.
    charged: Vec<(LimitId, u64)>,
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
    pub(crate) limits: &'a [ServerLimit],
    /// The wait that it asks for if it was denied.
    pub(crate) denied_for: Option<Duration>,
    /// Whether the answer says that its route has no other limits.
    pub(crate) is_complete: bool,
}

impl HostPace {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request if nothing holds it back, and otherwise queues it.
    pub(crate) fn enter(&self, route: Route, tokens: u64, now: Instant) -> Entry {
        let mut state = self.state();
        state.numbers += 1;
        let number = state.numbers;
        let limits = Arc::clone(state.routes.limits_of(route));
        if state.first_instant(&limits, number, tokens, now) == Ready::Now {
            return Entry::Sent(state.send(route, &limits, tokens, now));
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
        let (limits, route, tokens) = (Arc::clone(&waiting.limits), waiting.route, waiting.tokens);
        match state.first_instant(&limits, number, tokens, now) {
            Ready::Now => {
                let sent = state.send(route, &limits, tokens, now);
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
        state.learn(sent, answer, now, random);
        state.wake_first(sent.charged.iter().map(|(id, _)| id).chain(answer.limits.iter().map(|limit| &limit.id)));
    }

    /// Counts the end of a request without an answer.
    pub(crate) fn abandoned(&self, sent: &Sent) {
        let mut state = self.state();
        state.ended(sent);
        state.wake_first(sent.charged.iter().map(|(id, _)| id));
    }

    /// The number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// The number of requests that were sent and not answered.
    pub(crate) fn in_flight(&self) -> u64 {
        self.state().in_flight
    }

    /// The limits, each with its quota, what is left of it, and the time until its window ends.
    pub(crate) fn standing(&self, now: Instant) -> Vec<(LimitId, (u64, u64, Duration))> {
        let state = self.state();
        let mut standing: Vec<_> = state.limits.iter().map(|(id, limit)| (id.clone(), limit.standing(now))).collect();
        standing.sort();
        standing
    }
}

impl State {
    /// The earliest instant by all of these limits for the request with this number.
    fn first_instant(&self, limits: &[LimitId], number: u64, tokens: u64, now: Instant) -> Ready {
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

    fn send(&mut self, route: Route, limits: &[LimitId], tokens: u64, now: Instant) -> Sent {
        let mut charged = Vec::new();
        for id in limits {
            if let Some(limit) = self.limits.get_mut(id) {
                charged.push((id.clone(), limit.send(tokens, now)));
            }
        }
        self.sent += 1;
        self.in_flight += 1;
        self.unpaced += u64::from(charged.is_empty());
        Sent { order: self.sent, route, charged }
    }

    fn ended(&mut self, sent: &Sent) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.unpaced = self.unpaced.saturating_sub(u64::from(sent.charged.is_empty()));
        for (id, cost) in &sent.charged {
            if let Some(limit) = self.limits.get_mut(id) {
                limit.ended(*cost);
            }
        }
    }

    fn learn(&mut self, sent: &Sent, answer: Answer<'_>, now: Instant, random: f64) {
        if answer.limits.is_empty() && answer.denied_for.is_none() && self.limits.is_empty() {
            return;
        }
        self.make_room(now);
        let mut named = Vec::new();
        let mut explains_denial = false;
        let news = News { order: sent.order, sent: self.sent, unpaced: self.unpaced };
        for stated in answer.limits.iter().filter(|stated| stated.id.name.len() <= LONGEST_NAME) {
            if self.limits.len() >= MOST_LIMITS && !self.limits.contains_key(&stated.id) {
                continue;
            }
            let limit = self.limits.entry(stated.id.clone()).or_insert_with(|| PacedLimit::new(stated.unit, now));
            limit.learn(stated, news, now, random);
            if let (Some(wait), 0) = (answer.denied_for, stated.remaining) {
                limit.exhaust(wait, now, random);
                explains_denial = true;
            }
            named.push(stated.id.clone());
        }
        if let (Some(wait), false) = (answer.denied_for, explains_denial) {
            let id = sent.route.denied();
            let limit = self.limits.entry(id.clone()).or_insert_with(|| PacedLimit::new(Unit::Requests, now));
            limit.exhaust(wait, now, random);
            named.push(id);
            self.routes.learn_exact(sent.route, named);
            return;
        }
        if answer.is_complete {
            let vanished = sent.charged.iter().filter(|(id, _)| !named.contains(id));
            for (id, _) in vanished {
                if let Some(limit) = self.limits.get_mut(id) {
                    limit.relax(now);
                }
            }
        }
        if !named.is_empty() || answer.is_complete {
            self.routes.learn(sent.route, named);
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
    fn wake_first<'l>(&self, limits: impl Iterator<Item = &'l LimitId>) {
        for head in limits.filter_map(|id| self.limits.get(id)?.queue.first()) {
            if let Some(waiting) = self.waiting.get(head) {
                waiting.turn.notify_one();
            }
        }
    }
}
