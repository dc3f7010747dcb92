//! `tidegate man`: manual pages.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;

use super::{Cli, failed, plain};

const EXAMPLES: &str = "\
Examples:
  tidegate man man1 && man -l man1/tidegate-serve.1
  sudo tidegate man /usr/local/share/man/man1";

/// Write manual pages, one for each command, to a folder.
///
/// The folder is created if it does not exist. Pages of the same name are replaced.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Folder to write to.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let written = std::fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), &args.folder));
    if let Err(error) = written {
        return failed(&format!("{}: {error}", plain(&args.folder.display().to_string())));
    }
    let pages = std::fs::read_dir(&args.folder)?.count();
    writeln!(anstream::stdout(), "{pages} pages in {}", plain(&args.folder.display().to_string()))?;
    Ok(ExitCode::SUCCESS)
}
