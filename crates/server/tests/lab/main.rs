//! Tests of the lab's page in a real Chromium, and of its server.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

#[path = "../support/mod.rs"]
mod serving;

#[path = "../admin/support.rs"]
#[expect(dead_code, reason = "the page needs a part of it")]
mod operating;

mod browser;
mod lab;

mod charts;
mod fields;
mod keyboard;
mod listener;
mod live;
mod looks;
mod phone;
mod replay;
mod runs;
mod saved_runs;
mod stores;
mod stream_reconnects;
