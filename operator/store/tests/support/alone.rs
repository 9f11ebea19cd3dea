//! A test in a process of its own, so that the memory that it takes is the process's.

use std::process::Command;
use std::time::Duration;

/// Set in the process of one test.
const ALONE: &str = "DALSEGNO_TEST_ALONE";

/// Runs this, which belongs to the test of this name, in a process of its own. There it must take no more memory than so
/// many bytes, and no more of a processor than so long, all told, as the kernel has counted both: however busy the machine
/// is with others.
pub fn within(bytes: u64, time: Duration, test: &str, work: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        work();
        let (peak, spent) = (peak(), spent());
        assert!(peak <= bytes, "{test} took {peak} bytes, which is more than {bytes}");
        assert!(spent <= time, "{test} took {spent:?} of a processor, which is more than {time:?}");
        println!("took {peak} bytes and {spent:?}");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, test).output().unwrap();
    let told =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    print!("{told}");
}

/// The most that this process has ever had in memory, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1_024
}

/// The time of processors that this process has taken, its threads together: for itself, and for the kernel's work for it.
fn spent() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Fields are counted from the one after the name, which may have blanks of its own: the third.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(14 - 3).take(2).map(|field| field.parse::<u64>().unwrap());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}
