//! One attempt's process: begun in a group of its own, signalled as a group, and never left behind.
//!
//! # Guarantees
//!
//! - When the process that was begun ends, whatever else runs in its group is killed: so ends a container, too.
//! - Its standard input is an empty file that is locked for as long as any process of it lives. A `dalsegno dev` that
//!   was killed itself leaves a worker behind; the next one finds the lock taken, and ends that worker by its group.
//!
//! # Caveats
//!
//! - A process that leaves the group (a daemon) is found by nobody.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// File that is the standard input of every process of a worker, and locked while one lives.
pub const LOCK: &str = "lock";
/// File with the number of the worker's process group.
pub const GROUP: &str = "group";
/// How long the kernel may take to end a group that was killed.
const DYING: Duration = Duration::from_secs(5);

/// What to begin.
pub struct Plan {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Variables beside those that are inherited.
    pub env: Vec<(String, String)>,
    /// Folder of the attempt.
    pub folder: PathBuf,
}

/// A process group.
#[derive(Clone, Copy, Debug)]
pub struct Group(Pid);

impl Group {
    /// Sends a signal to all of it. That nothing is there any more is fine.
    pub fn signal(self, signal: Signal) {
        let _ = kill_process_group(self.0, signal);
    }
}

/// Begins the process of an attempt. Its output is ours.
///
/// # Errors
///
/// The program cannot be started, or the attempt's folder cannot be written.
pub fn begin(plan: &Plan) -> io::Result<(Child, Group)> {
    let [program, arguments @ ..] = plan.command.as_slice() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no command"));
    };
    let lock = open_lock(&plan.folder)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let child = Command::new(program)
        .args(arguments)
        .envs(plan.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(lock))
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let group = Group(pid.ok_or_else(|| io::Error::other("the process has no number"))?);
    if let Err(error) = fs::write(plan.folder.join(GROUP), group.0.as_raw_nonzero().to_string()) {
        group.signal(Signal::KILL);
        return Err(error);
    }
    Ok((child, group))
}

/// Waits for the end of a process, then ends the rest of its group. The exit code is that of a container: 128 and the
/// signal's number for one that was killed.
pub async fn end_of(mut child: Child, group: Group) -> (i32, Option<i32>) {
    let ended = child.wait().await.ok();
    group.signal(Signal::KILL);
    let signal = ended.as_ref().and_then(ExitStatusExt::signal);
    let code = ended.as_ref().and_then(ExitStatus::code).or(signal.map(|it| 128 + it));
    (code.unwrap_or(255), signal)
}

/// Ends the worker that an earlier `dalsegno dev` left behind in this folder. Answers whether there was one.
///
/// # Errors
///
/// It does not end, or the folder cannot be read.
pub async fn end_left_behind(folder: &Path) -> io::Result<bool> {
    if !folder.join(LOCK).is_file() {
        return Ok(false);
    }
    let lock = open_lock(folder)?;
    let is_free = || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    if is_free() {
        return Ok(false);
    }
    let number = fs::read_to_string(folder.join(GROUP))?;
    // While a process of the group lives, as the lock says, its number is no other's.
    let pid = number.trim().parse().ok().and_then(Pid::from_raw);
    Group(pid.ok_or_else(|| io::Error::other("the number of its process group is not known"))?)
        .signal(Signal::KILL);
    let freed = async {
        while !is_free() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DYING, freed).await.map_err(|_| io::Error::other("it does not end"))?;
    Ok(true)
}

fn open_lock(folder: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(folder.join(LOCK))
}
