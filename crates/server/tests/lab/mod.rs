//! Tests of the lab's page in a real Chromium, and of its server.

mod page;

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
