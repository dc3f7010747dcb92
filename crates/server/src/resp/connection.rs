//! Serves a connection: reads requests, executes all complete ones, and writes all replies at once.

use std::future::{poll_fn, ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::{self, Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::RespServer;
use super::buffers::{InputBuffer, LEAST_INPUT, MOST_READ, Output};
use super::command::{self, CommandAnswer, Later};
use super::idle_detector::IdleDetector;
use super::reply::ReplyWriter;
use super::request::{RequestReader, RequestWords};
use super::session::RespSession;
use super::transaction::CommandQueue;
use crate::listen::{LifetimeEvent, LifetimeWatch};
use crate::metrics::ListenerKind;

/// Time for the client to close the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct RespConnection<'d, S> {
    service: &'d RespServer,
    session: RespSession,
    io: S,
    reader: RequestReader,
    input: InputBuffer,
    output: Output,
    /// Pending replies, and the replies after them.
    waiting: FuturesOrdered<Later<'d>>,
    /// Commands of a transaction, which are executed before anything else.
    running: CommandQueue,
    idleness: IdleDetector,
    /// Length of a parsed command whose execution is delayed.
    unanswered: Option<usize>,
    pause: Option<Duration>,
    /// Whether reading has ended: the client closed its side, or sent something that ends the connection.
    ending: bool,
}

/// Event on a connection.
enum ConnectionEvent {
    /// Data was read or written.
    Moved,
    /// End of input, or shutdown of the server.
    EndOfInput,
    /// The connection failed or was idle for too long.
    Over,
}

impl<'d, S: AsyncRead + AsyncWrite + Unpin> RespConnection<'d, S> {
    pub(super) fn new(service: &'d RespServer, session: RespSession, io: S) -> RespConnection<'d, S> {
        let reader = RequestReader::new(session.bounds());
        RespConnection {
            reader,
            input: InputBuffer::default(),
            output: Output::default(),
            waiting: FuturesOrdered::new(),
            running: CommandQueue::default(),
            idleness: IdleDetector::new(session.settings.idle),
            unanswered: None,
            pause: None,
            ending: false,
            service,
            session,
            io,
        }
    }

    pub(super) async fn serve(mut self, stop: CancellationToken) {
        let mut watch = pin!(LifetimeWatch::new(stop, self.idleness.check_interval()));
        loop {
            self.answer_all().await;
            if self.ending && self.output.is_done() {
                break;
            }
            match poll_fn(|cx| self.poll_next(cx, watch.as_mut())).await {
                ConnectionEvent::Moved => {}
                ConnectionEvent::EndOfInput => self.ending = true,
                ConnectionEvent::Over => return self.finish_transaction().await,
            }
        }
        self.part().await;
    }

    /// Completes a running transaction after the client has disconnected: it is charged completely or not at all.
    async fn finish_transaction(mut self) {
        self.ending = true;
        while !self.running.is_empty() {
            self.output = Output::default();
            self.answer_all().await;
        }
    }

    /// Closes the connection so that the client can read all replies. Closing a socket with unread input would reset it
    /// and discard sent data.
    async fn part(mut self) {
        let parting = async {
            self.io.shutdown().await?;
            let mut left = MOST_READ;
            while left > 0 {
                let came = self.io.read(&mut [0; LEAST_INPUT]).await?;
                left = if came == 0 { 0 } else { left.saturating_sub(came) };
            }
            Ok::<_, io::Error>(())
        };
        // After the timeout, the connection is dropped.
        let _ = timeout(CLOSE_TIMEOUT, parting).await;
    }

    /// Executes all complete requests, as long as there is room for the replies.
    async fn answer_all(&mut self) {
        loop {
            let room = self.answer_some();
            let pause = self.pause.take();
            if self.waiting.is_empty() && pause.is_none() {
                return;
            }
            while let Some(reply) = self.waiting.next().await {
                self.output.bytes.extend_from_slice(&reply);
            }
            if let Some(pause) = pause {
                sleep(pause).await;
            } else if room {
                return;
            }
        }
    }

    /// Executes requests until there are none, or too many replies are pending. Returns whether there was room for all.
    fn answer_some(&mut self) -> bool {
        self.session.follow(&self.service.settings);
        self.idleness.idle = self.session.settings.idle;
        let (most_waiting, most_unsent) = (self.session.settings.most_waiting, self.session.settings.most_unsent);
        let mut answered = 0;
        let room = loop {
            if self.ending && self.running.is_empty() {
                break true;
            }
            if self.waiting.len() >= most_waiting || self.output.left() >= most_unsent {
                break false;
            }
            let (words, length) = if let Some(words) = self.running.front() {
                (words, None)
            } else {
                let bytes = self.input.held();
                let read = match self.unanswered.take() {
                    // The command was parsed already, and its words are still in the buffer.
                    Some(length) => Ok(Some(length)),
                    None => self.reader.read(bytes),
                };
                match read {
                    Ok(Some(length)) => (self.reader.words(bytes), Some(length)),
                    Ok(None) => break true,
                    Err(error) => {
                        self.refuse(format_args!("Protocol error: {error}"));
                        break true;
                    }
                }
            };
            let mut next = AfterCommand::Any;
            if words.len() > 0 {
                answered += 1;
                next = answer_one(self.service, &mut self.session, words, &mut self.waiting, &mut self.output);
                if let AfterCommand::Again(pause) = next {
                    (self.unanswered, self.pause) = (length, Some(pause));
                    break false;
                }
                self.reader.bound(self.session.bounds());
            }
            match length {
                Some(length) => self.input.consume(length),
                None => self.running.pop(),
            }
            match next {
                AfterCommand::Any | AfterCommand::Again(_) => {}
                AfterCommand::AfterReplies => break false,
                AfterCommand::Nothing => self.ending = true,
                AfterCommand::Queued(queue) => self.running = queue,
            }
        };
        if answered > 0 {
            self.idleness.touch();
            self.service.commands.fetch_add(answered, Ordering::Relaxed);
            self.service.engine.metrics().received(ListenerKind::Resp, answered);
        }
        room
    }

    /// Sends an error and stops reading.
    fn refuse(&mut self, why: impl std::fmt::Display) {
        let mut aside = Vec::new();
        ReplyWriter::new(&mut aside, self.session.protocol).error("ERR", why);
        self.waiting.push_back(Box::pin(ready(aside)));
        self.ending = true;
    }

    /// Writes, then reads, then waits.
    fn poll_next(&mut self, cx: &mut Context<'_>, mut watch: Pin<&mut LifetimeWatch>) -> Poll<ConnectionEvent> {
        let was_full = self.output.left() >= self.session.settings.most_unsent;
        while !self.output.is_done() {
            match self.output.poll_write(&mut self.io, cx) {
                Poll::Ready(Ok(())) => self.idleness.touch(),
                Poll::Ready(Err(_)) => return Poll::Ready(ConnectionEvent::Over),
                Poll::Pending => break,
            }
        }
        let is_full = self.output.left() >= self.session.settings.most_unsent;
        if self.ending && self.output.is_done() || was_full && !is_full {
            return Poll::Ready(ConnectionEvent::Moved);
        }
        if !self.ending && !is_full {
            match self.input.poll_read(&mut self.io, cx, self.session.bounds().bytes) {
                Poll::Ready(Ok(0)) => return Poll::Ready(ConnectionEvent::EndOfInput),
                Poll::Ready(Ok(_)) => return Poll::Ready(ConnectionEvent::Moved),
                Poll::Ready(Err(_)) => return Poll::Ready(ConnectionEvent::Over),
                Poll::Pending => {}
            }
        }
        loop {
            match task::ready!(watch.as_mut().poll(cx)) {
                LifetimeEvent::Shutdown if !self.ending => return Poll::Ready(ConnectionEvent::EndOfInput),
                LifetimeEvent::Shutdown => {}
                LifetimeEvent::Check if self.idleness.is_over() => return Poll::Ready(ConnectionEvent::Over),
                LifetimeEvent::Check => {
                    self.input.shrink();
                    self.output.shrink();
                    watch.as_mut().check_in(self.idleness.check_interval());
                }
            }
        }
    }
}

/// The action after a command.
enum AfterCommand {
    /// Execute the next request.
    Any,
    /// Execute the next request once all pending replies are complete.
    AfterReplies,
    /// Execute the same command after this time.
    Again(Duration),
    /// Execute the commands of a transaction.
    Queued(CommandQueue),
    /// Stop.
    Nothing,
}

/// Executes one command. Its reply is queued after pending ones.
#[inline]
fn answer_one<'d>(
    service: &'d RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
    waiting: &mut FuturesOrdered<Later<'d>>,
    output: &mut Output,
) -> AfterCommand {
    let mut aside = Vec::new();
    let out = if waiting.is_empty() { &mut output.bytes } else { &mut aside };
    let mut reply = ReplyWriter::new(out, session.protocol);
    let next = match command::answer(service, session, words, &mut reply) {
        CommandAnswer::Now => AfterCommand::Any,
        CommandAnswer::Later(later) => {
            begin(later, waiting, out);
            AfterCommand::Any
        }
        CommandAnswer::Alone(later) => {
            begin(later, waiting, out);
            if waiting.is_empty() { AfterCommand::Any } else { AfterCommand::AfterReplies }
        }
        CommandAnswer::Close => AfterCommand::Nothing,
        CommandAnswer::Wait(pause) => AfterCommand::Again(pause),
        CommandAnswer::Run(queue) => AfterCommand::Queued(queue),
    };
    if !aside.is_empty() {
        waiting.push_back(Box::pin(ready(aside)));
    }
    next
}

/// Calls the store immediately, so that calls keep the order of the commands, and queues the reply only if it is
/// pending.
fn begin<'d>(mut later: Later<'d>, waiting: &mut FuturesOrdered<Later<'d>>, out: &mut Vec<u8>) {
    match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => out.extend_from_slice(&reply),
        // Polled again, with a waker, before the connection waits.
        Poll::Pending => waiting.push_back(later),
    }
}
