//! What goes on beside the loop: heartbeats, and SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;
use std::{process, thread};

use dalsegno_protocol::Flags;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::http::{BEAT, Client};
use crate::{Error, Result, say};

/// From SIGTERM to the end of the process, whatever the loop is doing.
pub const GRACE: Duration = Duration::from_secs(10);

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

/// Beats, at once for the first time, which binds the lease, until the run is ended or the sender is dropped.
pub(crate) fn beat(client: Arc<Client>, asked: Arc<Asked>, every: Duration) -> Sender<()> {
    let (keep, kept) = mpsc::channel();
    thread::spawn(move || {
        let mut pause = Duration::ZERO;
        while kept.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = every;
            if client.ended_here.load(Ordering::SeqCst) {
                return;
            }
            match client.send("heartbeat", Some(b""), BEAT) {
                Ok(answer) => {
                    if let Ok(flags) = serde_json::from_slice(&answer) {
                        asked.see(flags);
                    }
                }
                Err(Error::Over(_)) => return,
                Err(error) => say(&error.to_string()),
            }
        }
    });
    keep
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
