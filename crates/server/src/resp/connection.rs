//! One connection: reads what has come, answers all of it, writes all answers at once.

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

use super::Door;
use super::command::{self, Answer, Later};
use super::reply::Reply;
use super::request::{Reader, Words};
use super::session::Session;
use super::transaction::Queue;
use crate::listen::{IdleWatch, WatchEvent};

/// What an idle connection keeps to read into.
const LEAST_INPUT: usize = 1_024;
/// What is read at once at most.
const MOST_READ: usize = 64 * 1_024;
/// Replies that an idle connection keeps room for.
const LEAST_OUTPUT: usize = 1_024;
/// An idle connection is looked at so many times before it is closed.
const LOOKS: u32 = 4;
/// How long a client may take to leave.
const PARTING: Duration = Duration::from_secs(1);
/// How often a connection that may be idle for ever is looked at, to give back the room that it does not need.
const LOOK_EVERY: Duration = Duration::from_secs(30);

pub(super) struct Connection<'d, S> {
    door: &'d Door,
    session: Session,
    io: S,
    reader: Reader,
    input: Input,
    output: Output,
    /// Commands that wait for the store, and those behind them.
    waiting: FuturesOrdered<Later<'d>>,
    /// The commands of a transaction that are to be answered before anything else.
    running: Queue,
    quiet: Quiet,
    /// The length of a command that was read and has to wait, and how long it has to.
    unanswered: Option<usize>,
    pause: Option<Duration>,
    /// Nothing more is to be read: the client has said all that it had to say, or something that ends it.
    ending: bool,
}

/// What has become of a connection that waited.
enum Event {
    /// Something came, or could be written.
    Moved,
    /// The client will say no more.
    Said,
    /// It is over.
    Over,
}

impl<'d, S: AsyncRead + AsyncWrite + Unpin> Connection<'d, S> {
    pub(super) fn new(door: &'d Door, session: Session, io: S) -> Connection<'d, S> {
        let reader = Reader::new(session.bounds());
        Connection {
            reader,
            input: Input::default(),
            output: Output::default(),
            waiting: FuturesOrdered::new(),
            running: Queue::default(),
            quiet: Quiet::new(session.settings.idle),
            unanswered: None,
            pause: None,
            ending: false,
            door,
            session,
            io,
        }
    }

    pub(super) async fn serve(mut self, stop: CancellationToken) {
        let mut watch = pin!(IdleWatch::new(stop, self.quiet.next_look()));
        loop {
            self.answer_all().await;
            if self.ending && self.output.is_done() {
                break;
            }
            match poll_fn(|cx| self.poll_next(cx, watch.as_mut())).await {
                Event::Moved => {}
                Event::Said => self.ending = true,
                Event::Over => return self.finish_transaction().await,
            }
        }
        self.part().await;
    }

    /// Runs a transaction to its end though nobody is left to read the replies: all of it is charged, or nothing.
    async fn finish_transaction(mut self) {
        self.ending = true;
        while !self.running.is_empty() {
            self.output = Output::default();
            self.answer_all().await;
        }
    }

    /// Closes the connection in a way that lets the client read what was written: a socket that is closed while something
    /// lies in it unread takes back what was sent.
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
        // Whoever has not left by then does not care for what was written.
        let _ = timeout(PARTING, parting).await;
    }

    /// Answers every request that is whole, as far as there is room for the replies.
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

    /// Answers requests until there is none, or too much waits. Says whether there was room for all of them.
    fn answer_some(&mut self) -> bool {
        self.session.follow(&self.door.settings);
        self.quiet.idle = self.session.settings.idle;
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
                    // Its words are where they were: reading it again would find others.
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
            let mut next = Next::Any;
            if words.len() > 0 {
                answered += 1;
                next = answer_one(self.door, &mut self.session, words, &mut self.waiting, &mut self.output);
                if let Next::Again(pause) = next {
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
                Next::Any | Next::Again(_) => {}
                Next::AfterReplies => break false,
                Next::Nothing => self.ending = true,
                Next::Queued(queue) => self.running = queue,
            }
        };
        if answered > 0 {
            self.quiet.heard();
            self.door.commands.fetch_add(answered, Ordering::Relaxed);
        }
        room
    }

    /// Says why nothing more is read.
    fn refuse(&mut self, why: impl std::fmt::Display) {
        let mut aside = Vec::new();
        Reply::new(&mut aside, self.session.protocol).error("ERR", why);
        self.waiting.push_back(Box::pin(ready(aside)));
        self.ending = true;
    }

    /// Writes what can be written, then reads what can be read, then waits.
    fn poll_next(&mut self, cx: &mut Context<'_>, mut watch: Pin<&mut IdleWatch>) -> Poll<Event> {
        let was_full = self.output.left() >= self.session.settings.most_unsent;
        while !self.output.is_done() {
            match self.output.poll_write(&mut self.io, cx) {
                Poll::Ready(Ok(())) => self.quiet.heard(),
                Poll::Ready(Err(_)) => return Poll::Ready(Event::Over),
                Poll::Pending => break,
            }
        }
        let is_full = self.output.left() >= self.session.settings.most_unsent;
        if self.ending && self.output.is_done() || was_full && !is_full {
            return Poll::Ready(Event::Moved);
        }
        if !self.ending && !is_full {
            match self.input.poll_read(&mut self.io, cx, self.session.bounds().bytes) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Event::Said),
                Poll::Ready(Ok(_)) => return Poll::Ready(Event::Moved),
                Poll::Ready(Err(_)) => return Poll::Ready(Event::Over),
                Poll::Pending => {}
            }
        }
        loop {
            match task::ready!(watch.as_mut().poll(cx)) {
                WatchEvent::Shutdown if !self.ending => return Poll::Ready(Event::Said),
                WatchEvent::Shutdown => {}
                WatchEvent::Check if self.quiet.is_over() => return Poll::Ready(Event::Over),
                WatchEvent::Check => {
                    self.input.shrink();
                    self.output.shrink();
                    watch.as_mut().check_in(self.quiet.next_look());
                }
            }
        }
    }
}

/// What is to be answered after a command.
enum Next {
    /// Whatever comes.
    Any,
    /// Whatever comes, once the replies are there that are waited for.
    AfterReplies,
    /// The same command, after this time.
    Again(Duration),
    /// The commands of a transaction.
    Queued(Queue),
    /// Nothing.
    Nothing,
}

/// Answers one command. Its reply has its turn behind those that wait.
#[inline]
fn answer_one<'d>(
    door: &'d Door,
    session: &mut Session,
    words: Words<'_>,
    waiting: &mut FuturesOrdered<Later<'d>>,
    output: &mut Output,
) -> Next {
    let mut aside = Vec::new();
    let out = if waiting.is_empty() { &mut output.bytes } else { &mut aside };
    let mut reply = Reply::new(out, session.protocol);
    let next = match command::answer(door, session, words, &mut reply) {
        Answer::Now => Next::Any,
        Answer::Later(later) => {
            begin(later, waiting, out);
            Next::Any
        }
        Answer::Alone(later) => {
            begin(later, waiting, out);
            if waiting.is_empty() { Next::Any } else { Next::AfterReplies }
        }
        Answer::Close => Next::Nothing,
        Answer::Wait(pause) => Next::Again(pause),
        Answer::Run(queue) => Next::Queued(queue),
    };
    if !aside.is_empty() {
        waiting.push_back(Box::pin(ready(aside)));
    }
    next
}

/// Asks the store at once, so that it is asked in the order of the commands, and waits only if it has to.
fn begin<'d>(mut later: Later<'d>, waiting: &mut FuturesOrdered<Later<'d>>, out: &mut Vec<u8>) {
    match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => out.extend_from_slice(&reply),
        // It is asked again, with a waker, before anyone waits.
        Poll::Pending => waiting.push_back(later),
    }
}

/// What has come and was not answered yet.
#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Input {
    fn held(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.end]
    }

    const fn consume(&mut self, length: usize) {
        self.begin += length;
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Reads what has come: all of it, as far as a request of `longest` bytes and what is read at once have room.
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
                // What came before is answered first.
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

    /// There is room for a byte at least whenever a request of `longest` bytes is not whole.
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
    /// Whether all was written and may still be on its way through the stream.
    flushing: bool,
}

impl Output {
    /// How many bytes are still to be written.
    const fn left(&self) -> usize {
        self.bytes.len() - self.written
    }

    const fn is_done(&self) -> bool {
        self.left() == 0 && !self.flushing
    }

    /// Writes what can be written. Ready when something was.
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

/// Notices when nothing happens. No clock is read while something does.
struct Quiet {
    idle: Option<Duration>,
    heard: bool,
    looks: u32,
}

impl Quiet {
    const fn new(idle: Option<Duration>) -> Quiet {
        Quiet { idle, heard: false, looks: 0 }
    }

    const fn heard(&mut self) {
        self.heard = true;
    }

    /// How far the next look is ahead.
    fn next_look(&self) -> Duration {
        self.idle.map_or(LOOK_EVERY, |idle| idle / LOOKS)
    }

    /// Looks whether anything happened since the last look. After so many looks at nothing, it is over.
    fn is_over(&mut self) -> bool {
        self.looks = if std::mem::take(&mut self.heard) { 0 } else { self.looks + 1 };
        self.idle.is_some() && self.looks >= LOOKS
    }
}
