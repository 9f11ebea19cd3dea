//! LangGraph's PostgreSQL saver, in a Python process of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const STEP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/boundary/saver.py");

/// A process that saves one step for each line it receives. It ends when this is dropped.
pub struct Saver {
    /// Its database.
    pub url: String,
    process: Child,
    steps: Option<ChildStdin>,
    times: BufReader<ChildStdout>,
}

impl Saver {
    /// Starts it with an empty database; `None` if `DALSEGNO_BENCH_PYTHON` is not set.
    pub fn start(url: &str) -> Option<Self> {
        let python = std::env::var_os("DALSEGNO_BENCH_PYTHON")?;
        let mut process = Command::new(python)
            .args([STEP, url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the Python of DALSEGNO_BENCH_PYTHON");
        let steps = process.stdin.take();
        let times = BufReader::new(process.stdout.take().unwrap());
        Some(Self { url: url.to_owned(), process, steps, times })
    }

    /// Saves one step with this state; returns the time it took by the process's own clock.
    pub fn step(&mut self, state: &str) -> Duration {
        self.measure(state)
    }

    /// Loads the latest checkpoint; returns the time it took.
    #[allow(dead_code, reason = "the bench of boundaries loads none")]
    pub fn load(&mut self) -> Duration {
        self.measure("")
    }

    fn measure(&mut self, line: &str) -> Duration {
        let steps = self.steps.as_mut().unwrap();
        writeln!(steps, "{line}").unwrap();
        let mut nanoseconds = String::new();
        self.times.read_line(&mut nanoseconds).unwrap();
        Duration::from_nanos(nanoseconds.trim().parse().expect("the saver has failed"))
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        drop(self.steps.take());
        // It exits at the end of its input. Its exit status does not matter.
        let _ = self.process.wait();
    }
}
