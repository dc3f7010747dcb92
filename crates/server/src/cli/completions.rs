//! `tidegate completions`: completions for shells.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

const EXAMPLES: &str = "\
Examples:
  source <(tidegate completions bash)
  tidegate completions zsh > \"${fpath[1]}/_tidegate\"
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish";

/// Print shell completions of commands and options.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Shell to complete for.
    shell: Shell,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    // The generator panics if it cannot write, so it writes to memory.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidegate", &mut text);
    io::stdout().lock().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
