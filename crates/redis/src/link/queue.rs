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
    row: Mutex<Row>,
}

#[derive(Debug)]
struct Row {
    calls: VecDeque<Call>,
    /// Why no calls are taken, if none are.
    refusing: Option<Cause>,
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
        let row = Row { calls: VecDeque::new(), refusing: None, waker: None, hungry: false };
        Queue { bound, row: Mutex::new(row) }
    }

    fn row(&self) -> MutexGuard<'_, Row> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.row().calls.len()
    }

    /// Puts a call in the line, or says why not.
    pub(super) fn push(&self, call: Call) -> Result<(), Cause> {
        let mut row = self.row();
        if let Some(cause) = &row.refusing {
            return Err(cause.clone());
        }
        if row.calls.len() >= self.bound {
            return Err(Cause::QueueFull);
        }
        row.calls.push_back(call);
        let waker = if std::mem::take(&mut row.hungry) { row.waker.take() } else { None };
        drop(row);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Puts calls back that were taken too early, in front of the others.
    pub(super) fn put_back(&self, calls: Vec<Call>) {
        let mut row = self.row();
        if let Some(cause) = row.refusing.clone() {
            drop(row);
            fail(calls, &cause);
            return;
        }
        for call in calls.into_iter().rev() {
            row.calls.push_front(call);
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

    /// Takes no calls from now on, and fails those that wait.
    pub(super) fn refuse(&self, why: Cause) {
        let mut row = self.row();
        row.refusing = Some(why.clone());
        let calls = std::mem::take(&mut row.calls);
        drop(row);
        fail(calls, &why);
    }

    /// Takes calls again, unless the link has ended.
    pub(super) fn admit(&self) {
        let mut row = self.row();
        if row.refusing != Some(Cause::Closed) {
            row.refusing = None;
        }
    }
}

impl Row {
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
        let why = Cause::BreakerOpen(Arc::new(Cause::ConnectionLost));
        queue.refuse(why.clone());
        let GivenUp::Done(Outcome::Failed(error)) = first.give_up() else { panic!("it has failed") };
        assert_eq!(error, LinkError::NotRun(why.clone()));
        assert_eq!(queue.push(call(1).0), Err(why.clone()));
        let (late, waiting) = call(1);
        queue.put_back(vec![late]);
        let GivenUp::Done(Outcome::Failed(error)) = waiting.give_up() else { panic!("it has failed") };
        assert_eq!(error, LinkError::NotRun(why));
        queue.admit();
        assert_eq!(queue.push(call(1).0), Ok(()));
        queue.refuse(Cause::Closed);
        queue.admit();
        assert_eq!(queue.push(call(1).0), Err(Cause::Closed));
    }
}
