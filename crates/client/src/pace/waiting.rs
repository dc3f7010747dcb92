//! Waiting requests, in one line for each set of limits.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio::sync::Notify;

use super::limit_key::{LimitKey, Named};
use super::routes::RouteKey;

/// A waiting request.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) limits: Named,
    pub(super) route: RouteKey,
    pub(super) tokens: u64,
    pub(super) turn: Arc<Notify>,
}

/// The waiting requests of a host. Those with the same limits are sent in the order of their numbers, so only the first one of them, the
/// head of the line, has to be compared with the heads of other lines.
#[derive(Debug, Default)]
pub(super) struct WaitingLines {
    waiting: HashMap<u64, Waiting>,
    lines: HashMap<Named, BTreeSet<u64>>,
    /// The heads of the lines under each limit.
    heads: HashMap<LimitKey, BTreeSet<u64>>,
}

impl WaitingLines {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn get(&self, number: u64) -> Option<&Waiting> {
        self.waiting.get(&number)
    }

    pub(super) fn add(&mut self, number: u64, waiting: Waiting) {
        let line = self.lines.entry(Arc::clone(&waiting.limits)).or_default();
        let head = line.first().copied();
        line.insert(number);
        if head.is_none_or(|head| number < head) {
            self.replace_head(&waiting.limits, head, Some(number));
        }
        self.waiting.insert(number, waiting);
    }

    /// Removes a request, and notifies the one behind it if that is now the head of their line.
    pub(super) fn remove(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        let Some(line) = self.lines.get_mut(&waiting.limits) else { return Some(waiting) };
        let was_head = line.first() == Some(&number);
        line.remove(&number);
        let next = line.first().copied();
        if next.is_none() {
            self.lines.remove(&waiting.limits);
        }
        if was_head {
            self.replace_head(&waiting.limits, Some(number), next);
            next.iter().for_each(|next| self.notify(*next));
        }
        Some(waiting)
    }

    fn replace_head(&mut self, limits: &Named, old: Option<u64>, new: Option<u64>) {
        for key in limits.iter() {
            let heads = self.heads.entry(key.clone()).or_default();
            old.iter().for_each(|old| _ = heads.remove(old));
            heads.extend(new);
            if heads.is_empty() {
                self.heads.remove(key);
            }
        }
    }

    /// Adds a limit to those of all requests that `is_held` selects.
    pub(super) fn hold(&mut self, key: &LimitKey, is_held: impl Fn(&Waiting) -> bool) {
        let held = self.waiting.iter().filter(|(_, waiting)| is_held(waiting) && !waiting.limits.contains(key));
        let held: BTreeSet<u64> = held.map(|(number, _)| *number).collect();
        for number in held {
            if let Some(waiting) = self.remove(number) {
                let limits = waiting.limits.iter().chain([key]).cloned().collect();
                self.add(number, Waiting { limits, ..waiting });
                self.notify(number);
            }
        }
    }

    /// Whether requests wait for this limit.
    pub(super) fn have(&self, key: &LimitKey) -> bool {
        self.heads.contains_key(key)
    }

    /// Whether no request with the same limits goes before this one.
    pub(super) fn is_head(&self, limits: &Named, number: u64) -> bool {
        self.lines.get(limits).and_then(BTreeSet::first).is_none_or(|head| *head >= number)
    }

    /// The heads that entered before this request and wait for the same limit, the first one first.
    pub(super) fn heads_before(&self, key: &LimitKey, number: u64) -> impl Iterator<Item = &Waiting> {
        let heads = self.heads.get(key).into_iter().flat_map(move |heads| heads.range(..number));
        heads.filter_map(|head| self.waiting.get(head))
    }

    /// The number of requests with these limits that entered before this one, as far as it is no more than `most`.
    pub(super) fn before(&self, limits: &Named, number: u64, most: usize) -> usize {
        self.lines.get(limits).map_or(0, |line| line.range(..number).take(most).count())
    }

    fn notify(&self, number: u64) {
        if let Some(waiting) = self.waiting.get(&number) {
            waiting.turn.notify_one();
        }
    }

    pub(super) fn notify_all(&self) {
        self.waiting.values().for_each(|waiting| waiting.turn.notify_one());
    }

    /// Notifies the first head of each of these limits. If it cannot be sent, it passes the notice on.
    pub(super) fn notify_first<'l>(&self, limits: impl Iterator<Item = &'l LimitKey>) {
        limits.filter_map(|key| self.heads.get(key)?.first()).for_each(|head| self.notify(*head));
    }

    /// Passes a notice on to the next heads, which may be sent although this one cannot.
    pub(super) fn pass_on(&self, limits: &Named, number: u64) {
        if self.is_head(limits, number) {
            let next = limits.iter().filter_map(|key| self.heads.get(key)?.range(number + 1..).next());
            next.for_each(|next| self.notify(*next));
        }
    }
}
