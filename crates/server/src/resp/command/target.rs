//! What `TG.PEEK` and `TG.RESET` are about: a request, or one key of one rule.

use super::asked::{Asked, Misunderstood};
use crate::resp::request::Words;

pub(super) enum Target<'a> {
    /// `fact value …`.
    Request(Box<Asked<'a>>),
    /// `RULE id part …`: the values that the rule's key is made of.
    Key { rule: &'a str, parts: Vec<&'a str> },
}

impl<'a> Target<'a> {
    pub(super) fn decode(words: Words<'a>) -> Result<Target<'a>, Misunderstood> {
        if !words.get(0).is_some_and(|word| word.eq_ignore_ascii_case(b"RULE")) {
            return Asked::decode(words).map(|asked| Target::Request(Box::new(asked)));
        }
        let text = |word| std::str::from_utf8(word).map_err(|_| Misunderstood::NotText("rule"));
        let all: Vec<_> = words.after(1).iter().map(text).collect::<Result<_, _>>()?;
        match all.split_first() {
            Some((rule, parts)) => Ok(Target::Key { rule, parts: parts.to_vec() }),
            None => Err(Misunderstood::NoValue("rule")),
        }
    }
}
