//! Shared by the tests of several parts.

pub(crate) mod redis_in_process;
pub(crate) mod server;
pub(crate) mod two_names;
