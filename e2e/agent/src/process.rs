//! The agent as a process: its handling of SIGTERM, and the parent that resumes it after a freeze.

use std::process::{Command, exit};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{env, thread};

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::input::OnTerm;

/// Environment variable of the child process that [`run_frozen`] starts.
const CHILD: &str = "E2E_AGENT_CHILD";

/// Whether this is the child process, which can stop itself.
pub fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Runs the agent as a child process, because a PID 1 cannot stop itself. Resumes the child `after` each stop, and
/// exits with the child's exit code. A PID 1 without a handler ignores SIGTERM, so with [`OnTerm::Default`] the child
/// does not get it.
pub fn run_frozen(after: Duration, on_term: OnTerm) -> anyhow::Result<()> {
    let mut command = Command::new(env::current_exe().context("finding this program")?);
    let child = command.env(CHILD, "1").spawn().context("starting the agent as a child")?;
    let pid = Pid::from_child(&child);
    if on_term != OnTerm::Default {
        on_sigterm(move || _ = kill_process(pid, Signal::TERM))?;
    }
    loop {
        let Some((_, status)) = waitpid(Some(pid), WaitOptions::UNTRACED).context("waiting for the agent")?
        else {
            continue;
        };
        if status.stopped() {
            thread::sleep(after);
            kill_process(pid, Signal::CONT).context("resuming the agent")?;
        } else {
            exit(
                status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(1),
            );
        }
    }
}

/// Installs the handler of SIGTERM, unless the SDK installs it.
pub fn handle_sigterm(on_term: OnTerm) -> anyhow::Result<()> {
    match on_term {
        OnTerm::Default | OnTerm::Commit => Ok(()),
        OnTerm::Exit143 => on_sigterm(|| exit(143)),
        OnTerm::Exit1 => on_sigterm(|| exit(1)),
        OnTerm::Ignore => {
            let unread = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(SIGTERM, unread).map(drop).context("ignoring SIGTERM")
        }
    }
}

fn on_sigterm(action: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGTERM]).context("listening for SIGTERM")?;
    thread::spawn(move || signals.forever().for_each(|_| action()));
    Ok(())
}
