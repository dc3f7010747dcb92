//! `tidegate init`: files to start from.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::serve::refuse;
use super::{GOOD, STRONG};
use crate::config::commented_file;
use crate::serve::EXAMPLE_RULES;

const EXAMPLES: &str = "\
Examples:
  tidegate init                  tidegate.yaml and rules.yaml in this folder
  tidegate init /etc/tidegate    the same in another folder

Existing files are never overwritten: rules are kept, and a configuration is an error.
Exit status: 0 if the files were written, 1 if not, 2 on a usage error.";

/// Write a configuration and rules to start from.
///
/// Both files are commented. The configuration only sets the path of the rules; all other settings are listed as
/// comments, with their defaults.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Folder to write to. Created if it does not exist.
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let (configuration, rules) = (args.folder.join("tidegate.yaml"), args.folder.join("rules.yaml"));
    if configuration.exists() {
        let there = configuration.display();
        return refuse(&format!("`{there}` already exists and was not changed: choose another folder"));
    }
    // Existing rules are kept.
    let has_rules = rules.exists();
    let written = std::fs::create_dir_all(&args.folder)
        .and_then(|()| write(&configuration, &commented_file()))
        .and_then(|()| if has_rules { Ok(()) } else { write(&rules, EXAMPLE_RULES) });
    if let Err(error) = written {
        return refuse(&format!("`{}` cannot be written to: {error}", args.folder.display()));
    }
    let mut out = anstream::stdout().lock();
    writeln!(out, "{GOOD}written{GOOD:#}: {}", configuration.display())?;
    if has_rules {
        writeln!(out, "{STRONG}kept{STRONG:#}: {}", rules.display())?;
    } else {
        writeln!(out, "{GOOD}written{GOOD:#}: {}", rules.display())?;
    }
    writeln!(out, "\nStart with {STRONG}tidegate serve --config {}{STRONG:#}", configuration.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a new file. Never overwrites one, even one created at the same time.
fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}
