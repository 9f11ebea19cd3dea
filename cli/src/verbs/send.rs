//! `send`: a message to a run.

use dalsegno_protocol::{CommitResult, RawValue, SendRequest, SendResponse};
use uuid::Uuid;

use crate::args::SendArgs;
use crate::doors::{Document, Door};
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;
use crate::session::Session;
use crate::{input, runs};

/// Topic of a message that is injected when a run goes on.
const RESUME_TOPIC: &str = "resume";

/// Sends a message.
pub async fn run(session: &Session, args: &SendArgs, output: &mut Output) -> Result {
    let run = runs::get(session, &args.run).await?;
    runs::refuse_ended(&run)?;
    let text = match &args.text {
        Some(text) => text.clone(),
        None => input::standard_input()?,
    };
    let value = if args.json { input::parse_json("the message", text.trim())? } else { json_string(&text)? };
    let id = args.id.clone().unwrap_or_else(new_id);
    let request = SendRequest { id, topic: args.topic.clone(), value };
    let sent = post(session, &args.run, &request).await?;
    if output.format.is_document() {
        return output.document(&sent);
    }
    let SendResponse { result, position } = sent;
    output.print(&match result {
        CommitResult::Duplicate => {
            format!("Message {position} was sent before under this id: nothing was changed.")
        }
        CommitResult::Ok | CommitResult::Parked => {
            format!(
                "Message {position} is in the inbox of {}. The agent reads it in its next turn.",
                args.run
            )
        }
    });
    Ok(())
}

/// Sends the message that a run reads when it goes on.
pub async fn send_resume_message(session: &Session, run: &str, text: &str) -> Result {
    let topic = Some(RESUME_TOPIC.to_owned());
    let request = SendRequest { id: new_id(), topic, value: json_string(text)? };
    post(session, run, &request).await.map(drop)
}

async fn post(session: &Session, run: &str, request: &SendRequest) -> Result<SendResponse> {
    let door = Door::open(session).await?;
    door.post(&Document::new(run, "messages"), request).await
}

/// A new id, which a retry by hand can name with `--id`.
fn new_id() -> String {
    format!("kubectl-{}", Uuid::now_v7())
}

fn json_string(text: &str) -> Result<Box<RawValue>> {
    serde_json::value::to_raw_value(text).map_err(|error| {
        Failure::new(Exit::Failed, format!("the message cannot be written: {error}"), "send it with --json")
    })
}
