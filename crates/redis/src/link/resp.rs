//! The Redis protocol: commands out, replies in.
//!
//! Calls use version 2. A connection with announcements uses version 3, of which only nulls, maps and pushes are parsed:
//! the replies to the commands in use contain nothing else.

/// Maximum nesting of replies. The slots of a cluster have the deepest.
const DEEPEST: usize = 8;
/// Maximum length of a line: status, error, number or length.
const LONGEST_LINE: usize = 16 * 1024;

/// The bound on the reply to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Maximum number of bytes, including lengths and line ends.
    pub(super) bytes: usize,
    /// Maximum number of items of all arrays together.
    pub(super) items: usize,
}

impl Bound {
    /// A status, a role with its replicas, a sentinel's description of a primary.
    pub(crate) const SMALL: Bound = Bound { bytes: 64 * 1024, items: 8 * 1024 };
    /// All announcements received while a reply is awaited.
    pub(super) const ANNOUNCEMENTS: Bound = Bound { bytes: 1024 * 1024, items: 64 };
    /// The slots of a cluster; in the worst case each of them is a range of its own.
    pub(super) const TOPOLOGY: Bound = Bound { bytes: 16 * 1024 * 1024, items: 1024 * 1024 };

    /// A string of at most `bytes`, or an error.
    pub(crate) const fn string(bytes: usize) -> Bound {
        Bound { bytes: LONGEST_LINE + bytes, items: 0 }
    }

    /// An array of `items` strings that take at most `bytes` together, or an error.
    pub(crate) const fn strings(items: usize, bytes: usize) -> Bound {
        // A string also has its length, two line ends and a sign.
        Bound { bytes: LONGEST_LINE + bytes + 32 * items, items }
    }

    /// An array with one item for each of these bounds.
    pub(super) fn of_array(bounds: &[Bound]) -> Bound {
        let whole = Bound { bytes: LONGEST_LINE, items: bounds.len() };
        bounds.iter().fold(whole, |sum, each| Bound { bytes: sum.bytes + each.bytes, items: sum.items + each.items })
    }

    /// Answers to `calls` requests of `bytes` in total, or one error for all of them. Each answer may have `spare` bytes in
    /// addition to those that depend on the size of its request.
    pub(super) const fn of_calls(calls: usize, bytes: usize, spare: usize) -> Bound {
        Bound { bytes: LONGEST_LINE + spare.saturating_mul(calls).saturating_add(4 * bytes), items: calls }
    }
}

/// A reply that borrows from the received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RespReply<'a> {
    Simple(&'a [u8]),
    Error(&'a [u8]),
    Integer(i64),
    Bulk(&'a [u8]),
    Nil,
    /// Also a map: alternating names and values.
    Array(Vec<RespReply<'a>>),
    /// An announcement, which is not a reply to a command.
    Push(Vec<RespReply<'a>>),
}

/// Why bytes cannot be the reply to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MalformedReply {
    #[error("the reply is not in the Redis protocol")]
    Protocol,
    #[error("the reply exceeds the maximum size for this command")]
    TooLarge,
}

impl<'a> RespReply<'a> {
    /// Parses the first reply in `bytes`, and returns it with its length. `None` if the reply is not complete; never `None`
    /// if `bytes` are longer than `bound` allows.
    pub(super) fn read(bytes: &'a [u8], bound: Bound) -> Result<Option<(RespReply<'a>, usize)>, MalformedReply> {
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
            RespReply::Simple(text) | RespReply::Bulk(text) => Some(text),
            RespReply::Error(_) | RespReply::Integer(_) | RespReply::Nil | RespReply::Array(_) | RespReply::Push(_) => {
                None
            }
        }
    }

    pub(crate) fn items(&self) -> Option<&[RespReply<'a>]> {
        match self {
            RespReply::Array(items) => Some(items),
            RespReply::Simple(_)
            | RespReply::Error(_)
            | RespReply::Integer(_)
            | RespReply::Bulk(_)
            | RespReply::Nil
            | RespReply::Push(_) => None,
        }
    }
}

struct RespReader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The number of items decreases as they are parsed.
    bound: Bound,
}

impl<'a> RespReader<'a> {
    fn reply(&mut self, depth: usize) -> Result<Option<RespReply<'a>>, MalformedReply> {
        let Some(line) = self.line()? else { return Ok(None) };
        let (&kind, rest) = line.split_first().ok_or(MalformedReply::Protocol)?;
        match kind {
            b'+' => Ok(Some(RespReply::Simple(rest))),
            b'-' => Ok(Some(RespReply::Error(rest))),
            b':' => Ok(Some(RespReply::Integer(integer(rest)?))),
            b'$' => self.bulk(length(rest)?),
            b'*' => self.array(length(rest)?, depth),
            b'%' => self.array(length(rest)?.map(|pairs| pairs.saturating_mul(2)), depth),
            b'_' if rest.is_empty() => Ok(Some(RespReply::Nil)),
            // A push is never nested.
            b'>' if depth == DEEPEST => match self.array(length(rest)?, depth)? {
                Some(RespReply::Array(items)) => Ok(Some(RespReply::Push(items))),
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

    fn bulk(&mut self, length: Option<usize>) -> Result<Option<RespReply<'a>>, MalformedReply> {
        let Some(length) = length else { return Ok(Some(RespReply::Nil)) };
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
        Ok(Some(RespReply::Bulk(&rest[..length])))
    }

    fn array(&mut self, length: Option<usize>, depth: usize) -> Result<Option<RespReply<'a>>, MalformedReply> {
        let Some(length) = length else { return Ok(Some(RespReply::Nil)) };
        let depth = depth.checked_sub(1).ok_or(MalformedReply::Protocol)?;
        self.bound.items = self.bound.items.checked_sub(length).ok_or(MalformedReply::TooLarge)?;
        // Every item takes at least three bytes, so a large length alone does not allocate memory.
        let mut items = Vec::with_capacity(length.min((self.bytes.len() - self.at) / 3 + 1));
        for _ in 0..length {
            let Some(item) = self.reply(depth)? else { return Ok(None) };
            items.push(item);
        }
        Ok(Some(RespReply::Array(items)))
    }
}

fn integer(digits: &[u8]) -> Result<i64, MalformedReply> {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(MalformedReply::Protocol)
}

/// Parses a length. Returns `None` for -1, which means null.
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
mod tests;
