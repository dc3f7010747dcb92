//! The lab's page in a real Chromium, and what stands behind it.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

#[path = "../support/mod.rs"]
mod serving;

mod browser;
mod lab;

mod charts;
mod fields;
mod keyboard;
mod listener;
mod live;
mod looks;
mod phone;
mod reconnecting;
mod replay;
mod runs;
mod saving;
mod stores;
