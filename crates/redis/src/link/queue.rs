//! Calls that wait for their turn.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use super::call::Call;
use super::error::Cause;

/// A bounded line of calls, filled by many and emptied by one.
///
/// The one who empties it is woken only if it found the line empty before: while it waits for replies, calls gather.
#[derive(Debug)]
pub(super) struct Queue {
    bound: usize,
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    calls: VecDeque<Call>,
    /// Why no calls are taken, if none are.
    refusing: Option<Cause>,
    waker: Option<Waker>,
    /// Whether a call is to wake the one who empties the line.
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
        let line = Line { calls: VecDeque::new(), refusing: None, waker: None, hungry: false };
        Queue { bound, line: Mutex::new(line) }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.line().calls.len()
    }

    /// Puts a call in the line, or says why not.
    pub(super) fn push(&self, call: Call) -> Result<(), Cause> {
        let mut line = self.line();
        if let Some(cause) = &line.refusing {
            return Err(cause.clone());
        }
        if line.calls.len() >= self.bound {
            return Err(Cause::QueueFull);
        }
        line.calls.push_back(call);
        let waker = if std::mem::take(&mut line.hungry) { line.waker.take() } else { None };
        drop(line);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Puts calls back that were taken too early, in front of the others.
    pub(super) fn put_back(&self, calls: Vec<Call>) {
        let mut line = self.line();
        if let Some(cause) = line.refusing.clone() {
            drop(line);
            fail(calls, &cause);
            return;
        }
        for call in calls.into_iter().rev() {
            line.calls.push_front(call);
        }
    }

    /// Takes as many calls as there is room for. If there are none, the next one wakes whoever asks.
    pub(super) fn take(&self, room: Room, cx: &Context<'_>, into: &mut Vec<Call>) {
        let mut line = self.line();
        let mut bytes = 0;
        while into.len() < room.calls && bytes < room.bytes {
            let Some(call) = line.calls.pop_front() else { break };
            bytes += call.size;
            into.push(call);
        }
        line.listen(cx);
        line.hungry = into.is_empty();
    }

    /// Lets [`Queue::nudge`] wake whoever asks.
    pub(super) fn listen(&self, cx: &Context<'_>) {
        self.line().listen(cx);
    }

    /// Wakes the one who empties the line, because something else has changed.
    pub(super) fn nudge(&self) {
        let waker = self.line().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes no calls from now on, for this reason, and fails those that wait, for that one.
    pub(super) fn refuse(&self, why: Cause, waiting: &Cause) {
        let mut line = self.line();
        line.refusing = Some(why);
        let calls = std::mem::take(&mut line.calls);
        drop(line);
        fail(calls, waiting);
    }

    /// Takes calls again, unless the link has ended.
    pub(super) fn admit(&self) {
        let mut line = self.line();
        if line.refusing != Some(Cause::Closed) {
            line.refusing = None;
        }
    }
}

impl Line {
    fn listen(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
    }
}

fn fail(calls: impl IntoIterator<Item = Call>, cause: &Cause) {
    for call in calls {
        call.not_run(cause.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::time::Instant;

    use super::super::call::{Berth, GivenUp, Outcome, Waiting};
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

    const ROOM: Room = Room { calls: 3, bytes: 1_000 };

    fn call(bytes: usize) -> (Call, Waiting) {
        Call::new(Frame { keys: Vec::new(), body: vec![0; bytes] }, Berth::default(), Instant::now())
    }

    fn push(queue: &Queue, bytes: usize) -> Waiting {
        let (call, waiting) = call(bytes);
        queue.push(call).unwrap();
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
        let queue = Queue::new(1);
        let first = push(&queue, 1);
        assert_eq!(queue.push(call(1).0), Err(Cause::QueueFull));
        queue.refuse(Cause::BreakerOpen, &Cause::ConnectionLost);
        let GivenUp::Done(Outcome::Failed(error)) = first.give_up() else { panic!("it has failed") };
        assert_eq!(error, LinkError::NotRun(Cause::ConnectionLost));
        assert_eq!(queue.push(call(1).0), Err(Cause::BreakerOpen));
        let (late, waiting) = call(1);
        queue.put_back(vec![late]);
        assert!(matches!(waiting.give_up(), GivenUp::Done(Outcome::Failed(LinkError::NotRun(Cause::BreakerOpen)))));
        queue.admit();
        assert_eq!(queue.push(call(1).0), Ok(()));
        queue.refuse(Cause::Closed, &Cause::Closed);
        queue.admit();
        assert_eq!(queue.push(call(1).0), Err(Cause::Closed));
    }
}
