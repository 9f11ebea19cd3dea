//! Signals that ask the program to stop.

use std::{fs, future, io};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that asks the program to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// SIGINT, as by Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal was closed.
    Hangup,
}

impl StopSignal {
    /// 128 plus the number of the signal, as a shell reports it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Hangup => 129,
        }
    }
}

/// Listens for the signals. While it exists, none of them ends the program by itself.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// None if SIGHUP was ignored at the start, as under `nohup`.
    hangup: Option<Signal>,
}

impl Signals {
    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// The operating system does not allow it.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: (!is_hangup_ignored()).then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
            () = received(self.hangup.as_mut()) => StopSignal::Hangup,
        }
    }
}

/// Waits for the next signal of this kind; for ever if it is ignored.
async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => future::pending().await,
    }
}

/// Whether SIGHUP is ignored. Must be asked before somebody listens for it. Without `/proc` it counts as not ignored.
fn is_hangup_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (SignalKind::hangup().as_raw_value() - 1) & 1 == 1)
}
