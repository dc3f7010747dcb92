//! Look-ups compared with a plain scan of the tree without an index.

use proptest::prelude::*;
use tidegate_rules::envoy::Allowance;

use super::rules;

/// A descriptor of a file, with the number of its limit, if it has one.
#[derive(Clone, Debug)]
struct Described {
    key: String,
    value: String,
    limit: Option<u32>,
    share: bool,
    below: Vec<Described>,
}

impl Described {
    fn composite(&self) -> String {
        if self.value.is_empty() { self.key.clone() } else { format!("{}_{}", self.key, self.value) }
    }

    fn write(&self, indent: usize, text: &mut String) {
        let pad = " ".repeat(indent);
        text.push_str(&format!("{pad}- key: \"{}\"\n{pad}  value: \"{}\"\n", self.key, self.value));
        text.push_str(&format!("{pad}  share_threshold: {}\n", self.share));
        if let Some(limit) = self.limit {
            text.push_str(&format!("{pad}  rate_limit: {{ unit: hour, requests_per_unit: {limit} }}\n"));
        }
        if !self.below.is_empty() {
            text.push_str(&format!("{pad}  descriptors:\n"));
            self.below.iter().for_each(|below| below.write(indent + 4, text));
        }
    }
}

/// Matches by trying every length for the star, one character at a time.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skipped| matches(rest, &text[skipped..])),
        Some((first, rest)) => text.split_first().is_some_and(|(byte, text)| byte == first && matches(rest, text)),
    }
}

/// The limit (`None` for a whitelist) and the identity of the bucket: the path, and how each entry counts.
type Naive = (Option<u32>, Vec<String>);

fn scan(level: &[Described], entries: &[(String, String)]) -> Option<Naive> {
    let ((key, value), rest) = entries.split_first()?;
    let joined = format!("{key}_{value}");
    let exact = level.iter().find(|known| known.composite() == joined);
    let pattern = level
        .iter()
        .find(|known| known.composite().contains('*') && matches(known.composite().as_bytes(), joined.as_bytes()));
    let bare = level.iter().find(|known| known.composite() == *key);
    let reached = exact.or(pattern).or(bare)?;
    let counted = match (exact, pattern) {
        (Some(_), _) => joined,
        (None, Some(pattern)) if pattern.share => key.clone(),
        (None, _) => format!("{key} {value}"),
    };
    let (limit, mut bucket) = if rest.is_empty() {
        match reached.limit {
            None if !reached.below.is_empty() => return None,
            limit => (limit, Vec::new()),
        }
    } else {
        scan(&reached.below, rest)?
    };
    bucket.extend([reached.composite(), counted]);
    Some((limit, bucket))
}

/// Few letters, so that keys match often.
fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "a_b", "a_", "a*"]).prop_map(str::to_owned)
}

fn pattern() -> impl Strategy<Value = String> {
    "[ab_*]{0,3}"
}

fn level(depth: u32) -> BoxedStrategy<Vec<Described>> {
    let below = if depth == 0 { Just(Vec::new()).boxed() } else { level(depth - 1) };
    let described = (key(), pattern(), prop::option::of(1..1_000_u32), any::<bool>(), below).prop_map(
        |(key, value, limit, share, below)| {
            let share = share && format!("{key}{value}").contains('*');
            Described { key, value, limit, share, below }
        },
    );
    prop::collection::vec(described, 0..5)
        .prop_map(|mut level: Vec<Described>| {
            let mut seen = std::collections::BTreeSet::new();
            level.retain(|described| seen.insert(described.composite()));
            level
        })
        .boxed()
}

fn asked() -> impl Strategy<Value = Vec<(String, String)>> {
    let key = prop::sample::select(vec!["a", "b", "a_b", "a_", "a*"]).prop_map(str::to_owned);
    prop::collection::vec((key, "[ab_*]{0,3}"), 0..4)
}

proptest! {
    #[test]
    fn lookup_is_a_plain_scan(
        descriptors in level(2),
        requests in prop::collection::vec(asked(), 1..20),
    ) {
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        descriptors.iter().for_each(|described| described.write(2, &mut text));
        let rules = rules(&text);
        let domain = rules.domain("d").unwrap();
        let borrowed: Vec<Vec<(&str, &str)>> = requests
            .iter()
            .map(|entries| entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
            .collect();
        let mut seen = Vec::new();
        for (entries, borrowed) in requests.iter().zip(&borrowed) {
            let expected = scan(&descriptors, entries);
            let found = domain.find(borrowed);
            prop_assert_eq!(found.is_some(), expected.is_some(), "{:?} in {}", entries, text);
            let (Some(found), Some((limit, bucket))) = (found, expected) else { continue };
            let allowed = match found.allowance {
                Allowance::Limited(limit) => Some(limit.capacity()),
                Allowance::Whitelisted => None,
                Allowance::Unlimited => unreachable!("none is written"),
            };
            prop_assert_eq!(allowed, limit.map(u64::from), "{:?} in {}", entries, text);
            for (entries_before, rule, key, bucket_before) in &seen {
                let same = *rule == found.rule && *key == found.key;
                prop_assert_eq!(same, *bucket_before == bucket, "{:?} and {:?} in {}", entries_before, entries, text);
            }
            seen.push((entries, found.rule, found.key, bucket));
        }
    }
}
