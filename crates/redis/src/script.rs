//! The Lua script that decides requests.
//!
//! Redis caches the script by its SHA-1 and runs it atomically, so a call takes effect at one instant. The script is one
//! chunk of Lua in several files. A call passes keys, the present instant (or nothing, for the server's clock) and one
//! [body](crate::Frame) for each request. It returns one [reply](crate::reply) for each request.

/// The whole script.
// The library is a function within a function: closures of the inner one access the locals of the outer one as upvalues,
// without table lookups. Creating closures is most of the cost of the library.
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
    include_str!("script/leased.lua"),
    include_str!("script/states.lua"),
    include_str!("script/decide.lua"),
    include_str!("script/hold.lua"),
    include_str!("script/adjust.lua"),
    include_str!("script/lease.lua"),
    include_str!("script/operations.lua"),
    "end)()\nend\n",
    include_str!("script/main.lua"),
);

#[cfg(test)]
mod tests;
