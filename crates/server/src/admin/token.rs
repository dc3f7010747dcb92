//! Token of the admin API.

use std::fmt;

use http::HeaderValue;
use subtle::ConstantTimeEq;

/// Minimum length of a token: shorter ones can be guessed.
const SHORTEST: usize = 16;

/// A bearer token.
#[derive(Clone)]
pub struct Token(Box<str>);

/// A token that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token could be guessed.
    #[error("the token has {length} characters: use at least {SHORTEST}, such as the output of `openssl rand -hex 16`")]
    TooShort {
        /// Number of characters.
        length: usize,
    },
    /// The token could not be sent in a header.
    #[error(
        "the token has characters that are not allowed in a header: use letters, digits and punctuation, without spaces"
    )]
    Unsendable,
    /// The system's random source failed.
    #[error("a token cannot be generated: {0}")]
    NoRandomness(String),
}

impl Token {
    /// A token with this text.
    ///
    /// # Errors
    /// If it is too short, or cannot be sent in a header.
    pub fn new(text: &str) -> Result<Token, TokenError> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Unsendable);
        }
        match text.len() {
            length if length < SHORTEST => Err(TokenError::TooShort { length }),
            _ => Ok(Token(text.into())),
        }
    }

    /// Generates a random token.
    ///
    /// # Errors
    /// If the system's random source fails.
    pub fn random() -> Result<Token, TokenError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| TokenError::NoRandomness(error.to_string()))?;
        Ok(Token(format!("{:032x}", u128::from_ne_bytes(bytes)).into()))
    }

    /// The token, in clear.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether a header contains the token. Compares in constant time.
    pub(super) fn is_in(&self, header: Option<&HeaderValue>) -> bool {
        let sent = header.map(HeaderValue::as_bytes).and_then(|header| {
            let (scheme, sent) = header.split_at_checked("bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(sent)
        });
        sent.is_some_and(|sent| bool::from(self.0.as_bytes().ct_eq(sent)))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_token_is_let_in() {
        let token = Token::new("correct-horse-battery").unwrap();
        for (header, is_in) in [
            ("Bearer correct-horse-battery", true),
            ("bearer correct-horse-battery", true),
            ("Bearer correct-horse-battery ", false),
            ("Bearer correct-horse-batter", false),
            ("Bearer ", false),
            ("Bearer", false),
            ("", false),
            ("Basic correct-horse-battery", false),
            ("correct-horse-battery", false),
        ] {
            assert_eq!(token.is_in(Some(&HeaderValue::from_static(header))), is_in, "{header}");
        }
        assert!(!token.is_in(None));
    }

    #[test]
    fn short_or_unsendable_tokens_are_refused() {
        assert_eq!(Token::new("short").unwrap_err(), TokenError::TooShort { length: 5 });
        assert_eq!(Token::new("").unwrap_err(), TokenError::TooShort { length: 0 });
        assert_eq!(Token::new("with a space in between").unwrap_err(), TokenError::Unsendable);
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(one.reveal(), other.reveal());
        assert!(Token::new(one.reveal()).is_ok());
        assert!(!format!("{one:?}").contains(one.reveal()));
    }
}
