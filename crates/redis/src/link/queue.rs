//! The queue of calls that have not been sent yet.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tokio::time::Instant;

use super::breaker::BreakerRefusal;
use super::call::Call;
use super::error::Cause;

/// A bounded multi-producer, single-consumer queue of calls.
///
/// A push wakes the consumer only if the queue was empty. While the consumer waits for replies, calls accumulate in the
/// next batch.
#[derive(Debug)]
pub(super) struct Queue {
    bound: usize,
    state: Mutex<QueueState>,
}

#[derive(Debug)]
struct QueueState {
    calls: VecDeque<Call>,
    /// The calls that are refused, and the cause.
    refusing: Option<(BreakerRefusal, Cause)>,
    /// When a call was last refused for that reason.
    refused: Option<Instant>,
    /// A lower bound on the deadlines of the queued calls.
    next_end: Option<Instant>,
    waker: Option<Waker>,
    /// Whether the next push wakes the consumer.
    wake_on_push: bool,
}

/// Bounds on a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLimits {
    pub(super) calls: usize,
    pub(super) bytes: usize,
}

impl Queue {
    pub(super) const fn new(bound: usize) -> Queue {
        let state = QueueState {
            calls: VecDeque::new(),
            refusing: None,
            refused: None,
            next_end: None,
            waker: None,
            wake_on_push: false,
        };
        Queue { bound, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.state().calls.len()
    }

    /// When a call was last refused, other than for a full queue.
    pub(super) fn last_refused(&self) -> Option<Instant> {
        self.state().refused
    }

    /// Queues a call, or returns why it is refused.
    pub(super) fn push(&self, call: Call, now: Instant) -> Result<(), Cause> {
        let mut state = self.state();
        if let Some(cause) = state.refuses(&call, now) {
            state.refused = Some(now);
            return Err(cause);
        }
        let unwanted = if state.calls.len() >= self.bound { state.take_unwanted(now) } else { Vec::new() };
        // Calls that were put back may be more than the bound.
        let is_full = state.calls.len() >= self.bound;
        if is_full {
            drop(state);
            fail(unwanted, &Cause::Deadline);
            return Err(Cause::QueueFull);
        }
        state.next_end = state.next_end.map(|end| end.min(call.deadline.at));
        state.calls.push_back(call);
        let waker = if std::mem::take(&mut state.wake_on_push) { state.waker.take() } else { None };
        drop(state);
        fail(unwanted, &Cause::Deadline);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Puts calls back at the front.
    pub(super) fn put_back(&self, calls: Vec<Call>, now: Instant) {
        let mut state = self.state();
        let mut refused = Vec::new();
        for call in calls.into_iter().rev() {
            match state.refuses(&call, now) {
                Some(cause) => refused.push((call, cause)),
                None => state.calls.push_front(call),
            }
        }
        state.next_end = None;
        drop(state);
        for (call, cause) in refused {
            call.not_run(cause);
        }
    }

    /// Takes as many calls as fit into a batch. If there are none, the next push wakes the task of `cx`.
    pub(super) fn take(&self, limits: BatchLimits, cx: &Context<'_>, into: &mut Vec<Call>) {
        let mut state = self.state();
        let mut bytes = 0;
        while into.len() < limits.calls && bytes < limits.bytes {
            let Some(call) = state.calls.pop_front() else { break };
            bytes += call.size;
            into.push(call);
        }
        state.listen(cx);
        state.wake_on_push = into.is_empty();
    }

    /// Registers the task of `cx` for [`Queue::wake_consumer`].
    pub(super) fn listen(&self, cx: &Context<'_>) {
        self.state().listen(cx);
    }

    /// Wakes the consumer, because something other than the queue has changed.
    pub(super) fn wake_consumer(&self) {
        let waker = self.state().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Refuses these calls from now on, and fails such calls in the queue.
    pub(super) fn refuse(&self, refusal: BreakerRefusal, why: Cause, now: Instant) {
        let mut state = self.state();
        if !matches!(state.refusing, Some((_, Cause::Closed))) {
            state.refusing = Some((refusal, why));
        }
        let mut refused = Vec::new();
        for _ in 0..state.calls.len() {
            let Some(call) = state.calls.pop_front() else { break };
            match state.refuses(&call, now) {
                Some(cause) => refused.push((call, cause)),
                None => state.calls.push_back(call),
            }
        }
        drop(state);
        for (call, cause) in refused {
            call.not_run(cause);
        }
    }

    /// Changes which calls are refused, if any are. Queued calls are not affected.
    pub(super) fn adjust(&self, calls: BreakerRefusal) {
        if let Some((refusal, cause)) = &mut self.state().refusing
            && *cause != Cause::Closed
        {
            *refusal = calls;
        }
    }

    /// Accepts all calls again, unless the link has ended.
    pub(super) fn admit(&self) {
        let mut state = self.state();
        if !matches!(state.refusing, Some((_, Cause::Closed))) {
            state.refusing = None;
        }
    }
}

impl QueueState {
    /// Why a call is refused; `None` if it is not.
    fn refuses(&self, call: &Call, now: Instant) -> Option<Cause> {
        let (refusal, cause) = self.refusing.as_ref()?;
        let remaining = call.deadline.at.saturating_duration_since(now);
        refusal.covers(remaining, now).then(|| cause.clone())
    }

    /// Removes the calls whose callers have stopped waiting. Scans the whole queue, but only if a deadline has passed since
    /// the last scan.
    fn take_unwanted(&mut self, now: Instant) -> Vec<Call> {
        if self.next_end.is_some_and(|end| end > now) {
            return Vec::new();
        }
        let mut unwanted = Vec::new();
        for _ in 0..self.calls.len() {
            let Some(call) = self.calls.pop_front() else { break };
            if call.is_wanted_after(now) {
                self.calls.push_back(call);
            } else {
                unwanted.push(call);
            }
        }
        self.next_end = self.calls.iter().map(|call| call.deadline.at).min();
        unwanted
    }

    fn listen(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
    }
}

fn fail(calls: Vec<Call>, cause: &Cause) {
    for call in calls {
        call.not_run(cause.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use std::time::Duration;

    use super::super::call::{Abandoned, CallDeadline, CallOutcome, PendingCall, SlotRoute};
    use super::super::error::LinkError;
    use super::*;
    use crate::frame::Frame;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl CountingWaker {
        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    const LIMITS: BatchLimits = BatchLimits { calls: 3, bytes: 1_000 };

    fn call(bytes: usize) -> (Call, PendingCall) {
        call_for(bytes, LONG, Instant::now())
    }

    fn call_for(bytes: usize, allowed: Duration, now: Instant) -> (Call, PendingCall) {
        let frame = Frame { keys: Vec::new(), body: vec![0; bytes] };
        Call::new(frame, SlotRoute::default(), CallDeadline::after(allowed, now))
    }

    fn push(queue: &Queue, bytes: usize) -> PendingCall {
        let (call, waiting) = call(bytes);
        queue.push(call, Instant::now()).unwrap();
        waiting
    }

    fn taken(queue: &Queue, cx: &Context<'_>) -> Vec<usize> {
        let mut calls = Vec::new();
        queue.take(LIMITS, cx, &mut calls);
        calls.iter().map(|call| call.frame.body.len()).collect()
    }

    #[test]
    fn calls_come_out_in_order_as_many_as_there_is_room_for() {
        let (queue, counter) = (Queue::new(10), Arc::new(CountingWaker::default()));
        let (waker, mut waits) = (counter.into(), Vec::new());
        let cx = Context::from_waker(&waker);
        for bytes in [1, 2, 3, 4, 2_000, 6] {
            waits.push(push(&queue, bytes));
        }
        assert_eq!(taken(&queue, &cx), [1, 2, 3]);
        assert_eq!(taken(&queue, &cx), [4, 2_000], "one that is too large goes last, not never");
        assert_eq!(taken(&queue, &cx), [6]);
    }

    #[test]
    fn a_call_wakes_only_one_who_found_nothing() {
        let (queue, counter) = (Queue::new(10), Arc::new(CountingWaker::default()));
        let waker = counter.clone().into();
        let cx = Context::from_waker(&waker);
        assert_eq!(taken(&queue, &cx), [0; 0]);
        let _first = push(&queue, 1);
        let _second = push(&queue, 2);
        assert_eq!(counter.count(), 1);
        assert_eq!(taken(&queue, &cx), [1, 2]);
        let _third = push(&queue, 3);
        assert_eq!(counter.count(), 1, "it is at work, and looks by itself when it is done");
        queue.wake_consumer();
        assert_eq!(counter.count(), 2);
    }

    #[test]
    fn past_the_bound_and_while_it_refuses_calls_fail_at_once() {
        let (queue, now) = (Queue::new(1), Instant::now());
        let first = push(&queue, 1);
        assert_eq!(queue.push(call(1).0, now), Err(Cause::QueueFull));
        let why = Cause::BreakerOpen(Arc::new(Cause::ConnectionLost));
        queue.refuse(BreakerRefusal::All, why.clone(), now);
        let Abandoned::Done(CallOutcome::Failed(error)) = first.abandon() else { panic!("it has failed") };
        assert_eq!(error, LinkError::NotRun(why.clone()));
        assert_eq!(queue.push(call(1).0, now), Err(why.clone()));
        let (late, waiting) = call(1);
        queue.put_back(vec![late], now);
        let Abandoned::Done(CallOutcome::Failed(error)) = waiting.abandon() else { panic!("it has failed") };
        assert_eq!(error, LinkError::NotRun(why));
        queue.admit();
        assert_eq!(queue.push(call(1).0, now), Ok(()));
        queue.refuse(BreakerRefusal::All, Cause::Closed, now);
        queue.admit();
        assert_eq!(queue.push(call(1).0, now), Err(Cause::Closed));
    }

    #[test]
    fn only_calls_with_too_little_time_are_refused_while_the_server_is_slow() {
        let (queue, now) = (Queue::new(10), Instant::now());
        let ms = Duration::from_millis;
        let why = Cause::BreakerOpen(Arc::new(Cause::Deadline));
        let (hasty, hasty_waits) = call_for(1, ms(20), now);
        let (patient, patient_waits) = call_for(2, ms(200), now);
        queue.push(hasty, now).unwrap();
        queue.push(patient, now).unwrap();
        queue.refuse(
            BreakerRefusal::ShortDeadlines { round_trip: ms(60), unanswered_since: Some(now) },
            why.clone(),
            now,
        );
        assert!(matches!(hasty_waits.abandon(), Abandoned::Done(CallOutcome::Failed(LinkError::NotRun(_)))));
        assert_eq!(queue.push(call_for(3, ms(60), now).0, now), Err(why.clone()));
        assert_eq!(queue.last_refused(), Some(now));
        assert_eq!(queue.push(call_for(4, ms(61), now).0, now), Ok(()));
        let later = now + ms(100);
        assert_eq!(queue.push(call_for(5, ms(100), later).0, later), Err(why), "an answer is awaited for as long");
        let counter = Arc::new(CountingWaker::default()).into();
        assert_eq!(taken(&queue, &Context::from_waker(&counter)), [2, 4]);
        assert!(matches!(patient_waits.abandon(), Abandoned::Done(_)), "it was dropped by the test");
    }

    #[test]
    fn calls_that_have_expired_take_no_room_from_others() {
        let (queue, now) = (Queue::new(3), Instant::now());
        let ms = Duration::from_millis;
        let (hasty, hasty_waits) = call_for(1, ms(20), now);
        let (gone, gone_waits) = call_for(2, ms(20), now);
        let (patient, _patient_waits) = call_for(3, ms(200), now);
        for call in [hasty, gone, patient] {
            queue.push(call, now).unwrap();
        }
        drop(gone_waits);
        let (fourth, _fourth_waits) = call_for(4, ms(200), now);
        assert_eq!(queue.push(fourth, now), Ok(()), "nobody waits for one of them");
        let before = now + ms(19);
        assert_eq!(queue.push(call_for(5, ms(200), before).0, before), Err(Cause::QueueFull));
        let later = now + ms(20);
        assert_eq!(queue.push(call_for(6, ms(200), later).0, later), Ok(()));
        let Abandoned::Done(CallOutcome::Failed(error)) = hasty_waits.abandon() else { panic!("it has failed") };
        assert_eq!(error, LinkError::NotRun(Cause::Deadline));
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn calls_that_have_expired_in_a_full_queue_end_at_their_deadline() {
        let (queue, now) = (Queue::new(1), Instant::now());
        let ms = Duration::from_millis;
        let (hasty, hasty_waits) = call_for(1, ms(20), now);
        let (patient, _patient_waits) = call_for(2, ms(200), now);
        queue.push(hasty, now).unwrap();
        queue.put_back(vec![patient], now);
        let later = now + ms(20);
        assert_eq!(queue.push(call_for(3, ms(200), later).0, later), Err(Cause::QueueFull));
        let Abandoned::Done(CallOutcome::Failed(error)) = hasty_waits.abandon() else { panic!("it has failed") };
        assert_eq!(error, LinkError::NotRun(Cause::Deadline));
    }
}
