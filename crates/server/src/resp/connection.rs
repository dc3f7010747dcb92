//! A connection: reads requests, executes all complete ones, writes all replies at once.

use std::future::{poll_fn, ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::{self, Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::RespServer;
use super::command::{self, CommandAnswer, Later};
use super::reply::Reply;
use super::request::{RequestReader, RequestWords};
use super::session::Session;
use super::transaction::CommandQueue;
use crate::listen::{LifetimeEvent, LifetimeWatch};
use crate::metrics::ListenerKind;

/// Size of the read buffer that an idle connection keeps.
const LEAST_INPUT: usize = 1_024;
/// Maximum size of one read.
const MOST_READ: usize = 64 * 1_024;
/// Size of the write buffer that an idle connection keeps.
const LEAST_OUTPUT: usize = 1_024;
/// Number of checks without activity after which an idle connection is closed.
const IDLE_CHECKS: u32 = 4;
/// Time for the client to close the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which a connection without idle timeout releases unused buffers.
const SHRINK_INTERVAL: Duration = Duration::from_secs(30);

pub(super) struct Connection<'d, S> {
    service: &'d RespServer,
    session: Session,
    io: S,
    reader: RequestReader,
    input: InputBuffer,
    output: Output,
    /// Replies that wait for the store, and those behind them.
    waiting: FuturesOrdered<Later<'d>>,
    /// Commands of a transaction, executed before anything else.
    running: CommandQueue,
    idleness: IdleDetector,
    /// Length of a command that was read and is delayed, and its delay.
    unanswered: Option<usize>,
    pause: Option<Duration>,
    /// Nothing more is read: the client closed its side, or sent something that ends the connection.
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

impl<'d, S: AsyncRead + AsyncWrite + Unpin> Connection<'d, S> {
    pub(super) fn new(service: &'d RespServer, session: Session, io: S) -> Connection<'d, S> {
        let reader = RequestReader::new(session.bounds());
        Connection {
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

    /// Completes a running transaction after the client is gone: it is charged completely or not at all.
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

    /// Executes all complete requests, as far as there is room for the replies.
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

    /// Executes requests until there are none, or too many replies wait. Returns whether there was room for all.
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
                    // It was parsed already, and its words are still in place.
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
        Reply::new(&mut aside, self.session.protocol).error("ERR", why);
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

/// Continuation after a command.
enum AfterCommand {
    /// The next request.
    Any,
    /// The next request, once all pending replies are there.
    AfterReplies,
    /// The same command, after this time.
    Again(Duration),
    /// The commands of a transaction.
    Queued(CommandQueue),
    /// Nothing.
    Nothing,
}

/// Executes one command. Its reply is queued behind pending ones.
#[inline]
fn answer_one<'d>(
    service: &'d RespServer,
    session: &mut Session,
    words: RequestWords<'_>,
    waiting: &mut FuturesOrdered<Later<'d>>,
    output: &mut Output,
) -> AfterCommand {
    let mut aside = Vec::new();
    let out = if waiting.is_empty() { &mut output.bytes } else { &mut aside };
    let mut reply = Reply::new(out, session.protocol);
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

/// Calls the store at once, so that calls are in the order of the commands, and queues the reply only if it is pending.
fn begin<'d>(mut later: Later<'d>, waiting: &mut FuturesOrdered<Later<'d>>, out: &mut Vec<u8>) {
    match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => out.extend_from_slice(&reply),
        // It is polled again, with a waker, before the connection waits.
        Poll::Pending => waiting.push_back(later),
    }
}

/// Input that was not processed yet.
#[derive(Default)]
struct InputBuffer {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl InputBuffer {
    fn held(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.end]
    }

    const fn consume(&mut self, length: usize) {
        self.begin += length;
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Reads all available input, up to the size of one read or of a request of `longest` bytes.
    fn poll_read(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
        longest: usize,
    ) -> Poll<io::Result<usize>> {
        let mut read = 0;
        loop {
            self.make_room(longest);
            let room = self.bytes.len() - self.end;
            let mut buffer = ReadBuf::new(&mut self.bytes[self.end..]);
            match Pin::new(&mut *io).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) if read == 0 => return Poll::Ready(Err(error)),
                Poll::Pending if read == 0 => return Poll::Pending,
                // The input before it is processed first.
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Ready(Ok(read)),
            }
            let came = buffer.filled().len();
            self.end += came;
            read += came;
            if came < room || self.bytes.len() >= MOST_READ {
                return Poll::Ready(Ok(read));
            }
        }
    }

    /// Ensures room for at least one byte while a request of up to `longest` bytes is incomplete.
    fn make_room(&mut self, longest: usize) {
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.end == self.bytes.len() {
            let most = MOST_READ.max(longest + 1);
            self.bytes.resize((2 * self.bytes.len()).clamp(LEAST_INPUT, most.max(self.end + 1)), 0);
        }
    }

    fn shrink(&mut self) {
        if self.end == 0 && self.bytes.len() > LEAST_INPUT {
            self.bytes = Vec::new();
        }
    }
}

/// Replies that were not written yet.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    written: usize,
    /// Whether all was written, but not flushed yet.
    flushing: bool,
}

impl Output {
    /// Number of bytes still to be written.
    const fn left(&self) -> usize {
        self.bytes.len() - self.written
    }

    const fn is_done(&self) -> bool {
        self.left() == 0 && !self.flushing
    }

    /// Writes as much as possible. Ready when something was written.
    fn poll_write(&mut self, io: &mut (impl AsyncWrite + Unpin), cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.left() > 0 {
            let written = task::ready!(Pin::new(&mut *io).poll_write(cx, &self.bytes[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
            if self.left() > 0 {
                return Poll::Ready(Ok(()));
            }
            self.bytes.clear();
            (self.written, self.flushing) = (0, true);
        }
        task::ready!(Pin::new(io).poll_flush(cx))?;
        self.flushing = false;
        Poll::Ready(Ok(()))
    }

    fn shrink(&mut self) {
        if self.is_done() && self.bytes.capacity() > LEAST_OUTPUT {
            self.bytes = Vec::new();
        }
    }
}

/// Detects idle connections without reading a clock while there is activity.
struct IdleDetector {
    idle: Option<Duration>,
    touched: bool,
    looks: u32,
}

impl IdleDetector {
    const fn new(idle: Option<Duration>) -> IdleDetector {
        IdleDetector { idle, touched: false, looks: 0 }
    }

    const fn touch(&mut self) {
        self.touched = true;
    }

    /// Time until the next check.
    fn check_interval(&self) -> Duration {
        self.idle.map_or(SHRINK_INTERVAL, |idle| idle / IDLE_CHECKS)
    }

    /// Checks for activity since the last check. Returns whether the idle timeout has passed.
    fn is_over(&mut self) -> bool {
        self.looks = if std::mem::take(&mut self.touched) { 0 } else { self.looks + 1 };
        self.idle.is_some() && self.looks >= IDLE_CHECKS
    }
}
