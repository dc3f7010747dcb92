//! Replies: the headers, statuses and bodies that clients receive.

mod headers;
mod refusals;
mod support;
mod upstream_limits;
