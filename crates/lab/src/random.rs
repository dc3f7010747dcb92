//! Reproducible random numbers: the same on every machine.
//!
//! The generator is SplitMix64 (Steele, Lea and Flood, 2014), implemented here so that a seed gives the same run with any
//! versions of other crates. Derived numbers use only `+`, `−`, `×`, `÷`, roots and rounding, whose results IEEE 754
//! defines to the last bit. The logarithm and the exponential are implemented here too, because those of mathematics
//! libraries differ in the last bit between systems.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// A stream of random numbers, determined by its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

/// The golden ratio, in 64 bits.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The stream for a seed.
    #[must_use]
    pub const fn seeded(seed: u64) -> Random {
        Random { state: seed }
    }

    /// A seed derived from this one. Each part of a model uses a different one, so that the parts draw independently.
    #[must_use]
    pub const fn branch(seed: u64, number: u64) -> u64 {
        mix(seed ^ mix(number.wrapping_add(1).wrapping_mul(STEP)))
    }

    /// 64 random bits.
    #[inline]
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// A random integer below `bound`, or zero if `bound` is zero. Probabilities differ by at most `bound / 2^64`,
    /// relatively.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A random number above 0 and up to 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        const SCALE: f64 = 1.0 / (1_u64 << 53) as f64;
        ((self.bits() >> 11) + 1) as f64 * SCALE
    }

    /// An exponentially distributed number with mean 1: the time to the next event of a Poisson process.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -ln(self.unit())
    }
}

/// The natural logarithm of a positive, normal number, within a few units of the last place.
#[inline]
pub(crate) fn ln(x: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    const ONE: u64 = 1023 << 52;
    let bits = x.to_bits();
    // x = m · 2^e, with m between √½ and √2.
    let mut m = f64::from_bits(bits & FRACTION | ONE);
    let mut e = i32::try_from(bits >> 52 & 0x7ff).unwrap_or(0) - 1023;
    if m > SQRT_2 {
        m *= 0.5;
        e += 1;
    }
    // ln m = 2 artanh z = 2 (z + z³/3 + z⁵/5 + …); |z| < 0.172, so eleven terms are enough.
    let z = (m - 1.0) / (m + 1.0);
    let w = z * z;
    let mut sum = 1.0 / 23.0;
    for odd in [21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0_f64] {
        sum = sum * w + 1.0 / odd;
    }
    f64::from(e) * LN_2 + 2.0 * z * sum
}

/// The exponential of a number, within a few units of the last place; 0 below about −708, and never infinite.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within −1022 and 1023")]
pub(crate) fn exp(x: f64) -> f64 {
    if x < -708.0 {
        return 0.0;
    }
    let k = (x.min(709.0) * LOG2_E + 0.5).floor();
    let r = x.min(709.0) - k * LN_2;
    let mut sum = 1.0;
    for n in (1..=18_u32).rev() {
        sum = sum * r / f64::from(n) + 1.0;
    }
    sum * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // The first numbers of SplitMix64 with the seed 1234567, from its authors' C code.
        let mut random = Random::seeded(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn logarithm_and_exponential_are_right() {
        for x in [1e-300, 1e-9, 0.1, 0.5, 0.707, 0.708, 0.999_999, 1.0, 1.4, 1.5, 2.0, 10.0, 12_345.678, 1e300] {
            assert!((ln(x) - x.ln()).abs() <= 4.0 * f64::EPSILON * x.ln().abs().max(0.1), "ln {x}");
        }
        for x in [-700.0, -20.5, -1.0, -1e-9, 0.0, 0.3, 1.0, 9.99, 700.0_f64] {
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-13, "exp {x}");
        }
        assert_eq!(exp(-1e9), 0.0);
    }

    #[test]
    fn the_bits_of_what_is_computed_are_fixed() {
        let mut random = Random::seeded(1);
        let sum: f64 = (0..1_000).map(|_| random.exponential()).sum();
        assert_eq!(sum.to_bits(), EXPONENTIALS, "{sum}");
        let powers: f64 = (1..1_000).map(|n| exp(-1.1 * ln(f64::from(n)))).sum();
        assert_eq!(powers.to_bits(), POWERS, "{powers}");
    }

    /// The sums of the test above, which must be the same on every machine.
    const EXPONENTIALS: u64 = 4_652_341_060_417_948_241;
    const POWERS: u64 = 4_617_959_899_176_483_903;

    #[test]
    fn branches_differ() {
        let mut seeds: Vec<u64> = (0..100).map(|number| Random::branch(7, number)).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 100);
    }
}
