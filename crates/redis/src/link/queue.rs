//! Calls that wait for their turn.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tokio::time::Instant;

use super::breaker::Refusal;
use super::call::Call;
use super::error::Cause;

/// A bounded line of calls, filled by many and emptied by one.
///
/// The one who empties it is woken only if it found the line empty before: while it waits for replies, calls gather.
#[derive(Debug)]
pub(super) struct Queue {
    bound: usize,
    row: Mutex<Row>,
}

#[derive(Debug)]
struct Row {
    calls: VecDeque<Call>,
    /// Which calls are not taken, and why.
    refusing: Option<(Refusal, Cause)>,
    /// When a call was last refused for that reason.
    refused: Option<Instant>,
    /// No call in the line ends before this moment.
    next_end: Option<Instant>,
    waker: Option<Waker>,
    /// Whether a call is to wake the one who empties the row.
    hungry: bool,
}

/// How much may be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) calls: usize,
    pub(super) bytes: usize,
}

impl Queue {
    pub(super) const fn new(bound: usize) -> Queue {
        let row =
            Row { calls: VecDeque::new(), refusing: None, refused: None, next_end: None, waker: None, hungry: false };
        Queue { bound, row: Mutex::new(row) }
    }

    fn row(&self) -> MutexGuard<'_, Row> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.row().calls.len()
    }

    /// When a call was last refused, but for a full line.
    pub(super) fn last_refused(&self) -> Option<Instant> {
        self.row().refused
    }

    /// Puts a call in the line, or says why not.
    pub(super) fn push(&self, call: Call, now: Instant) -> Result<(), Cause> {
        let mut row = self.row();
        if let Some(cause) = row.refuses(&call, now) {
            row.refused = Some(now);
            return Err(cause);
        }
        let unwanted = if row.calls.len() >= self.bound { row.take_unwanted(now) } else { Vec::new() };
        let is_full = row.calls.len() >= self.bound;
        if is_full {
            return Err(Cause::QueueFull);
        }
        row.next_end = row.next_end.map(|end| end.min(call.deadline.at));
        row.calls.push_back(call);
        let waker = if std::mem::take(&mut row.hungry) { row.waker.take() } else { None };
        drop(row);
        fail(unwanted, &Cause::Deadline);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Puts calls back that were taken too early, in front of the others.
    pub(super) fn put_back(&self, calls: Vec<Call>, now: Instant) {
        let mut row = self.row();
        let mut refused = Vec::new();
        for call in calls.into_iter().rev() {
            match row.refuses(&call, now) {
                Some(cause) => refused.push((call, cause)),
                None => row.calls.push_front(call),
            }
        }
        row.next_end = None;
        drop(row);
        for (call, cause) in refused {
            call.not_run(cause);
        }
    }

    /// Takes as many calls as there is room for. If there are none, the next one wakes whoever asks.
    pub(super) fn take(&self, room: Room, cx: &Context<'_>, into: &mut Vec<Call>) {
        let mut row = self.row();
        let mut bytes = 0;
        while into.len() < room.calls && bytes < room.bytes {
            let Some(call) = row.calls.pop_front() else { break };
            bytes += call.size;
            into.push(call);
        }
        row.listen(cx);
        row.hungry = into.is_empty();
    }

    /// Lets [`Queue::nudge`] wake whoever asks.
    pub(super) fn listen(&self, cx: &Context<'_>) {
        self.row().listen(cx);
    }

    /// Wakes the one who empties the line, because something else has changed.
    pub(super) fn nudge(&self) {
        let waker = self.row().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes none of these calls from now on, and fails those of them that wait.
    pub(super) fn refuse(&self, whom: Refusal, why: Cause, now: Instant) {
        let mut row = self.row();
        if !matches!(row.refusing, Some((_, Cause::Closed))) {
            row.refusing = Some((whom, why));
        }
        let mut refused = Vec::new();
        for _ in 0..row.calls.len() {
            let Some(call) = row.calls.pop_front() else { break };
            match row.refuses(&call, now) {
                Some(cause) => refused.push((call, cause)),
                None => row.calls.push_back(call),
            }
        }
        drop(row);
        for (call, cause) in refused {
            call.not_run(cause);
        }
    }

    /// Refuses the calls of `whom` from now on, if any are refused. Those that wait are left to their deadlines.
    pub(super) fn adjust(&self, whom: Refusal) {
        if let Some((refusal, cause)) = &mut self.row().refusing
            && *cause != Cause::Closed
        {
            *refusal = whom;
        }
    }

    /// Takes calls again, unless the link has ended.
    pub(super) fn admit(&self) {
        let mut row = self.row();
        if !matches!(row.refusing, Some((_, Cause::Closed))) {
            row.refusing = None;
        }
    }
}

impl Row {
    /// Why a call cannot be taken, if it cannot.
    fn refuses(&self, call: &Call, now: Instant) -> Option<Cause> {
        let (refusal, cause) = self.refusing.as_ref()?;
        let remaining = call.deadline.at.saturating_duration_since(now);
        refusal.covers(remaining, now).then(|| cause.clone())
    }

    /// Takes out the calls that nobody waits for any more. Costs a look at every call, so it is done only if one of them
    /// has ended since the last time.
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

    use super::super::call::{Berth, Deadline, GivenUp, Outcome, Waiting};
    use super::super::error::LinkError;
    use super::*;
    use crate::frame::Frame;

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Bell {
        fn rung(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    const ROOM: Room = Room { calls: 3, bytes: 1_000 };

    fn call(bytes: usize) -> (Call, Waiting) {
        call_for(bytes, LONG, Instant::now())
    }

    fn call_for(bytes: usize, allowed: Duration, now: Instant) -> (Call, Waiting) {
        let frame = Frame { keys: Vec::new(), body: vec![0; bytes] };
        Call::new(frame, Berth::default(), Deadline::after(allowed, now))
    }

    fn push(queue: &Queue, bytes: usize) -> Waiting {
        let (call, waiting) = call(bytes);
        queue.push(call, Instant::now()).unwrap();
        waiting
    }

    fn taken(queue: &Queue, cx: &Context<'_>) -> Vec<usize> {
        let mut calls = Vec::new();
        queue.take(ROOM, cx, &mut calls);
        calls.iter().map(|call| call.frame.body.len()).collect()
    }

    #[test]
    fn calls_come_out_in_order_as_many_as_there_is_room_for() {
        let (queue, bell) = (Queue::new(10), Arc::new(Bell::default()));
        let (waker, mut waits) = (bell.into(), Vec::new());
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
        let (queue, bell) = (Queue::new(10), Arc::new(Bell::default()));
        let waker = bell.clone().into();
        let cx = Context::from_waker(&waker);
        assert_eq!(taken(&queue, &cx), [0; 0]);
        let _first = push(&queue, 1);
        let _second = push(&queue, 2);
        assert_eq!(bell.rung(), 1);
        assert_eq!(taken(&queue, &cx), [1, 2]);
        let _third = push(&queue, 3);
        assert_eq!(bell.rung(), 1, "it is at work, and looks by itself when it is done");
        queue.nudge();
        assert_eq!(bell.rung(), 2);
    }

    #[test]
    fn past_the_bound_and_while_it_refuses_calls_fail_at_once() {
        let (queue, now) = (Queue::new(1), Instant::now());
        let first = push(&queue, 1);
        assert_eq!(queue.push(call(1).0, now), Err(Cause::QueueFull));
        let why = Cause::BreakerOpen(Arc::new(Cause::ConnectionLost));
        queue.refuse(Refusal::Everybody, why.clone(), now);
        let GivenUp::Done(Outcome::Failed(error)) = first.give_up() else { panic!("it has failed") };
        assert_eq!(error, LinkError::NotRun(why.clone()));
        assert_eq!(queue.push(call(1).0, now), Err(why.clone()));
        let (late, waiting) = call(1);
        queue.put_back(vec![late], now);
        let GivenUp::Done(Outcome::Failed(error)) = waiting.give_up() else { panic!("it has failed") };
        assert_eq!(error, LinkError::NotRun(why));
        queue.admit();
        assert_eq!(queue.push(call(1).0, now), Ok(()));
        queue.refuse(Refusal::Everybody, Cause::Closed, now);
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
        queue.refuse(Refusal::Hasty { round_trip: ms(60), owed_since: Some(now) }, why.clone(), now);
        assert!(matches!(hasty_waits.give_up(), GivenUp::Done(Outcome::Failed(LinkError::NotRun(_)))));
        assert_eq!(queue.push(call_for(3, ms(60), now).0, now), Err(why.clone()));
        assert_eq!(queue.last_refused(), Some(now));
        assert_eq!(queue.push(call_for(4, ms(61), now).0, now), Ok(()));
        let later = now + ms(100);
        assert_eq!(queue.push(call_for(5, ms(100), later).0, later), Err(why), "an answer is owed for as long");
        let bell = Arc::new(Bell::default()).into();
        assert_eq!(taken(&queue, &Context::from_waker(&bell)), [2, 4]);
        assert!(matches!(patient_waits.give_up(), GivenUp::Done(_)), "it was dropped by the test");
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
        let GivenUp::Done(Outcome::Failed(error)) = hasty_waits.give_up() else { panic!("it has failed") };
        assert_eq!(error, LinkError::NotRun(Cause::Deadline));
        assert_eq!(queue.len(), 3);
    }
}
