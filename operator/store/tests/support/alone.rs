//! A test in a process of its own, so that the memory that it takes is the process's.

use std::process::Command;

/// Set in the process of one test.
const ALONE: &str = "DALSEGNO_TEST_ALONE";

/// Runs this, which belongs to the test of this name, in a process of its own. There it must take no more memory than so
/// many bytes, all told, as the kernel has counted it.
pub fn within(bytes: u64, test: &str, work: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        work();
        let peak = peak();
        assert!(peak <= bytes, "{test} took {peak} bytes, which is more than {bytes}");
        println!("took {peak} bytes");
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
