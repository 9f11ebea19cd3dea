//! The process of one attempt, in a process group of its own.
//!
//! # Guarantees
//!
//! - When the process ends, everything else in its group is killed, as in a container.
//! - Its standard input is an empty file. The file is locked as long as any descendant has it open; a second descriptor
//!   keeps it open even if standard input is redirected. If `dalsegno dev` itself is killed, its worker keeps running: the
//!   next `dalsegno dev` finds the lock taken, and kills the worker by its group.
//!
//! # Caveats
//!
//! - A process that leaves the group (a daemon) is not killed. If it has the file open, the next `dalsegno dev` prints a
//!   warning.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, getpgid, kill_process_group, test_kill_process_group};
use tokio::process::{Child, Command};

/// The file that is the standard input of a worker, and is locked while one of its processes lives.
pub const LOCK: &str = "lock";
/// The file with the id of the worker's process group.
pub const GROUP: &str = "group";
/// Longest wait for the kernel to end a group that was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A process to start.
pub struct ProcessSpec {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment variables besides the inherited ones.
    pub env: Vec<(String, String)>,
    /// Folder of the attempt.
    pub folder: PathBuf,
}

/// A process group.
#[derive(Clone, Copy, Debug)]
pub struct Group(Pid);

impl Group {
    /// Sends a signal to all processes of the group. Does nothing if there are none.
    pub fn signal(self, signal: Signal) {
        let _ = kill_process_group(self.0, signal);
    }

    /// Whether one of its processes holds this lock. Without `/proc`: whether it has any process.
    fn may_hold(self, lock: &File) -> bool {
        match holders(lock).as_slice() {
            [] => test_kill_process_group(self.0).is_ok(),
            holders => holders.iter().any(|it| getpgid(Some(*it)) == Ok(self.0)),
        }
    }
}

/// Processes of an earlier `dalsegno dev` that were still running.
#[derive(Debug, Default)]
pub struct Orphans {
    /// Its worker was running, and was killed.
    pub worker: bool,
    /// Processes that left the worker's group are still running: these, as far as `/proc` shows them.
    pub others: Option<Vec<Pid>>,
}

/// Starts the process of an attempt. It inherits our output. The inner error: the program cannot be started.
///
/// # Errors
///
/// The attempt's folder cannot be written.
pub fn start(spec: &ProcessSpec) -> io::Result<io::Result<(Child, Group)>> {
    let [program, arguments @ ..] = spec.command.as_slice() else {
        return Ok(Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no command")));
    };
    let lock = open_lock(&spec.folder)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let inherited = lock.try_clone()?;
    fcntl_setfd(&inherited, FdFlags::empty())?;
    let started = Command::new(program)
        .args(arguments)
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(lock))
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    drop(inherited);
    let child = match started {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let group = Group(pid.ok_or_else(|| io::Error::other("the process has no id"))?);
    if let Err(error) = fs::write(spec.folder.join(GROUP), group.0.as_raw_nonzero().to_string()) {
        group.signal(Signal::KILL);
        return Err(error);
    }
    Ok(Ok((child, group)))
}

/// Waits for the end of a process, then kills the rest of its group. Returns the exit code and the signal. For a killed
/// process the exit code is 128 plus the number of the signal, as for a container.
pub async fn wait(mut child: Child, group: Group) -> (i32, Option<i32>) {
    let ended = child.wait().await.ok();
    group.signal(Signal::KILL);
    let signal = ended.as_ref().and_then(ExitStatusExt::signal);
    let code = ended.as_ref().and_then(ExitStatus::code).or(signal.map(|it| 128 + it));
    (code.unwrap_or(255), signal)
}

/// Kills the worker of an earlier `dalsegno dev` that has this folder.
///
/// # Errors
///
/// The folder cannot be read.
pub async fn kill_orphans(folder: &Path) -> io::Result<Orphans> {
    let mut orphans = Orphans::default();
    if !folder.join(LOCK).is_file() {
        return Ok(orphans);
    }
    let lock = open_lock(folder)?;
    let is_free = || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    let id = fs::read_to_string(folder.join(GROUP)).ok().and_then(|it| it.trim().parse().ok());
    if let Some(group) = id.and_then(Pid::from_raw).map(Group) {
        let ending = async {
            // The id may have been reused by now, unless a process of the group holds the lock.
            while !is_free() && group.may_hold(&lock) {
                orphans.worker = true;
                group.signal(Signal::KILL);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // A killed process does nothing any more, even if the kernel takes longer.
        let _ = tokio::time::timeout(KILL_TIMEOUT, ending).await;
    }
    orphans.others = (!is_free()).then(|| holders(&lock));
    Ok(orphans)
}

/// The other processes that have this file open. Empty without `/proc`.
fn holders(lock: &File) -> Vec<Pid> {
    let Ok(lock) = lock.metadata() else { return Vec::new() };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let holds = |process: &fs::DirEntry| {
        let mut open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        open.any(|it| {
            fs::metadata(it.path()).is_ok_and(|it| (it.dev(), it.ino()) == (lock.dev(), lock.ino()))
        })
    };
    let ours = Pid::from_raw(std::process::id().cast_signed());
    let pid = |process: fs::DirEntry| Pid::from_raw(process.file_name().to_str()?.parse().ok()?);
    processes.filter(holds).filter_map(pid).filter(|it| Some(*it) != ours).collect()
}

fn open_lock(folder: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(folder.join(LOCK))
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use super::*;

    fn sleep(input: Stdio) -> Child {
        Command::new("sleep").arg("60").stdin(input).process_group(0).kill_on_drop(true).spawn().unwrap()
    }

    #[tokio::test]
    async fn a_worker_that_redirected_its_input_is_found_and_killed() {
        let folder = tempfile::tempdir().unwrap();
        let command = ["sh", "-c", "exec sleep 60 < /dev/null"].map(str::to_owned).to_vec();
        let spec = ProcessSpec { command, env: Vec::new(), folder: folder.path().to_owned() };
        let (mut child, _) = start(&spec).unwrap().unwrap();
        let input = format!("/proc/{}/fd/0", child.id().unwrap());
        while fs::read_link(&input).unwrap() != Path::new("/dev/null") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }

        let orphans = kill_orphans(folder.path()).await.unwrap();
        assert!(orphans.worker && orphans.others.is_none(), "{orphans:?}");
        assert_eq!(child.wait().await.unwrap().signal(), Some(9));
    }

    #[tokio::test]
    async fn a_reused_group_id_is_not_killed_because_of_a_process_that_left_the_group() {
        let folder = tempfile::tempdir().unwrap();
        let lock = open_lock(folder.path()).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let (escaped, mut unrelated) = (sleep(Stdio::from(lock)), sleep(Stdio::null()));
        fs::write(folder.path().join(GROUP), unrelated.id().unwrap().to_string()).unwrap();

        let orphans = kill_orphans(folder.path()).await.unwrap();
        assert!(!orphans.worker);
        let others = orphans.others.unwrap();
        assert_eq!(
            others.iter().map(|it| it.as_raw_nonzero().get() as u32).collect::<Vec<_>>(),
            [escaped.id().unwrap()]
        );
        assert!(unrelated.try_wait().unwrap().is_none());
    }
}
