//! Programs that the tests run.

use std::path::PathBuf;
use std::process::{Child, Command};

/// The folder of Python packages that `tools/setup` installs.
pub(crate) fn python_packages() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).unwrap();
    let packages = cache.join("tidegate/python");
    assert!(packages.is_dir(), "there is no {}: run tools/setup", packages.display());
    packages
}

/// Runs a Python script to its end, and returns its output.
pub(crate) async fn python(script: &str, args: &[&str]) -> String {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", python_packages()).arg("-c").arg(script).args(args);
    let run = move || command.output().unwrap();
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A program that is killed when the test ends.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
