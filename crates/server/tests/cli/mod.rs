//! Tests of the command line.

mod bench;
mod check;
mod explain;
mod program;
mod scenarios;

use std::process::Command;

use tempfile::TempDir;

use crate::support::ran::Ran;

/// A folder with files, in which the program runs.
struct Folder(TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Folder(folder)
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(args).current_dir(self.0.path()).env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR");
        Ran(command.output().unwrap())
    }
}

const GOOD: &str = "\
rules:
  - id: login
    preset: login
    match: { method: POST, path: /login }
  - id: everything
    key: api_key
    limit: 20/s burst 50
";

const DOUBTFUL: &str = "rules: [{ id: by-header, key: 'header:X-Client', limit: 5/s }]\n";

const BROKEN: &str = "\
rules:
  - id: one
    limit: 20/parsec
  - id: two
    limt: 5/s
";
