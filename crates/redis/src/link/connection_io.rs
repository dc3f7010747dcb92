//! I/O of an open connection: batches, replies, timeouts and heartbeats.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::time::{Instant, Sleep, sleep_until};

use super::batch::{BatchPart, Composer};
use super::breaker::BreakerState;
use super::call::Call;
use super::connection_config::ConnectionConfig;
use super::error::Cause;
use super::in_flight::InFlight;
use super::queue::BatchLimits;
use super::resp::{self, MalformedReply, RespReply};
use super::server_generation::ServerGeneration;
use super::session::Session;
use super::settings::Settings;
use super::shared::{EndReason, Shared};
use super::stream::{Inbox, ServerStream};

impl From<MalformedReply> for EndReason {
    fn from(why: MalformedReply) -> EndReason {
        match why {
            MalformedReply::Protocol => EndReason::Malformed,
            MalformedReply::TooLarge => EndReason::TooLarge,
        }
    }
}

pub(super) struct ConnectionIo<'l> {
    shared: &'l Shared,
    composer: &'l Composer,
    settings: &'l Settings,
    generation: &'l ServerGeneration,
    stream: ServerStream,
    inbox: Inbox,
    outbox: Vec<u8>,
    /// Number of bytes of the outbox that the socket has accepted.
    taken: usize,
    /// Number of bytes written on this connection before the present outbox.
    before: u64,
    flight: InFlight,
    /// When the oldest unanswered command was sent, as last reported to the breaker.
    unanswered_since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// Whether sending has ended.
    retiring: bool,
}

impl<'l> ConnectionIo<'l> {
    pub(super) fn new(session: Session, shared: &'l Shared, config: &'l ConnectionConfig) -> ConnectionIo<'l> {
        let now = Instant::now();
        let ConnectionConfig { settings, composer, generation, .. } = config;
        ConnectionIo {
            shared,
            composer,
            settings,
            generation,
            stream: session.stream,
            inbox: session.inbox,
            outbox: Vec::with_capacity(16 * 1024),
            taken: 0,
            before: 0,
            flight: InFlight::new(settings.answer_bytes, now),
            unanswered_since: None,
            timer: Box::pin(sleep_until(now + settings.heartbeat)),
            retiring: false,
        }
    }

    /// Sends calls and reads replies until the connection ends.
    pub(super) async fn serve(&mut self) -> EndReason {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Stops sending, waits for outstanding replies for a bounded time, and ends.
    pub(super) async fn retire(&mut self) -> EndReason {
        self.retiring = true;
        self.serve().await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<EndReason> {
        loop {
            let received = match self.read(cx) {
                Ok(received) => received,
                Err(end) => return Poll::Ready(end),
            };
            let now = Instant::now();
            self.report_unanswered(now);
            self.flight.count_late(now, self.shared);
            if let Some(end) = self.due_end(now) {
                return Poll::Ready(end);
            }
            let composed = self.compose(cx, now);
            self.report_unanswered(now);
            if self.write(cx).is_err() {
                return Poll::Ready(EndReason::Lost);
            }
            if !received && !composed && self.arm_timer(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Reads replies without blocking. Returns whether any bytes were received.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, EndReason> {
        match self.inbox.poll_fill(&mut self.stream, cx) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(0) | Err(_)) => return Err(EndReason::Lost),
            Poll::Ready(Ok(_)) => {}
        }
        let now = Instant::now();
        loop {
            let Some((reply, taken)) = RespReply::read(self.inbox.unread(), self.flight.bound())? else {
                return Ok(true);
            };
            self.flight.on_reply(&reply, now, self.shared)?;
            drop(reply);
            self.inbox.consume(taken);
        }
    }

    /// Reports to the breaker when the oldest unanswered command was sent, if that has changed.
    fn report_unanswered(&mut self, now: Instant) {
        let unanswered_since = self.flight.unanswered_since();
        if unanswered_since != self.unanswered_since {
            self.unanswered_since = unanswered_since;
            self.shared.set_unanswered_since(unanswered_since, now);
        }
    }

    fn due_end(&self, now: Instant) -> Option<EndReason> {
        match self.flight.last_due() {
            // No caller waits for any reply. Until then, callers with long deadlines keep the connection open.
            Some(last_due) if now >= last_due + self.settings.connect_timeout => Some(EndReason::Stalled),
            Some(_) => None,
            None => (self.retiring || self.flight.is_elsewhere()).then_some(EndReason::Elsewhere),
        }
    }

    /// Encodes a batch or a probe, if one is due. Returns whether it did.
    fn compose(&mut self, cx: &Context<'_>, now: Instant) -> bool {
        if self.retiring || self.flight.is_elsewhere() || !self.outbox.is_empty() {
            self.shared.queue.listen(cx);
            return false;
        }
        if self.probe_at().is_some_and(|at| at <= now) {
            self.probe(now);
            return true;
        }
        // Calls behind a stuck batch would be late too, and might nevertheless run.
        if self.flight.is_stuck(now) || self.flight.batches() >= self.settings.batch.in_flight {
            self.shared.queue.listen(cx);
            return false;
        }
        let calls = self.take(cx, now);
        if calls.is_empty() {
            return false;
        }
        let mut parts: Vec<(BatchPart, u64)> = Vec::with_capacity(2);
        if self.flight.take_script_lost() {
            self.composer.script.load(&mut self.outbox);
            parts.push((BatchPart::Load, self.before + self.outbox.len() as u64));
        }
        let before = self.before;
        self.composer.compose(calls, &mut self.outbox, |part, end| parts.push((part, before + end as u64)));
        self.flight.batch(parts, now);
        self.shared.counts.batch();
        true
    }

    /// Takes calls from the queue. Calls that would be answered too late are not sent.
    fn take(&self, cx: &Context<'_>, now: Instant) -> Vec<Call> {
        let limits = BatchLimits { calls: self.settings.batch.calls, bytes: self.settings.batch.bytes };
        let usual = self.flight.usual();
        let mut calls = Vec::new();
        loop {
            self.shared.queue.take(limits, cx, &mut calls);
            if calls.is_empty() {
                return calls;
            }
            let mut sent = Vec::with_capacity(calls.len());
            for call in calls.drain(..) {
                // A call with more than half of its time left is always sent, even if the server was slow before.
                if call.deadline.at <= now + usual.min(call.deadline.allowed / 2) {
                    call.not_run(Cause::Deadline);
                } else if call.generation.is_some_and(|generation| generation != self.generation.get()) {
                    call.not_run(Cause::ServerReplaced);
                } else if call.send() {
                    sent.push(call);
                }
            }
            if !sent.is_empty() {
                return sent;
            }
        }
    }

    /// When the next probe is due, if nothing is in flight.
    fn probe_at(&self) -> Option<Instant> {
        if !self.flight.is_empty() {
            return None;
        }
        match self.shared.breaker_state() {
            (BreakerState::Closed, _) => Some(self.flight.last_reply() + self.settings.heartbeat),
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
        // Flushes, because TLS has its own buffer.
        let _ = Pin::new(&mut self.stream).poll_flush(cx)?;
        Ok(())
    }

    /// Arms the timer for the next event. Returns whether the event is in the future.
    fn arm_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let next = match (self.flight.next_due(), self.flight.last_due()) {
            (Some(due), _) => due,
            (None, Some(last_due)) => last_due + self.settings.connect_timeout,
            (None, None) => self.probe_at().unwrap_or_else(|| Instant::now() + IDLE),
        };
        // A timer that fires too early costs less than re-arming it for every batch.
        if self.timer.is_elapsed() || next < self.timer.deadline() {
            self.timer.as_mut().reset(next);
        }
        self.timer.as_mut().poll(cx).is_pending()
    }

    /// Concludes all calls in flight. Returns whether any reply was received.
    pub(super) fn end(self, end: EndReason) -> bool {
        let was_of_use = self.flight.was_of_use();
        self.flight.end(self.before + self.taken as u64, &end.cause(), Instant::now(), self.shared);
        was_of_use
    }
}

/// The time to sleep if nothing is due.
const IDLE: Duration = Duration::from_secs(1);
