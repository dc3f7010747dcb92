//! Formats published rules and switches as text.

use tidegate_core::Timestamp;
use tidegate_redis::fleet::{Published, Signature};

use super::plain;

/// `by ann, 3 min ago`.
pub(super) fn by(signed: &Signature, now: Timestamp) -> String {
    format!("by {}, {}", plain(&signed.who), ago(signed.at, now))
}

/// `3 min ago`.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> String {
    let secs = now.as_micros().saturating_sub(at.as_micros()) / 1_000_000;
    match secs {
        0 => "just now".to_owned(),
        1..=119 => format!("{secs} s ago"),
        120..=7_199 => format!("{} min ago", secs / 60),
        7_200..=172_799 => format!("{} h ago", secs / 3_600),
        _ => format!("{} days ago", secs / 86_400),
    }
}

/// `, for 14 min more`.
pub(super) fn end(until: Timestamp, now: Timestamp) -> String {
    match until.since(now).get().div_ceil(1_000_000) {
        0 => format!(", ended {}", ago(until, now)),
        secs @ 1..=119 => format!(", for {secs} s more"),
        secs @ 120..=7_199 => format!(", for {} min more", secs.div_ceil(60)),
        secs @ 7_200..=172_799 => format!(", for {} h more", secs.div_ceil(3_600)),
        secs => format!(", for {} days more", secs.div_ceil(86_400)),
    }
}

/// Switches, one line each.
pub(super) fn switched(published: &Published) -> Vec<String> {
    let line = |what: &str, switched: &tidegate_redis::fleet::Switched| {
        let end = switched.until.map(|until| end(until, published.now)).unwrap_or_default();
        format!("{} to {}, {}{end}", plain(what), switched.mode, by(&switched.signed, published.now))
    };
    let all = published.modes.all.iter().map(|switched| line("all rules", switched));
    all.chain(published.modes.rules.iter().map(|(rule, switched)| line(rule, switched))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_a_unit_that_fits() {
        let told = |secs: u64| ago(Timestamp::from_secs(1_000_000), Timestamp::from_secs(1_000_000 + secs));
        for (secs, words) in [
            (0, "just now"),
            (1, "1 s ago"),
            (119, "119 s ago"),
            (120, "2 min ago"),
            (7_200, "2 h ago"),
            (86_400, "24 h ago"),
            (200_000, "2 days ago"),
        ] {
            assert_eq!(told(secs), words);
        }
        let left = |secs: u64| end(Timestamp::from_secs(1_000_000 + secs), Timestamp::from_secs(1_000_000));
        assert_eq!([left(900), left(90), left(0)], [", for 15 min more", ", for 90 s more", ", ended just now"]);
        // The clock stepped back.
        assert_eq!(ago(Timestamp::from_secs(2), Timestamp::from_secs(1)), "just now");
    }
}
