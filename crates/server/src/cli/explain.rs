//! `tidegate explain`: the rules that limit a request, and the reasons why others do not.

mod present_rates;
mod text;
mod token;

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use tidegate_rules::{Explanation, RegionView, counted};

use self::present_rates::PresentRates;
use self::token::{TokenReport, TokenVerdict, identified, print_token, verify};
use super::admin_server::AdminArgs;
use super::redis::RedisArgs;
use super::request::RequestArgs;
use super::secret::SecretArgs;
use super::serve::refuse;
use super::{OutputFormat, Rules, WARNING, check, failed, print_json};
use crate::identity::jwt;
use crate::serve::regions::unknown_region;

const EXAMPLES: &str = "\
Examples:
  tidegate explain rules.yaml --request 'POST /login' --ip 203.0.113.7
  tidegate explain rules/ --request 'GET /search?q=tea' --header 'X-Env: prod' --user ann
  tidegate explain rules/ --request 'POST /v1/chat/completions' --api-key k_7f3a --body max_tokens=500
  tidegate explain rules/ --request 'GET /api' --jwt eyJhbGciOi... --config tidegate.yaml
  tidegate explain rules.yaml --request 'GET /' --region eu           shares of a region
  tidegate explain rules.yaml --request 'GET /' --nodes 5             shares of nodes under `write_behind`
  tidegate explain rules.yaml --request 'GET /' --admin http://127.0.0.1:9600   present rates
  tidegate explain rules.yaml --request 'GET /' --descriptor remote_address=203.0.113.7 --hits 5

Charges nothing and uses no store: the request is hypothetical. --redis is only asked for the number of nodes.
With --admin, the rates of rules with `adapt` are the current ones of that server; without it, the highest.";

/// Explain which rules limit a request, and why the others do not.
///
/// Shows every rule in the order of evaluation. For a rule that matches: its key, its limits and the cost. For one that
/// does not: the condition that failed, its expected value and the actual one. Secrets (API keys, cookies) are shown as
/// short hashes; with the server's `secrets.key`, they are the hashes of `tidegate top` and the log.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("urls", |urls| urls.required(false)))]
pub(super) struct Args {
    #[command(flatten)]
    rules: Rules,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// Token (JWT), verified with the settings of --config. It determines the user, tier and claims.
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["user", "tier", "claims"])]
    jwt: Option<String>,
    /// Region, for rules with `regions`. Shows its share of each limit, according to the rules.
    #[arg(long, value_name = "REGION")]
    region: Option<String>,

    /// Number of nodes, for limits with `write_behind`. Default: those of the fleet at --redis.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: Option<u32>,
    #[command(flatten)]
    redis: RedisArgs,
    #[command(flatten)]
    server: AdminArgs,
}

impl Args {
    /// The number of nodes: the one given, or that of the fleet.
    fn nodes(&self) -> io::Result<Result<Option<u32>, ExitCode>> {
        if self.nodes.is_some() || !self.redis.is_given() {
            return Ok(Ok(self.nodes));
        }
        let fleet = self.redis.with(async |control| control.fleet().await)?;
        // Without nodes there is nothing to divide.
        Ok(fleet.map(|fleet| u32::try_from(fleet.nodes.len()).ok().filter(|&nodes| nodes > 0)))
    }
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let loaded = match tidegate_rules::load(&args.rules.files) {
        Ok(loaded) => loaded,
        Err(findings) => {
            check::print(&mut anstream::stderr().lock(), &findings)?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let warnings = loaded.warnings.warnings();
    if warnings > 0 {
        let warnings = counted(warnings, "warning");
        writeln!(anstream::stderr(), "{WARNING}{warnings}{WARNING:#}: `tidegate check` shows them\n")?;
    }
    let secret = match args.secret.secret() {
        Ok(secret) => secret.unwrap_or_default(),
        Err(faults) => return refuse(&faults),
    };
    let mut request = args.request.request();
    let mut verified = None;
    if let Some(token) = &args.jwt {
        let configuration = match args.secret.configuration() {
            Ok(configuration) => configuration,
            Err(faults) => return refuse(&faults),
        };
        let settings = match configuration.jwt {
            Some(settings) => settings,
            None if !args.secret.names_file() => {
                failed(
                    &"--jwt needs the server's configuration, which has the keys of tokens: add --config tidegate.yaml",
                )?;
                return Ok(ExitCode::from(2));
            }
            None => {
                return failed(
                    &"the configuration (--config) has no keys to verify tokens with: set `auth.jwt.jwks_url`, `jwks_file`, \
                      `public_key_file` or `secret_file`",
                );
            }
        };
        let is_refused = settings.on_invalid == jwt::OnInvalid::Refuse;
        let found = verify(settings, token)?;
        if let (Some(response), true, OutputFormat::Text) = (found.response(), is_refused, args.rules.format) {
            let mut out = anstream::stdout().lock();
            print_token(&mut out, &found)?;
            writeln!(out, "The server responds with {response} (`auth.jwt.on_invalid: refuse`).")?;
            return Ok(ExitCode::FAILURE);
        }
        if let TokenVerdict::Valid(identity) = &found {
            request = identified(request, identity);
        }
        verified = Some(found);
    }
    if loaded.rules.rules().is_empty() && loaded.rules.counts().descriptors > 0 {
        return failed(
            &"this file defines Envoy descriptors, which are matched entry by entry: `explain` supports rules only",
        );
    }
    let rules = match &args.region {
        Some(region) => {
            if !loaded.rules.has_regions() {
                let note = "the rules have no `regions`, so --region changes nothing";
                writeln!(anstream::stderr(), "{WARNING}note{WARNING:#}: {note}\n")?;
            } else if let Some(problem) = unknown_region(&loaded.rules, region) {
                return failed(&problem);
            }
            let view = RegionView { region: Some(region.as_str().into()), applied: None };
            loaded.rules.in_region(&view)
        }
        None => loaded.rules,
    };
    let rates: PresentRates = match present_rates::of_server(&args.server, &rules)? {
        Ok(rates) => rates,
        Err(code) => return Ok(code),
    };
    let mut explanation = rules.with_secret(secret).explain(&request);
    rates.show_in(&mut explanation);
    if explanation.has_write_behind() {
        match args.nodes()? {
            Ok(Some(nodes)) => explanation.set_nodes(nodes),
            Ok(None) => {}
            Err(code) => return Ok(code),
        }
    }
    match args.rules.format {
        OutputFormat::Json => {
            print_json(&ExplainReport {
                token: verified.as_ref().map(TokenReport::of),
                ..ExplainReport::of(&explanation)
            })?;
        }
        OutputFormat::Text => {
            let mut out = anstream::stdout().lock();
            if let Some(verified) = &verified {
                print_token(&mut out, verified)?;
            }
            text::print(&mut out, &explanation)?;
        }
    }
    let is_valid = verified.is_none_or(|verdict| matches!(verdict, TokenVerdict::Valid(_)));
    Ok(if is_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Serialize)]
struct ExplainReport<'e> {
    /// Result of verifying the token, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<TokenReport<'e>>,
    #[serde(flatten)]
    explanation: &'e Explanation,
    matched: Vec<&'e str>,
    refused_by: Option<&'e str>,
}

impl ExplainReport<'_> {
    fn of(explanation: &Explanation) -> ExplainReport<'_> {
        ExplainReport {
            token: None,
            explanation,
            matched: explanation.matched().map(|rule| rule.id.as_str()).collect(),
            refused_by: explanation.refused_by().map(|rule| rule.id.as_str()),
        }
    }
}
