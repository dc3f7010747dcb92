//! The script that decides.
//!
//! Redis keeps it under its SHA and runs it whole, so what it does happens at one instant. Its parts are files of their
//! own; together they are one chunk of Lua. A call passes keys, the present instant (or nothing, for the server's own) and
//! one [body](crate::Frame) for each request; it returns one [reply](crate::reply) for each.

/// The whole script.
pub(crate) const SOURCE: &str = concat!(
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

#[cfg(test)]
mod tests;
