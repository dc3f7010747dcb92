//! Standard process metrics, as in Prometheus client libraries.

use std::fs;

use super::page::Page;

/// Clock ticks per second in `/proc`. The same on all Linux architectures that Rust supports.
const TICKS: f64 = 100.0;

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
    let system = fs::read_to_string("/proc/stat").unwrap_or_default();
    if let Some(start) = start_time(&stat, &system) {
        let help = "Start time of the process, in seconds since the Unix epoch";
        page.gauge("process_start_time_seconds", help, &[(&[], start)]);
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

fn start_time(stat: &str, system: &str) -> Option<f64> {
    let booted = system.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(booted.trim().parse::<f64>().ok()? + field(stat, 22)? / TICKS)
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
        assert_eq!(start_time(stat, "cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_010.0));
        assert_eq!(cpu_seconds(""), None);
        assert_eq!(most_files("Max open files            unlimited            unlimited            files"), None);
        assert_eq!(kilobytes("VmRSS:\t    2048 kB\n", "VmRSS:"), Some(2_048));
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
