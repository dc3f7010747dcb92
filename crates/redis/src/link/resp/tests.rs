use proptest::prelude::*;
use tidegate_test_support::fuzz::{target, text};

use super::*;

const BOUND: Bound = Bound::SMALL;

#[test]
fn every_kind_of_reply_is_read() {
    let bytes = b"*6\r\n+OK\r\n-ERR no\r\n:-12\r\n$3\r\na\r\n\r\n$-1\r\n*2\r\n*-1\r\n*0\r\n:7\r\n";
    let (reply, taken) = RespReply::read(bytes, BOUND).unwrap().unwrap();
    assert_eq!(taken, bytes.len() - 4, "what follows is left alone");
    let expected = RespReply::Array(vec![
        RespReply::Simple(b"OK"),
        RespReply::Error(b"ERR no"),
        RespReply::Integer(-12),
        RespReply::Bulk(b"a\r\n"),
        RespReply::Nil,
        RespReply::Array(vec![RespReply::Nil, RespReply::Array(vec![])]),
    ]);
    assert_eq!(reply, expected);
}

#[test]
fn part_of_a_reply_is_not_yet_a_reply() {
    let bytes = b"*2\r\n$4\r\nwait\r\n*1\r\n:1\r\n";
    for end in 0..bytes.len() {
        assert_eq!(RespReply::read(&bytes[..end], BOUND), Ok(None), "{end} bytes");
    }
}

#[test]
fn malformed_replies_are_refused() {
    let deep = b"*1\r\n".repeat(9);
    let cases: [&[u8]; 8] =
        [b"HTTP/1.1 400\r\n", b"\r\n", b":x\r\n", b":\r\n", b"$-2\r\n", b"$1\r\nabc", b"+a\rb\r\n", &deep];
    for bytes in cases {
        assert_eq!(
            RespReply::read(bytes, BOUND),
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
        assert_eq!(RespReply::read(bytes, bound), Err(MalformedReply::TooLarge), "{text:.40}");
    }
    assert!(matches!(RespReply::read(b"*3\r\n:1\r\n:2\r\n:3\r\n", bound), Ok(Some((RespReply::Array(_), 16)))));
    let exactly = [&b"$92\r\n"[..], &[b'x'; 92], b"\r\n$200\r\n"].concat();
    assert!(
        matches!(RespReply::read(&exactly, bound), Ok(Some((RespReply::Bulk(_), 99)))),
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

fn items(reply: &RespReply<'_>) -> usize {
    reply.items().map_or(0, |of| of.len() + of.iter().map(items).sum::<usize>())
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_within_the_bound(bytes in any_bytes(), most in 1_usize..300, many in 0_usize..50) {
        let bound = Bound { bytes: most, items: many };
        match RespReply::read(&bytes, bound) {
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
        let whole = RespReply::read(&bytes, bound);
        for end in 0..bytes.len() {
            match RespReply::read(&bytes[..end], bound) {
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

/// Whether another parser of the protocol parses a reply in the same way.
fn is_same(reply: &RespReply<'_>, other: &redis::Value) -> bool {
    use redis::Value;
    match (reply, other) {
        (RespReply::Simple(text), Value::Okay) => *text == b"OK",
        (RespReply::Simple(text), Value::SimpleString(other)) => *text == other.as_bytes(),
        (RespReply::Integer(number), Value::Int(other)) => number == other,
        (RespReply::Bulk(bytes), Value::BulkString(other)) => bytes == other,
        (RespReply::Array(items), Value::Array(others)) => {
            items.len() == others.len() && items.iter().zip(others).all(|(item, other)| is_same(item, other))
        }
        (RespReply::Array(items), Value::Map(others)) => {
            items.len() == 2 * others.len()
                && items
                    .chunks_exact(2)
                    .zip(others)
                    .all(|(pair, (name, value))| is_same(&pair[0], name) && is_same(&pair[1], value))
        }
        (RespReply::Push(items), Value::Push { data, .. }) => {
            // The first item is the kind of the push. The library reads an empty push as one without a kind.
            items.len().max(1) == 1 + data.len()
                && items.iter().skip(1).zip(data).all(|(item, other)| is_same(item, other))
        }
        (RespReply::Error(_), Value::ServerError(_)) | (RespReply::Nil, Value::Nil) => true,
        _ => false,
    }
}

/// A reply is either complete or not, and the client library parses it in the same way.
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
        let Ok(Some((reply, taken))) = RespReply::read(&bytes, BOUND) else { return };
        let whole = &bytes[..taken];
        for end in (0..taken).rev().take(64) {
            assert_eq!(RespReply::read(&whole[..end], BOUND), Ok(None), "{}", whole.escape_ascii());
        }
        if let Ok(other) = redis::parse_redis_value(whole) {
            assert!(is_same(&reply, &other), "{reply:?} {other:?}");
        }
    });
}
