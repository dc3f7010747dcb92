//! The guides: `README.md` and `docs/*.md`, with their fenced blocks.

use std::path::{Path, PathBuf};

/// A guide: its prose, and its blocks.
pub(crate) struct Guide {
    pub(crate) name: String,
    pub(crate) prose: String,
    pub(crate) blocks: Vec<Block>,
}

/// A fenced block.
pub(crate) struct Block {
    /// What follows the opening fence.
    pub(crate) label: String,
    pub(crate) text: String,
    /// Line number of the opening fence.
    pub(crate) line: usize,
}

/// A command in a shell block, and its output as the guide shows it.
#[derive(Debug, PartialEq)]
pub(crate) struct Shown {
    pub(crate) command: String,
    pub(crate) output: String,
}

impl Block {
    pub(crate) fn is(&self, label: &str) -> bool {
        self.label == label
    }

    /// The commands of a shell block, without prompts and comments. Lines that end with a backslash continue on the next one.
    pub(crate) fn commands(&self) -> Vec<Shown> {
        let text = self.text.replace("\\\n", " ");
        let shown = |command: &str, output: &str| {
            let command = command.split(" # ").next().unwrap_or_default().trim_end_matches(['&', ' ']);
            Shown { command: command.trim_start().to_owned(), output: output.to_owned() }
        };
        match self.label.as_str() {
            "sh" => {
                let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
                lines.map(|line| shown(line, "")).collect()
            }
            "console" => {
                let stories = text.strip_prefix("$ ").map_or(Vec::new(), |rest| rest.split("\n$ ").collect());
                let parts = stories.into_iter().map(|story| story.split_once('\n').unwrap_or((story, "")));
                parts.map(|(command, output)| shown(command, output)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Guide {
    /// The blocks with this label.
    pub(crate) fn labelled<'g>(&'g self, label: &'g str) -> impl Iterator<Item = &'g str> {
        self.blocks.iter().filter(move |block| block.is(label)).map(|block| block.text.as_str())
    }

    /// The calls of `tidegate` in shell blocks.
    pub(crate) fn calls(&self) -> Vec<String> {
        let commands = self.blocks.iter().flat_map(Block::commands).map(|shown| shown.command);
        let parts: Vec<String> = commands.flat_map(|line| line.split("&&").map(plain).collect::<Vec<_>>()).collect();
        parts.into_iter().filter(|call| call.starts_with("tidegate ")).collect()
    }

    /// The first rules in this guide.
    pub(crate) fn rules(&self) -> Option<&str> {
        self.labelled("yaml").find(|block| is_rules(block))
    }
}

/// A command as users of an installed program write it.
pub(crate) fn plain(command: &str) -> String {
    command.trim().replace("cargo run -p tidegate --", "tidegate")
}

/// Whether a block is a rules file, not a configuration that names some.
pub(crate) fn is_rules(block: &str) -> bool {
    let has_rules = block.lines().any(|line| line.starts_with("rules:"));
    has_rules && (block.contains("- id:") || block.contains("{ id:"))
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn guides() -> Vec<Guide> {
    let root = repository();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root.join("docs")).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "md"));
    files.push(root.join("README.md"));
    assert!(files.len() > 10);
    files.sort();
    files.iter().map(|file| read(file)).collect()
}

pub(crate) fn guide(name: &str) -> Guide {
    let folder = if name == "README.md" { repository() } else { repository().join("docs") };
    read(&folder.join(name))
}

pub(crate) fn read(file: &Path) -> Guide {
    let text = std::fs::read_to_string(file).unwrap();
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    let mut guide = Guide { name, prose: String::new(), blocks: Vec::new() };
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        match line.strip_prefix("```") {
            Some(label) => {
                let block: Vec<&str> = lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```").collect();
                guide.blocks.push(Block { label: label.to_owned(), text: block.join("\n"), line: number });
            }
            None => guide.prose.push_str(&format!("{line}\n")),
        }
    }
    guide
}

#[test]
fn commands_are_told_from_what_they_print() {
    let shown = |command: &str, output: &str| Shown { command: command.to_owned(), output: output.to_owned() };
    let block = |label: &str, text: &str| Block { label: label.to_owned(), text: text.to_owned(), line: 1 };
    assert_eq!(block("sh", "a \\\n  b   # why\n# nothing\n\nc &").commands(), [shown("a    b", ""), shown("c", "")]);
    let console = block("console", "$ a\none\ntwo\n$ b\n$ c\nthree").commands();
    assert_eq!(console, [shown("a", "one\ntwo"), shown("b", ""), shown("c", "three")]);
    assert_eq!(block("console", "HTTP/1.1 200 OK").commands(), []);
}
