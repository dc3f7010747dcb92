//! `tidegate lab`: the web page of the lab.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tidegate_redis::{RedisStore, Settings as RedisSettings};
use tokio_util::sync::CancellationToken;

use super::serve::refuse;
use super::{FAINT, GOOD, STRONG};
use crate::config::socket_address;
use crate::lab::{LabServer, LabState, Settings};
use crate::listen;
use crate::serve::Signals;

const EXAMPLES: &str = "\
Examples:
  tidegate lab
  tidegate lab --listen 127.0.0.1:0
  tidegate lab --store redis://127.0.0.1:6379      also offer runs on this Redis, in real time

Open the printed address in a browser. The page loads nothing from other hosts. The link of a run contains its seed and all
parameters, and reproduces the run exactly.";

/// Deadline of the store. A simulation can wait longer than a request.
const DEADLINE: Duration = Duration::from_secs(1);
/// Time for connections to close.
const GRACE: Duration = Duration::from_secs(1);

/// Serve the lab: a web page that shows the effect of limits on traffic, decision by decision.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Address and port to listen on. Port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9700", value_parser = address, env = "TIDEGATE_LAB_LISTEN")]
    listen: SocketAddr,

    /// URL of a Redis that runs may use as their store: redis://[user:password@]host[:port][/database], or rediss:// for TLS.
    #[arg(long, value_name = "URL", env = "TIDEGATE_LAB_STORE", hide_env_values = true)]
    store: Option<String>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    socket_address(text, 9_700)
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let redis = match &args.store {
            None => None,
            Some(url) => match open(url) {
                Ok(store) => Some(Arc::new(store)),
                Err(error) => return refuse(&format!("--store cannot be used: {error}")),
            },
        };
        let mut signals = Signals::receive()?;
        let at = listen::Settings { grace: GRACE, ..listen::Settings::at(args.listen) };
        let lab = LabState::new(Settings { redis, is_live: false, stop: CancellationToken::new() });
        let server = match LabServer::open(at, lab) {
            Ok(server) => server,
            Err(error) => return refuse(&error),
        };
        let mut out = anstream::stdout().lock();
        writeln!(out, "{GOOD}the lab is open{GOOD:#}: {STRONG}http://{}/lab/{STRONG:#}", server.address())?;
        writeln!(out, "{FAINT}Stop with Ctrl-C.{FAINT:#}")?;
        out.flush()?;
        drop(out);
        signals.stop().await;
        server.close().await;
        Ok(ExitCode::SUCCESS)
    })
}

fn open(url: &str) -> Result<RedisStore, tidegate_redis::SettingsError> {
    let mut settings = RedisSettings::standalone(url)?;
    settings.deadline = DEADLINE;
    RedisStore::open(settings)
}
