//! A laptop: a folder, an agent in it, and the real program.

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

use dalsegno_store::RunRecord;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

/// Longer than anything here takes on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// How soon the output must be closed once the program has ended: nobody may be left who holds it.
const CLOSED: Duration = Duration::from_secs(5);

const PROGRAM: &str = env!("CARGO_BIN_EXE_dalsegno");

/// A folder with an agent in it.
pub struct Laptop(TempDir);

/// A `dalsegno dev` that runs.
pub struct Dev {
    child: Child,
    /// Lines of the agent, and the end of them when the last process that could write one has ended.
    lines: Receiver<String>,
    seen: Vec<String>,
    told: Arc<Mutex<String>>,
    listener: Option<JoinHandle<()>>,
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    /// Lines of the agent.
    pub lines: Vec<String>,
    /// What was told on standard error.
    pub told: String,
}

impl Laptop {
    /// With the scripted agent, and its script as the input.
    pub fn new(script: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(here("tests/dev/agent.py"), folder.path().join("agent.py")).unwrap();
        fs::write(folder.path().join("input.json"), script.to_string()).unwrap();
        Self(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Begins `dalsegno dev` with these flags, on the agent.
    pub fn dev(&self, flags: &[&str]) -> Dev {
        self.dev_on(flags, &["python3", "agent.py"])
    }

    /// Begins it on the agent by another program, which it is then executed in place of.
    pub fn dev_under(&self, starter: &[&str], flags: &[&str]) -> Dev {
        let mut command = self.started_by(Command::new(starter[0]));
        command.args(&starter[1..]).arg(PROGRAM).arg("dev").args(flags).args(["--", "python3", "agent.py"]);
        Self::begun(command)
    }

    /// Begins `dalsegno dev` with these flags, on this command.
    pub fn dev_on(&self, flags: &[&str], agent: &[&str]) -> Dev {
        let mut command = self.program();
        command.arg("dev").args(flags).arg("--").args(agent);
        Self::begun(command)
    }

    fn begun(mut command: Command) -> Dev {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (line, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|it| line.send(it)));
        let words = BufReader::new(child.stderr.take().unwrap());
        let told = Arc::new(Mutex::new(String::new()));
        let book = told.clone();
        let listener = thread::spawn(move || {
            for line in words.lines().map_while(Result::ok) {
                *book.lock().unwrap() += &(line + "\n");
            }
        });
        Dev { child, lines, seen: Vec::new(), told, listener: Some(listener) }
    }

    /// Runs it to its end, with the script as its input.
    pub fn run(&self, flags: &[&str]) -> Ended {
        self.dev(&[&["--input", "input.json"], flags].concat()).end()
    }

    /// Runs it to its end on the agent; answers each write on standard error. A socket of datagrams keeps them apart.
    pub fn writes_on_standard_error(&self, flags: &[&str]) -> Vec<String> {
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

    /// Runs another verb of the program; answers what it printed.
    pub fn ask(&self, words: &[&str]) -> String {
        let output = self.program().args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs another verb of the program, which must refuse; answers what it printed.
    pub fn refused(&self, words: &[&str]) -> String {
        let output = self.program().args(words).output().unwrap();
        assert!(!output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    /// Runs another verb of the program, of which nobody reads what it prints; answers its exit code and what it said of it.
    pub fn ask_unread(&self, words: &[&str]) -> (Option<i32>, String) {
        let (_, unread) = std::io::pipe().unwrap();
        let output = self.program().args(words).stdout(unread).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    /// The store, by its URL.
    pub fn url(&self) -> String {
        let path = self.path().join(".dalsegno/runs.db").canonicalize().unwrap();
        format!("sqlite://{}", path.display())
    }

    /// From now on the store can be read, and takes no further attempt.
    pub fn fill_disk(&self) {
        self.execute(
            "CREATE TRIGGER full BEFORE INSERT ON attempts \
             BEGIN SELECT RAISE(ABORT, 'full'); END",
        );
    }

    /// From now on it takes it again.
    pub fn make_room(&self) {
        self.execute("DROP TRIGGER full");
    }

    fn execute(&self, sql: &'static str) {
        let url = self.url();
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let mut conn = SqliteConnection::connect(&url).await.unwrap();
            sqlx::query(sql).execute(&mut conn).await.unwrap();
        });
    }

    /// Every row of the run, the newest first.
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
    /// Waits until the agent has said this.
    #[track_caller]
    pub fn wait_for(&mut self, word: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.seen.last().is_none_or(|last| last != word) {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(_) => {
                    let told = self.take_told();
                    panic!("{word:?} was not said: {:?}: {told}", self.seen)
                }
            }
        }
    }

    /// Waits until this was told.
    #[track_caller]
    pub fn wait_until_told(&mut self, word: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.told.lock().unwrap().contains(word) {
            assert!(Instant::now() < deadline, "{word:?} was not told: {}", self.take_told());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the program alone: who it leaves behind is not its doing.
    pub fn die(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Waits until nobody is left who could write.
    #[track_caller]
    pub fn wait_until_closed(&mut self) {
        let deadline = Instant::now() + CLOSED;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => panic!("a process was left behind"),
            }
        }
    }

    /// Waits for its end, by which every process of it has ended, too.
    #[track_caller]
    pub fn end(mut self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("it does not end: {}", self.take_told());
            }
            thread::sleep(Duration::from_millis(20));
        };
        self.wait_until_closed();
        Ended { code, told: self.take_told(), lines: std::mem::take(&mut self.seen) }
    }

    fn take_told(&mut self) -> String {
        let _ = self.child.kill();
        self.listener.take().into_iter().for_each(|it| it.join().unwrap());
        self.told.lock().unwrap().clone()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The turns that were told as committed, in order.
    pub fn turns(&self) -> Vec<i32> {
        self.lines.iter().filter_map(|line| line.strip_prefix("turn ")?.parse().ok()).collect()
    }

    /// Asserts the exit code, and that all of this was told.
    #[track_caller]
    pub fn told(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.told);
        for word in words {
            assert!(self.told.contains(word), "{word:?} is not in: {}", self.told);
        }
        self
    }
}

/// A path from this crate's folder.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A program of the examples. A build of the workspace puts it beside ours; whoever runs these tests alone gets it here.
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
