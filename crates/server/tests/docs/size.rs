//! `tools/size` counts what is shipped, and nothing else.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The lines that count are numbered.
const AWKWARD: &str = r####"//! Documentation of the crate.

/* A comment /* in which there is another */
   over some lines */
use std::fmt; /* behind code */ // 1
#[cfg(test)]
use std::collections::{BTreeMap, BTreeSet};
#[cfg(test)]
const SUM: u8 = { 1 } + {
    2
};

/// Documentation of an item.
pub const MARKERS: [&str; 4] = [ // 2
    "// in a string, /* as is \" this", // 3
    r#"a " and a /* in a raw string: 4

    behind an empty line: 5
    // 6
    "#, // 7
    br##""#"##, "/*", // 8
]; // 9
pub const CHARACTERS: [char; 3] = ['"', '\'', '\u{7b}']; // 10
pub const BYTE: u8 = b'\x22'; // 11
/* */ pub const fn first<'a>(texts: &'a [&'a str]) -> &'a str { // 12
    texts[0] // 13
} // 14

#[derive(Debug)] // 15
pub struct Both<T> { // 16
    #[cfg(test)]
    seen: BTreeMap<u8, T>,
    /** A block of documentation. */
    pub value: T, // 17
} // 18

impl<T> Both<T> { // 19
    pub fn new(value: T) -> Both<T> { // 20
        #[cfg(test)]
        if is_cold() {
            panic!("}");
        } else {
            warm();
        }
        #[cfg(test)]
        let Some(_) = last() else {
            return;
        };
        Both { // 21
            #[cfg(test)]
            seen: BTreeMap { .. },
            value, // 22
        } // 23
    } // 24

    /// For tests.
    #[must_use]
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn of<const N: usize>(values: [T; N]) -> Many<{ N }, T>
    where
        T: Clone,
    {
        Many(values)
    }

    pub fn into(self) -> T { // 25
        self.value // 26
    } // 27
} // 28

pub fn name(kind: Kind) -> &'static str { // 29
    match kind { // 30
        #[cfg(test)]
        Kind::Odd { .. } => "odd",
        #[cfg(test)]
        Kind::Rare => {
            "rare"
        }
        Kind::Even => "even", // 31
    } // 32
} // 33

#[cfg(not(test))] // 34
pub mod shipped; // 35
#[cfg(any(test, feature = "suite"))] // 36
pub mod suite; // 37
pub mod only_documented; // 38
mod whole; // 39
#[cfg(test)]
mod r#try;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(test)]
#[path = "elsewhere.rs"]
mod moved;
#[path = "by_path/file.rs"] // 40
mod other; // 41
pub mod inline { // 42
    #[cfg(test)]
    mod deep;
    pub mod kept; // 43
} // 44

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[expect(dead_code)]
#[cfg(test)]
mod tests {
    /* } */
    const BRACE: char = '}';
    mod below;

    #[test]
    fn so() {
        assert_eq!("}", r"}");
    }
}

pub type Last = (); // 45
"####;

/// Files below `crates/alpha/src` that count, with their lines.
const SHIPPED: [(&str, usize); 6] = [
    ("shipped.rs", 2),
    ("shipped/inner.rs", 100),
    ("suite/mod.rs", 99),
    ("by_path/file.rs", 1),
    ("by_path/beside.rs", 3),
    ("inline/kept.rs", 4),
];

const TESTS: [&str; 9] = [
    "loom_tests/mod.rs",
    "loom_tests/some/more.rs",
    "elsewhere.rs",
    "inline/deep.rs",
    "inline/deep/deeper.rs",
    "tests/below.rs",
    "tests/below/more.rs",
    "try.rs",
    "whole/below.rs",
];

/// A checkout with two crates of 254 and 2 lines, one that is not published, and guides.
fn checkout() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    for (name, lines) in SHIPPED {
        let first = match name {
            "shipped.rs" => "mod inner;\n",
            "by_path/file.rs" => "mod beside;\n",
            _ => "fn first() {}\n",
        };
        let rest = "\n// A comment.\nfn more() {}\n".repeat(lines - 1);
        write(&format!("crates/alpha/src/{name}"), &format!("{first}{rest}"));
    }
    for name in TESTS {
        write(&format!("crates/alpha/src/{name}"), "fn test() {}\n");
    }
    write("crates/alpha/src/whole.rs", "//! Tests.\n#![cfg(test)]\nmod below;\nfn test() {}\n");
    write("crates/alpha/src/only_documented.rs", "//! Words.\n\n/* And more. */\n");
    write("crates/alpha/src/lib.rs", AWKWARD);
    write("crates/alpha/tests/outside.rs", "fn test() {}\n");
    write("crates/beta/src/main.rs", "fn main() {\r\n\r\n}\r\n");
    write("crates/gamma/src/lib.rs", "fn gamma() {}\n");
    for (name, rest) in [("alpha", ""), ("beta", ""), ("gamma", "publish = false\n")] {
        write(&format!("crates/{name}/Cargo.toml"), &format!("[package]\nname = \"{name}\"\n{rest}"));
    }
    write("docs/guide.md", "# Guide\n\nThree words, *four*.\n");
    write("docs/more/deep.md", "One.\n");
    write("docs/settings.md", "# Settings\n\nThis page is generated: `a > b`.\n");
    write("docs/benchmarks.md", "1 2 3\n");
    write("README.md", "Not a guide.\n");
    folder
}

fn size(folder: &Path, args: &[&str]) -> Output {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/size").canonicalize().unwrap();
    Command::new(tool).args(args).current_dir(folder).output().unwrap()
}

#[track_caller]
fn printed(folder: &Path, args: &[&str]) -> String {
    let output = size(folder, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn figures(folder: &Path, of: &str) -> Value {
    serde_json::from_str(&printed(folder, &["--json", of])).unwrap()
}

#[test]
fn the_size_is_that_of_what_is_shipped() {
    let checkout = checkout();
    let alpha = json!({ "lines": 45 + 209, "files": 7, "under_100": 6 });
    let beta = json!({ "lines": 2, "files": 1, "under_100": 1 });
    let whole = json!({
        "rust": { "lines": 256, "files": 8, "under_100": 7 },
        "crates": { "alpha": alpha, "beta": beta },
        "guides": { "words": 18, "by_hand": 6 },
    });
    assert_eq!(figures(checkout.path(), "."), whole);
    let none = json!({ "words": 0, "by_hand": 0 });
    let part = json!({ "rust": alpha, "crates": { "alpha": alpha }, "guides": none });
    assert_eq!(figures(checkout.path(), "crates/alpha"), part);
    let folder = json!({ "lines": 100, "files": 1, "under_100": 0 });
    let part = json!({ "rust": folder, "crates": { "alpha": folder }, "guides": none });
    assert_eq!(figures(checkout.path(), "crates/alpha/src/shipped"), part);
}

#[test]
fn sizes_are_aligned() {
    let checkout = checkout();
    let more = "fn more() {}\n".repeat(1_000);
    std::fs::write(checkout.path().join("crates/beta/src/main.rs"), more).unwrap();
    let table = "\
shipped Rust  lines  files  under 100
alpha           254      7          6
beta          1 000      1          0
total         1 254      8          6

guides                                  words
all                                        18
without generated pages and benchmarks      6
";
    assert_eq!(printed(checkout.path(), &["."]), table);
    let part = "shipped Rust  lines  files  under 100\nbeta          1 000      1          0\n";
    assert_eq!(printed(checkout.path(), &["crates/beta"]), part);
}

#[test]
fn the_size_of_this_repository_is_the_default() {
    let elsewhere = tempfile::tempdir().unwrap();
    let table = printed(elsewhere.path(), &[]);
    for line in ["core ", "redis ", "server ", "total ", "guides "] {
        assert!(table.contains(&format!("\n{line}")), "{line}: {table}");
    }
    assert!(!table.contains("test-redis"), "{table}");
    assert!(printed(elsewhere.path(), &["--help"]).contains("tools/size [--json] [FOLDER]"));
}

#[test]
fn a_size_of_nothing_is_an_error() {
    let checkout = checkout();
    for (args, message) in [
        (&["nowhere"][..], "there is no folder nowhere"),
        (&["README.md"], "README.md is not a folder"),
        (&["docs"], "there is no shipped Rust in docs"),
        (&["crates/gamma"], "there is no shipped Rust in crates/gamma"),
        (&["crates/alpha/tests"], "there is no shipped Rust in crates/alpha/tests"),
        (&["--jsn", "."], "there is no option --jsn; --help lists what there is"),
        (&["crates", "docs"], "one folder is expected, not 2: crates docs"),
    ] {
        let output = size(checkout.path(), args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), errors), (Some(2), format!("size: {message}\n")), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
