//! A folder with a scripted agent, and the real program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dalsegno_model::RunRecord;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

/// Timeout of every wait, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(240);
/// Time in which the output must be closed after the program has ended: no process may hold it open.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

const PROGRAM: &str = env!("CARGO_BIN_EXE_dalsegno");

/// A folder with an agent in it.
pub struct TestContext(TempDir);

/// A running `dalsegno dev`.
pub struct Dev {
    child: Child,
    /// Lines of the agent. The channel closes when no process holds the output open.
    lines: Receiver<String>,
    seen: Vec<String>,
    stderr: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// An ended `dalsegno dev`.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    /// Lines of the agent.
    pub lines: Vec<String>,
    /// Standard error of the program.
    pub stderr: String,
}

impl TestContext {
    /// With the scripted agent, and its script as input.
    pub fn new(script: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(here("tests/dev/agent.py"), folder.path().join("agent.py")).unwrap();
        fs::write(folder.path().join("input.json"), script.to_string()).unwrap();
        Self(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Undoes an earlier [`Self::end_pause`].
    pub fn begin_pause(&self) {
        fs::remove_file(self.path().join("go")).unwrap();
    }

    /// Lets the agent go on, which pauses at the turn `pauseAt` of its script until then.
    pub fn end_pause(&self) {
        fs::write(self.path().join("go"), "").unwrap();
    }

    /// Starts `dalsegno dev` with these flags and the agent.
    pub fn dev(&self, flags: &[&str]) -> Dev {
        self.dev_on(flags, &["python3", "agent.py"])
    }

    /// The same, started by another program that executes it.
    pub fn dev_under(&self, starter: &[&str], flags: &[&str]) -> Dev {
        let mut command = self.started_by(Command::new(starter[0]));
        command.args(&starter[1..]).arg(PROGRAM).arg("dev").args(flags).args(["--", "python3", "agent.py"]);
        Self::start(command)
    }

    /// Starts `dalsegno dev` with these flags and this command.
    pub fn dev_on(&self, flags: &[&str], agent: &[&str]) -> Dev {
        let mut command = self.program();
        command.arg("dev").args(flags).arg("--").args(agent);
        Self::start(command)
    }

    fn start(mut command: Command) -> Dev {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (line, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|it| line.send(it)));
        let errors = BufReader::new(child.stderr.take().unwrap());
        let stderr = Arc::new(Mutex::new(String::new()));
        let text = stderr.clone();
        let reader = thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                *text.lock().unwrap() += &(line + "\n");
            }
        });
        Dev { child, lines, seen: Vec::new(), stderr, reader: Some(reader) }
    }

    /// Runs `dalsegno dev` to its end, with the script as input.
    pub fn run_to_end(&self, flags: &[&str]) -> Ended {
        self.dev(&[&["--input", "input.json"], flags].concat()).end()
    }

    /// Runs `dalsegno dev` to its end. Returns each write on standard error; a datagram socket keeps them apart.
    pub fn stderr_writes(&self, flags: &[&str]) -> Vec<String> {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut command = self.program();
        command.arg("dev").args(flags).args(["--", "python3", "agent.py"]);
        command.stdout(Stdio::null()).stderr(OwnedFd::from(theirs));
        let mut child = command.spawn().unwrap();
        let (mut writes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            let has_ended = child.try_wait().unwrap().is_some();
            match ours.recv(&mut buffer) {
                Ok(length) => writes.push(String::from_utf8_lossy(&buffer[..length]).into_owned()),
                Err(_) if has_ended => return writes,
                Err(_) => {}
            }
        }
    }

    /// Runs another command of the program. Returns its output.
    pub fn command(&self, args: &[&str]) -> String {
        let output = self.program().args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a line of a message in a shell, as a person pastes it. Returns its output.
    pub fn shell(&self, line: &str) -> String {
        let folder = Path::new(PROGRAM).parent().unwrap().display();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
        let output = Command::new("sh").args(["-c", line]).env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs another command, which must fail. Returns its output on both streams.
    pub fn failing_command(&self, args: &[&str]) -> String {
        let output = self.program().args(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    /// Runs another command whose output nobody reads. Returns its exit code and its standard error.
    pub fn unread_command(&self, args: &[&str]) -> (Option<i32>, String) {
        let (_, unread) = std::io::pipe().unwrap();
        let output = self.program().args(args).stdout(unread).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    /// URL of the store.
    pub fn url(&self) -> String {
        let path = self.path().join(".dalsegno/runs.db").canonicalize().unwrap();
        format!("sqlite://{}", path.display())
    }

    /// From now on the store can be read, but no attempt can be added.
    pub fn fill_disk(&self) {
        self.execute(
            "CREATE TRIGGER full BEFORE INSERT ON attempts \
             BEGIN SELECT RAISE(ABORT, 'full'); END",
        );
    }

    /// Undoes `fill_disk`.
    pub fn free_space(&self) {
        self.execute("DROP TRIGGER full");
    }

    fn execute(&self, sql: &'static str) {
        let url = self.url();
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let mut conn = SqliteConnection::connect(&url).await.unwrap();
            sqlx::query(sql).execute(&mut conn).await.unwrap();
        });
    }

    /// All runs of the name, the newest first.
    pub fn rows(&self) -> Vec<RunRecord> {
        let url = self.url();
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let store = dalsegno_store::open_read_only(&url, None).await.unwrap();
            store.find("dev", "agent").await.unwrap()
        })
    }

    fn program(&self) -> Command {
        self.started_by(Command::new(PROGRAM))
    }

    fn started_by(&self, mut command: Command) -> Command {
        command.current_dir(self.path()).env("PYTHONPATH", here("../sdk/python/src")).stdin(Stdio::null());
        command
    }
}

impl Dev {
    /// Waits until the agent has printed this line.
    #[track_caller]
    pub fn wait_for(&mut self, line: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while self.seen.last().is_none_or(|last| last != line) {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(_) => {
                    let stderr = self.take_stderr();
                    panic!("{line:?} was not printed: {:?}: {stderr}", self.seen)
                }
            }
        }
    }

    /// Waits until standard error contains this.
    #[track_caller]
    pub fn wait_for_stderr(&mut self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.stderr.lock().unwrap().contains(text) {
            assert!(Instant::now() < deadline, "{text:?} was not printed: {}", self.take_stderr());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills the program, and waits for it but not for its processes.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Waits until no process can write any more.
    #[track_caller]
    pub fn wait_until_closed(&mut self) {
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => panic!("a process was left behind"),
            }
        }
    }

    /// Waits for the end of the program. All its processes must have ended then.
    #[track_caller]
    pub fn end(mut self) -> Ended {
        let deadline = Instant::now() + TIMEOUT;
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("the program does not end: {}", self.take_stderr());
            }
            thread::sleep(Duration::from_millis(20));
        };
        self.wait_until_closed();
        Ended { code, stderr: self.take_stderr(), lines: std::mem::take(&mut self.seen) }
    }

    fn take_stderr(&mut self) -> String {
        let _ = self.child.kill();
        self.reader.take().into_iter().for_each(|it| it.join().unwrap());
        self.stderr.lock().unwrap().clone()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The turns that the agent printed, in order.
    pub fn turns(&self) -> Vec<i32> {
        self.lines.iter().filter_map(|line| line.strip_prefix("turn ")?.parse().ok()).collect()
    }

    /// Asserts the exit code, and that standard error contains all of these texts.
    #[track_caller]
    pub fn expect_output(self, code: i32, texts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        for text in texts {
            assert!(self.stderr.contains(text), "{text:?} is not in: {}", self.stderr);
        }
        self
    }
}

/// A path from this crate's folder.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A program of the examples. A build of the workspace puts it next to ours; for a test of this crate alone it is built here.
pub fn built(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_dalsegno")).with_file_name(name);
    if !program.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.current_dir(here("..")).args([
            "build",
            "--locked",
            "--package",
            "dalsegno-example",
            "--bin",
            name,
        ]);
        assert!(build.status().unwrap().success());
    }
    program
}
