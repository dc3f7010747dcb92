//! Division by a number known in advance.

use std::num::NonZeroU64;

/// A divisor. Dividing by it takes a multiplication, which is several times as fast as the division instruction.
///
/// With `bits` so that `by ≤ 2^bits` and `factor = ⌊2^(63 + bits) / by⌋ + 1`, the quotient of any `n < 2^63` is
/// `⌊2n · factor / 2^(64 + bits)⌋`: the excess of the factor adds less than `n / 2^(63 + bits) < 1 / by` to it, too
/// little to reach the next whole number. Only the upper half of the product of two words is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Divisor {
    by: NonZeroU64,
    factor: u64,
    bits: u32,
}

const EXACT_BELOW: u64 = 1 << 63;

impl Divisor {
    /// The divisor `by`; zero counts as one.
    #[expect(clippy::cast_possible_truncation, reason = "it is at most 2^63 + 1")]
    pub(crate) const fn new(by: u64) -> Divisor {
        let Some(by) = NonZeroU64::new(by) else { return Divisor::new(1) };
        let bits = u64::BITS - (by.get() - 1).leading_zeros();
        if bits == u64::BITS {
            // `by` is larger than any such `n`.
            return Divisor { by, factor: 0, bits: 0 };
        }
        Divisor { by, factor: ((1_u128 << (63 + bits)) / by.get() as u128 + 1) as u64, bits }
    }

    #[inline]
    pub(crate) const fn get(self) -> u64 {
        self.by.get()
    }

    /// `n / by`, rounded down.
    #[inline]
    pub(crate) const fn divide(self, n: u64) -> u64 {
        if n >= EXACT_BELOW {
            return n / self.by.get();
        }
        let high = ((2 * n) as u128 * self.factor as u128) >> 64;
        (high as u64) >> self.bits
    }

    /// `n / by`, rounded up.
    #[inline]
    pub(crate) const fn divide_up(self, n: u64) -> u64 {
        let down = self.divide(n);
        down + (down * self.by.get() != n) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of every size, and the neighbours of powers of two.
    fn numbers() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0_u32..64, -1_i64..=1).prop_flat_map(|(any, shift, beside)| {
            prop_oneof![Just(any >> shift), Just((1_u64 << shift).wrapping_add_signed(beside))]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(tidegate_test_support::times(1_000)))]
        #[test]
        fn dividing_is_division(n in numbers(), by in numbers().prop_map(|by| by.max(1)), times in numbers()) {
            let divisor = Divisor::new(by);
            // A wrong quotient shows first next to multiples of the divisor.
            let multiple = by.saturating_mul(times);
            for n in [n, multiple, multiple.saturating_sub(1), multiple.saturating_add(1), EXACT_BELOW - 1, EXACT_BELOW, u64::MAX] {
                prop_assert_eq!(divisor.divide(n), n / by);
                prop_assert_eq!(divisor.divide_up(n), n.div_ceil(by));
            }
        }
    }
}
