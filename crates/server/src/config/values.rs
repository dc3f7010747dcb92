//! Parsers of setting values.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_rules::yaml::closest;

use super::error::InvalidValue;
use crate::admin::Token;

pub(super) fn text(value: &str) -> Result<String, InvalidValue> {
    Ok(value.to_owned())
}

/// Parses the admin token. Errors do not quote it.
pub(super) fn token(value: &str) -> Result<Token, InvalidValue> {
    Token::new(value).map_err(|error| InvalidValue::new(error.to_string(), ""))
}

/// Parses a name and a password. Errors do not quote them: without a colon, the text may be the password.
pub(super) fn login(value: &str) -> Result<(&str, &str), InvalidValue> {
    match value.split_once(':') {
        Some((name, password)) if !password.is_empty() && is_name(name) => Ok((name, password)),
        Some((name, _)) if !is_name(name) => {
            Err(InvalidValue::new("a user's name is empty, or contains spaces", "write one such as `ann:tea`"))
        }
        _ => Err(InvalidValue::new("a user has no password", "write the name, a colon and the password: `ann:tea`")),
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Parses a socket address such as `127.0.0.1:8080`; `None` for off.
pub(super) fn address(value: &str) -> Result<Option<SocketAddr>, InvalidValue> {
    if matches!(value, "off" | "false" | "no") {
        return Ok(None);
    }
    socket_address(value, 8_080)
        .map(Some)
        .map_err(|help| InvalidValue::new(format!("`{value}` is neither an address with a port nor `off`"), help))
}

/// Parses an address and a port. The error suggests what to write, with `port` as an example.
pub(crate) fn socket_address(text: &str, port: u16) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match (text.rsplit_once(':'), text.parse::<IpAddr>()) {
        (Some(("" | "*", port)), _) => format!("write `0.0.0.0:{port}` for all addresses, or `127.0.0.1:{port}`"),
        (Some(("localhost", port)), _) => format!("write `127.0.0.1:{port}`"),
        (_, Ok(address)) => format!("add a port: `{}`", SocketAddr::new(address, port)),
        _ if text.parse::<u16>().is_ok() => format!("write `127.0.0.1:{text}`"),
        _ => format!("write an address and a port such as `127.0.0.1:{port}` or `[::]:{port}`"),
    })
}

pub(super) fn flag(value: &str) -> Result<bool, InvalidValue> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(InvalidValue::new(format!("`{value}` is neither true nor false"), "write `true` or `false`")),
    }
}

/// Parses a whole number within bounds.
pub(super) fn count(least: usize, most: usize) -> impl Fn(&str) -> Result<usize, InvalidValue> {
    move |value| match value.replace('_', "").parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(number) => Err(InvalidValue::new(format!("{number} is out of range"), format!("write {least} to {most}"))),
        Err(_) => Err(InvalidValue::new(format!("`{value}` is not a whole number"), "write one such as 20 or 1_000")),
    }
}

/// Parses a whole number within bounds, or `None` for off.
pub(super) fn count_or_off(least: usize, most: usize) -> impl Fn(&str) -> Result<Option<usize>, InvalidValue> {
    move |value| match value {
        "off" | "false" | "no" => Ok(None),
        value => count(least, most)(value).map(Some),
    }
}

/// Parses a number from 0 to 1.
pub(super) fn share(value: &str) -> Result<f64, InvalidValue> {
    match value.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(InvalidValue::new(format!("`{value}` is not a share"), "write a number from 0 to 1, such as 0.01")),
    }
}

/// Parses a duration within bounds.
pub(super) fn span(least: Duration, most: Duration) -> impl Fn(&str) -> Result<Duration, InvalidValue> {
    move |value| {
        let span: Micros = match value {
            "0" | "0s" => Micros::ZERO,
            value => value.parse().map_err(|error: tidegate_core::NotationError| {
                let is_bare = value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') && !value.is_empty();
                let help = match is_bare {
                    true => format!("add a unit: `{value}s` for seconds, or `ms`, `min`, `h`"),
                    false => error.problem().to_owned(),
                };
                InvalidValue::new(format!("`{value}` is not a duration"), help)
            })?,
        };
        let span = Duration::from(span);
        if (least..=most).contains(&span) {
            return Ok(span);
        }
        let (least, most) = (Micros::from(least), Micros::from(most));
        Err(InvalidValue::new(format!("`{value}` is out of range"), format!("write {least} to {most}")))
    }
}

/// Parses a duration within bounds, or `None` for off.
pub(super) fn span_or_off(least: Duration, most: Duration) -> impl Fn(&str) -> Result<Option<Duration>, InvalidValue> {
    move |value| match value {
        "off" | "false" | "no" => Ok(None),
        value => span(least, most)(value).map(Some),
    }
}

/// Parses one of a few words.
pub(super) fn choice<T: Copy>(choices: &[(&'static str, T)]) -> impl Fn(&str) -> Result<T, InvalidValue> {
    move |value| {
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == value) {
            return Ok(*choice);
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let all = names.join("`, `");
        let help = match closest(value, names.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`? There are `{all}`"),
            None => format!("write one of `{all}`"),
        };
        Err(InvalidValue::new(format!("there is no `{value}`"), help))
    }
}

/// Parses a header name.
pub(super) fn header(value: &str) -> Result<http::HeaderName, InvalidValue> {
    let wrong =
        |_| InvalidValue::new(format!("`{value}` cannot be the name of a header"), "write one such as `X-User`");
    value.parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_suggest_what_to_write() {
        let help = |wrong: Result<_, InvalidValue>| wrong.unwrap_err().help;
        assert_eq!(help(address(":8080")), "write `0.0.0.0:8080` for all addresses, or `127.0.0.1:8080`");
        assert_eq!(help(address("localhost:80")), "write `127.0.0.1:80`");
        assert_eq!(help(address("127.0.0.1")), "add a port: `127.0.0.1:8080`");
        assert_eq!(help(address("::1")), "add a port: `[::1]:8080`");
        assert_eq!(help(address("8080")), "write `127.0.0.1:8080`");
        assert!(help(address("here")).contains("`127.0.0.1:8080`"));
        assert_eq!(flag("maybe").unwrap_err().help, "write `true` or `false`");
        assert_eq!(count(1, 9)("10").unwrap_err().help, "write 1 to 9");
        assert_eq!(span(Duration::ZERO, Duration::from_secs(3_600))("2h").unwrap_err().help, "write 0s to 1h");
        assert!(share("0.5").is_ok() && share("1.5").is_err() && share("NaN").is_err() && share("-0.1").is_err());
        assert_eq!(
            choice(&[("text", 1), ("json", 2)])("jason").unwrap_err().help,
            "did you mean `json`? There are `text`, `json`"
        );
        assert!(help(login("tea").map(|_| None)).contains("`ann:tea`"));
        assert!(!format!("{:?}", login("s3cret")).contains("s3cret"));
        assert_eq!(login("ann:").unwrap_err().problem, "a user has no password");
        assert!(login(":tea").is_err() && login("an n:tea").is_err());
        assert_eq!(choice(&[("a", 1), ("b", 2)])("memory").unwrap_err().help, "write one of `a`, `b`");
    }

    #[test]
    fn values_are_what_they_say() {
        assert_eq!(login("ann:tea:time"), Ok(("ann", "tea:time")));
        assert_eq!(address("off"), Ok(None));
        assert_eq!(address("[::1]:80"), Ok(Some("[::1]:80".parse().unwrap())));
        assert_eq!(count(1, 10_000)("10_000"), Ok(10_000));
        assert_eq!(span(Duration::ZERO, Duration::from_secs(9))("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(span(Duration::ZERO, Duration::from_secs(9))("0s"), Ok(Duration::ZERO));
    }
}
