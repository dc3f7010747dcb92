//! The admin API over real sockets, and the commands built on it.

pub(crate) mod support;

mod access_control;
mod deploy;
mod keys;
mod live_feed;
mod modes;
mod openapi;
mod program;
mod rules;
