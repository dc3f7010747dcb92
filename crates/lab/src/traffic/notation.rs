//! The notation of traffic models.

use std::fmt;
use std::str::FromStr;

use tidegate_core::Micros;
use tidegate_core::limit::Rate;

use super::{FlowShape, Popularity, Spacing, Traffic};

/// An error in a traffic model, with the invalid word and a correction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}{}", near(.word))]
pub struct TrafficError {
    /// The invalid word. `None` if a word is missing at the end.
    pub word: Option<String>,
    /// The correction.
    pub problem: String,
}

fn near(word: &Option<String>) -> String {
    word.as_ref().map_or_else(|| ", but the text ends there".to_owned(), |word| format!(", not `{word}`"))
}

const MODELS: &str = "`steady`, `poisson`, `square`, `ramp`, `on-off`, `spike` or `boundary`";

impl FromStr for Traffic {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Traffic, TrafficError> {
        let spaced = text.replace('+', " + ");
        let mut words = TrafficWords { words: spaced.split_whitespace().collect(), at: 0 };
        let mut parts = vec![sequence(&mut words)?];
        while words.take("+") {
            parts.push(sequence(&mut words)?);
        }
        match words.next() {
            None => {}
            left => return Err(words.wrong(left, "write `then`, `+` or the end")),
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Traffic::Merged(parts) })
    }
}

struct TrafficWords<'t> {
    words: Vec<&'t str>,
    at: usize,
}

impl<'t> TrafficWords<'t> {
    fn next(&mut self) -> Option<&'t str> {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word
    }

    /// Consumes the next word if it is this one. Returns whether it was.
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, word: &str) -> Result<(), TrafficError> {
        match self.next() {
            Some(next) if next == word => Ok(()),
            other => Err(self.wrong(other, format!("write `{word}`"))),
        }
    }

    #[expect(clippy::unused_self, reason = "reads better beside the other methods of the parser")]
    fn wrong(&self, word: Option<&str>, problem: impl fmt::Display) -> TrafficError {
        TrafficError { word: word.map(str::to_owned), problem: problem.to_string() }
    }

    fn parsed<T: FromStr>(&mut self, wanted: &str) -> Result<T, TrafficError> {
        let word = self.next();
        word.and_then(|word| word.replace('_', "").parse().ok()).ok_or_else(|| self.wrong(word, wanted))
    }

    fn span(&mut self) -> Result<Micros, TrafficError> {
        let span: Micros = self.parsed("write a span of time, such as 10s")?;
        if span.is_zero() {
            return Err(self.wrong(self.words.get(self.at - 1).copied(), "write a span that is not empty, such as 10s"));
        }
        Ok(span)
    }

    fn rate(&mut self) -> Result<Rate, TrafficError> {
        self.parsed("write a rate, such as 20/s")
    }

    /// A rate, or none at all: `0` or `0/s`.
    fn rate_or_none(&mut self) -> Result<Option<Rate>, TrafficError> {
        let none = self.words.get(self.at).is_some_and(|word| *word == "0" || word.starts_with("0/"));
        if none {
            self.at += 1;
            return Ok(None);
        }
        self.rate().map(Some)
    }
}

fn sequence(words: &mut TrafficWords<'_>) -> Result<Traffic, TrafficError> {
    let (first, lasts) = part(words)?;
    if words.words.get(words.at) != Some(&"then") {
        return Ok(match lasts {
            Some(lasts) => Traffic::Sequence(vec![(first, lasts)]),
            None => first,
        });
    }
    let mut parts = vec![(first, lasts)];
    while words.take("then") {
        parts.push(part(words)?);
    }
    let last = parts.len() - 1;
    let with_lengths = parts.into_iter().enumerate().map(|(number, (traffic, lasts))| match (lasts, &traffic) {
        (Some(lasts), _) => Ok((traffic, lasts)),
        // The length of a spike is known.
        (None, Traffic::Spike { at, within, .. }) => {
            let lasts = Micros::new(at.get().saturating_add(within.get()).max(1));
            Ok((traffic, lasts))
        }
        (None, _) if number == last => Ok((traffic, FOREVER)),
        (None, _) => Err(words.wrong(Some("then"), "the part before has no duration: write `for 30s` after it")),
    });
    Ok(Traffic::Sequence(with_lengths.collect::<Result<_, _>>()?))
}

/// An unbounded length.
pub(super) const FOREVER: Micros = Micros::new(u64::MAX);

/// One part with its length.
fn part(words: &mut TrafficWords<'_>) -> Result<(Traffic, Option<Micros>), TrafficError> {
    let mut traffic = model(words)?;
    let mut lasts = None;
    loop {
        if words.take("random") {
            let Traffic::Flow { spacing, .. } = &mut traffic else {
                return Err(words.wrong(
                    Some("random"),
                    "write `random` right behind a flow: a steady rate, square, ramp or on-off",
                ));
            };
            *spacing = Spacing::Random;
        } else if words.take("clients") {
            let clients: u32 = words.parsed("write a number of clients")?;
            let exponent = if words.take("zipf") { words.parsed("write an exponent, such as 1.1")? } else { 0.0 };
            let popularity = Popularity::new(clients, exponent);
            traffic = Traffic::Clients { of: Box::new(traffic), popularity, first: 0 };
        } else if words.take("as") {
            let number: u32 = words.parsed("write the number of a client")?;
            if number >= super::MOST_CLIENTS {
                return Err(words
                    .wrong(words.words.get(words.at - 1).copied(), "write the number of a client below 10_000_000"));
            }
            traffic = match traffic {
                Traffic::Clients { of, popularity, .. } => Traffic::Clients { of, popularity, first: number },
                other => Traffic::Clients { of: Box::new(other), popularity: Popularity::new(1, 0.0), first: number },
            };
        } else if words.take("cost") {
            let cost = words.parsed("write a cost: a whole number")?;
            traffic = Traffic::Costing { of: Box::new(traffic), cost };
        } else if words.take("times") {
            let thousandths = thousandths(words)?;
            traffic = Traffic::Scaled { of: Box::new(traffic), thousandths };
        } else if words.take("for") {
            lasts = Some(words.span()?);
        } else {
            return Ok((traffic, lasts));
        }
    }
}

/// A factor between 0.001 and 1 000 000, in thousandths.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just before")]
fn thousandths(words: &mut TrafficWords<'_>) -> Result<u32, TrafficError> {
    let wanted = "write a factor from 0.001 to 1_000_000, such as 2";
    let factor: f64 = words.parsed(wanted)?;
    if (0.001..=1_000_000.0).contains(&factor) {
        Ok((factor * 1_000.0 + 0.5) as u32)
    } else {
        Err(words.wrong(words.words.get(words.at - 1).copied(), wanted))
    }
}

fn model(words: &mut TrafficWords<'_>) -> Result<Traffic, TrafficError> {
    let even = |shape| Traffic::Flow { shape, spacing: Spacing::Even };
    let word = words.next();
    match word {
        Some("steady") => Ok(even(FlowShape::Steady(words.rate()?))),
        Some("poisson") => Ok(Traffic::Flow { shape: FlowShape::Steady(words.rate()?), spacing: Spacing::Random }),
        Some("square") => {
            let (peak, base) = (words.rate()?, words.rate_or_none()?);
            words.expect("every")?;
            let period = words.span()?;
            if period < Micros::new(2) {
                return Err(words.wrong(Some("every"), "write a period of at least 2us"));
            }
            Ok(even(FlowShape::Square { peak, base, period }))
        }
        Some("ramp") => {
            let (from, to) = (words.rate_or_none()?, words.rate_or_none()?);
            words.expect("over")?;
            Ok(even(FlowShape::Ramp { from, to, over: words.span()? }))
        }
        Some("on-off") => {
            let rate = words.rate()?;
            words.expect("on")?;
            let on = words.span()?;
            words.expect("off")?;
            Ok(even(FlowShape::OnOff { rate, on, off: words.span()? }))
        }
        Some("spike") => {
            let count = words.parsed("write how many arrive: a whole number")?;
            let at = if words.take("at") { words.parsed("write a span of time, such as 10s")? } else { Micros::ZERO };
            let within = if words.take("within") { words.span()? } else { Micros::ZERO };
            Ok(Traffic::Spike { count, at, within })
        }
        Some("boundary") => {
            let count = words.parsed("write how many arrive on each side: a whole number")?;
            words.expect("every")?;
            Ok(Traffic::Boundary { count, window: words.span()? })
        }
        other => Err(words.wrong(other, format!("write {MODELS}"))),
    }
}

/// The notation, which [parses](FromStr) to the same model. Recorded traffic has none.
pub(super) fn write(traffic: &Traffic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let rate = |rate: &Option<Rate>| rate.map_or_else(|| "0".to_owned(), |rate| rate.to_string());
    match traffic {
        Traffic::Flow { shape: FlowShape::Steady(rate), spacing: Spacing::Random } => write!(f, "poisson {rate}"),
        Traffic::Flow { shape, spacing } => {
            match shape {
                FlowShape::Steady(rate) => write!(f, "steady {rate}")?,
                FlowShape::Square { peak, base, period } => {
                    write!(f, "square {peak} {} every {}", rate(base), span(*period))?;
                }
                FlowShape::Ramp { from, to, over } => {
                    write!(f, "ramp {} {} over {}", rate(from), rate(to), span(*over))?;
                }
                FlowShape::OnOff { rate, on, off } => write!(f, "on-off {rate} on {} off {}", span(*on), span(*off))?,
            }
            f.write_str(if *spacing == Spacing::Random { " random" } else { "" })
        }
        Traffic::Spike { count, at, within } => {
            write!(f, "spike {count}")?;
            if !at.is_zero() {
                write!(f, " at {}", span(*at))?;
            }
            if within.is_zero() { Ok(()) } else { write!(f, " within {}", span(*within)) }
        }
        Traffic::Boundary { count, window } => write!(f, "boundary {count} every {}", span(*window)),
        Traffic::Recorded(_) => f.write_str("recorded"),
        Traffic::Clients { of, popularity, first } => {
            write!(f, "{of}")?;
            if popularity.clients() > 1 {
                write!(f, " clients {}", popularity.clients())?;
            }
            if popularity.clients() > 1 && popularity.exponent() > 0.0 {
                write!(f, " zipf {}", popularity.exponent())?;
            }
            if *first > 0 || popularity.clients() == 1 { write!(f, " as {first}") } else { Ok(()) }
        }
        Traffic::Costing { of, cost } => write!(f, "{of} cost {cost}"),
        Traffic::Scaled { of, thousandths } => write!(f, "{of} times {}", f64::from(*thousandths) / 1_000.0),
        Traffic::Merged(parts) => joined(f, parts.iter(), " + ", |f, part| write!(f, "{part}")),
        Traffic::Sequence(parts) => joined(f, parts.iter(), " then ", |f, (part, lasts)| {
            write!(f, "{part}")?;
            if *lasts == FOREVER { Ok(()) } else { write!(f, " for {}", span(*lasts)) }
        }),
    }
}

fn joined<T>(
    f: &mut fmt::Formatter<'_>,
    parts: impl Iterator<Item = T>,
    between: &str,
    each: impl Fn(&mut fmt::Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    for (number, part) in parts.enumerate() {
        if number > 0 {
            f.write_str(between)?;
        }
        each(f, part)?;
    }
    Ok(())
}

/// A span in the largest unit that divides it.
fn span(span: Micros) -> String {
    const UNITS: [(u64, &str); 5] =
        [(86_400_000_000, "day"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms")];
    let micros = span.get();
    let unit = UNITS.iter().find(|(unit, _)| micros > 0 && micros.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{micros}us"), |(unit, name)| format!("{}{name}", micros / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_traffic_parses_back() {
        for text in [
            "steady 20/s",
            "poisson 20/s",
            "square 100/s 5/s every 10s",
            "square 100/s 0 every 10s random",
            "ramp 0 200/s over 1min",
            "on-off 50/s on 2s off 8s",
            "spike 500 at 30s within 1s",
            "spike 500",
            "boundary 100 every 1min",
            "poisson 200/s clients 500 zipf 1 + boundary 100 every 1s as 9000",
            "steady 10/s for 1min then spike 1000 for 1us then steady 10/s",
            "poisson 7/min clients 3 cost 5 times 2.5 for 90s",
            "steady 1/s clients 5 as 100",
        ] {
            let traffic: Traffic = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(traffic.to_string(), text);
            assert_eq!(traffic.to_string().parse::<Traffic>(), Ok(traffic));
        }
    }

    #[test]
    fn the_length_of_a_late_spike_does_not_overflow() {
        let traffic: Traffic = "spike 1 at 500_000year within 500_000year then steady 1/s".parse().unwrap();
        let Traffic::Sequence(parts) = traffic else { panic!("not a sequence") };
        assert_eq!(parts[0].1, FOREVER);
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, message) in [
            (
                "",
                "write `steady`, `poisson`, `square`, `ramp`, `on-off`, `spike` or `boundary`, but the text ends there",
            ),
            ("study 5/s", "or `boundary`, not `study`"),
            ("steady 5", "write a rate, such as 20/s, not `5`"),
            ("square 5/s 1/s", "write `every`, but the text ends there"),
            ("steady 5/s then steady 1/s", "write `for 30s` after it"),
            ("steady 5/s times 0", "write a factor from 0.001"),
            ("spike 5 random", "write `random` right behind a flow"),
            ("steady 5/s please", "write `then`, `+` or the end, not `please`"),
            ("on-off 5/s on 0s off 1s", "a span that is not empty"),
        ] {
            let error = text.parse::<Traffic>().unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
