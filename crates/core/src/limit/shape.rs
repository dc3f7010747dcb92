//! The shape of a limit.

use super::{Algorithm, Bucket, Gcra, Meter, Shaper, TokenBucket, Windows};

/// The shape of a limit, a hash of the parameters that determine how a state is read: limits of one shape read the same
/// spending from a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape(u64);

impl Shape {
    /// The number of bits of a shape. A store uses the other bits of the word.
    pub(crate) const BITS: u32 = 47;

    #[expect(clippy::cast_possible_truncation, reason = "a hash keeps some of the bits")]
    pub(super) fn of(algorithm: &Algorithm) -> Shape {
        let line = |kind, bucket: &Bucket| (kind, bucket.rate().drops_per_token(), bucket.rate().drops_per_micro());
        let (kind, a, b) = match algorithm {
            Algorithm::TokenBucket(TokenBucket { bucket }) | Algorithm::Meter(Meter { bucket }) => line(1, bucket),
            Algorithm::Gcra(Gcra { bucket }) => line(2, bucket),
            // A shaper's state is that of a GCRA, but its spending is places in a queue, to which other rules of refunds
            // apply.
            Algorithm::Shaper(Shaper { bucket }) => line(8, bucket),
            Algorithm::FixedWindow(limit) => match limit.windows() {
                Windows::Every(length) => (3, length.get(), 0),
                Windows::Calendar(calendar) => (4, calendar.longest().get(), 0),
            },
            Algorithm::SlidingWindow(limit) => (5, limit.part(), u64::from(limit.parts())),
            Algorithm::SlidingLog(limit) => (6, limit.window().get(), 0),
            Algorithm::Concurrency(_) => (7, 0, 0),
        };
        // Folded products with odd constants, so that a change of one bit changes about half of the bits of the result.
        let fold = |x: u64, k: u64| {
            let product = u128::from(x) * u128::from(k);
            (product >> 64) as u64 ^ product as u64
        };
        let mixed = fold(fold(kind ^ a.rotate_left(7), 0x9e37_79b9_7f4a_7c15) ^ b, 0xd6e8_feb8_6659_fd93);
        Shape(mixed & ((1 << Shape::BITS) - 1))
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}
