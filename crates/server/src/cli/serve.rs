//! `tidegate serve`: runs the server.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use super::banner::{Banner, api_example, rls_example};
use super::settings_args::{SettingsArgs, variables};
use super::{ERROR, plain_text};
use crate::admin::Token;
use crate::config::Configuration;
use crate::serve::{self, Server, Signals};
use crate::{listen, log};

const EXAMPLES: &str = "\
Examples:
  tidegate serve                                        state in memory, example rules
  tidegate serve --rules rules.yaml                     your own rules, reloaded when they change
  tidegate serve --upstream http://localhost:3000 --rules rules.yaml   in front of your service, as a gateway
  tidegate serve --config tidegate.yaml                 settings from a file
  tidegate serve --redis redis://10.0.0.5:6379          state shared by a fleet

Each setting is a flag (--api-listen), an environment variable (TIDEGATE_API_LISTEN) and an entry of the configuration file
(api.listen). Flags take precedence over variables, and variables over the file. `-h` shows the common settings, `--help` all.

Signals: SIGTERM and SIGINT serve for --limits-stop-delay, finish requests in flight and exit with 0; SIGHUP reloads configuration, rules
and certificates; SIGUSR2 starts the program again, with the same arguments, to take over (--handover).
Exit status: 0 after a normal stop, 1 if the server could not start, 2 on a usage error.";

/// Run the server.
///
/// Runs without a configuration file: by default, state is in memory, the rules are a small example, and all listeners
/// use loopback addresses. A gateway without rules limits nothing: it does not use the example. Prints the addresses of
/// all listeners once they accept connections.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    given: SettingsArgs,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let configuration = match Configuration::load(&args.given.0, &variables()) {
        Ok(configuration) => configuration,
        Err(faults) => return refuse(&faults),
    };
    // Dropped last, when no more lines are logged.
    let flush = log::begin(&configuration.log)?;
    let log_format = configuration.log.format;
    for warning in &configuration.warnings {
        tracing::warn!("{warning}");
    }
    serve::runtime()?.block_on(async {
        let store = configuration.store.to_string();
        let own_domain = configuration.envoy.own_domain.clone();
        let resp_user = configuration.redis_protocol.users.first().map(str::to_owned);
        let is_example = configuration.rules.is_empty();
        let is_tls =
            |listener: &Option<listen::Settings>| listener.as_ref().is_some_and(|listener| listener.tls.is_some());
        let [gateway_tls, api_tls, rls_tls, resp_tls, admin_tls] =
            [&configuration.gateway, &configuration.api, &configuration.rls, &configuration.resp, &configuration.admin]
                .map(is_tls);
        // Before any listener opens, so that no signal is missed.
        let signals = Signals::receive()?;
        let mut server = match Server::start(configuration).await {
            Ok(server) => server,
            Err(error) => {
                // Writes pending log lines before the error.
                flush.wait();
                return refuse(&error);
            }
        };
        let at = |address: Option<SocketAddr>, is_tls| address.map(|address| (address, is_tls));
        let (api, rls, resp) = (at(server.api(), api_tls), at(server.rls(), rls_tls), at(server.resp(), resp_tls));
        let (gateway, admin) = (at(server.gateway(), gateway_tls), at(server.admin(), admin_tls));
        let store_trouble = server.store_trouble().await;
        let token = server.made_up_token().map(Token::reveal);
        let are_published = server.has_published_rules().await;
        let rules = server.rules();
        let banner = Banner {
            gateway,
            api,
            rls,
            resp,
            admin,
            token,
            store: &store,
            store_trouble,
            rules: rules.counts(),
            rls_example: rls_example(&rules, own_domain.as_deref()),
            api_example: api_example(&rules),
            resp_user: resp_user.as_deref(),
            is_example,
            are_published,
        };
        banner.log();
        banner.print_aside(log_format);
        server.tell_ready();
        server.until_stopped(signals).await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints why the server does not start.
pub(super) fn refuse(why: &impl fmt::Display) -> io::Result<ExitCode> {
    let text = plain_text(&why.to_string());
    let mut out = anstream::stderr().lock();
    if text.starts_with("error: ") || text.starts_with("warning: ") {
        write!(out, "{text}")?;
    } else {
        writeln!(out, "{ERROR}error{ERROR:#}: {text}")?;
    }
    Ok(ExitCode::FAILURE)
}
