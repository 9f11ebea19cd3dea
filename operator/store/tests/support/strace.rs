//! Runs a test again in a child process under `strace`, to see its system calls. An environment variable tells the test
//! program that it is the child of the test of the same name.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder that the child works in.
const FOLDER: &str = "DALSEGNO_TEST_CHILD";

/// The child's folder; `None` if this process is not a child.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// The command that runs the test of this name as a child, behind a wrapper such as `strace`. Its standard output is piped.
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

/// Writes one line in one system call, past the buffer and the test harness.
pub fn print_line(line: &str) {
    use std::io::Write as _;
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

/// The system calls of a child of this test, as `strace` prints them.
pub fn traced(test: &str, folder: &Path) -> String {
    let log = folder.join("trace");
    let wrapper = ["strace", "-f", "-e", "trace=fdatasync,fsync,write", "-o", log.to_str().unwrap()];
    let output = command(test, folder, &wrapper).output().expect("strace, a package of Debian's");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(log).unwrap()
}

/// The number of answers (lines that begin with `ack`), if the disk was synced before each answer and after the one before.
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
