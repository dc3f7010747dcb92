//! `tidegate man`: manual pages.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
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
    let folder = plain(&args.folder.display().to_string());
    match write_pages(&args.folder) {
        Ok(pages) => {
            writeln!(anstream::stdout(), "{pages} pages in {folder}")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => failed(&format!("{folder}: {error}")),
    }
}

/// Writes the pages, and returns their number.
fn write_pages(folder: &Path) -> io::Result<usize> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), folder)?;
    // The folder may hold pages of other programs.
    let mut pages = 0;
    for file in std::fs::read_dir(folder)? {
        pages += usize::from(file?.file_name().as_encoded_bytes().starts_with(b"tidegate"));
    }
    Ok(pages)
}
