use proptest::prelude::*;
use tidegate_test_support::fuzz::{in_pieces, target, text};

use super::*;

const BOUNDS: RequestBounds = RequestBounds { words: 6, bytes: 64 };

/// Requests in `bytes`, received in chunks that end at `cuts`, and the final error.
fn read(bytes: &[u8], cuts: &[usize]) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    read_within(BOUNDS, bytes, cuts)
}

fn read_within(bounds: RequestBounds, bytes: &[u8], cuts: &[usize]) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let mut reader = RequestReader::new(bounds);
    let (mut requests, mut held) = (Vec::new(), Vec::new());
    let mut come = 0;
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).chain([bytes.len()]).collect();
    ends.sort_unstable();
    for end in ends {
        held.extend_from_slice(&bytes[come..end]);
        come = end;
        loop {
            match reader.read(&mut held) {
                Ok(Some(length)) => {
                    requests.push(reader.words(&held).iter().map(<[u8]>::to_vec).collect());
                    held.drain(..length);
                }
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

fn requests(bytes: &[u8]) -> Vec<Vec<String>> {
    let (requests, error) = read(bytes, &[]);
    assert_eq!(error, None);
    let text = |words: Vec<Vec<u8>>| words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    requests.into_iter().map(text).collect()
}

fn error(bytes: &[u8]) -> ProtocolError {
    read(bytes, &[]).1.unwrap_or_else(|| panic!("{} was taken", bytes.escape_ascii()))
}

#[test]
fn arrays_of_bulk_strings_and_lines_are_requests() {
    let bytes = b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\nPING\r\nECHO 'a b'\n*1\r\n$11\r\nCL.THROTTLE\r\n";
    assert_eq!(requests(bytes), [&["ECHO", "hi"][..], &["PING"], &["ECHO", "a b"], &["CL.THROTTLE"]]);
}

#[test]
fn words_may_hold_anything() {
    assert_eq!(requests(b"*2\r\n$0\r\n\r\n$4\r\n\r\n*1\r\n"), [["", "\r\n*1"]]);
}

#[test]
fn empty_requests_have_no_words() {
    assert_eq!(requests(b"*0\r\n*-1\r\n\r\n\n   \r\n"), [[""; 0]; 5]);
}

#[test]
fn incomplete_requests_wait() {
    for bytes in [
        "",
        "*",
        "*1",
        "*1\r",
        "*1\r\n",
        "*1\r\n$",
        "*1\r\n$4\r\nPIN",
        "*1\r\n$4\r\nPING",
        "*1\r\n$4\r\nPING\r",
        "PING",
    ] {
        assert_eq!(read(bytes.as_bytes(), &[]), (vec![], None), "{bytes}");
    }
}

#[test]
fn lengths_are_numbers_within_bounds() {
    for count in
        ["x", "", "+1", "01", "1 ", "- 1", "1\r0", "99999999999999999999", "1234567890123456789012345678901234567890"]
    {
        assert_eq!(error(format!("*{count}\r\n").as_bytes()), ProtocolError::WordCount, "{count}");
    }
    for length in ["x", "", "+1", "-1", "-2", "01", "4\n", "9223372036854775808", "0000000000000000000000000000000001"]
    {
        assert_eq!(error(format!("*1\r\n${length}\r\n").as_bytes()), ProtocolError::WordLength, "{length}");
    }
}

#[test]
fn large_requests_are_refused_by_their_announced_size() {
    for count in ["7", "100", "9223372036854775807"] {
        assert_eq!(error(format!("*{count}\r\n").as_bytes()), ProtocolError::TooManyWords { most: 6 });
    }
    for length in ["54", "1000", "536870912", "9223372036854775807"] {
        assert_eq!(error(format!("*1\r\n${length}\r\n").as_bytes()), ProtocolError::TooLong { most: 64 });
    }
    assert_eq!(read(b"*1\r\n$53\r\n", &[]), (vec![], None));
    assert_eq!(
        error(b"*2\r\n$40\r\n0123456789012345678901234567890123456789\r\n$20\r\n"),
        ProtocolError::TooLong { most: 64 }
    );
    assert_eq!(error(&[b'a'; 64]), ProtocolError::LineTooLong { most: 64 });
    assert_eq!(error(b"a b c d e f g\r\n"), ProtocolError::TooManyWords { most: 6 });
}

#[test]
fn nothing_nests() {
    assert_eq!(error(b"*1\r\n*1\r\n"), ProtocolError::NotAWord { got: b'*' });
    assert_eq!(error(b"*1\r\n%1\r\n"), ProtocolError::NotAWord { got: b'%' });
    assert_eq!(error(b"*1\r\n:1\r\n").to_string(), "expected '$', got ':'");
    assert_eq!(error(b"*1\r\n\r\n").to_string(), r"expected '$', got '\r'");
}

#[test]
fn a_word_ends_at_its_length() {
    assert_eq!(error(b"*1\r\n$4\r\nPINGS\r\n"), ProtocolError::NoLineBreak);
    assert_eq!(error(b"*1\r\n$4\r\nPING\n\n"), ProtocolError::NoLineBreak);
}

#[test]
fn numbers_are_read_as_redis_reads_them() {
    for (text, number) in
        [("0", 0), ("7", 7), ("-7", -7), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)]
    {
        assert_eq!(integer(text.as_bytes()), Some(number));
    }
    for text in [
        "",
        "-",
        "-0",
        "00",
        "007",
        "+7",
        " 7",
        "7 ",
        "1e3",
        "0x10",
        "9223372036854775808",
        "-9223372036854775809",
        "١",
    ] {
        assert_eq!(integer(text.as_bytes()), None, "{text}");
    }
}

/// Bytes that often resemble requests.
fn likely() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => Just(b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n".to_vec()),
        3 => (0usize..8).prop_map(|count| format!("*{count}\r\n").into_bytes()),
        3 => (0usize..20).prop_map(|length| format!("${length}\r\n").into_bytes()),
        3 => Just(b"\r\n".to_vec()),
        2 => Just(b"ping 'a b' \"c\\x20d\"\r\n".to_vec()),
        2 => proptest::collection::vec(any::<u8>(), 0..12),
        1 => Just(b"'".to_vec()),
        1 => Just(b"-1".to_vec()),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn it_does_not_matter_how_the_bytes_come(bytes in likely(), cuts in proptest::collection::vec(any::<usize>(), 0..6)) {
        let every: Vec<usize> = (0..bytes.len()).collect();
        let whole = read(&bytes, &[]);
        prop_assert_eq!(&read(&bytes, &cuts), &whole);
        prop_assert_eq!(&read(&bytes, &every), &whole);
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), cuts in proptest::collection::vec(any::<usize>(), 0..6)) {
        let (requests, _) = read(&bytes, &cuts);
        prop_assert!(requests.iter().all(|words| words.len() <= BOUNDS.words));
        prop_assert!(requests.iter().flatten().map(Vec::len).sum::<usize>() <= bytes.len());
    }

    #[test]
    fn receipts_round_trip(words in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9), 1..4)) {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in &words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        prop_assert_eq!(read(&bytes, &[]), (vec![words], None));
    }
}

/// Parsing does not depend on how the input is split, and round-trips.
#[test]
fn the_reader_takes_any_bytes_in_any_pieces() {
    const WORDS: [&str; 14] = [
        "*",
        "$",
        "\r\n",
        "1",
        "2",
        "-",
        "PING",
        "*1\r\n$4\r\nPING\r\n",
        "*2\r\n$2\r\nhi\r\n$0\r\n\r\n",
        "'",
        "\"\\x",
        " ",
        "$1000\r\n",
        "\n",
    ];
    target!("resp").for_each(|bytes: &[u8]| {
        let bytes = text(bytes, &WORDS);
        let whole = read(&bytes, &[]);
        for pieces in in_pieces(&bytes) {
            let cuts = pieces.iter().scan(0, |end, piece| {
                *end += piece.len();
                Some(*end)
            });
            assert_eq!(read(&bytes, &cuts.collect::<Vec<_>>()), whole);
        }
        let mut written = Vec::new();
        for words in &whole.0 {
            written.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                written.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                written.extend_from_slice(word);
                written.extend_from_slice(b"\r\n");
            }
        }
        // Encoded as arrays, inline commands are longer.
        let bounds = RequestBounds { bytes: 16 * BOUNDS.bytes, ..BOUNDS };
        assert_eq!(read_within(bounds, &written, &[]), (whole.0, None), "{}", bytes.escape_ascii());
    });
}
