//! Reads the expiry of a certificate.

use rustls::pki_types::CertificateDer;
use tidegate_core::time::Date;

use crate::identity::der::{Der, INTEGER, SEQUENCE};

/// Explicit tag of the version, which is optional.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// End of a certificate's validity (RFC 5280, section 4.1.2.5), in seconds since the Unix epoch. `None` if it is
/// malformed, or before the epoch.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Option<u64> {
    let mut fields = Der::new(certificate).inside(SEQUENCE)?.inside(SEQUENCE)?;
    let (first, _) = fields.next()?;
    if first == VERSION {
        fields.value(INTEGER)?;
    }
    // Signature algorithm and issuer.
    fields.value(SEQUENCE)?;
    fields.value(SEQUENCE)?;
    let mut validity = fields.inside(SEQUENCE)?;
    validity.next()?;
    let (tag, text) = validity.next()?;
    let text = std::str::from_utf8(text).ok()?;
    match tag {
        UTC_TIME => {
            // Two-digit years stand for 1950 to 2049.
            let year: u64 = text.get(..2)?.parse().ok()?;
            seconds(if year < 50 { 2_000 + year } else { 1_900 + year }, text.get(2..)?)
        }
        GENERALIZED_TIME => seconds(text.get(..4)?.parse().ok()?, text.get(4..)?),
        _ => None,
    }
}

/// Seconds from the Unix epoch to `MMDDHHMMSSZ` of a year.
fn seconds(year: u64, rest: &str) -> Option<u64> {
    let digits = rest.strip_suffix('Z').filter(|digits| digits.len() == 10 && digits.is_ascii())?;
    let part = |place: usize| digits.get(place..place + 2)?.parse::<u64>().ok();
    let (month, day, hour, minute, second) = (part(0)?, part(2)?, part(4)?, part(6)?, part(8)?);
    let days = u64::try_from(Date::new(year, month, day)?.days_since_epoch()).ok()?;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn both_ways_to_write_a_time_are_read() {
        for (year, month, day, expiry) in [
            (1999, 12, 31, 946_598_400),
            (2000, 2, 29, 951_782_400),
            (2024, 3, 1, 1_709_251_200),
            (2049, 12, 31, 2_524_521_600),
            // Years from 2050 on have four digits.
            (2050, 1, 1, 2_524_608_000),
            (2400, 2, 29, 13_574_563_200),
        ] {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_before = date_time_ymd(1980, 1, 1);
            params.not_after = date_time_ymd(year, month, day);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(not_after(certificate.der()), Some(expiry), "{year}-{month}-{day}");
        }
    }

    #[test]
    fn other_files_have_no_expiry() {
        for bytes in [&b""[..], &[0x30, 0], &[0x30, 2, 0x30, 0], &[0x30, 0x83, 0xff, 0xff, 0xff]] {
            assert_eq!(not_after(&CertificateDer::from(bytes)), None);
        }
        assert_eq!(seconds(2024, "1301000000Z"), None);
        assert_eq!(seconds(2024, "0101000000"), None);
    }
}
