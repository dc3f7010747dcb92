//! The web page that draws simulations: plain files, embedded in the binary.
//!
//! There is no build step, and no external resource. The page requests simulations from its own server and draws the
//! results; it makes no decisions.

/// One file of the page.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// The name, relative to the page's address. Empty for the page itself.
    pub name: &'static str,
    /// The media type.
    pub media_type: &'static str,
    /// The contents.
    pub text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($name:literal: $file:literal, $media_type:expr;)*) => {
        [$(PageFile { name: $name, media_type: $media_type, text: include_str!(concat!("../page/", $file)) }),*]
    };
}

/// All files of the page.
pub const FILES: &[PageFile] = &files! {
    "": "index.html", HTML;
    "style.css": "style.css", CSS;
    "address.js": "address.js", SCRIPT;
    "canvas.js": "canvas.js", SCRIPT;
    "cards.js": "cards.js", SCRIPT;
    "dom.js": "dom.js", SCRIPT;
    "flow.js": "flow.js", SCRIPT;
    "form.js": "form.js", SCRIPT;
    "format.js": "format.js", SCRIPT;
    "history.js": "history.js", SCRIPT;
    "image.js": "image.js", SCRIPT;
    "limits.js": "limits.js", SCRIPT;
    "live.js": "live.js", SCRIPT;
    "main.js": "main.js", SCRIPT;
    "notation.js": "notation.js", SCRIPT;
    "operate.js": "operate.js", SCRIPT;
    "picture.js": "picture.js", SCRIPT;
    "playback.js": "playback.js", SCRIPT;
    "presets.js": "presets.js", SCRIPT;
    "readout.js": "readout.js", SCRIPT;
    "record.js": "record.js", SCRIPT;
    "report.js": "report.js", SCRIPT;
    "run.js": "run.js", SCRIPT;
    "saving.js": "saving.js", SCRIPT;
    "sliders.js": "sliders.js", SCRIPT;
    "stage.js": "stage.js", SCRIPT;
    "state.js": "state.js", SCRIPT;
    "stream.js": "stream.js", SCRIPT;
    "theme.js": "theme.js", SCRIPT;
    "token.js": "token.js", SCRIPT;
    "track.js": "track.js", SCRIPT;
    "words.js": "words.js", SCRIPT;
};

/// The file with this name.
#[must_use]
pub fn file(name: &str) -> Option<&'static PageFile> {
    FILES.iter().find(|file| file.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that a module imports.
    fn imports(text: &'static str) -> impl Iterator<Item = &'static str> {
        text.lines().filter_map(|line| line.split_once("from \"./")?.1.split('"').next())
    }

    #[test]
    fn every_file_that_is_asked_for_is_there() {
        for module in FILES {
            for name in imports(module.text) {
                assert!(file(name).is_some(), "{} imports {name}", module.name);
            }
        }
        let page = file("").unwrap().text;
        for name in ["style.css", "main.js"] {
            assert!(page.contains(&format!("\"{name}\"")) && file(name).is_some(), "{name}");
        }
    }

    #[test]
    fn nothing_is_fetched_from_elsewhere() {
        for PageFile { name, text, .. } in FILES {
            let outside = text.match_indices("://").filter(|(at, _)| {
                // XML namespaces of the W3C look like URLs, but are never fetched.
                !text[..*at].ends_with("http") || !text[*at..].starts_with("://www.w3.org/")
            });
            assert_eq!(outside.count(), 0, "{name} names an address");
        }
    }
}
