//! What runs in the background of the agent's loop: the heartbeats and the handler of SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use std::{process, thread};

use dalsegno_protocol::Flags;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::http::{Client, HEARTBEAT_TIMEOUT};
use crate::{Error, Result, log_line};

/// From SIGTERM to the end of the process, whatever the loop is doing.
pub const GRACE: Duration = Duration::from_secs(10);

/// With three heartbeats per lease, two may be lost.
const HEARTBEATS_PER_LEASE: u32 = 3;

/// What is asked of the worker, and how far its inbox reaches, according to the gateway's latest answer.
#[derive(Default)]
pub(crate) struct WorkerSignals {
    pub(crate) suspend: AtomicBool,
    pub(crate) cancel: AtomicBool,
    pub(crate) limit: AtomicBool,
    /// Position of the newest message.
    pub(crate) inbox: AtomicI64,
}

impl WorkerSignals {
    /// Takes the flags of an answer. A cancel is final: an older answer that arrives late does not take it back.
    pub(crate) fn update(&self, flags: Flags) {
        self.suspend.store(flags.suspend, Ordering::SeqCst);
        self.limit.store(flags.limit, Ordering::SeqCst);
        self.inbox.fetch_max(flags.inbox, Ordering::SeqCst);
        self.cancel.fetch_or(flags.cancel, Ordering::SeqCst);
    }
}

/// Starts the heartbeats. They end when the run has ended or when the returned sender is dropped.
///
/// The first heartbeat is sent at once, because it binds the lease. The sender takes the length of the lease in
/// seconds, as other answers report it: if the lease became shorter, the next heartbeat is sent sooner.
pub(crate) fn start_heartbeats(
    client: Arc<Client>,
    signals: Arc<WorkerSignals>,
    longest_period: Duration,
) -> Sender<u32> {
    let (sender, leases) = mpsc::channel();
    let period_of =
        move |lease: u32| longest_period.min(Duration::from_secs(lease.into()) / HEARTBEATS_PER_LEASE);
    thread::spawn(move || {
        let mut period = longest_period;
        let mut due = Instant::now();
        loop {
            match leases.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(lease) => {
                    due = due.min(Instant::now() + period_of(lease));
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if client.ended_here.load(Ordering::SeqCst) {
                return;
            }
            match client.send("heartbeat", Some(b""), HEARTBEAT_TIMEOUT) {
                Ok(answer) => {
                    if let Ok(flags) = serde_json::from_slice::<Flags>(&answer) {
                        signals.update(flags);
                        period = period_of(flags.lease_seconds);
                    }
                }
                // If the answer to the park is `ready`, the run goes on and needs its heartbeats.
                Err(Error::Ended(_)) if client.parking.load(Ordering::SeqCst) => {}
                Err(Error::Ended(_)) => return,
                Err(error) => log_line(&error.to_string()),
            }
            due = Instant::now() + period;
        }
    });
    sender
}

/// Sets the flag on SIGTERM, and ends the process [`GRACE`] later.
pub(crate) fn handle_sigterm(term: Arc<AtomicBool>) -> Result<()> {
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
