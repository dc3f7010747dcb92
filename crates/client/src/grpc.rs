//! gRPC: statuses and retry advice in the head of a response.
//!
//! A server that refuses a call answers with a head alone, which contains the status (a *trailers-only* response). Statuses
//! in trailers after a body are not read.

use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::times;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
pub(crate) const UNAVAILABLE: u32 = 14;

/// Padding is optional in gRPC.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A server's advice about retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Retry after this time.
    Wait(Duration),
    /// Do not retry.
    Never,
}

/// Whether a message is a gRPC message.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The status in the head of a response.
pub(crate) fn status(headers: &HeaderMap) -> Option<u32> {
    headers.get(STATUS)?.to_str().ok()?.parse().ok()
}

/// The retry advice in the head of a response.
pub(crate) fn advice(headers: &HeaderMap) -> Option<Advice> {
    if let Some(pushback) = headers.get(PUSHBACK) {
        // A negative or malformed value forbids retries.
        let number = pushback.to_str().ok().filter(|text| !text.contains('.'));
        let wait = number.and_then(|text| times::asked(text, Duration::from_millis(1)));
        return Some(wait.map_or(Advice::Never, Advice::Wait));
    }
    let details = BASE64.decode(headers.get(DETAILS)?.as_bytes()).ok()?;
    retry_delay(&details).map(|wait| Advice::Wait(wait.min(times::LONGEST_BELIEVED)))
}

/// The time limit of a call: `grpc-timeout`, a number of at most eight digits and a unit.
pub(crate) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(TIMEOUT)?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = if number.len() <= 8 { times::whole(number)? } else { return None };
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Writes `grpc-timeout` in the finest unit in which it has at most eight digits. Rounds down, but not to zero, because
/// gRPC requires a positive number.
pub(crate) fn set_timeout(headers: &mut HeaderMap, left: Duration) {
    const MOST: u128 = 99_999_999;
    const SECOND: u128 = 1_000_000_000;
    const UNITS: [(u128, char); 6] =
        [(1, 'n'), (1_000, 'u'), (1_000_000, 'm'), (SECOND, 'S'), (60 * SECOND, 'M'), (3_600 * SECOND, 'H')];
    let numbers = UNITS.iter().map(|(nanos, unit)| (left.as_nanos().max(1) / nanos, unit));
    let (number, unit) = numbers.into_iter().find(|(number, _)| *number <= MOST).unwrap_or((MOST, &'H'));
    if let Ok(value) = HeaderValue::try_from(format!("{number}{unit}")) {
        headers.insert(TIMEOUT, value);
    }
}

/// The delay of `google.rpc.RetryInfo` in a `google.rpc.Status`.
fn retry_delay(status: &[u8]) -> Option<Duration> {
    let details = ProtobufFields(status).filter(|field| field.number == 3).filter_map(|field| field.bytes);
    for any in details {
        let part = |number| ProtobufFields(any).find(|field| field.number == number).and_then(|field| field.bytes);
        if part(1).is_some_and(|kind| kind.ends_with(b"/google.rpc.RetryInfo")) {
            let delay = ProtobufFields(part(2)?).find(|field| field.number == 1)?.bytes?;
            let number = |number| {
                ProtobufFields(delay).find(|field| field.number == number).map_or(Some(0), |field| field.varint)
            };
            let nanos = u32::try_from(number(2)?).ok().filter(|nanos| *nanos < 1_000_000_000)?;
            // A negative number of seconds is one with the highest bit here.
            let seconds = number(1)?;
            return i64::try_from(seconds).is_ok().then(|| Duration::new(seconds, nanos));
        }
    }
    None
}

/// The fields of a protobuf message, up to the first malformed one.
struct ProtobufFields<'m>(&'m [u8]);

struct Field<'m> {
    number: u64,
    varint: Option<u64>,
    bytes: Option<&'m [u8]>,
}

impl<'m> ProtobufFields<'m> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'m [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'m> Iterator for ProtobufFields<'m> {
    type Item = Field<'m>;

    fn next(&mut self) -> Option<Field<'m>> {
        let tag = self.varint()?;
        let mut field = Field { number: tag >> 3, varint: None, bytes: None };
        match tag & 7 {
            0 => field.varint = Some(self.varint()?),
            1 => field.bytes = Some(self.take(8)?),
            2 => {
                let length = self.varint()?;
                field.bytes = Some(self.take(length)?);
            }
            5 => field.bytes = Some(self.take(4)?),
            _ => return None,
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    fn message(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn status_with_delay(delay: &[u8]) -> Vec<u8> {
        let info = [message(1, b"type.googleapis.com/google.rpc.RetryInfo"), message(2, &message(1, delay))].concat();
        let other = [message(1, b"type.googleapis.com/google.rpc.Help"), message(2, b"")].concat();
        [vec![8, 8], message(2, b"denied"), message(3, &other), message(3, &info)].concat()
    }

    #[test]
    fn retry_info_is_read_with_and_without_padding() {
        let status = status_with_delay(&[8, 3, 16, 0x80, 0xCA, 0xB5, 0xEE, 0x01]);
        let encoded = base64::engine::general_purpose::STANDARD.encode(status);
        let expected = Some(Advice::Wait(Duration::from_millis(3_500)));
        assert_eq!(advice(&with(DETAILS, &encoded)), expected);
        assert_eq!(advice(&with(DETAILS, encoded.trim_end_matches('='))), expected);
    }

    #[test]
    fn a_negative_delay_is_no_advice() {
        let minus_one = [8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
        assert_eq!(retry_delay(&status_with_delay(&minus_one)), None);
    }

    #[test]
    fn a_delay_beyond_belief_is_the_longest_that_is_believed() {
        let ten_thousand_years = [8, 0x80, 0xA0, 0xAD, 0x83, 0x9A, 0x09, 16, 7];
        let status = base64::engine::general_purpose::STANDARD.encode(status_with_delay(&ten_thousand_years));
        let longest = Some(Advice::Wait(times::LONGEST_BELIEVED));
        assert_eq!(advice(&with(DETAILS, &status)), longest);
        assert_eq!(advice(&with(PUSHBACK, "99999999999999999999")), longest);
    }

    #[test]
    fn pushback_may_forbid_retries() {
        assert_eq!(advice(&with(PUSHBACK, "250")), Some(Advice::Wait(Duration::from_millis(250))));
        assert_eq!(advice(&with(PUSHBACK, "-1")), Some(Advice::Never));
        assert_eq!(advice(&with(PUSHBACK, "later")), Some(Advice::Never));
    }

    #[test]
    fn timeouts_have_a_unit() {
        assert_eq!(timeout(&with(TIMEOUT, "250m")), Some(Duration::from_millis(250)));
        assert_eq!(timeout(&with(TIMEOUT, "2H")), Some(Duration::from_hours(2)));
        for text in ["", "5", "m", "123456789S", "-1S", "5é"] {
            let headers = HeaderMap::from_iter([(TIMEOUT, HeaderValue::from_bytes(text.as_bytes()).unwrap())]);
            assert_eq!(timeout(&headers), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_timeout_that_was_written_is_read_again(secs in 0_u64..300_000_000_000, nanos in 0_u32..1_000_000_000, shift in 0_u32..50) {
            let left = Duration::new(secs >> shift.min(38), nanos >> shift.min(29));
            let mut headers = HeaderMap::new();
            set_timeout(&mut headers, left);
            let read = timeout(&headers).unwrap();
            prop_assert!(!read.is_zero() && read <= left.max(Duration::from_nanos(1)));
            prop_assert!(left.saturating_sub(read) <= left / 50_000, "{left:?} became {read:?}");
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = retry_delay(&bytes);
        }
    }
}
