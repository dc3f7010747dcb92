//! Target of `TG.PEEK` and `TG.RESET`: a request, or one key of one rule.

use super::facts::{FactError, RequestFacts};
use crate::resp::request::RequestWords;

pub(super) enum KeyTarget<'a> {
    /// `fact value …`: a request.
    Request(Box<RequestFacts<'a>>),
    /// `RULE id part …`: the parts of a rule's key.
    Key { rule: &'a str, parts: Vec<&'a str> },
}

impl<'a> KeyTarget<'a> {
    pub(super) fn decode(words: RequestWords<'a>) -> Result<KeyTarget<'a>, FactError> {
        if !words.get(0).is_some_and(|word| word.eq_ignore_ascii_case(b"RULE")) {
            return RequestFacts::decode(words).map(|asked| KeyTarget::Request(Box::new(asked)));
        }
        let text = |word| std::str::from_utf8(word).map_err(|_| FactError::NotText("rule"));
        let all: Vec<_> = words.after(1).iter().map(text).collect::<Result<_, _>>()?;
        match all.split_first() {
            Some((rule, parts)) => Ok(KeyTarget::Key { rule, parts: parts.to_vec() }),
            None => Err(FactError::NoValue("rule")),
        }
    }
}
