//! One attempt's process: begun in a group of its own, signalled as a group, and never left behind.
//!
//! # Guarantees
//!
//! - When the process that was begun ends, whatever else runs in its group is killed: so ends a container, too.
//! - Its standard input is an empty file that is locked for as long as any process of it lives; a further descriptor of it
//!   outlives that input's redirection. A `dalsegno dev` that was killed itself leaves a worker behind; the next one finds
//!   the lock taken, and ends that worker by its group.
//!
//! # Caveats
//!
//! - A process that leaves the group (a daemon) is not ended. If it has kept one of the two, the next one warns of it.

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

    /// Whether one of its processes holds this lock. Where the system does not tell who does: whether it has any.
    fn may_hold(self, lock: &File) -> bool {
        match holders(lock).as_slice() {
            [] => test_kill_process_group(self.0).is_ok(),
            holders => holders.iter().any(|it| getpgid(Some(*it)) == Ok(self.0)),
        }
    }
}

/// What an earlier `dalsegno dev` left behind.
#[derive(Debug, Default)]
pub struct LeftBehind {
    /// Its worker ran, and is killed.
    pub worker: bool,
    /// What has left the worker's group still runs: as far as the system tells, these.
    pub others: Option<Vec<Pid>>,
}

/// Begins the process of an attempt. Its output is ours. The inner error: the program cannot be started.
///
/// # Errors
///
/// The attempt's folder cannot be written.
pub fn begin(plan: &Plan) -> io::Result<io::Result<(Child, Group)>> {
    let [program, arguments @ ..] = plan.command.as_slice() else {
        return Ok(Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no command")));
    };
    let lock = open_lock(&plan.folder)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let kept = lock.try_clone()?;
    fcntl_setfd(&kept, FdFlags::empty())?;
    let begun = Command::new(program)
        .args(arguments)
        .envs(plan.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(lock))
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    drop(kept);
    let child = match begun {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let group = Group(pid.ok_or_else(|| io::Error::other("the process has no number"))?);
    if let Err(error) = fs::write(plan.folder.join(GROUP), group.0.as_raw_nonzero().to_string()) {
        group.signal(Signal::KILL);
        return Err(error);
    }
    Ok(Ok((child, group)))
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

/// Ends the worker that an earlier `dalsegno dev` left behind in this folder.
///
/// # Errors
///
/// The folder cannot be read.
pub async fn end_left_behind(folder: &Path) -> io::Result<LeftBehind> {
    let mut left = LeftBehind::default();
    if !folder.join(LOCK).is_file() {
        return Ok(left);
    }
    let lock = open_lock(folder)?;
    let is_free = || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    let number = fs::read_to_string(folder.join(GROUP)).ok().and_then(|it| it.trim().parse().ok());
    if let Some(group) = number.and_then(Pid::from_raw).map(Group) {
        let ending = async {
            // The number may be another's by now, unless a process of the group holds the lock.
            while !is_free() && group.may_hold(&lock) {
                left.worker = true;
                group.signal(Signal::KILL);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // What was killed does nothing more, even where the kernel takes longer.
        let _ = tokio::time::timeout(DYING, ending).await;
    }
    left.others = (!is_free()).then(|| holders(&lock));
    Ok(left)
}

/// The processes that have this file open. None where there is no `/proc`.
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
    let number = |process: fs::DirEntry| Pid::from_raw(process.file_name().to_str()?.parse().ok()?);
    processes.filter(holds).filter_map(number).filter(|it| Some(*it) != ours).collect()
}

fn open_lock(folder: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(folder.join(LOCK))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use super::*;

    fn sleep(input: Stdio) -> Child {
        Command::new("sleep").arg("60").stdin(input).process_group(0).kill_on_drop(true).spawn().unwrap()
    }

    #[tokio::test]
    async fn a_worker_whose_input_was_redirected_is_found_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let command = ["sh", "-c", "exec sleep 60 < /dev/null"].map(str::to_owned).to_vec();
        let plan = Plan { command, env: Vec::new(), folder: folder.path().to_owned() };
        let (mut child, _) = begin(&plan).unwrap().unwrap();
        let input = format!("/proc/{}/fd/0", child.id().unwrap());
        while fs::read_link(&input).unwrap() != Path::new("/dev/null") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }

        let left = end_left_behind(folder.path()).await.unwrap();
        assert!(left.worker && left.others.is_none(), "{left:?}");
        assert_eq!(child.wait().await.unwrap().signal(), Some(9));
    }

    #[tokio::test]
    async fn a_number_that_is_another_groups_by_now_is_not_killed_for_one_that_left_the_group() {
        let folder = tempfile::tempdir().unwrap();
        let lock = open_lock(folder.path()).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let (escaped, mut stranger) = (sleep(Stdio::from(lock)), sleep(Stdio::null()));
        fs::write(folder.path().join(GROUP), stranger.id().unwrap().to_string()).unwrap();

        let left = end_left_behind(folder.path()).await.unwrap();
        assert!(!left.worker);
        let others = left.others.unwrap();
        assert_eq!(
            others.iter().map(|it| it.as_raw_nonzero().get() as u32).collect::<Vec<_>>(),
            [escaped.id().unwrap()]
        );
        assert!(stranger.try_wait().unwrap().is_none());
    }
}
