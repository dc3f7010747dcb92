//! Parsing of limits.

use std::fmt;
use std::str::FromStr;

use super::unit::{COMMON_UNITS, TimeUnit, UNITS};
use super::{NotationError, closest};
use crate::limit::{
    Concurrency, FixedWindow, Gcra, Limit, LimitError, Meter, Rate, Shaper, SlidingLog, SlidingWindow, TokenBucket,
};
use crate::time::Micros;

const ALGORITHMS: [&str; 8] = ["token-bucket", "gcra", "meter", "shaper", "fixed", "sliding", "log", "concurrent"];

impl FromStr for Limit {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Limit, NotationError> {
        let mut words = Words::new(text);
        let limit = limit(&mut words)?;
        words.end(&[])?;
        Ok(limit)
    }
}

impl FromStr for Rate {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Rate, NotationError> {
        let mut words = Words::new(text);
        let (word, ratio) = words.ratio()?;
        words.end(&[])?;
        ratio.rate().map_err(|error| words.wrong(word, error))
    }
}

pub(super) fn span(text: &str) -> Result<Micros, NotationError> {
    let mut words = Words::new(text);
    let word = words.expect("a span of time, such as 30s")?;
    let (number, unit) = words.span(word)?;
    words.end(&[])?;
    Ok(Micros::new(number.saturating_mul(unit.micros)))
}

fn limit(words: &mut Words<'_>) -> Result<Limit, NotationError> {
    let algorithm = words.algorithm()?;
    match algorithm {
        "gcra" => bucket(words, "burst", Gcra::new),
        "meter" => bucket(words, "burst", Meter::new),
        "shaper" => bucket(words, "queue", Shaper::new),
        "fixed" => fixed_window(words),
        "sliding" => {
            let (word, ratio) = words.ratio()?;
            let parts = words.option("parts", &["parts"])?;
            let (word, parts) =
                parts.map_or((word, 1), |(word, parts)| (word, u32::try_from(parts).unwrap_or(u32::MAX)));
            let limit = SlidingWindow::with_parts(ratio.count, ratio.period(), parts);
            limit.map(Limit::from).map_err(|error| words.wrong(word, error))
        }
        "log" => {
            let (word, ratio) = words.ratio()?;
            SlidingLog::new(ratio.count, ratio.period()).map(Limit::from).map_err(|error| words.wrong(word, error))
        }
        "concurrent" => concurrency(words),
        _ => bucket(words, "burst", TokenBucket::new),
    }
}

fn bucket<L: Into<Limit>>(
    words: &mut Words<'_>,
    room: &'static str,
    build: impl FnOnce(u64, Rate) -> Result<L, LimitError>,
) -> Result<Limit, NotationError> {
    let (word, ratio) = words.ratio()?;
    let rate = ratio.rate().map_err(|error| words.wrong(word, error))?;
    let (word, capacity) = words.option(room, &[room])?.unwrap_or((word, ratio.count));
    build(capacity, rate).map(L::into).map_err(|error| words.wrong(word, error))
}

fn fixed_window(words: &mut Words<'_>) -> Result<Limit, NotationError> {
    let (word, ratio) = words.ratio()?;
    let limit = match words.peek() {
        Some(calendar) if calendar.text.eq_ignore_ascii_case("calendar") => {
            words.next();
            match (ratio.number, ratio.unit.calendar) {
                (1, Some(stretch)) => FixedWindow::calendar(ratio.count, stretch),
                _ => {
                    let problem = "the calendar has a day, week, month and year: write one of these as the period, such as 1000/month";
                    return Err(words.wrong(word, problem));
                }
            }
        }
        _ => {
            words.end_or(&["calendar"])?;
            FixedWindow::new(ratio.count, ratio.period())
        }
    };
    limit.map(Limit::from).map_err(|error| words.wrong(word, error))
}

fn concurrency(words: &mut Words<'_>) -> Result<Limit, NotationError> {
    let word = words.expect("a number of slots, such as concurrent 10 ttl 30s")?;
    let slots = words.number(word)?;
    let mut lease = (word, Concurrency::DEFAULT_TTL);
    if words.take_option("ttl", &["ttl"])? {
        let word = words.expect("how long a lease runs, such as 30s")?;
        let (number, unit) = words.span(word)?;
        lease = (word, Micros::new(number.saturating_mul(unit.micros)));
    }
    Concurrency::new(slots, lease.1).map(Limit::from).map_err(|error| {
        let word = if matches!(error, LimitError::LeaseLength { .. }) { lease.0 } else { word };
        words.wrong(word, error)
    })
}

/// A count over a period.
struct Ratio {
    count: u64,
    number: u64,
    unit: &'static TimeUnit,
}

impl Ratio {
    fn period(&self) -> Micros {
        Micros::new(self.number.saturating_mul(self.unit.micros))
    }

    fn rate(&self) -> Result<Rate, LimitError> {
        Rate::new(self.count, self.period())
    }
}

#[derive(Clone, Copy)]
struct Word<'a> {
    at: usize,
    text: &'a str,
}

impl<'a> Word<'a> {
    /// The part of the word from `from` to `to`.
    fn part(self, from: usize, to: usize) -> Word<'a> {
        Word { at: self.at + from, text: &self.text[from..to] }
    }
}

/// The words of a text, with their positions.
struct Words<'a> {
    text: &'a str,
    next: usize,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Words<'a> {
        Words { text, next: 0 }
    }

    fn peek(&self) -> Option<Word<'a>> {
        let rest = &self.text[self.next..];
        let at = self.next + (rest.len() - rest.trim_start().len());
        let text = self.text[at..].split_whitespace().next()?;
        Some(Word { at, text })
    }

    fn next(&mut self) -> Option<Word<'a>> {
        let word = self.peek()?;
        self.next = word.at + word.text.len();
        Some(word)
    }

    fn wrong(&self, word: Word<'_>, problem: impl fmt::Display) -> NotationError {
        NotationError::new(self.text, word.at, word.text.len(), problem)
    }

    fn expect(&mut self, what: &str) -> Result<Word<'a>, NotationError> {
        let end = Word { at: self.text.trim_end().len(), text: "" };
        self.next().ok_or_else(|| self.wrong(end, format_args!("something is missing: write {what}")))
    }

    /// Checks that no word follows. If one does, `options` are suggested for it.
    fn end(&self, options: &[&str]) -> Result<(), NotationError> {
        self.peek().map_or(Ok(()), |word| Err(self.unknown(word, options)))
    }

    /// Checks that no word follows except one of `options`.
    fn end_or(&self, options: &[&str]) -> Result<(), NotationError> {
        match self.peek() {
            Some(word) if !options.contains(&word.text) => Err(self.unknown(word, options)),
            _ => Ok(()),
        }
    }

    fn unknown(&self, word: Word<'_>, options: &[&str]) -> NotationError {
        match closest(word.text, options.iter().copied()) {
            Some(meant) => self.wrong(word, format_args!("not understood: did you mean `{meant}`?")),
            None if options.is_empty() => self.wrong(word, "not understood: nothing may follow here"),
            None => self.wrong(word, format_args!("not understood: only `{}` may follow here", options.join("` or `"))),
        }
    }

    /// The algorithm's name, if the text begins with one and not with a rate.
    fn algorithm(&mut self) -> Result<&'static str, NotationError> {
        let Some(word) = self.peek() else {
            return Err(self.wrong(Word { at: 0, text: "" }, "an empty limit: write one such as 20/s burst 50"));
        };
        if word.text.starts_with(|first: char| first.is_ascii_digit() || first == '/') {
            return Ok("token-bucket");
        }
        let name = word.text.to_lowercase();
        if let Some(known) = ALGORITHMS.iter().find(|known| **known == name) {
            self.next();
            return Ok(known);
        }
        Err(match closest(word.text, ALGORITHMS) {
            Some(meant) => self.wrong(word, format_args!("no such algorithm: did you mean `{meant}`?")),
            None => {
                let known = ALGORITHMS.join(", ");
                self.wrong(word, format_args!("neither a rate, such as 20/s, nor an algorithm: {known}"))
            }
        })
    }

    fn ratio(&mut self) -> Result<(Word<'a>, Ratio), NotationError> {
        let word = self.expect("a rate, such as 20/s")?;
        let Some(slash) = word.text.find('/') else {
            return Err(self.wrong(word, "not a rate: write a number, a slash and a period, such as 20/s or 300/3h"));
        };
        let count = self.number(word.part(0, slash))?;
        let (number, unit) = self.span(word.part(slash + 1, word.text.len()))?;
        Ok((word, Ratio { count, number, unit }))
    }

    /// A span such as `h` or `3h`.
    fn span(&self, word: Word<'_>) -> Result<(u64, &'static TimeUnit), NotationError> {
        let digits = word.text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(word.text.len());
        let number = if digits == 0 { 1 } else { self.number(word.part(0, digits))? };
        let name = word.part(digits, word.text.len());
        if name.text.is_empty() {
            return Err(self.wrong(name, format_args!("a unit of time is missing: write {COMMON_UNITS}")));
        }
        let unit = TimeUnit::named(name.text).ok_or_else(|| {
            let known = UNITS.iter().flat_map(|unit| unit.names.iter().copied()).filter(|name| name.len() > 2);
            match closest(name.text, known) {
                Some(meant) => self.wrong(name, format_args!("no such unit of time: did you mean `{meant}`?")),
                None => self.wrong(name, format_args!("no such unit of time: write {COMMON_UNITS}")),
            }
        })?;
        Ok((number, unit))
    }

    fn number(&self, word: Word<'_>) -> Result<u64, NotationError> {
        let digits = word.text.replace('_', "");
        if digits.is_empty() {
            return Err(self.wrong(word, "a number is missing here"));
        }
        if let Some(at) = word.text.find(|c: char| !c.is_ascii_digit() && c != '_') {
            let width = word.text[at..].chars().next().map_or(0, char::len_utf8);
            return Err(self.wrong(word.part(at, at + width), "not a digit: write a whole number, such as 20 or 1_000"));
        }
        digits.parse().map_err(|_| self.wrong(word, format_args!("too large: at most {}", u64::MAX)))
    }

    /// The number after the word `name`, if that word is next.
    fn option(&mut self, name: &str, options: &[&str]) -> Result<Option<(Word<'a>, u64)>, NotationError> {
        if !self.take_option(name, options)? {
            return Ok(None);
        }
        let word = self.expect("a whole number")?;
        Ok(Some((word, self.number(word)?)))
    }

    /// Whether the word `name` is next. Any other word is an error.
    fn take_option(&mut self, name: &str, options: &[&str]) -> Result<bool, NotationError> {
        match self.peek() {
            Some(word) if word.text.eq_ignore_ascii_case(name) => {
                self.next();
                Ok(true)
            }
            Some(word) => Err(self.unknown(word, options)),
            None => Ok(false),
        }
    }
}
