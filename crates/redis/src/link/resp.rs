//! The Redis protocol: commands out, replies in.
//!
//! Calls use version 2. A connection that listens to announcements uses version 3, of which only nulls, maps and pushes
//! are read: nothing else is in the replies to the commands that are sent.

/// The deepest nesting of replies. A cluster's slots are the deepest that is asked for.
const DEEPEST: usize = 8;
/// The longest line: status, error, number or length.
const LONGEST_LINE: usize = 16 * 1024;

/// The bound on the reply to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Bytes, with lengths and line ends.
    pub(super) bytes: usize,
    /// Items of all arrays together.
    pub(super) items: usize,
}

impl Bound {
    /// A status, a role with its replicas, a sentinel's description of a primary.
    pub(crate) const SMALL: Bound = Bound { bytes: 64 * 1024, items: 8 * 1024 };
    /// All announcements that come in while a reply is awaited.
    pub(super) const ANNOUNCEMENTS: Bound = Bound { bytes: 1024 * 1024, items: 64 };
    /// The slots of a cluster, at worst each of them a range of its own.
    pub(super) const TOPOLOGY: Bound = Bound { bytes: 16 * 1024 * 1024, items: 1024 * 1024 };

    /// A string of at most `bytes`, or an error.
    pub(crate) const fn string(bytes: usize) -> Bound {
        Bound { bytes: LONGEST_LINE + bytes, items: 0 }
    }

    /// An array of `items` strings that take at most `bytes` together, or an error.
    pub(crate) const fn strings(items: usize, bytes: usize) -> Bound {
        // A string has its length in front, two line ends and a sign.
        Bound { bytes: LONGEST_LINE + bytes + 32 * items, items }
    }

    /// An array of what these bounds allow.
    pub(super) fn of_array(bounds: &[Bound]) -> Bound {
        let whole = Bound { bytes: LONGEST_LINE, items: bounds.len() };
        bounds.iter().fold(whole, |sum, each| Bound { bytes: sum.bytes + each.bytes, items: sum.items + each.items })
    }

    /// Answers to `calls` requests that take `bytes` together, with `spare` bytes for each beyond what follows from its
    /// size; or one error in place of all.
    pub(super) const fn of_calls(calls: usize, bytes: usize, spare: usize) -> Bound {
        Bound { bytes: LONGEST_LINE + spare.saturating_mul(calls).saturating_add(4 * bytes), items: calls }
    }
}

/// A reply that borrows from the bytes that came in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    Simple(&'a [u8]),
    Error(&'a [u8]),
    Integer(i64),
    Bulk(&'a [u8]),
    Nil,
    /// A map is one too: names and values in turn.
    Array(Vec<Reply<'a>>),
    /// An announcement, which is no reply to a command.
    Push(Vec<Reply<'a>>),
}

/// Bytes that cannot be the reply to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MalformedReply {
    #[error("what the server sent is not the Redis protocol")]
    Protocol,
    #[error("what the server sent is larger than any reply to what was asked")]
    TooLarge,
}

impl<'a> Reply<'a> {
    /// Parses the first reply in `bytes`, and returns it with its length. `None` if it is not complete, which is never the case
    /// for more bytes than `bound` allows.
    pub(super) fn read(bytes: &'a [u8], bound: Bound) -> Result<Option<(Reply<'a>, usize)>, MalformedReply> {
        let mut reader = RespReader { bytes, at: 0, bound };
        let reply = reader.reply(DEEPEST)?;
        let taken = if reply.is_some() { reader.at } else { bytes.len() };
        if taken > bound.bytes {
            return Err(MalformedReply::TooLarge);
        }
        Ok(reply.map(|reply| (reply, taken)))
    }

    /// The text of a simple or a bulk string.
    pub(crate) fn text(&self) -> Option<&'a [u8]> {
        match self {
            Reply::Simple(text) | Reply::Bulk(text) => Some(text),
            Reply::Error(_) | Reply::Integer(_) | Reply::Nil | Reply::Array(_) | Reply::Push(_) => None,
        }
    }

    pub(crate) fn items(&self) -> Option<&[Reply<'a>]> {
        match self {
            Reply::Array(items) => Some(items),
            Reply::Simple(_) | Reply::Error(_) | Reply::Integer(_) | Reply::Bulk(_) | Reply::Nil | Reply::Push(_) => {
                None
            }
        }
    }
}

struct RespReader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The number of its items decreases as they are read.
    bound: Bound,
}

impl<'a> RespReader<'a> {
    fn reply(&mut self, depth: usize) -> Result<Option<Reply<'a>>, MalformedReply> {
        let Some(line) = self.line()? else { return Ok(None) };
        let (&kind, rest) = line.split_first().ok_or(MalformedReply::Protocol)?;
        match kind {
            b'+' => Ok(Some(Reply::Simple(rest))),
            b'-' => Ok(Some(Reply::Error(rest))),
            b':' => Ok(Some(Reply::Integer(integer(rest)?))),
            b'$' => self.bulk(length(rest)?),
            b'*' => self.array(length(rest)?, depth),
            b'%' => self.array(length(rest)?.map(|pairs| pairs.saturating_mul(2)), depth),
            b'_' if rest.is_empty() => Ok(Some(Reply::Nil)),
            // A push stands by itself.
            b'>' if depth == DEEPEST => match self.array(length(rest)?, depth)? {
                Some(Reply::Array(items)) => Ok(Some(Reply::Push(items))),
                Some(_) => Err(MalformedReply::Protocol),
                None => Ok(None),
            },
            _ => Err(MalformedReply::Protocol),
        }
    }

    fn line(&mut self) -> Result<Option<&'a [u8]>, MalformedReply> {
        let rest = &self.bytes[self.at..];
        let Some(end) = rest.iter().take(LONGEST_LINE).position(|&byte| byte == b'\r') else {
            return if rest.len() < LONGEST_LINE { Ok(None) } else { Err(MalformedReply::TooLarge) };
        };
        match rest.get(end + 1) {
            None => Ok(None),
            Some(b'\n') => {
                self.at += end + 2;
                Ok(Some(&rest[..end]))
            }
            Some(_) => Err(MalformedReply::Protocol),
        }
    }

    fn bulk(&mut self, length: Option<usize>) -> Result<Option<Reply<'a>>, MalformedReply> {
        let Some(length) = length else { return Ok(Some(Reply::Nil)) };
        if length > self.bound.bytes {
            return Err(MalformedReply::TooLarge);
        }
        let rest = &self.bytes[self.at..];
        if rest.len() < length + 2 {
            return Ok(None);
        }
        if &rest[length..length + 2] != b"\r\n" {
            return Err(MalformedReply::Protocol);
        }
        self.at += length + 2;
        Ok(Some(Reply::Bulk(&rest[..length])))
    }

    fn array(&mut self, length: Option<usize>, depth: usize) -> Result<Option<Reply<'a>>, MalformedReply> {
        let Some(length) = length else { return Ok(Some(Reply::Nil)) };
        let depth = depth.checked_sub(1).ok_or(MalformedReply::Protocol)?;
        self.bound.items = self.bound.items.checked_sub(length).ok_or(MalformedReply::TooLarge)?;
        // Every item takes three bytes at least, so a large length alone allocates nothing.
        let mut items = Vec::with_capacity(length.min((self.bytes.len() - self.at) / 3 + 1));
        for _ in 0..length {
            let Some(item) = self.reply(depth)? else { return Ok(None) };
            items.push(item);
        }
        Ok(Some(Reply::Array(items)))
    }
}

fn integer(digits: &[u8]) -> Result<i64, MalformedReply> {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(MalformedReply::Protocol)
}

/// Parses a length. `None` is -1, which stands for null.
fn length(digits: &[u8]) -> Result<Option<usize>, MalformedReply> {
    match integer(digits)? {
        -1 => Ok(None),
        length => usize::try_from(length).map(Some).map_err(|_| MalformedReply::Protocol),
    }
}

/// Begins a command of `words` words.
pub(super) fn begin(out: &mut Vec<u8>, words: usize) {
    announce(out, b'*', words);
}

/// Adds a word to the command.
pub(super) fn word(out: &mut Vec<u8>, word: &[u8]) {
    announce(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// Adds a number as a word.
pub(super) fn number(out: &mut Vec<u8>, number: usize) {
    word(out, decimal(number, &mut [0; 20]));
}

/// Adds a whole command.
pub(super) fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    begin(out, words.len());
    for each in words {
        word(out, each);
    }
}

fn announce(out: &mut Vec<u8>, kind: u8, count: usize) {
    out.push(kind);
    out.extend_from_slice(decimal(count, &mut [0; 20]));
    out.extend_from_slice(b"\r\n");
}

fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b"0123456789"[number % 10];
        number /= 10;
        if number == 0 {
            return &digits[first..];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_fuzz::{target, text};

    use super::*;

    const BOUND: Bound = Bound::SMALL;

    #[test]
    fn every_kind_of_reply_is_read() {
        let bytes = b"*6\r\n+OK\r\n-ERR no\r\n:-12\r\n$3\r\na\r\n\r\n$-1\r\n*2\r\n*-1\r\n*0\r\n:7\r\n";
        let (reply, taken) = Reply::read(bytes, BOUND).unwrap().unwrap();
        assert_eq!(taken, bytes.len() - 4, "what follows is left alone");
        let expected = Reply::Array(vec![
            Reply::Simple(b"OK"),
            Reply::Error(b"ERR no"),
            Reply::Integer(-12),
            Reply::Bulk(b"a\r\n"),
            Reply::Nil,
            Reply::Array(vec![Reply::Nil, Reply::Array(vec![])]),
        ]);
        assert_eq!(reply, expected);
    }

    #[test]
    fn part_of_a_reply_is_not_yet_a_reply() {
        let bytes = b"*2\r\n$4\r\nwait\r\n*1\r\n:1\r\n";
        for end in 0..bytes.len() {
            assert_eq!(Reply::read(&bytes[..end], BOUND), Ok(None), "{end} bytes");
        }
    }

    #[test]
    fn malformed_replies_are_refused() {
        let deep = b"*1\r\n".repeat(9);
        let cases: [&[u8]; 8] =
            [b"HTTP/1.1 400\r\n", b"\r\n", b":x\r\n", b":\r\n", b"$-2\r\n", b"$1\r\nabc", b"+a\rb\r\n", &deep];
        for bytes in cases {
            assert_eq!(
                Reply::read(bytes, BOUND),
                Err(MalformedReply::Protocol),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    #[test]
    fn oversized_replies_are_refused_by_their_announced_size() {
        let bound = Bound { bytes: 100, items: 3 };
        let endless = [&b"+"[..], &[b'x'; LONGEST_LINE]].concat();
        let cases: [&[u8]; 7] = [
            b"$101\r\n",
            b"$99999999999\r\n",
            b"*4\r\n",
            b"*999999999\r\n",
            b"*2\r\n*1\r\n*1\r\n",
            &[b"*3\r\n$93\r\n", &[b'x'; 93][..]].concat(),
            &endless,
        ];
        for bytes in cases {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(Reply::read(bytes, bound), Err(MalformedReply::TooLarge), "{text:.40}");
        }
        assert!(matches!(Reply::read(b"*3\r\n:1\r\n:2\r\n:3\r\n", bound), Ok(Some((Reply::Array(_), 16)))));
        let exactly = [&b"$92\r\n"[..], &[b'x'; 92], b"\r\n$200\r\n"].concat();
        assert!(
            matches!(Reply::read(&exactly, bound), Ok(Some((Reply::Bulk(_), 99)))),
            "what follows is another reply"
        );
    }

    #[test]
    fn commands_are_written_with_their_lengths() {
        let mut out = Vec::new();
        command(&mut out, &[b"SET", b"a\r\n", b""]);
        begin(&mut out, 1);
        number(&mut out, 1_000);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$3\r\na\r\n\r\n$0\r\n\r\n*1\r\n$4\r\n1000\r\n");
    }

    fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..=b'9', any::<u8>()];
        let line = prop_oneof![
            (0_usize..300).prop_map(|length| format!("*{length}\r\n").into_bytes()),
            (0_usize..300).prop_map(|length| format!("${length}\r\n").into_bytes()),
            Just(b":1\r\n".to_vec()),
            Just(b"$1\r\na\r\n".to_vec()),
            proptest::collection::vec(byte, 0..30),
        ];
        proptest::collection::vec(line, 0..60).prop_map(|lines| lines.concat())
    }

    fn items(reply: &Reply<'_>) -> usize {
        reply.items().map_or(0, |of| of.len() + of.iter().map(items).sum::<usize>())
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_within_the_bound(bytes in any_bytes(), most in 1_usize..300, many in 0_usize..50) {
            let bound = Bound { bytes: most, items: many };
            match Reply::read(&bytes, bound) {
                Ok(Some((reply, taken))) => {
                    prop_assert!(taken <= bytes.len() && taken <= most);
                    prop_assert!(items(&reply) <= many);
                }
                Ok(None) => prop_assert!(bytes.len() <= most, "nothing grows past the bound"),
                Err(_) => {}
            }
        }

        #[test]
        fn replies_can_arrive_in_any_pieces(bytes in any_bytes(), most in 1_usize..300, many in 0_usize..50) {
            let bound = Bound { bytes: most, items: many };
            let whole = Reply::read(&bytes, bound);
            for end in 0..bytes.len() {
                match Reply::read(&bytes[..end], bound) {
                    Ok(None) => {}
                    Ok(early) => {
                        prop_assert_eq!(&Ok(early), &whole);
                        break;
                    }
                    Err(_) => {
                        prop_assert!(whole.is_err());
                        break;
                    }
                }
            }
        }
    }

    /// Whether another reader of the protocol reads a reply as this one does.
    fn is_same(reply: &Reply<'_>, other: &redis::Value) -> bool {
        use redis::Value;
        match (reply, other) {
            (Reply::Simple(text), Value::Okay) => *text == b"OK",
            (Reply::Simple(text), Value::SimpleString(other)) => *text == other.as_bytes(),
            (Reply::Integer(number), Value::Int(other)) => number == other,
            (Reply::Bulk(bytes), Value::BulkString(other)) => bytes == other,
            (Reply::Array(items), Value::Array(others)) => {
                items.len() == others.len() && items.iter().zip(others).all(|(item, other)| is_same(item, other))
            }
            (Reply::Array(items), Value::Map(others)) => {
                items.len() == 2 * others.len()
                    && items
                        .chunks_exact(2)
                        .zip(others)
                        .all(|(pair, (name, value))| is_same(&pair[0], name) && is_same(&pair[1], value))
            }
            (Reply::Push(items), Value::Push { data, .. }) => {
                // The first item is the kind of the push. The library reads an empty push as one without a kind.
                items.len().max(1) == 1 + data.len()
                    && items.iter().skip(1).zip(data).all(|(item, other)| is_same(item, other))
            }
            (Reply::Error(_), Value::ServerError(_)) | (Reply::Nil, Value::Nil) => true,
            _ => false,
        }
    }

    /// A reply is whole or not, never both, and the client library reads it alike.
    #[test]
    fn any_bytes_are_read_or_refused() {
        const WORDS: [&str; 19] = [
            "*1\r\n",
            "*2\r\n",
            "*-1\r\n",
            "$2\r\nhi\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "%1\r\n",
            "_\r\n",
            ">2\r\n",
            "+OK\r\n",
            "-ERR no\r\n",
            ":7\r\n",
            "\r\n",
            "*",
            "$",
            "999999999",
            "-",
            ":",
            "+",
        ];
        target!("redis-reply").for_each(|bytes: &[u8]| {
            let bytes = text(bytes, &WORDS);
            let Ok(Some((reply, taken))) = Reply::read(&bytes, BOUND) else { return };
            let whole = &bytes[..taken];
            for end in (0..taken).rev().take(64) {
                assert_eq!(Reply::read(&whole[..end], BOUND), Ok(None), "{}", whole.escape_ascii());
            }
            if let Ok(other) = redis::parse_redis_value(whole) {
                assert!(is_same(&reply, &other), "{reply:?} {other:?}");
            }
        });
    }
}
