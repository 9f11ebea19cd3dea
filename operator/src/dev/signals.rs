//! Signals that tell us to stop.

use std::{fs, future, io};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Which signal told us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// The terminal is gone.
    Hangup,
}

impl Told {
    /// 128 and the signal's number, as in a shell.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Hangup => 129,
        }
    }
}

/// Listens for them; from here on none of them ends us.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// None where we were started so that it is ignored, as by `nohup`.
    hangup: Option<Signal>,
}

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// The system does not let us.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: (!ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.interrupt.recv() => Told::Interrupt,
            _ = self.terminate.recv() => Told::Terminate,
            () = told(self.hangup.as_mut()) => Told::Hangup,
        }
    }
}

/// Waits for the next one of this kind; for ever, if it is none that we listen for.
async fn told(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => future::pending().await,
    }
}

/// Whether SIGHUP is ignored, before anybody listens for it. Where there is no `/proc` nobody can tell, and it is not.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (SignalKind::hangup().as_raw_value() - 1) & 1 == 1)
}
