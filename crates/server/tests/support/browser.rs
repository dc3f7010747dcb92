//! A separate Chromium for a test, driven over WebDriver.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fantoccini::elements::Element;
use fantoccini::key::Key;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::support::{free_port, until};

pub(crate) struct Browser {
    runtime: Runtime,
    client: Client,
    driver: String,
    folder: TempDir,
    _process: Group,
}

/// A process and its descendants, killed on drop.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Browser {
    pub(crate) fn open() -> Browser {
        Browser::sized(1440, 1000)
    }

    pub(crate) fn sized(width: u32, height: u32) -> Browser {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        // Temporary files of Chromium are removed with the test.
        command.env("TMPDIR", folder.path()).env("HOME", folder.path());
        let process = Group(command.spawn().expect("chromedriver: `make setup` installs it"));
        let driver = format!("http://127.0.0.1:{port}");
        until("chromedriver", || ureq::get(format!("{driver}/status")).call().ok().map(drop));
        let profile = folder.path().join("profile");
        let capabilities = json!({
            "goog:chromeOptions": {
                "args": [
                    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                    format!("--user-data-dir={}", profile.display()), format!("--window-size={width},{height}"),
                ],
                "prefs": { "download.default_directory": folder.path().join("saved") },
            },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let Value::Object(capabilities) = capabilities else { unreachable!("an object") };
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(async {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(capabilities).connect(&driver).await.unwrap()
        });
        Browser { runtime, client, driver, folder, _process: process }
    }

    pub(crate) fn go(&self, url: &str) {
        self.runtime.block_on(self.client.goto(url)).unwrap();
    }

    /// Opens a page of the lab, and waits until it is ready.
    pub(crate) fn go_to_lab(&self, url: &str) {
        self.go(url);
        self.until("the page", "return document.documentElement.dataset.ready === 'true' || null");
    }

    pub(crate) fn url(&self) -> String {
        self.runtime.block_on(self.client.current_url()).unwrap().to_string()
    }

    pub(crate) fn js(&self, script: &str) -> Value {
        self.runtime
            .block_on(self.client.execute(script, Vec::new()))
            .unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Waits until a script returns something.
    pub(crate) fn until(&self, what: &str, script: &str) -> Value {
        until(&format!("{what}; the page says {}", self.said()), || {
            Some(self.js(script)).filter(|value| !value.is_null())
        })
    }

    /// The state that the page reports.
    pub(crate) fn said(&self) -> Value {
        self.js("return [document.getElementById('status')?.textContent, document.getElementById('problem')?.textContent, document.getElementById('live-status')?.textContent]")
    }

    pub(crate) fn find(&self, css: &str) -> Element {
        self.runtime.block_on(self.client.find(Locator::Css(css))).unwrap_or_else(|error| panic!("{css}: {error}"))
    }

    pub(crate) fn click(&self, css: &str) {
        let element = self.find(css);
        self.runtime.block_on(element.click()).unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    /// The text of an element, even if it is not visible.
    pub(crate) fn text(&self, css: &str) -> String {
        let text = self.js(&format!("return document.querySelector(\"{css}\").textContent"));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Replaces the text of a field.
    pub(crate) fn write(&self, css: &str, text: &str) {
        let element = self.find(css);
        self.runtime.block_on(async {
            element.clear().await.unwrap();
            element.send_keys(text).await.unwrap();
        });
    }

    /// Selects a file for a file input.
    pub(crate) fn upload(&self, css: &str, file: &Path) {
        let element = self.find(css);
        self.runtime.block_on(element.send_keys(&file.display().to_string())).unwrap();
    }

    pub(crate) fn choose(&self, css: &str, label: &str) {
        let element = self.find(css);
        self.runtime.block_on(element.select_by_label(label)).unwrap_or_else(|error| panic!("{css}, {label}: {error}"));
    }

    /// Presses keys on the focused element.
    pub(crate) fn press(&self, keys: &[Key]) {
        let text: String = keys.iter().map(|key| char::from(*key)).collect();
        self.type_text(&text);
    }

    pub(crate) fn type_text(&self, text: &str) {
        self.runtime.block_on(async {
            self.client.active_element().await.unwrap().send_keys(text).await.unwrap();
        });
    }

    /// Sends a command that is not part of the WebDriver standard.
    fn ask(&self, path: &str, body: &Value) -> Value {
        let session = self.runtime.block_on(self.client.session_id()).unwrap().unwrap();
        let url = format!("{}/session/{session}/{path}", self.driver);
        let mut answer = ureq::post(url).send(body.to_string()).unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["value"].take()
    }

    pub(crate) fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.ask("goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// The messages on the console, except for those that are expected.
    pub(crate) fn assert_quiet(&self, is_expected: impl Fn(&str) -> bool) {
        let entries = self.ask("se/log", &json!({ "type": "browser" }));
        let loud: Vec<&str> =
            entries.as_array().unwrap().iter().filter_map(|entry| entry["message"].as_str()).collect();
        let loud: Vec<&str> = loud.into_iter().filter(|message| !is_expected(message)).collect();
        assert!(loud.is_empty(), "{loud:#?}");
    }

    /// Saves a screenshot of the whole page among the artefacts of the tests.
    pub(crate) fn screenshot(&self, name: &str) {
        let size = self.js("return [innerWidth, document.documentElement.scrollHeight, devicePixelRatio, innerHeight]");
        let metrics = |height: &Value| {
            let is_phone = size[0].as_u64().is_some_and(|width| width < 600);
            let metrics =
                json!({ "width": size[0], "height": height, "deviceScaleFactor": size[2], "mobile": is_phone });
            self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
        };
        // As high as the page, so that elements fixed to the edges of the window hide nothing.
        metrics(&size[1]);
        self.draw();
        let shot = self.devtools("Page.captureScreenshot", &json!({ "format": "png" }));
        metrics(&size[3]);
        let bytes = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, shot["data"].as_str().unwrap()).unwrap();
        let target = PathBuf::from(env!("CARGO_BIN_EXE_tidegate"));
        let folder = target.ancestors().nth(2).unwrap().join("lab-screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), bytes).unwrap();
    }

    /// The contents of a file that the page has saved. Another download replaces it.
    pub(crate) fn saved(&self, name: &str) -> Vec<u8> {
        let path = self.folder.path().join("saved").join(name);
        // Chromium renames the file once it is complete.
        let bytes = until(&format!("a file {name}"), || std::fs::read(&path).ok().filter(|bytes| !bytes.is_empty()));
        std::fs::remove_file(path).unwrap();
        bytes
    }

    /// Waits for the page to draw, which cannot be detected.
    pub(crate) fn draw(&self) {
        self.until("frames", "window.drawn = (window.drawn ?? 0) + 1; requestAnimationFrame(() => { window.drawn += 1; }); return window.drawn > 12 || null");
        self.js("window.drawn = 0");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let client = self.client.clone();
        let _ = self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), client.close()).await });
    }
}
