//! A connection at work: batches out, replies in, and an eye on the time.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::time::{Instant, Sleep, sleep_until};

use super::batch::{Composer, Part};
use super::breaker::BreakerState;
use super::call::Call;
use super::error::Cause;
use super::flight::Flight;
use super::line::Shared;
use super::queue::Room;
use super::resp::{self, Malformed, Reply};
use super::session::Session;
use super::settings::Settings;
use super::stream::{Inbox, Stream};

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It broke, or the server hung up.
    Lost,
    /// The server owes an answer for too long.
    Stalled,
    /// What came in made no sense.
    Malformed,
    /// More came in than any answer to what was sent.
    TooLarge,
    /// Another server is the one to ask.
    Elsewhere,
}

impl End {
    pub(super) const fn cause(self) -> Cause {
        match self {
            End::Lost | End::Stalled | End::Elsewhere => Cause::ConnectionLost,
            End::Malformed => Cause::Malformed,
            End::TooLarge => Cause::TooLarge,
        }
    }
}

impl From<Malformed> for End {
    fn from(why: Malformed) -> End {
        match why {
            Malformed::Protocol => End::Malformed,
            Malformed::TooLarge => End::TooLarge,
        }
    }
}

pub(super) struct Wire<'l> {
    shared: &'l Shared,
    composer: &'l Composer,
    settings: &'l Settings,
    stream: Stream,
    inbox: Inbox,
    outbox: Vec<u8>,
    /// How much of the outbox the system has taken.
    taken: usize,
    /// How much was ever written, without what the outbox holds.
    before: u64,
    flight: Flight,
    /// Since when the breaker believes that an answer is owed.
    owed_since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// Nothing more is to be sent.
    retiring: bool,
}

impl<'l> Wire<'l> {
    pub(super) fn new(
        session: Session,
        shared: &'l Shared,
        composer: &'l Composer,
        settings: &'l Settings,
    ) -> Wire<'l> {
        let now = Instant::now();
        Wire {
            shared,
            composer,
            settings,
            stream: session.stream,
            inbox: session.inbox,
            outbox: Vec::with_capacity(16 * 1024),
            taken: 0,
            before: 0,
            flight: Flight::new(settings.answer_bytes, now),
            owed_since: None,
            timer: Box::pin(sleep_until(now + settings.heartbeat)),
            retiring: false,
        }
    }

    /// Carries calls until the connection ends.
    pub(super) async fn serve(&mut self) -> End {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Sends nothing more, waits for what is still owed, but not for ever, and ends.
    pub(super) async fn retire(&mut self) -> End {
        self.retiring = true;
        self.serve().await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let heard = match self.read(cx) {
                Ok(heard) => heard,
                Err(end) => return Poll::Ready(end),
            };
            let now = Instant::now();
            self.tell_owed(now);
            self.flight.keep_time(now, self.shared);
            if let Some(end) = self.due_end(now) {
                return Poll::Ready(end);
            }
            let composed = self.compose(cx, now);
            self.tell_owed(now);
            if self.write(cx).is_err() {
                return Poll::Ready(End::Lost);
            }
            if !heard && !composed && self.rest(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Reads what is there, and says whether anything was.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        match self.inbox.poll_fill(&mut self.stream, cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(0) | Err(_)) => return Err(End::Lost),
            Poll::Ready(Ok(_)) => {}
        }
        let now = Instant::now();
        loop {
            let Some((reply, taken)) = Reply::read(self.inbox.unread(), self.flight.bound())? else {
                return Ok(true);
            };
            self.flight.land(&reply, now, self.shared)?;
            drop(reply);
            self.inbox.consume(taken);
        }
    }

    /// Keeps the breaker informed of how long the oldest answer is owed.
    fn tell_owed(&mut self, now: Instant) {
        let owed_since = self.flight.owed_since();
        if owed_since != self.owed_since {
            self.owed_since = owed_since;
            self.shared.owes(owed_since, now);
        }
    }

    fn due_end(&self, now: Instant) -> Option<End> {
        match self.flight.overdue() {
            // Nobody waits for any of it any more: the patient are not cut off on behalf of the others.
            Some(overdue) if now >= overdue + self.settings.connect_timeout => Some(End::Stalled),
            Some(_) => None,
            None => (self.retiring || self.flight.is_elsewhere()).then_some(End::Elsewhere),
        }
    }

    /// Writes a batch or a probe if it is time for one. Says whether it was.
    fn compose(&mut self, cx: &Context<'_>, now: Instant) -> bool {
        if self.retiring || self.flight.is_elsewhere() || !self.outbox.is_empty() {
            self.shared.queue.listen(cx);
            return false;
        }
        if self.probe_at().is_some_and(|at| at <= now) {
            self.probe(now);
            return true;
        }
        // What is sent behind a batch that is stuck would be late too, and might run all the same.
        if self.flight.is_stuck(now) || self.flight.batches() >= self.settings.batch.in_flight {
            self.shared.queue.listen(cx);
            return false;
        }
        let calls = self.take(cx, now);
        if calls.is_empty() {
            return false;
        }
        let mut parts: Vec<(Part, u64)> = Vec::with_capacity(2);
        if self.flight.take_script_lost() {
            self.composer.script.load(&mut self.outbox);
            parts.push((Part::Load, self.before + self.outbox.len() as u64));
        }
        let before = self.before;
        self.composer.compose(calls, &mut self.outbox, |part, end| parts.push((part, before + end as u64)));
        self.flight.batch(parts, now);
        self.shared.counts.batch();
        true
    }

    /// Takes calls whose turn it is. Those that would be answered too late are not sent at all.
    fn take(&self, cx: &Context<'_>, now: Instant) -> Vec<Call> {
        let room = Room { calls: self.settings.batch.calls, bytes: self.settings.batch.bytes };
        let usual = self.flight.usual();
        let mut calls = Vec::new();
        loop {
            self.shared.queue.take(room, cx, &mut calls);
            if calls.is_empty() {
                return calls;
            }
            let mut sent = Vec::with_capacity(calls.len());
            for call in calls.drain(..) {
                // A call is tried while it has most of its time, whatever was usual before.
                if call.deadline.at <= now + usual.min(call.deadline.allowed / 2) {
                    call.not_run(Cause::Deadline);
                } else if call.send() {
                    sent.push(call);
                }
            }
            if !sent.is_empty() {
                return sent;
            }
        }
    }

    /// When the server is to be probed if nothing else happens until then.
    fn probe_at(&self) -> Option<Instant> {
        if !self.flight.is_empty() {
            return None;
        }
        match self.shared.breaker_state() {
            (BreakerState::Closed, _) => Some(self.flight.heard() + self.settings.heartbeat),
            (BreakerState::Open | BreakerState::HalfOpen, probe_at) => probe_at,
        }
    }

    fn probe(&mut self, now: Instant) {
        self.shared.probing(now);
        resp::command(&mut self.outbox, &[b"PING"]);
        self.composer.script.probe(&mut self.outbox);
        self.flight.probe(self.before + self.outbox.len() as u64, now, now + self.settings.deadline);
    }

    fn write(&mut self, cx: &mut Context<'_>) -> std::io::Result<()> {
        while self.taken < self.outbox.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.outbox[self.taken..])? {
                Poll::Pending => return Ok(()),
                Poll::Ready(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => self.taken += count,
            }
        }
        if self.taken > 0 {
            self.before += self.taken as u64;
            self.taken = 0;
            self.outbox.clear();
        }
        // TLS keeps bytes of its own.
        let _ = Pin::new(&mut self.stream).poll_flush(cx)?;
        Ok(())
    }

    /// Sets the alarm for whatever is due next. Says whether there is time until then.
    fn rest(&mut self, cx: &mut Context<'_>) -> bool {
        let next = match (self.flight.next_due(), self.flight.overdue()) {
            (Some(due), _) => due,
            (None, Some(overdue)) => overdue + self.settings.connect_timeout,
            (None, None) => self.probe_at().unwrap_or_else(|| Instant::now() + IDLE),
        };
        // An alarm that rings too early does no harm, and setting it costs more than ignoring it.
        if self.timer.is_elapsed() || next < self.timer.deadline() {
            self.timer.as_mut().reset(next);
        }
        self.timer.as_mut().poll(cx).is_pending()
    }

    /// Says of all that is still owed what is known of it, and whether the connection was of any use.
    pub(super) fn end(self, end: End) -> bool {
        let was_of_use = self.flight.was_of_use();
        self.flight.end(self.before + self.taken as u64, &end.cause(), Instant::now(), self.shared);
        was_of_use
    }
}

/// How long to sleep if nothing is due.
const IDLE: Duration = Duration::from_secs(1);
