//! Standard process metrics, as in Prometheus client libraries.

use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use tidegate_core::{Clock, SystemClock};

use super::page::Page;

/// Clock ticks per second in `/proc`. The same on all Linux architectures that Rust supports.
const TICKS: f64 = 100.0;

/// Start of the process. Computed once: a clock that is set would move it, and it would look like a restart.
static START: OnceLock<Option<f64>> = OnceLock::new();

/// Writes the process metrics that the system provides.
pub(super) fn write(page: &mut Page) {
    page.of_process();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    if let Some(seconds) = cpu_seconds(&stat) {
        let help = "User and system CPU time spent";
        page.counter("process_cpu_seconds", help, &[(&[], seconds)]);
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (name, help, field) in [
        ("process_resident_memory_bytes", "Resident memory size", "VmRSS:"),
        ("process_virtual_memory_bytes", "Virtual memory size", "VmSize:"),
    ] {
        if let Some(bytes) = kilobytes(&status, field) {
            page.gauge(name, help, &[(&[], bytes * 1_024)]);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One descriptor belongs to the open directory itself.
        page.gauge("process_open_fds", "Open file descriptors", &[(&[], open.count().saturating_sub(1))]);
    }
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(most) = most_files(&limits) {
        page.gauge("process_max_fds", "Maximum number of open file descriptors", &[(&[], most)]);
    }
    if let Some(start) = START.get_or_init(|| start_time(&stat, since_epoch(), since_boot()?)) {
        let help = "Start time of the process, in seconds since the Unix epoch";
        page.gauge("process_start_time_seconds", help, &[(&[], *start)]);
    }
}

/// The field of `/proc/self/stat` with this number, counted as in proc(5).
fn field(stat: &str, number: usize) -> Option<f64> {
    // The second field is the name of the program, which may contain spaces and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS)
}

/// The start of the process, in seconds since the Unix epoch, at the instant `since_epoch` that is `since_boot` after the
/// boot. `/proc/stat` has the time of the boot, but a service with `ProcSubset=pid` cannot read it.
fn start_time(stat: &str, since_epoch: f64, since_boot: f64) -> Option<f64> {
    let start = since_epoch - since_boot + field(stat, 22)? / TICKS;
    Some((start * TICKS).round() / TICKS)
}

fn since_epoch() -> f64 {
    Duration::from_micros(SystemClock::new().now().as_micros()).as_secs_f64()
}

#[cfg(target_os = "linux")]
fn since_boot() -> Option<f64> {
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(boot).ok().map(|boot| boot.as_secs_f64())
}

#[cfg(not(target_os = "linux"))]
const fn since_boot() -> Option<f64> {
    None
}

fn kilobytes(status: &str, field: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    value.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn most_files(limits: &str) -> Option<u64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    soft.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) (b c)) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 1000 1 2";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        // Started 10 s after the boot, which was 25 s ago.
        assert_eq!(start_time(stat, 1_700_000_040.001, 25.0), Some(1_700_000_025.0));
        assert_eq!(start_time("", 1_700_000_040.0, 25.0), None);
        assert_eq!(cpu_seconds(""), None);
        assert_eq!(most_files("Max open files            unlimited            unlimited            files"), None);
        assert_eq!(kilobytes("VmRSS:\t    2048 kB\n", "VmRSS:"), Some(2_048));
    }

    #[test]
    fn the_start_is_that_by_the_time_of_the_boot() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let system = fs::read_to_string("/proc/stat").unwrap();
        let booted: f64 = system.lines().find_map(|line| line.strip_prefix("btime ")).unwrap().parse().unwrap();
        let expected = booted + field(&stat, 22).unwrap() / TICKS;
        let start = start_time(&stat, since_epoch(), since_boot().unwrap()).unwrap();
        // The time of the boot is in whole seconds.
        assert!((start - expected).abs() < 2.0, "{start}, and {expected}");
    }

    #[test]
    fn this_process_tells_all_of_it() {
        let mut page = Page::new(Format::Text);
        write(&mut page);
        let text = page.finish();
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_open_fds",
            "process_max_fds",
            "process_start_time_seconds",
        ] {
            assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} is not in\n{text}");
        }
    }
}
