//! What an agent written in Rust imports: [`Run::attach`], [`Run::commit`], [`Run::call`]. Blocking, no async runtime.
//!
//! ```no_run
//! use dalsegno_sdk::{Commit, Policy, Run, succeeded};
//! use serde_json::{Value, json};
//!
//! # fn write_page(key: &str, page: i32) -> std::io::Result<String> { Ok(format!("{key} {page}")) }
//! fn main() -> dalsegno_sdk::Result<()> {
//!     let mut run = Run::attach()?;
//!     let mut pages: Vec<String> = run.state()?.unwrap_or_default();
//!     while run.turn() <= 20 {
//!         run.check()?; // a cancel is acknowledged, a SIGTERM leaves with 143
//!         let turn = run.turn();
//!         let tool = |key: &str, page: i32| Ok(write_page(key, page)?);
//!         pages.push(run.call(&format!("turn-{turn}"), Policy::RetrySameKey, None, turn, tool)?);
//!         run.commit(Commit::new(turn).state(&pages)?)?; // from here on the turn is never lost and never run again
//!     }
//!     run.finish(succeeded())
//! }
//! ```
//!
//! *Guarantees.* Every write is serialised once, and the same bytes are sent until they are answered, for as long as
//! the pod lives: a lost answer neither loses a turn nor commits it twice. A process that another attempt has replaced
//! is ended at its next call or heartbeat, whichever comes first ([`Builder::on_over`]).
//!
//! *Assumptions.* Between two [`Run::check`]s passes less than [`GRACE`] when the pod has to go; else the step is lost.
//!
//! *Caveats.* Only what is committed survives: files, memory and sockets of the pod do not.

mod attach;
mod calls;
mod commit;
mod error;
mod finite;
mod http;
mod json;
mod line;
mod records;
mod run;
#[cfg(test)]
mod tests;
mod watch;

pub use attach::Builder;
pub use commit::{Commit, failed, succeeded};
pub use dalsegno_protocol::{
    Boundary, Call, CallOutcome, Channel, Code, CommitResponse, CommitResult, CompleteOutcome, Decision,
    Finish, FinishOutcome, Head, Payload, Policy, Problem, RawValue, Record, State, Usage, Warning, env,
};
pub use error::{Error, Result, ToolError};
pub use records::{Changes, Records};
pub use run::Run;
pub use watch::GRACE;

use std::fs::OpenOptions;
use std::io::{self, Write};

/// How an attempt judges its own end, in its termination message. It outranks the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The agent's fault: the recovery is charged.
    Crash,
    /// Not the agent's fault: it is not.
    Disruption,
    /// More attempts would not help: the run is held for a person.
    Fatal,
}

/// Leaves word why in the termination log, says it on stderr, and exits 1.
pub fn terminate(class: Class, message: &str) -> ! {
    let log = std::env::var_os(env::TERMINATION_LOG).unwrap_or_else(|| "/dev/termination-log".into());
    // Where nobody would read it there is no such file, and none is made.
    if let Ok(mut log) = OpenOptions::new().write(true).truncate(true).open(log) {
        let _ = log.write_all(termination_message(class, message).as_bytes());
    }
    say(&format!("{}: {message}", format!("{class:?}").to_lowercase()));
    std::process::exit(1)
}

/// One line for a person. That nobody hears it changes nothing: a process that is fenced ends all the same.
fn say(line: &str) {
    let _ = io::stderr().write_all(format!("dalsegno: {line}\n").as_bytes());
}

/// At most 512 characters of the message: the kubelet cuts the file at 4 KiB, and half a JSON document says nothing.
fn termination_message(class: Class, message: &str) -> String {
    let message: String = message.chars().take(512).collect();
    serde_json::json!({ "dalsegno": 1, "class": class, "message": message }).to_string()
}
