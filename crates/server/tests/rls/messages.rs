//! The description of Envoy's messages for reflection.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};

const SERVED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rls/messages.bin");

/// The crate with the messages has a description of all of Envoy, several megabytes in size. This extracts what the
/// rate-limit service uses, without comments.
fn made_anew() -> Vec<u8> {
    let all = std::fs::read(crate_folder("envoy-types").join("src/generated/types.bin")).unwrap();
    let all = FileDescriptorSet::decode(&all[..]).unwrap();
    let by_name: BTreeMap<String, FileDescriptorProto> =
        all.file.into_iter().map(|file| (file.name().to_owned(), file)).collect();
    let mut needed = Vec::new();
    need("envoy/service/ratelimit/v3/rls.proto", &by_name, &mut needed);
    let file = needed.iter().map(|name| FileDescriptorProto { source_code_info: None, ..by_name[name].clone() });
    FileDescriptorSet { file: file.collect() }.encode_to_vec()
}

/// Adds a file after all of its imports.
fn need(name: &str, files: &BTreeMap<String, FileDescriptorProto>, needed: &mut Vec<String>) {
    if needed.iter().any(|known| known == name) {
        return;
    }
    for import in &files.get(name).unwrap_or_else(|| panic!("there is no {name}")).dependency {
        need(import, files, needed);
    }
    needed.push(name.to_owned());
}

/// The folder where cargo keeps the sources of a dependency.
fn crate_folder(name: &str) -> PathBuf {
    let about = String::from_utf8(Command::new("rustc").arg("-vV").output().unwrap().stdout).unwrap();
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    // Only for this platform: dependencies of other platforms may not have been downloaded.
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", host])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let package = metadata["packages"].as_array().unwrap().iter().find(|package| package["name"] == name).unwrap();
    Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned()
}

/// After an update of `envoy-types`, `UPDATE=1 cargo test -p tidegate --test rls messages` writes the file again.
#[test]
fn reflection_serves_the_messages_that_we_speak() {
    let made = made_anew();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(SERVED, &made).unwrap();
    }
    assert!(std::fs::read(SERVED).unwrap() == made, "the messages have changed: run this test with UPDATE=1");
}
