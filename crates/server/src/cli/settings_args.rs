//! The settings of the server, as flags.

use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::config::{FILE_VARIABLE, SETTINGS, StartupArgs};

/// Configuration file and settings on the command line. Built from the table of settings, so that none is missing.
pub(super) struct SettingsArgs(pub(super) StartupArgs);

const CONFIG: &str = "config";

impl clap::Args for SettingsArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .short('c')
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help(format!("Configuration file; `tidegate init` writes one [env: {FILE_VARIABLE}]"));
        SETTINGS.iter().fold(command.arg(config), |command, setting| {
            let default = match setting.default {
                [] => String::new(),
                values => format!(" [default: {}]", values.join(",")),
            };
            let variable = &setting.variable;
            let aliases: String = setting.aliases.iter().map(|alias| format!(" [alias: --{alias}]")).collect();
            let arg = Arg::new(setting.name)
                .long(setting.flag.as_str())
                .aliases(setting.aliases.iter().map(String::as_str))
                .value_name(setting.value_name())
                .value_parser(ValueParser::string())
                .help(format!("{}{default}", setting.about.trim_end_matches('.')))
                .long_help(format!("{}{default} [env: {variable}]{aliases}", setting.about.trim_end_matches('.')))
                .help_heading(heading(setting.section()))
                .hide_short_help(!setting.is_common);
            command.arg(if setting.is_list() {
                arg.action(ArgAction::Append).value_delimiter(',')
            } else if setting.is_flag() {
                // `--gateway-via` alone is `--gateway-via true`.
                arg.action(ArgAction::Set).num_args(0..=1).default_missing_value("true")
            } else {
                arg.action(ArgAction::Set)
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingsArgs::augment_args(command)
    }
}

fn heading(section: &'static str) -> &'static str {
    match section.split('.').next().unwrap_or(section) {
        "" => "Settings",
        "gateway" => "Gateway",
        "api" => "HTTP API",
        "rls" => "Envoy rate-limit service",
        "resp" => "Redis protocol",
        "admin" => "Admin API",
        "auth" => "Identity of clients",
        "tls" => "Certificates",
        "store" => "Store",
        "secrets" => "Secrets",
        "headers" => "Rate-limit headers",
        "denial" => "Denial bodies",
        "cors" => "CORS",
        "node" => "Node",
        "access_log" => "Access log",
        "log" => "Log",
        "traces" => "Traces",
        "limits" => "Limits on clients",
        other => other,
    }
}

impl clap::FromArgMatches for SettingsArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SettingsArgs, clap::Error> {
        let flags = SETTINGS.iter().filter_map(|setting| {
            let values = matches.get_many::<String>(setting.name)?;
            Some((setting.name.to_owned(), values.cloned().collect()))
        });
        Ok(SettingsArgs(StartupArgs { file: matches.get_one::<PathBuf>(CONFIG).cloned(), flags: flags.collect() }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = SettingsArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Environment variables that are valid UTF-8.
pub(super) fn variables() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}
