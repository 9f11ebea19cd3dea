//! A process of its own that is watched by the system calls that it makes: this test program again, told by its environment
//! to be the child of the test of the same name.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the child finds what it works on.
const FOLDER: &str = "DALSEGNO_TEST_CHILD";

/// Set: this process is a child, and its database is in this folder.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// A child of the test of this name, behind a wrapping command such as `strace`; its standard output is piped.
pub fn command(test: &str, folder: &Path, wrapper: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = match wrapper {
        [] => Command::new(&program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
    };
    command.args(["--exact", "--nocapture", test]).env(FOLDER, folder).stdout(Stdio::piped());
    command
}

/// One line, written by one call, past the buffer and past the test harness.
pub fn say(line: &str) {
    use std::io::Write as _;
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

/// The system calls of a child of this test.
pub fn traced(test: &str, folder: &Path) -> String {
    let log = folder.join("trace");
    let wrapper = ["strace", "-f", "-e", "trace=fdatasync,fsync,write", "-o", log.to_str().unwrap()];
    let output = command(test, folder, &wrapper).output().expect("strace, a package of Debian's");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(log).unwrap()
}

/// How many answers there were, each a line that begins with `ack`, if the disk was synced before each and after the one
/// before it.
pub fn synced_before_each_answer(trace: &str) -> Result<usize, String> {
    let (mut answers, mut early, mut synced) = (0, Vec::new(), false);
    for line in trace.lines() {
        if line.contains("sync") && line.trim_end().ends_with("= 0") {
            synced = true;
        } else if line.contains("\"ack ") {
            if !std::mem::take(&mut synced) {
                early.push(line);
            }
            answers += 1;
        }
    }
    if early.is_empty() { Ok(answers) } else { Err(format!("no sync before {}", early.join("\n"))) }
}
