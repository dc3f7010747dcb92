//! Encodes replies, in either version of the protocol.

use std::fmt::Display;

/// Protocol version of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RespProtocol {
    #[default]
    Resp2,
    Resp3,
}

impl RespProtocol {
    pub(super) const fn number(self) -> i64 {
        match self {
            RespProtocol::Resp2 => 2,
            RespProtocol::Resp3 => 3,
        }
    }
}

/// Maximum length of input quoted in an error.
const LONGEST_ECHO: usize = 128;

/// Appends replies to a buffer.
///
/// Types that RESP2 lacks are encoded as its clients expect: a map as alternating names and values, booleans as 1 and
/// 0, null as the null string.
#[derive(Debug)]
pub(super) struct ReplyWriter<'o> {
    out: &'o mut Vec<u8>,
    protocol: RespProtocol,
}

impl<'o> ReplyWriter<'o> {
    pub(super) const fn new(out: &'o mut Vec<u8>, protocol: RespProtocol) -> ReplyWriter<'o> {
        ReplyWriter { out, protocol }
    }

    pub(super) const fn protocol(&self) -> RespProtocol {
        self.protocol
    }

    /// Encodes further replies in this version.
    pub(super) const fn speak(&mut self, protocol: RespProtocol) {
        self.protocol = protocol;
    }

    fn head(&mut self, sign: u8, number: i64) {
        let mut digits = itoa::Buffer::new();
        self.out.push(sign);
        self.out.extend_from_slice(digits.format(number).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn length(&mut self, sign: u8, length: usize) {
        self.head(sign, i64::try_from(length).unwrap_or(i64::MAX));
    }

    pub(super) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// Writes a simple string, which must not contain line breaks.
    pub(super) fn simple(&mut self, text: &'static str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes an error with its code: `ERR`, or a more specific one that clients know. Control characters, which may
    /// come from the client, are written as `?`.
    pub(super) fn error(&mut self, code: &'static str, text: impl Display) {
        self.out.push(b'-');
        self.out.extend_from_slice(code.as_bytes());
        self.out.push(b' ');
        let text = text.to_string();
        self.out.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b'?' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }

    /// Writes a count. Saturates at the maximum of the protocol's integers.
    pub(super) fn count(&mut self, number: u64) {
        self.head(b':', i64::try_from(number).unwrap_or(i64::MAX));
    }

    pub(super) fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.length(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes text of several lines, for people.
    pub(super) fn text(&mut self, text: &str) {
        match self.protocol {
            RespProtocol::Resp2 => self.bulk(text),
            RespProtocol::Resp3 => {
                self.length(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    pub(super) fn boolean(&mut self, yes: bool) {
        let text: &[u8] = match (self.protocol, yes) {
            (RespProtocol::Resp2, true) => b":1\r\n",
            (RespProtocol::Resp2, false) => b":0\r\n",
            (RespProtocol::Resp3, true) => b"#t\r\n",
            (RespProtocol::Resp3, false) => b"#f\r\n",
        };
        self.out.extend_from_slice(text);
    }

    pub(super) fn null(&mut self) {
        let text: &[u8] = match self.protocol {
            RespProtocol::Resp2 => b"$-1\r\n",
            RespProtocol::Resp3 => b"_\r\n",
        };
        self.out.extend_from_slice(text);
    }

    /// Starts a list. The next `length` replies are its items.
    pub(super) fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// Starts a map. The next `2 * length` replies are its names and values, in turn.
    pub(super) fn map(&mut self, length: usize) {
        match self.protocol {
            RespProtocol::Resp2 => self.length(b'*', 2 * length),
            RespProtocol::Resp3 => self.length(b'%', length),
        }
    }

    /// Writes five integers: the reply of `CL.THROTTLE`.
    #[inline]
    pub(super) fn five(&mut self, numbers: [i64; 5]) {
        // Formatted in a local array, so that the buffer grows at most once.
        let mut line = [0; 4 + 5 * 23];
        line[..4].copy_from_slice(b"*5\r\n");
        let mut at = 4;
        for number in numbers {
            line[at] = b':';
            at += 1;
            if let Some(digit) = u8::try_from(number).ok().filter(|digit| *digit < 10) {
                line[at] = b'0' + digit;
                at += 1;
            } else {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(number).as_bytes();
                line[at..at + digits.len()].copy_from_slice(digits);
                at += digits.len();
            }
            line[at..at + 2].copy_from_slice(b"\r\n");
            at += 2;
        }
        self.out.extend_from_slice(&line[..at]);
    }
}

/// Quotes client input for an error, truncated if it is long.
pub(super) fn echo(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.get(..LONGEST_ECHO).unwrap_or(bytes)).into_owned();
    if bytes.len() > LONGEST_ECHO { text + "…" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: RespProtocol, write: impl FnOnce(&mut ReplyWriter<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut ReplyWriter::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    fn both(write: impl Fn(&mut ReplyWriter<'_>)) -> [String; 2] {
        [RespProtocol::Resp2, RespProtocol::Resp3].map(|protocol| written(protocol, &write))
    }

    #[test]
    fn each_version_has_its_types() {
        assert_eq!(
            both(|reply| {
                reply.null();
            }),
            ["$-1\r\n", "_\r\n"]
        );
        assert_eq!(both(|reply| reply.boolean(true)), [":1\r\n", "#t\r\n"]);
        assert_eq!(both(|reply| reply.boolean(false)), [":0\r\n", "#f\r\n"]);
        assert_eq!(both(|reply| reply.map(2)), ["*4\r\n", "%2\r\n"]);
        assert_eq!(both(|reply| reply.text("a\nb")), ["$3\r\na\nb\r\n", "=7\r\ntxt:a\nb\r\n"]);
        assert_eq!(both(|reply| reply.bulk("é")), ["$2\r\né\r\n"; 2]);
        assert_eq!(both(|reply| reply.integer(i64::MIN)), [":-9223372036854775808\r\n"; 2]);
        assert_eq!(both(|reply| reply.count(u64::MAX)), [":9223372036854775807\r\n"; 2]);
    }

    #[test]
    fn five_integers_are_written_as_one_by_one() {
        for numbers in [[0, 16, 15, -1, 2], [1, 9, 10, 99, 100], [i64::MIN, i64::MAX, -9, 255, 256]] {
            let one_by_one = written(RespProtocol::Resp2, |reply| {
                reply.array(5);
                numbers.into_iter().for_each(|number| reply.integer(number));
            });
            assert_eq!(written(RespProtocol::Resp2, |reply| reply.five(numbers)), one_by_one);
        }
    }

    #[test]
    fn an_error_is_one_line_whatever_it_repeats() {
        let error = written(RespProtocol::Resp2, |reply| reply.error("ERR", echo(b"a\r\n+OK\r\n\x1b[31m")));
        assert_eq!(error, "-ERR a??+OK???[31m\r\n");
        let long = echo(&[b'x'; 1_000]);
        assert_eq!(long.chars().count(), LONGEST_ECHO + 1);
        assert_eq!(echo(&[0xc3; 200]).chars().count(), LONGEST_ECHO + 1);
    }
}
