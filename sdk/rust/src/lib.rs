//! The SDK for agents in Rust. It blocks and needs no async runtime.
//!
//! [`Agent`] is where an agent begins: a typed state, turns that are committed as a whole, steps whose answers are stored,
//! and tools. [`Run`] is what it is made of: boundaries, channels, calls, waits, the inbox and records, one request each.
//!
//! ```no_run
//! use dalsegno_sdk::{Agent, succeeded};
//!
//! # fn model(pages: &[String]) -> std::io::Result<String> { Ok(String::new()) }
//! fn main() -> dalsegno_sdk::Result<()> {
//!     let mut agent = Agent::<Vec<String>>::attach()?;
//!     while agent.next_turn() <= 20 {
//!         let mut turn = agent.turn()?; // leaves the process on a cancel, a suspend, a limit or SIGTERM
//!         let page = turn.step("draft", || Ok(model(&turn.state)?))?; // asked once; its answer is stored
//!         turn.state.push(page);
//!         turn.commit()?; // from here on the turn is stored
//!     }
//!     agent.finish(succeeded())
//! }
//! ```
//!
//! *Guarantees.* Every write is serialised once. The same bytes are sent until they are answered, for as long as the
//! pod lives, so a lost answer neither loses a turn nor commits it twice. If another attempt has replaced the process,
//! the process ends at its next call or heartbeat, whichever comes first ([`Builder::on_ended`]).
//!
//! *Assumptions.* The agent calls [`Run::check`] more often than every [`GRACE`]. Otherwise it loses the current step
//! when its pod is deleted.
//!
//! *Caveats.* Only what is committed survives. The pod's files, memory and sockets do not.

mod agent;
mod attach;
mod calls;
mod claims;
mod commit;
mod connection;
mod error;
mod http;
mod inbox;
mod json;
mod ordinals;
mod race;
mod records;
mod run;
mod saved;
mod space;
mod steps;
mod tls;
mod tool;
mod turn;
mod waits;
mod watch;

pub use agent::Agent;
pub use attach::Builder;
pub use commit::{Commit, ToolCall, failed, succeeded};
pub use dalsegno_protocol::{
    Boundary, Call, CallOutcome, Channel, Code, CommitResponse, CommitResult, CompleteOutcome, Decision,
    Finish, FinishOutcome, Head, InvalidTrigger, Message, OnTimeout, ParkMode, Payload, Policy, Problem,
    RawValue, Record, State, Trigger, Usage, Wait, WaitAnswer, WaitKind, WaitOutcome, WaitState, Warning,
    env,
};
pub use error::{Divergence, Error, Result, ToolError};
pub use inbox::UserTurn;
pub use records::{RecordChanges, RecordKeys, Records};
pub use run::Run;
pub use space::{Item, Items, Space};
pub use steps::Steps;
pub use tool::{Probed, Tool};
pub use turn::Turn;
pub use waits::WaitFor;
pub use watch::GRACE;

use std::fs::OpenOptions;
use std::io::{self, Write};

/// How an attempt classifies its own end in its termination message. The class outranks the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The agent caused it. The recovery is charged.
    Crash,
    /// The agent did not cause it. The recovery is not charged.
    Disruption,
    /// Another attempt would not help. The run is held until a person acts.
    Fatal,
}

/// Writes the class and the message to the termination log and to stderr, and exits with 1.
pub fn terminate(class: Class, message: &str) -> ! {
    let log = std::env::var_os(env::TERMINATION_LOG).unwrap_or_else(|| "/dev/termination-log".into());
    // Outside a pod the file does not exist, and it is not created.
    if let Ok(mut log) = OpenOptions::new().write(true).truncate(true).open(log) {
        let _ = log.write_all(termination_message(class, message).as_bytes());
    }
    log_line(&format!("{}: {message}", format!("{class:?}").to_lowercase()));
    std::process::exit(1)
}

/// Logs one line to stderr. An error is ignored: a fenced process must end even if stderr is closed.
fn log_line(message: &str) {
    let _ = io::stderr().write_all(format!("dalsegno: {message}\n").as_bytes());
}

/// The message is cut to 512 characters: the kubelet cuts the file at 4 KiB, and half a JSON document cannot be read.
fn termination_message(class: Class, message: &str) -> String {
    let message: String = message.chars().take(512).collect();
    serde_json::json!({ "dalsegno": 1, "class": class, "message": message }).to_string()
}
