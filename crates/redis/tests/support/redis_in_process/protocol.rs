//! The server side of the Redis protocol.

/// The reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ServerReply {
    Status(&'static str),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<ServerReply>),
}

impl ServerReply {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            ServerReply::Status(text) => out.extend_from_slice(format!("+{text}\r\n").as_bytes()),
            ServerReply::Error(text) => out.extend_from_slice(format!("-{text}\r\n").as_bytes()),
            ServerReply::Integer(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            ServerReply::Bulk(bytes) => {
                out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            ServerReply::Nil => out.extend_from_slice(b"$-1\r\n"),
            ServerReply::Array(items) => {
                out.extend_from_slice(format!("*{}\r\n", items.len()).as_bytes());
                items.iter().for_each(|item| item.write(out));
            }
        }
    }
}

/// Removes the first command, an array of strings, from `input`. `None` if it is not complete.
pub(super) fn take_command(input: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let count = number(input, &mut at, b'*')?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(input, &mut at, b'$')?;
        let word = input.get(at..at + length)?.to_vec();
        at += length + 2;
        words.push(word);
    }
    if at > input.len() {
        return None;
    }
    input.drain(..at);
    Some(words)
}

/// The number in a line that begins with `kind`.
fn number(input: &[u8], at: &mut usize, kind: u8) -> Option<usize> {
    let rest = input.get(*at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(rest[0], kind, "not a command of a client: {:?}", String::from_utf8_lossy(rest));
    *at += end + 2;
    Some(std::str::from_utf8(&rest[1..end]).unwrap().parse().unwrap())
}
