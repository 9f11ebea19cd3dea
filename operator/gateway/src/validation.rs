//! What a request must keep within, beyond being well-formed: the table of limits, and the shape of names. Lists and maps are
//! within theirs when they were read.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dalsegno_protocol::{
    Boundary, ChannelOps, ClaimRequest, Code, CommitRequest, Finish, FinishOutcome, Limits, Payload,
    PlannedCall, RecordOp, Usage, nesting, printable,
};

use dalsegno_store::NewFinish;

use crate::response::Refusal;

type Checked = Result<(), Refusal>;

/// Everything about a commit that can be judged without the store.
pub(crate) fn commit(request: &CommitRequest, boundary: Boundary) -> Checked {
    if request.state.is_some() && request.channels.is_some() {
        return refuse("`state` and `channels` exclude each other: send the whole state, or what changed");
    }
    if let Some(ops) = &request.channels {
        channels(ops)?;
    }
    calls(&request.calls, boundary)?;
    records(&request.records)?;
    usage(&request.usage)?;
    if let Some(trigger) = &request.trigger {
        word("`trigger`", trigger)?;
    }
    Ok(())
}

/// What a call is named and keyed by when it is claimed.
pub(crate) fn claim(request: &ClaimRequest) -> Checked {
    match &request.key {
        Some(key) => text("`key`", key, Limits::KEY_CHARS),
        None => Ok(()),
    }
}

/// The name of a channel or of a call.
pub(crate) fn name(what: &str, value: &str) -> Checked {
    let fits = (1..=Limits::NAME_CHARS).contains(&value.len());
    if fits && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte)) {
        return Ok(());
    }
    refuse(format!("{what} must have 1 to {} characters of A-Z a-z 0-9 . _ : -", Limits::NAME_CHARS))
}

/// A short text for people or tools: a reason, a trigger.
pub(crate) fn word(what: &str, value: &str) -> Checked {
    text(what, value, Limits::NAME_CHARS)
}

fn text(what: &str, value: &str, limit: usize) -> Checked {
    let characters = value.chars().take(limit + 1).count();
    if (1..=limit).contains(&characters) && !value.chars().any(char::is_control) {
        return Ok(());
    }
    refuse(format!("{what} must have 1 to {limit} characters, none of them a control character"))
}

/// The end of a run.
fn finish(finish: &Finish) -> Checked {
    if let Some(reason) = &finish.reason {
        word("the finish's `reason`", reason)?;
        let mut bytes = reason.bytes();
        let camel_case = bytes.next().is_some_and(|byte| byte.is_ascii_uppercase())
            && bytes.all(|byte| byte.is_ascii_alphanumeric());
        if !camel_case {
            return refuse("the finish's `reason` must be one CamelCase word, such as GoalReached");
        }
    }
    if let Some(message) = &finish.message {
        at_most("bytes of the finish's `message`", message.len(), Limits::FINISH_MESSAGE_BYTES)?;
    }
    let output = finish.output.as_ref().map_or("", |output| output.get());
    at_most("bytes of the finish's `output`", output.len(), Limits::FINISH_OUTPUT_BYTES)?;
    match nesting::deeper_than(Limits::SHOWN_DEPTH, output.as_bytes()) {
        None => Ok(()),
        Some(_) => refuse(format!(
            "the finish's `output` is nested deeper than {} levels; put the inner part into a string",
            Limits::SHOWN_DEPTH
        )),
    }
}

/// A worker's finish as the store takes it.
pub(crate) fn new_finish(finish: &Finish) -> Result<NewFinish, Refusal> {
    self::finish(finish)?;
    let reason = match (&finish.reason, finish.outcome) {
        (Some(reason), _) => reason.as_str(),
        (None, FinishOutcome::Succeeded) => "Completed",
        (None, FinishOutcome::Failed) => "AgentFailed",
    };
    Ok(NewFinish {
        outcome: finish.outcome.into(),
        reason: reason.to_owned(),
        // It may be the text of an exception: whatever that holds, the run has to end.
        message: finish.message.as_deref().map(printable).unwrap_or_default(),
        output: finish.output.as_ref().map(|output| output.get().to_owned()),
    })
}

fn channels(ops: &ChannelOps) -> Checked {
    let kept: BTreeSet<&String> = ops.set.keys().chain(ops.append.keys()).collect();
    at_most("channels in `set` and `append`", kept.len(), Limits::CHANNELS)?;
    for channel in kept.into_iter().chain(&ops.remove).chain(ops.truncate.keys()) {
        name("a channel's name", channel)?;
    }
    if let Some(both) = ops.set.keys().find(|channel| ops.append.contains_key(*channel)) {
        return refuse(format!(
            "channel {both:?} is in `set` and in `append`: a channel is a value or a list, not both"
        ));
    }
    truncations(ops)?;
    payloads(&ops.set, &ops.append)
}

/// A list that this very boundary takes away cannot be cut.
fn truncations(ops: &ChannelOps) -> Checked {
    match ops.truncate.keys().find(|channel| ops.full || ops.remove.contains(channel)) {
        None => Ok(()),
        Some(channel) => refuse(format!(
            "channel {channel:?} is in `truncate`, and gone by `remove` or `full` of the same boundary"
        )),
    }
}

fn payloads(set: &BTreeMap<String, Payload>, append: &BTreeMap<String, Vec<Payload>>) -> Checked {
    let items = append.iter().flat_map(|(channel, items)| items.iter().map(move |item| (channel, item)));
    for (channel, payload) in set.iter().chain(items) {
        let Payload::Bytes { media_type, base64 } = payload else {
            continue;
        };
        bytes(&format!("channel {channel:?}"), media_type, base64)?;
    }
    Ok(())
}

/// A payload that is no JSON.
fn bytes(what: &str, media_type: &str, base64: &str) -> Checked {
    word("`mediaType`", media_type)?;
    match STANDARD.decode(base64) {
        Ok(_) => Ok(()),
        Err(error) => refuse(format!("{what}: `base64` is not standard base64 with padding ({error})")),
    }
}

fn calls(calls: &[PlannedCall], boundary: Boundary) -> Checked {
    if boundary == Boundary::Result && !calls.is_empty() {
        return refuse(
            "calls are planned before the tools run: send `calls` with POST turns/{n}/plan, or claim each call",
        );
    }
    let mut seen = BTreeSet::new();
    for call in calls {
        name("a call's `id`", &call.id)?;
        text("a call's `key`", &call.key, Limits::KEY_CHARS)?;
        if !seen.insert(&call.id) {
            return refuse(format!(
                "two calls have the id {:?}; an id names one call in the whole run",
                call.id
            ));
        }
    }
    Ok(())
}

/// Changes of records, of a batch or of a boundary.
pub(crate) fn records(operations: &[RecordOp]) -> Checked {
    for operation in operations {
        let (space, key) = operation.place();
        let (entry_id, value) = operation.entry();
        record_name("a record's `space`", space)?;
        record_name("a record's `key`", key)?;
        if let Some(entry_id) = entry_id {
            record_name("a record's `entryId`", entry_id)?;
        }
        let Some(value) = value else { continue };
        let bytes = match value {
            Payload::Json(json) => json.get().len(),
            Payload::Bytes { media_type, base64 } => {
                bytes(&format!("the value of {key:?}"), media_type, base64)?;
                base64.len()
            }
        };
        if bytes > Limits::RECORD_VALUE_BYTES {
            return Err(Refusal::new(
                Code::TooLarge,
                format!(
                    "the value of {key:?} has {bytes} bytes, the limit is {}; split it, or keep it elsewhere and \
                     record where it is",
                    Limits::RECORD_VALUE_BYTES
                ),
            ));
        }
    }
    Ok(())
}

fn record_name(what: &str, value: &str) -> Checked {
    if (1..=Limits::RECORD_NAME_BYTES).contains(&value.len()) && !value.chars().any(char::is_control) {
        return Ok(());
    }
    refuse(format!(
        "{what} must have 1 to {} bytes, none of them a control character's",
        Limits::RECORD_NAME_BYTES
    ))
}

fn usage(usage: &Usage) -> Checked {
    let Usage { tokens_in, tokens_out, tool_calls, cost_micro_usd } = *usage;
    let amounts = [
        ("tokensIn", tokens_in),
        ("tokensOut", tokens_out),
        ("toolCalls", tool_calls),
        ("costMicroUSD", cost_micro_usd),
    ];
    match amounts.into_iter().find(|(_, amount)| !(0..=Limits::USAGE).contains(amount)) {
        None => Ok(()),
        Some((field, amount)) => refuse(format!(
            "`usage.{field}` is {amount}; it is what this boundary alone spent, from 0 to {}",
            Limits::USAGE
        )),
    }
}

fn at_most(what: &str, count: usize, limit: usize) -> Checked {
    if count <= limit {
        return Ok(());
    }
    refuse(format!("{what}: {count} are too many, the limit is {limit}"))
}

fn refuse(detail: impl Into<String>) -> Checked {
    Err(Refusal::invalid(detail))
}
