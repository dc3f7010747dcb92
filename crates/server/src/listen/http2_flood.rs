//! Detects clients that flood an HTTP/2 connection with control frames.
//!
//! Each PING and SETTINGS frame must be answered and costs about as much as a small request, but no rule counts it, and
//! no timeout applies while a request is in flight. Only the heads of frames are parsed.

use std::time::Duration;

use tokio::time::Instant;

use super::http_version::HTTP2_PREFACE;

/// Length of a frame's head.
const HEAD: usize = 9;
/// Number of control frames per second that counts as a flood, if they outnumber the frames of requests.
const MOST: u32 = 10_000;
const WITHIN: Duration = Duration::from_secs(1);
/// Number of control frames between two reads of the clock.
const CHECK_EVERY: u32 = 100;

/// Incremental parser of the bytes of a connection, in chunks of any size.
#[derive(Debug, Default)]
pub(super) enum FrameMeter {
    /// No data received.
    #[default]
    Unknown,
    /// Possibly HTTP/2: this many bytes of the preface have been received.
    Preface(usize),
    /// HTTP/2.
    Http2(Frames),
    /// Another protocol.
    Other,
}

#[derive(Debug)]
pub(super) struct Frames {
    /// Head of the current frame, as far as received.
    head: [u8; HEAD],
    /// Received bytes of the head.
    head_bytes: usize,
    /// Remaining bytes of the current frame.
    left: usize,
    since: Instant,
    control_frames: u32,
    request_frames: u32,
}

/// A client sends far more control frames than request frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client floods its HTTP/2 connection with control frames")]
pub(super) struct Flood;

impl FrameMeter {
    /// Parses the next bytes.
    #[inline]
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Result<(), Flood> {
        match self {
            FrameMeter::Other => Ok(()),
            FrameMeter::Http2(frames) => frames.follow(bytes),
            FrameMeter::Unknown | FrameMeter::Preface(_) => self.begin(bytes),
        }
    }

    fn begin(&mut self, bytes: &[u8]) -> Result<(), Flood> {
        let received = if let FrameMeter::Preface(received) = self { *received } else { 0 };
        let expected = &HTTP2_PREFACE[received..];
        let length = expected.len().min(bytes.len());
        if bytes[..length] != expected[..length] {
            *self = FrameMeter::Other;
            return Ok(());
        }
        if length < expected.len() {
            *self = FrameMeter::Preface(received + length);
            return Ok(());
        }
        let frames = Frames {
            head: [0; HEAD],
            head_bytes: 0,
            left: 0,
            since: Instant::now(),
            control_frames: 0,
            request_frames: 0,
        };
        *self = FrameMeter::Http2(frames);
        self.follow(&bytes[length..])
    }
}

impl Frames {
    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), Flood> {
        loop {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return Ok(());
            }
            let taken = (HEAD - self.head_bytes).min(bytes.len());
            self.head[self.head_bytes..self.head_bytes + taken].copy_from_slice(&bytes[..taken]);
            self.head_bytes += taken;
            bytes = &bytes[taken..];
            if self.head_bytes == HEAD {
                self.head_bytes = 0;
                self.count()?;
            }
        }
    }

    /// Counts the frame that begins here.
    fn count(&mut self) -> Result<(), Flood> {
        const DATA: u8 = 0;
        const HEADERS: u8 = 1;
        const RST_STREAM: u8 = 3;
        const WINDOW_UPDATE: u8 = 8;
        const CONTINUATION: u8 = 9;
        const END_STREAM: u8 = 1;
        let [a, b, c, kind, flags, ..] = self.head;
        self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        match kind {
            DATA if self.left == 0 && flags & END_STREAM == 0 => {}
            DATA | HEADERS => {
                self.request_frames = self.request_frames.saturating_add(1);
                return Ok(());
            }
            // Frames of requests and responses, or limited elsewhere.
            RST_STREAM | WINDOW_UPDATE | CONTINUATION => return Ok(()),
            // SETTINGS, PING, PRIORITY, and unknown frames.
            _ => {}
        }
        // The first control frame starts the interval, so that silence before it does not count.
        if self.control_frames.is_multiple_of(CHECK_EVERY) {
            let now = Instant::now();
            if self.control_frames == 0 || now.duration_since(self.since) >= WITHIN {
                (self.since, self.control_frames, self.request_frames) = (now, 0, 0);
            }
        }
        self.control_frames = self.control_frames.saturating_add(1);
        if self.control_frames >= MOST && self.request_frames < self.control_frames { Err(Flood) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], body].concat()
    }

    fn ping() -> Vec<u8> {
        frame(6, 0, &[0; 8])
    }

    /// The result for a connection that sends `what` repeatedly, in chunks of this size.
    fn sent(what: &[u8], times: usize, piece: usize) -> Result<(), Flood> {
        let mut meter = FrameMeter::default();
        let all = [&HTTP2_PREFACE[..], &what.repeat(times)].concat();
        all.chunks(piece).try_for_each(|piece| meter.follow(piece))
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_control_frames_is_noticed_in_chunks_of_any_size() {
        let most = MOST as usize;
        for what in [ping(), frame(4, 0, &[]), frame(2, 0, &[0; 5]), frame(0, 0, &[]), frame(77, 0, &[1, 2, 3])] {
            for piece in [1, 7, 9, 4_096, usize::MAX] {
                assert_eq!(sent(&what, most - 1, piece), Ok(()), "{what:?} by {piece}");
                assert_eq!(sent(&what, most, piece), Err(Flood), "{what:?} by {piece}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_no_flood_even_with_a_ping_for_each() {
        let request = [frame(1, 4, &[0x82]), frame(0, 1, b"hello"), ping()].concat();
        assert_eq!(sent(&request, 50_000, 4_096), Ok(()));
        assert_eq!(sent(&frame(8, 0, &[0, 0, 0, 1]), 50_000, 4_096), Ok(()));
        // The contents of DATA frames are not parsed as frames.
        assert_eq!(sent(&frame(0, 0, &ping().repeat(900)), 50, 1_000), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn pings_that_take_their_time_are_no_flood() {
        let mut meter = FrameMeter::default();
        meter.follow(HTTP2_PREFACE).unwrap();
        for _ in 0..20 {
            tokio::time::advance(Duration::from_millis(600)).await;
            meter.follow(&ping().repeat(MOST as usize / 3)).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_after_a_silence_is_a_flood() {
        let mut meter = FrameMeter::default();
        meter.follow(HTTP2_PREFACE).unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(meter.follow(&ping().repeat(MOST as usize)), Err(Flood));
        // The same, with frames before the silence.
        let mut meter = FrameMeter::default();
        meter.follow(&[&HTTP2_PREFACE[..], &ping().repeat(50)].concat()).unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(meter.follow(&ping().repeat((MOST + CHECK_EVERY) as usize)), Err(Flood));
    }

    #[test]
    fn other_protocols_are_left_alone() {
        let mut meter = FrameMeter::default();
        assert_eq!(meter.follow(b"PRI * HTTP/1.1\r\n"), Ok(()));
        assert_eq!(meter.follow(&ping().repeat(20_000)), Ok(()));
        assert!(matches!(meter, FrameMeter::Other));
    }
}
