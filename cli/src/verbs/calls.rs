//! `calls`: the tool calls of a run.

use dalsegno_protocol::{CallEntry, CallState, CallsResponse};
use serde::Serialize;

use crate::args::CallsArgs;
use crate::doors::{Document, Door};
use crate::failure::Result;
use crate::output::table::Rows;
use crate::output::{Output, Style};
use crate::session::Session;

/// Lists the calls.
pub async fn run(session: &Session, args: &CallsArgs, output: &mut Output) -> Result {
    let door = Door::open(session).await?;
    let mut calls: Vec<CallEntry> = Vec::new();
    let mut after = None;
    loop {
        let page: CallsResponse =
            door.get(&Document::new(&args.run, "calls").with_some("after", after)).await?;
        calls.extend(page.calls.into_iter().filter(|it| !args.open || is_open(it.call.state)));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    if output.format.is_document() {
        return output.document(&calls);
    }
    render(&calls, args, &session.options(), output);
    Ok(())
}

/// Whether the outcome of the call is unknown.
fn is_open(state: CallState) -> bool {
    match state {
        CallState::Started | CallState::KeyRefused => true,
        CallState::Planned | CallState::Completed | CallState::Failed => false,
    }
}

fn render(calls: &[CallEntry], args: &CallsArgs, options: &str, output: &mut Output) {
    if calls.is_empty() {
        return output.print(match args.open {
            true => "No call has an unknown outcome.",
            false => "The run has made no calls.",
        });
    }
    let mut rows = Rows::new(&["CALL", "TOOL", "TURN", "ATTEMPT", "POLICY", "STATE", "NOTE"]);
    for CallEntry { call, attempt, usage: _, damaged } in calls {
        let note = match call.state {
            CallState::KeyRefused => "a person must settle it",
            CallState::Started => "its outcome is unknown",
            CallState::Planned | CallState::Completed | CallState::Failed if *damaged => "damaged",
            CallState::Planned | CallState::Completed | CallState::Failed => "",
        };
        rows.push(
            if is_open(call.state) { Style::Bold } else { Style::Plain },
            vec![
                call.id.clone(),
                call.tool.clone().unwrap_or_else(|| "-".to_owned()),
                call.turn.to_string(),
                attempt.map_or_else(|| "-".to_owned(), |it| it.to_string()),
                wire_name(&call.policy),
                wire_name(&call.state),
                note.to_owned(),
            ],
        );
    }
    rows.print(output);
    if calls.iter().any(|it| it.call.state == CallState::KeyRefused || (args.open && is_open(it.call.state)))
    {
        output.print(&format!(
            "\nFind out in the tool's own records whether a call took effect. Then:\n\
             kubectl dalsegno settle {}{options} CALL --outcome completed|failed --reason \"HOW YOU FOUND OUT\"",
            args.run
        ));
    }
}

/// The name of an enum's variant in the contract.
fn wire_name(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|it| it.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Format;

    #[test]
    fn open_calls_come_with_the_command_that_settles_them() {
        let page = serde_json::json!({ "calls": [
            { "id": "turn-1", "turn": 1, "policy": "retrySameKey", "key": "k", "state": "completed", "attempt": 1, "usage": { "tokensIn": 900 }, "damaged": false },
            { "id": "pay-ann", "turn": 3, "policy": "ask", "key": "k2", "state": "started", "attempt": 2,
              "tool": "pay", "arguments": { "cents": 500 }, "damaged": false },
        ]});
        let page: CallsResponse = serde_json::from_str(&page.to_string()).unwrap();
        assert_eq!(page.calls[0].usage.tokens_in, 900);
        let mut output = Output::kept(Format::Text, 80, jiff::Timestamp::UNIX_EPOCH);
        render(&page.calls, &CallsArgs { run: "nightly".into(), open: true }, " -n shop", &mut output);
        insta::assert_snapshot!(output.text());
    }
}
