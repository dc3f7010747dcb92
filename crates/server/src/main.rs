//! The `tidegate` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::run()
}
