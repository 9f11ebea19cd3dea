//! Runs a test in its own process, so that the process's memory and CPU time are the test's.

use std::process::Command;
use std::time::Duration;

/// Set in the child process of a test.
const IN_CHILD: &str = "DALSEGNO_TEST_ALONE";

/// The settings of the allocator in production: it gives large buffers back at once. The chart sets the same.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_MMAP_THRESHOLD_", "1048576"), ("MALLOC_TRIM_THRESHOLD_", "4194304"), ("MALLOC_ARENA_MAX", "8")];

/// Runs `work`, which belongs to the test of this name, in a child process. The child may use at most this many bytes of
/// memory and this much CPU time in all, as counted by the kernel. Other load on the machine does not count.
pub fn within(bytes: u64, time: Duration, test: &str, work: impl FnOnce()) {
    if std::env::var_os(IN_CHILD).is_some() {
        work();
        let (peak_memory, cpu_time) = (peak_memory(), cpu_time());
        assert!(peak_memory <= bytes, "{test} took {peak_memory} bytes, which is more than {bytes}");
        assert!(cpu_time <= time, "{test} took {cpu_time:?} of a processor, which is more than {time:?}");
        println!("took {peak_memory} bytes and {cpu_time:?}");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(IN_CHILD, test).envs(ALLOCATOR);
    let output = command.output().unwrap();
    let report =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && report.contains("1 passed"), "{report}");
    print!("{report}");
}

/// The peak memory of this process, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1_024
}

/// The CPU time of this process: all its threads, user and system time.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Fields are counted after the program's name, which may contain blanks: the first one here is the third.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(14 - 3).take(2).map(|field| field.parse::<u64>().unwrap());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}
