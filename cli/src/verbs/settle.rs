//! `settle`: a person says how a call ended whose outcome is unknown.

use dalsegno_protocol::{Acknowledgement, CallOutcome, CommitResult, SettleByUserRequest};

use crate::args::{Outcome, SettleArgs};
use crate::doors::{Document, Door};
use crate::failure::Result;
use crate::output::Output;
use crate::session::Session;
use crate::{input, runs};

/// Settles a call.
pub async fn run(session: &Session, args: &SettleArgs, output: &mut Output) -> Result {
    let SettleArgs { run, call, outcome, reason, result } = args;
    let result = result.as_deref().map(|text| input::json("--result", text)).transpose()?;
    let object = runs::get(session, run).await?;
    runs::refuse_ended(&object)?;
    let outcome = match outcome {
        Outcome::Completed => CallOutcome::Completed,
        Outcome::Failed => CallOutcome::Failed,
    };
    let request = SettleByUserRequest { call: call.clone(), outcome, result, reason: reason.clone() };
    let door = Door::open(session).await?;
    let answer: Acknowledgement = door.post(&Document::new(run, "settle"), &request).await?;
    if output.format.is_document() {
        return output.document(&answer);
    }
    output.print(&match answer.result {
        CommitResult::Duplicate => format!("The call {call} was settled before, with the same outcome."),
        CommitResult::Ok | CommitResult::Parked => {
            format!("The call {call} is settled. The run goes on if no other call holds it.")
        }
    });
    Ok(())
}
