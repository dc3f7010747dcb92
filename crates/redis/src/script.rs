//! The script that decides.
//!
//! Redis keeps it under its SHA and runs it whole, so what it does happens at one instant. Its parts are files of their
//! own; together they are one chunk of Lua. A call passes keys, the present instant (or nothing, for the server's own) and
//! one [body](crate::Frame) for each request; it returns one [reply](crate::reply) for each.

/// The whole script.
// The library is a function within a function: what is made in the inner one reaches the words of the outer one without
// looking for them, and making functions is most of what the library costs.
pub(crate) const SOURCE: &str = concat!(
    include_str!("script/head.lua"),
    "local function library(KEYS, now, slack, raws, places, lives)\n",
    include_str!("script/words.lua"),
    "return (function()\n",
    include_str!("script/kinds.lua"),
    include_str!("script/line.lua"),
    include_str!("script/bucket.lua"),
    include_str!("script/window.lua"),
    include_str!("script/sliding.lua"),
    include_str!("script/log.lua"),
    include_str!("script/slots.lua"),
    include_str!("script/states.lua"),
    include_str!("script/deciding.lua"),
    include_str!("script/holding.lua"),
    include_str!("script/changing.lua"),
    include_str!("script/operations.lua"),
    "end)()\nend\n",
    include_str!("script/main.lua"),
);

#[cfg(test)]
mod tests;
