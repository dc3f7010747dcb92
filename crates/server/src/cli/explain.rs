//! `tidegate explain`: which rules limit a request, and why the others do not.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anstyle::Style;
use serde::Serialize;
use tidegate_core::disclosure::DenialKind;
use tidegate_core::{Clock, SystemClock};
use tidegate_rules::yaml::closest;
use tidegate_rules::{
    Charged, ExplainedRule, Explanation, Granted, Mode, RegionView, Request, RuleOutcome, RuleSet, ShownLimit,
    ShownWriteBehind, counted,
};

use super::redis::RedisArgs;
use super::request::RequestArgs;
use super::secret::SecretArgs;
use super::serve::refuse;
use super::{ERROR, FAINT, GOOD, OutputFormat, Rules, STRONG, WARNING, check, failed, plain, print_json};
use crate::identity::Identity;
use crate::identity::jwt::{self, TokenRefusal, Verifier};
use crate::serve;

const EXAMPLES: &str = "\
Examples:
  tidegate explain rules.yaml --request 'POST /login' --ip 203.0.113.7
  tidegate explain rules/ --request 'GET /search?q=tea' --header 'X-Env: prod' --user ann
  tidegate explain rules/ --request 'POST /v1/chat/completions' --api-key k_7f3a --body max_tokens=500
  tidegate explain rules/ --request 'GET /api' --jwt eyJhbGciOi... --config tidegate.yaml
  tidegate explain rules.yaml --request 'GET /' --region eu           shares of a region
  tidegate explain rules.yaml --request 'GET /' --nodes 5             shares of nodes under `write_behind`
  tidegate explain rules.yaml --request 'GET /' --descriptor remote_address=203.0.113.7 --hits 5

Nothing is counted: the request is hypothetical, and no store is used. With --redis, the nodes of the fleet are counted.";

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
    /// Token (JWT), verified as the server of --config would. User, tier and claims are taken from it.
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["user", "tier", "claims"])]
    jwt: Option<String>,
    /// Region, for rules with `regions`: shows its share of each limit, as the rules state it.
    #[arg(long, value_name = "REGION")]
    region: Option<String>,

    /// Number of nodes, for limits with `write_behind`. Default: those of the fleet at --redis.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: Option<u32>,
    #[command(flatten)]
    redis: RedisArgs,
}

impl Args {
    /// The number of nodes: the one given, or that of the fleet.
    fn nodes(&self) -> io::Result<Result<Option<u32>, ExitCode>> {
        if self.nodes.is_some() || !self.redis.is_given() {
            return Ok(Ok(self.nodes));
        }
        let fleet = self.redis.with(async |steering| steering.fleet().await)?;
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
    let mut explanation = rules.with_secret(secret).explain(&request);
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
            print(&mut out, &explanation)?;
        }
    }
    let is_valid = verified.is_none_or(|verdict| matches!(verdict, TokenVerdict::Valid(_)));
    Ok(if is_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The problem with a region that no rule gives a share. `None` if one does.
fn unknown_region(rules: &RuleSet, region: &str) -> Option<String> {
    let known: BTreeSet<&str> =
        rules.each_regions().flat_map(|(_, regions)| regions.shares.keys().map(String::as_str)).collect();
    if known.contains(region) {
        return None;
    }
    let meant = closest(region, known.iter().copied()).map(|meant| format!(" Did you mean `{meant}`?"));
    let known: Vec<&str> = known.into_iter().collect();
    let known = known.join("`, `");
    Some(format!("there is no region `{region}` in the rules: they have `{known}`.{}", meant.unwrap_or_default()))
}

/// Result of verifying a token.
enum TokenVerdict {
    Valid(Arc<Identity>),
    Invalid(String),
    /// There are no keys to verify it with.
    Unverified(String),
}

impl TokenVerdict {
    /// The response of a server that refuses invalid tokens; `None` if the token is valid.
    const fn response(&self) -> Option<&'static str> {
        match self {
            TokenVerdict::Valid(_) => None,
            TokenVerdict::Invalid(_) => Some("401 and evaluates no rule"),
            TokenVerdict::Unverified(_) => Some("503 and evaluates no rule, for as long as it has no keys"),
        }
    }
}

/// Verifies a token as a server with these settings would. Fetches keys if necessary.
fn verify(settings: jwt::Settings, token: &str) -> io::Result<TokenVerdict> {
    let verifier = Verifier::new(settings);
    // Keys of files are tried even so, as by the server.
    let fetched = serve::runtime()?.block_on(verifier.fetch_once());
    let with_cause = |refusal: TokenRefusal| match &fetched {
        Err(reason) => format!("{refusal}, as keys cannot be fetched: {reason}"),
        Ok(()) => refusal.to_string(),
    };
    Ok(match verifier.verify(token.trim().as_bytes(), SystemClock::new().now()) {
        Ok(identity) => TokenVerdict::Valid(identity),
        Err(refusal @ TokenRefusal::NoKeys) => TokenVerdict::Unverified(with_cause(refusal)),
        Err(refusal @ TokenRefusal::UnknownKey) => TokenVerdict::Invalid(with_cause(refusal)),
        Err(refusal) => TokenVerdict::Invalid(refusal.to_string()),
    })
}

fn identified(mut request: Request, identity: &Identity) -> Request {
    if let Some(user) = &identity.user {
        request = request.user(user);
    }
    if let Some(tier) = &identity.tier {
        request = request.tier(tier);
    }
    identity.claims.iter().fold(request, |request, (name, value)| request.claim(name, value))
}

fn print_token(out: &mut impl Write, verified: &TokenVerdict) -> io::Result<()> {
    match verified {
        TokenVerdict::Invalid(reason) => {
            writeln!(out, "{FAINT}token    {FAINT:#}{ERROR}invalid{ERROR:#}: {}\n", plain(reason))
        }
        TokenVerdict::Unverified(reason) => {
            writeln!(out, "{FAINT}token    {FAINT:#}{ERROR}not verified{ERROR:#}: {}\n", plain(reason))
        }
        TokenVerdict::Valid(identity) => {
            writeln!(out, "{FAINT}token    {FAINT:#}{GOOD}valid{GOOD:#}")?;
            let line = |out: &mut dyn Write, name: &str, value: &str| {
                writeln!(out, "{FAINT}{name:<9}{FAINT:#}{}", plain(value))
            };
            line(out, "user", identity.user.as_deref().unwrap_or("none"))?;
            line(out, "tier", identity.tier.as_deref().unwrap_or("none"))?;
            for (name, value) in &identity.claims {
                line(out, "claim", &format!("{name} = {value}"))?;
            }
            writeln!(out)
        }
    }
}

#[derive(Serialize)]
struct TokenReport<'t> {
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'t str>,
    user: Option<&'t str>,
    tier: Option<&'t str>,
    claims: Vec<(&'t str, &'t str)>,
}

impl TokenReport<'_> {
    fn of(verified: &TokenVerdict) -> TokenReport<'_> {
        match verified {
            TokenVerdict::Invalid(reason) | TokenVerdict::Unverified(reason) => {
                TokenReport { valid: false, reason: Some(reason), user: None, tier: None, claims: Vec::new() }
            }
            TokenVerdict::Valid(identity) => TokenReport {
                valid: true,
                reason: None,
                user: identity.user.as_deref(),
                tier: identity.tier.as_deref(),
                claims: identity.claims.iter().map(|(name, value)| (&**name, &**value)).collect(),
            },
        }
    }
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

fn print(out: &mut impl Write, explanation: &Explanation) -> io::Result<()> {
    let address = explanation.address.map(|address| address.to_string());
    for (name, value) in [
        ("method", explanation.method.as_deref()),
        ("host", explanation.host.as_deref()),
        ("path", Some(explanation.path.as_str())),
        ("address", address.as_deref()),
        ("tier", explanation.tier.as_deref()),
    ] {
        match value {
            Some(value) => writeln!(out, "{FAINT}{name:<9}{FAINT:#}{}", plain(value))?,
            None => writeln!(out, "{FAINT}{name:<9}none{FAINT:#}")?,
        }
    }
    writeln!(out)?;
    let widest = explanation.rules.iter().map(|rule| rule.id.chars().count()).max().unwrap_or(0);
    for rule in &explanation.rules {
        print_rule(out, rule, widest)?;
    }
    summarise(out, explanation)
}

/// Prints the id of the rule, a word for the result, and further lines below each other.
fn print_rule(out: &mut impl Write, rule: &ExplainedRule, widest: usize) -> io::Result<()> {
    const WIDEST_WORD: usize = "not reached".len();
    let (style, word, lines) = told(rule);
    let lines: Vec<String> = lines.iter().map(|line| plain(line)).collect();
    let (first, rest) = lines.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let gap = if first.is_empty() { 0 } else { WIDEST_WORD + 2 - word.len() };
    writeln!(out, "{STRONG}{:<widest$}{STRONG:#}  {style}{word}{style:#}{:gap$}{first}", rule.id, "")?;
    let indent = widest + 2 + WIDEST_WORD + 2;
    rest.iter().try_for_each(|line| writeln!(out, "{:indent$}{line}", ""))
}

fn told(rule: &ExplainedRule) -> (Style, &'static str, Vec<String>) {
    match &rule.outcome {
        RuleOutcome::Matched(charged) => (GOOD, "match", charged_lines(rule, charged)),
        RuleOutcome::Mismatch { condition, wanted, actual } => {
            let is = actual.as_ref().map_or_else(|| "is missing".to_owned(), |actual| format!("is `{actual}`"));
            (FAINT, "no match", vec![format!("{condition} {is}, wanted {wanted}")])
        }
        RuleOutcome::Replaced { by } => (WARNING, "replaced", vec![format!("by `{by}`")]),
        RuleOutcome::NotReached { stopped_by } => {
            (WARNING, "not reached", vec![format!("`{stopped_by}` stops the search")])
        }
        RuleOutcome::Off => (FAINT, "off", Vec::new()),
        RuleOutcome::NoLimit => (FAINT, "no limit", vec!["it limits other tiers or keys".to_owned()]),
        RuleOutcome::Skipped { missing } => {
            (WARNING, "skipped", vec![format!("the request has no {missing}, and the rule lets such requests pass")])
        }
        RuleOutcome::Refused { missing } if rule.mode == Mode::Shadow => {
            (WARNING, "refused", vec![format!("the request has no {missing}; in shadow mode, this is only reported")])
        }
        RuleOutcome::Refused { missing } => {
            (ERROR, "refused", vec![format!("the request has no {missing}, and the rule refuses such requests")])
        }
        RuleOutcome::Repeated { repeated } if rule.mode == Mode::Shadow => {
            let line = format!("the request has {repeated} more than once; in shadow mode, this is only reported");
            (WARNING, "refused", vec![line])
        }
        RuleOutcome::Repeated { repeated } => {
            let line = format!("the request has {repeated} more than once, and the rule refuses such requests");
            (ERROR, "refused", vec![line])
        }
        RuleOutcome::Unmeasured => {
            let style = if rule.mode == Mode::Shadow { WARNING } else { ERROR };
            (style, "refused", vec!["the cost is the length of the body, which the request does not state".to_owned()])
        }
    }
}

fn charged_lines(rule: &ExplainedRule, charged: &Charged) -> Vec<String> {
    let key = match &charged.missing {
        Some(missing) => format!("shared by all requests that have no {missing}"),
        None if charged.key.is_empty() => "shared by all requests".to_owned(),
        None => {
            let parts: Vec<String> = charged.key.iter().map(|part| format!("{} {}", part.part, part.value)).collect();
            parts.join(", ")
        }
    };
    let whose = match charged.granted {
        Granted::Everyone => "",
        Granted::Tier => " (for this tier)",
        Granted::Override => " (for this key)",
        Granted::Priority => " (for this priority)",
    };
    let mut lines = vec![labelled("key", &key)];
    lines.extend(charged.limits.iter().map(|limit| labelled("limit", &format!("{}{whose}", limit_line(limit)))));
    lines.extend(charged.limits.iter().filter_map(|limit| Some(labelled("adapts", limit.adapt.as_ref()?))));
    if charged.limits.is_empty() {
        lines.push(labelled("limit", &format!("unlimited{whose}")));
    }
    lines.push(labelled("mode", &rule.mode.to_string()));
    lines.push(labelled("store failure", &charged.on_store_failure));
    lines.extend(charged.store_deadline.as_ref().map(|deadline| labelled("store deadline", deadline)));
    if charged.problem != DenialKind::default().as_str() {
        lines.push(labelled("problem", charged.problem));
    }
    lines.extend(charged.status.map(|status| labelled("status", &status.to_string())));
    lines.push(labelled("written in", &rule.place.to_string()));
    lines
}

fn labelled(label: &str, value: &str) -> String {
    format!("{label:<16}{value}")
}

fn limit_line(limit: &ShownLimit) -> String {
    let mut line = format!("{}, cost {}", limit.limit, limit.cost);
    match &limit.cost_from {
        Some(from) if limit.cost_is_fallback => {
            line.push_str(&format!(" by default, since the request has no number at {from}"));
        }
        Some(from) => line.push_str(&format!(" by {from}")),
        None => {}
    }
    if let Some(reserve) = &limit.reserve {
        line.push_str(&format!(", to be settled within {reserve}"));
    }
    if let Some(settle) = &limit.settle {
        line.push_str(&format!(" at the response's {settle}"));
    }
    if limit.cost > limit.capacity {
        line.push_str(&format!(": always denied, since it holds {} at most", limit.capacity));
    }
    match limit.lease.as_deref() {
        // Limits that are never leased anyway.
        None => {}
        Some("off") => line.push_str(", never leased"),
        // The default.
        Some("auto") => line.push_str(", leased"),
        Some(terms) => line.push_str(&format!(", leased {terms}")),
    }
    if let Some(rate) = limit.leased_from {
        line.push_str(&format!(", at nodes with {rate}/s of a key or more"));
    }
    if let Some(behind) = &limit.write_behind {
        let ShownWriteBehind { at_most_percent, at_most, every, .. } = behind;
        line.push_str(&format!(
            ", write-behind every {every}: the fleet admits at most {at_most} more ({at_most_percent}%)"
        ));
        if let (Some(nodes), Some(each)) = (behind.nodes, behind.each_node) {
            match each {
                0 => line.push_str(&format!("; with {nodes} nodes that is less than one each, so Redis decides")),
                _ => line.push_str(&format!("; {each} unreported at each of {}", counted(nodes as usize, "node"))),
            }
        }
    }
    if let Some(region) = &limit.region {
        line.push_str(&format!(", {region}"));
    }
    if let Some(split) = &limit.split {
        line.push_str(&format!(", with Redis split into {split}"));
    }
    if !limit.show {
        line.push_str(", not shown to clients");
    }
    line
}

fn summarise(out: &mut impl Write, explanation: &Explanation) -> io::Result<()> {
    let (matched, all) = (explanation.matched().count(), explanation.rules.len());
    writeln!(out, "\nrules that match: {STRONG}{matched}{STRONG:#} of {all}")?;
    if let Some(rule) = explanation.refused_by() {
        writeln!(out, "{ERROR}refused{ERROR:#} by `{}`, regardless of the other rules", rule.id)?;
    }
    Ok(())
}
