//! Measurements of this process, from the operating system.

use std::fs;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Resident memory of this process, in bytes.
///
/// # Panics
/// On systems without `/proc`.
pub fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("/proc/self/statm");
    let pages: u64 = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("a number of pages");
    pages * rustix::param::page_size() as u64
}

/// Pins the calling thread to the `number`th of the cores that this process may use. Does nothing where the system does
/// not support it.
pub fn pin_to_core(number: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    let mut one = CpuSet::new();
    one.set(cores[number % cores.len()]);
    let _ = sched_setaffinity(None, &one);
}

/// Processor time used by the calling thread.
pub fn thread_cpu_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// Processor time used by a process with all of its threads, in steps of a hundredth of a second.
///
/// # Panics
/// If there is no such process.
pub fn process_cpu_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("a process that runs");
    // The name is in brackets, and may contain anything. After it, the 12th and 13th fields are user and system time.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_ascii_whitespace().skip(11).take(2).flat_map(str::parse::<u64>);
    Duration::from_millis(10 * ticks.sum::<u64>())
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The number of times that the calling thread was preempted.
pub fn preemptions() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let count = |line: &str| line.strip_prefix("nonvoluntary_ctxt_switches:")?.trim().parse().ok();
    status.lines().find_map(count).unwrap_or(0)
}

/// Measures the processor time used by other processes.
pub struct Others {
    began: Instant,
    busy: Duration,
    own: Duration,
}

impl Others {
    /// Starts measuring.
    pub fn watch() -> Others {
        Others { began: Instant::now(), busy: busy_time(), own: read(ClockId::ProcessCPUTime) }
    }

    /// Processor time used by other processes since then, in processors.
    pub fn share(&self) -> f64 {
        let own = read(ClockId::ProcessCPUTime) - self.own;
        let others = (busy_time() - self.busy).saturating_sub(own);
        others.as_secs_f64() / self.began.elapsed().as_secs_f64()
    }
}

/// Busy processor time since the machine started, of all processors together, in steps of a hundredth of a second.
fn busy_time() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<u64> = stat.lines().next().unwrap_or("").split(' ').flat_map(str::parse).collect();
    // Fields: user, nice, system, idle, iowait, irq, softirq, steal. Guest time is included in user time.
    let busy = ticks.iter().enumerate().filter(|(field, _)| ![3, 4, 8, 9].contains(field));
    Duration::from_millis(10 * busy.map(|(_, ticks)| ticks).sum::<u64>())
}
