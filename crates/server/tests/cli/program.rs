//! The help, the manual, completions and the version.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::cli::Folder;

#[test]
fn the_schema_is_printed_and_the_one_in_the_documentation_is_current() {
    let ran = Folder::with(&[]).run(&["schema"]);
    let schema: Value = serde_json::from_str(ran.good()).unwrap();
    assert_eq!(schema["title"], "Tidegate rules");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.schema.json");
    let shipped = std::fs::read_to_string(shipped).unwrap_or_default();
    assert!(shipped == ran.out(), "run `cargo run -p tidegate -- schema > docs/rules.schema.json`");
}

/// All commands without further commands, with their help and that of the commands that they belong to.
fn helps(folder: &Folder, command: &[&str], outer: &str) -> Vec<(String, String)> {
    let ran = folder.run(&[command, &["--help"]].concat());
    let help = format!("{outer}{}", ran.good());
    let Some((_, listed)) = ran.good().split_once("\nCommands:\n") else { return vec![(command.join(" "), help)] };
    let lines = listed.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    names.flat_map(|name| helps(folder, &[command, &[name]].concat(), &help)).collect()
}

#[test]
fn help_has_an_example_for_every_command() {
    let folder = Folder::with(&[]);
    let helps = helps(&folder, &[], "");
    assert!(helps.len() > 30, "{}", helps.len());
    for (command, help) in &helps {
        assert!(help.contains(&format!("  tidegate {command}")), "{command}: {help}");
    }
}

#[test]
fn help_names_the_variable_and_the_value_of_every_setting() {
    let folder = Folder::with(&[]);
    let help = folder.run(&["serve", "--help"]);
    // Without the breaks of lines.
    let text = help.good().split_whitespace().collect::<Vec<_>>().join(" ");
    let settings = folder.run(&["config", "--format", "json"]).json();
    let settings = settings.as_array().unwrap();
    assert!(settings.len() > 150, "{}", settings.len());
    for setting in settings {
        let name = setting["name"].as_str().unwrap().replace('.', "_").to_uppercase();
        assert!(text.contains(&format!("[env: TIDEGATE_{name}]")), "{name}");
    }
    let flags = help.good().lines().filter(|line| line.trim_start().starts_with("--") && !line.ends_with(']'));
    let unnamed: Vec<_> = flags.filter(|line| !line.contains('<') && !line.contains("--help")).collect();
    assert!(unnamed.is_empty(), "{unnamed:?}");
}

#[test]
fn help_of_top_names_every_key() {
    let folder = Folder::with(&[]);
    let ran = folder.run(&["top", "--help"]);
    for key in ["q quits", "p pauses", "s sorts", "k shows"] {
        assert!(ran.good().contains(key), "{key}: {}", ran.out());
    }
}

#[test]
fn an_address_for_the_lab_without_a_port_or_host_comes_with_what_to_write() {
    let folder = Folder::with(&[]);
    for (address, wanted) in [
        ("9700", "write `127.0.0.1:9700`"),
        (":9700", "write `0.0.0.0:9700` for all addresses, or `127.0.0.1:9700`"),
        ("localhost:9700", "write `127.0.0.1:9700`"),
        ("127.0.0.1", "add a port: `127.0.0.1:9700`"),
        ("::1", "add a port: `[::1]:9700`"),
        ("here", "such as `127.0.0.1:9700`"),
    ] {
        let ran = folder.run(&["lab", "--listen", address]);
        assert!(ran.usage_error().contains(wanted), "{address}: {}", ran.err());
    }
}

#[test]
fn a_real_bash_completes_commands_and_options() {
    let completions = Folder::with(&[]).run(&["completions", "bash"]);
    let folder = Folder::with(&[("tidegate.bash", completions.good())]);
    let complete = |words: &str, last: usize| {
        let script = format!(
            "source tidegate.bash; COMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE='{words}'; COMP_POINT=${{#COMP_LINE}}; \
             _tidegate tidegate \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["-c", &script]).current_dir(folder.0.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(complete("tidegate ser", 1), "serve\n");
    assert_eq!(complete("tidegate check --deny", 2), "--deny-warnings\n");
    for shell in ["zsh", "fish"] {
        let completions = Folder::with(&[]).run(&["completions", shell]);
        assert!(completions.good().contains("deny-warnings"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = Folder::with(&[]);
    folder.run(&["man", "man1"]).good();
    // Pages of other programs are not counted.
    let pages = std::fs::read_dir(folder.0.path().join("man1")).unwrap().count();
    std::fs::write(folder.0.path().join("man1/other.1"), "").unwrap();
    assert_eq!(folder.run(&["man", "man1"]).good(), format!("{pages} pages in man1\n"));
    for command in ["tidegate", "tidegate-serve", "tidegate-rules-push", "tidegate-completions"] {
        let page = std::fs::read_to_string(folder.0.path().join(format!("man1/{command}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains(".SH NAME"), "{command}: {page}");
    }
    let serve = std::fs::read_to_string(folder.0.path().join("man1/tidegate-serve.1")).unwrap();
    assert!(serve.contains("store\\-redis\\-urls"), "{serve}");
    assert!(Folder::with(&[("file", "")]).run(&["man", "file"]).bad().contains("file"));
}

#[test]
fn the_version_says_how_the_program_was_built() {
    let folder = Folder::with(&[]);
    let short = folder.run(&["-V"]);
    assert!(short.good().starts_with(concat!("tidegate ", env!("CARGO_PKG_VERSION"))), "{}", short.out());
    let long = folder.run(&["--version"]);
    for part in ["commit: ", &format!("target: {}-linux", std::env::consts::ARCH), "features: "] {
        assert!(long.good().contains(part), "{}", long.out());
    }
}
