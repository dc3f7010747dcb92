//! The script that decides.
//!
//! Redis keeps it under its SHA and runs it whole, so what it does happens at one instant. Its parts are files of their
//! own; together they are one chunk of Lua. A call passes keys, the present instant (or nothing, for the server's own) and
//! one [body](crate::Frame) for each request; it returns one [reply](crate::reply) for each.

use std::sync::LazyLock;

use redis::Cmd;

use crate::frame::Frame;

/// The whole script.
pub(crate) static SCRIPT: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(SOURCE));

const SOURCE: &str = concat!(
    include_str!("script/setup.lua"),
    include_str!("script/bucket.lua"),
    include_str!("script/window.lua"),
    include_str!("script/sliding.lua"),
    include_str!("script/log.lua"),
    include_str!("script/slots.lua"),
    include_str!("script/states.lua"),
    include_str!("script/requests.lua"),
    include_str!("script/main.lua"),
);

/// One call of the script for all `frames`, at the instant `now` in microseconds; empty for the server's own.
pub(crate) fn command(frames: &[Frame], now: &str) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(SCRIPT.get_hash()).arg(frames.iter().map(|frame| frame.keys.len()).sum::<usize>());
    for key in frames.iter().flat_map(|frame| &frame.keys) {
        command.arg(&key[..]);
    }
    command.arg(now);
    for frame in frames {
        command.arg(&frame.body[..]);
    }
    command
}

#[cfg(test)]
mod tests;
