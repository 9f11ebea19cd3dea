//! What goes on beside the loop: heartbeats, and SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use std::{process, thread};

use dalsegno_protocol::Flags;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::http::{BEAT, Client};
use crate::{Error, Result, say};

/// From SIGTERM to the end of the process, whatever the loop is doing.
pub const GRACE: Duration = Duration::from_secs(10);

/// Two of them may be lost.
const BEATS_PER_LEASE: u32 = 3;

/// What a person asks for, as of the last answer.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) suspend: AtomicBool,
    pub(crate) cancel: AtomicBool,
}

impl Asked {
    /// A cancel is final; an answer that was overtaken does not take it back.
    pub(crate) fn see(&self, flags: Flags) {
        self.suspend.store(flags.suspend, Ordering::SeqCst);
        self.cancel.fetch_or(flags.cancel, Ordering::SeqCst);
    }
}

/// Beats, at once for the first time, which binds the lease, until the run is ended or the sender is dropped. What is sent
/// is the length of the lease in seconds, as an answer to somebody else told it: a shorter one is beaten for sooner.
pub(crate) fn beat(client: Arc<Client>, asked: Arc<Asked>, every: Duration) -> Sender<u32> {
    let (tell, leases) = mpsc::channel();
    let within = move |lease: u32| every.min(Duration::from_secs(lease.into()) / BEATS_PER_LEASE);
    thread::spawn(move || {
        let mut period = every;
        let mut due = Instant::now();
        loop {
            match leases.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(lease) => {
                    due = due.min(Instant::now() + within(lease));
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if client.ended_here.load(Ordering::SeqCst) {
                return;
            }
            match client.send("heartbeat", Some(b""), BEAT) {
                Ok(answer) => {
                    if let Ok(flags) = serde_json::from_slice::<Flags>(&answer) {
                        asked.see(flags);
                        period = within(flags.lease_seconds);
                    }
                }
                Err(Error::Over(_)) => return,
                Err(error) => say(&error.to_string()),
            }
            due = Instant::now() + period;
        }
    });
    tell
}

/// Raises the flag at SIGTERM, and ends the process [`GRACE`] later.
pub(crate) fn listen_for_sigterm(term: Arc<AtomicBool>) -> Result<()> {
    let mut signals = Signals::new([SIGTERM]).map_err(Error::Signal)?;
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            term.store(true, Ordering::SeqCst);
            thread::sleep(GRACE);
            process::exit(143);
        }
    });
    Ok(())
}
