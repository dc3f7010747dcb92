//! Realistic keys, 20 to 40 bytes long, and the order in which they are checked.

/// A fast generator of well-distributed numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// A generator with this seed. The same seed gives the same numbers.
    pub const fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next number.
    pub const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// The next number, below `bound`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.roll() as u128 * bound as u128) >> 64) as u64
    }
}

/// The final step of SplitMix64, which is a bijection.
const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

const LONGEST: usize = 40;

/// Writes key `number` to `into`, replacing its contents. Different numbers give different keys.
pub fn write_key(into: &mut String, number: u64) {
    let unique = mix(number);
    let more = mix(!number);
    into.clear();
    into.push_str("api:");
    push_hex(into, unique, 16);
    let extra = (more >> 32) % 21;
    push_hex(into, more, extra.min(16));
    push_hex(into, unique ^ more, extra.saturating_sub(16));
}

fn push_hex(into: &mut String, mut number: u64, digits: u64) {
    for _ in 0..digits {
        into.push(char::from(b"0123456789abcdef"[(number & 15) as usize]));
        number >>= 4;
    }
}

/// Calls `each` with all keys of `numbers`, each written to the same buffer, so that no set of keys takes memory.
pub fn for_each_key(numbers: std::ops::Range<u64>, mut each: impl FnMut(&String)) {
    let mut key = String::with_capacity(LONGEST);
    for number in numbers {
        write_key(&mut key, number);
        each(&key);
    }
}

/// Random keys in the order in which they are checked, so that reading the next one is as cheap as in a service that
/// has just parsed it from a request.
pub struct Order {
    keys: Vec<String>,
}

impl Order {
    /// An order with room for `length` keys.
    pub fn of_length(length: usize) -> Order {
        Order { keys: (0..length).map(|_| String::with_capacity(LONGEST)).collect() }
    }

    /// Draws all keys again, from the first `live` ones.
    pub fn draw(&mut self, live: u64, seed: u64) {
        let mut dice = Dice::new(mix(seed));
        for key in &mut self.keys {
            write_key(key, dice.below(live));
        }
    }

    /// The keys, in order.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }
}
