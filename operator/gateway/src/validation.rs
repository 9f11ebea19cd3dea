//! Checks of a request that need no store: the limits, and the form of names. Lists and maps are limited while they are
//! parsed ([`dalsegno_protocol::bounded`]).

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dalsegno_model::NewFinish;
use dalsegno_protocol::{
    Boundary, ChannelOps, ClaimRequest, Code, CommitRequest, Finish, FinishOutcome, Limits, Outcome,
    ParkRequest, Payload, PlannedCall, RawValue, RecordOp, Trigger, Usage, WaitKind, WaitRequest, nesting,
    printable,
};

use crate::response::ApiProblem;

type Checked = Result<(), ApiProblem>;

/// Checks a commit; its finish is checked by [`new_finish`].
pub(crate) fn check_commit(request: &CommitRequest, boundary: Boundary) -> Checked {
    if request.state.is_some() && request.channels.is_some() {
        return invalid("`state` and `channels` exclude each other: send the full state, or what changed");
    }
    if let Some(ops) = &request.channels {
        check_channels(ops)?;
    }
    check_planned_calls(&request.calls, boundary)?;
    check_records(&request.records)?;
    check_inbox(&request.inbox)?;
    check_usage(&request.usage)?;
    if let Some(Outcome::Park(park)) = &request.outcome {
        check_park(park)?;
    }
    if let Some(trigger) = &request.trigger {
        trigger.parse::<Trigger>().map_err(|error| ApiProblem::invalid(error.to_string()))?;
    }
    Ok(())
}

/// Checks a park.
pub(crate) fn check_park(request: &ParkRequest) -> Checked {
    let mut seen = BTreeSet::new();
    for id in &request.on {
        TextField { label: "a wait's id in `on`", text: id }.check_name()?;
        if !seen.insert(id) {
            return invalid(format!("`on` names the wait {id:?} twice"));
        }
    }
    Ok(())
}

/// Checks the positions of the messages that a boundary takes.
fn check_inbox(positions: &[i64]) -> Checked {
    let mut seen = BTreeSet::new();
    for position in positions {
        if *position < 1 {
            return invalid(format!("`inbox` names {position}; positions of messages are 1, 2, 3 …"));
        }
        if !seen.insert(position) {
            return invalid(format!("`inbox` names {position} twice"));
        }
    }
    Ok(())
}

/// Checks that a wait has the fields of its kind and no others, within their limits.
pub(crate) fn check_wait(request: &WaitRequest) -> Checked {
    let WaitRequest {
        kind,
        title,
        summary,
        proposal,
        answer_schema,
        time,
        topic,
        provider,
        reset_time,
        deadline_seconds,
        on_timeout: _,
    } = request;
    let fields = [
        ("title", title.is_some(), WaitKind::Approval, true),
        ("summary", summary.is_some(), WaitKind::Approval, false),
        ("proposal", proposal.is_some(), WaitKind::Approval, true),
        ("answerSchema", answer_schema.is_some(), WaitKind::Approval, false),
        ("time", time.is_some(), WaitKind::Until, true),
        ("topic", topic.is_some(), WaitKind::Message, false),
        ("provider", provider.is_some(), WaitKind::RateLimit, true),
        ("resetTime", reset_time.is_some(), WaitKind::RateLimit, false),
    ];
    for (field, is_sent, of, is_needed) in fields {
        if is_sent && *kind != of {
            return invalid(format!("a wait of this kind has no `{field}`"));
        }
        if !is_sent && *kind == of && is_needed {
            return invalid(format!("a wait of this kind needs `{field}`"));
        }
    }
    // A message can have no other topic.
    if let Some(topic) = topic {
        TextField { label: "`topic`", text: topic }.check_name()?;
    }
    let texts = [("`title`", title), ("`provider`", provider)];
    for (label, text) in texts.iter().filter_map(|(label, text)| Some((*label, text.as_deref()?))) {
        TextField { label, text }.check_short()?;
    }
    let json = |value: &Option<Box<RawValue>>| value.as_deref().map_or(0, |json| json.get().len());
    let summary = summary.as_deref().map_or(0, str::len);
    Count { label: "bytes of `summary`", count: summary, max: Limits::SUMMARY_BYTES }.check()?;
    Count { label: "bytes of `proposal`", count: json(proposal), max: Limits::PROPOSAL_BYTES }.check()?;
    let max = Limits::ANSWER_SCHEMA_BYTES;
    Count { label: "bytes of `answerSchema`", count: json(answer_schema), max }.check()?;
    match deadline_seconds {
        Some(seconds) if *seconds < 1 => invalid("`deadlineSeconds` must be at least 1"),
        Some(_) | None => Ok(()),
    }
}

/// Checks a message.
pub(crate) fn check_message(id: &str, topic: Option<&str>, value: &RawValue) -> Checked {
    TextField { label: "`id`", text: id }.check_name()?;
    if let Some(topic) = topic {
        TextField { label: "`topic`", text: topic }.check_name()?;
    }
    let bytes = value.get().len();
    if bytes <= Limits::MESSAGE_BYTES {
        return Ok(());
    }
    Err(ApiProblem::new(
        Code::TooLarge,
        format!(
            "the message's `value` has {bytes} bytes, the limit is {}; store it elsewhere and send a reference to it",
            Limits::MESSAGE_BYTES
        ),
    ))
}

/// Checks a claim.
pub(crate) fn check_claim(request: &ClaimRequest) -> Checked {
    if let Some(approval) = &request.approval {
        TextField { label: "`approval`", text: approval }.check_chars(Limits::NAME_CHARS)?;
    }
    if let Some(tool) = &request.tool {
        TextField { label: "`tool`", text: tool }.check_short()?;
    }
    match &request.key {
        Some(key) => TextField { label: "`key`", text: key }.check_chars(Limits::KEY_CHARS),
        None => Ok(()),
    }
}

/// A text that a worker sends, and how an error names it.
pub(crate) struct TextField<'a> {
    pub(crate) label: &'a str,
    pub(crate) text: &'a str,
}

impl TextField<'_> {
    /// The name of a channel or a tool call.
    pub(crate) fn check_name(&self) -> Checked {
        let Self { label, text } = self;
        let fits = (1..=Limits::NAME_CHARS).contains(&text.len());
        if fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte)) {
            return Ok(());
        }
        invalid(format!("{label} must have 1 to {} characters of A-Z a-z 0-9 . _ : -", Limits::NAME_CHARS))
    }

    /// A short text for people or tools, such as a reason.
    pub(crate) fn check_short(&self) -> Checked {
        self.check_chars(Limits::NAME_CHARS)
    }

    fn check_chars(&self, max: usize) -> Checked {
        let Self { label, text } = self;
        let characters = text.chars().take(max + 1).count();
        if (1..=max).contains(&characters) && !text.chars().any(char::is_control) {
            return Ok(());
        }
        invalid(format!("{label} must have 1 to {max} characters, none of them a control character"))
    }

    /// The space, key or entry id of a record.
    fn check_record_name(&self) -> Checked {
        let Self { label, text } = self;
        let max = Limits::RECORD_NAME_BYTES;
        if (1..=max).contains(&text.len()) && !text.chars().any(char::is_control) {
            return Ok(());
        }
        invalid(format!("{label} must have 1 to {max} bytes and no control characters"))
    }
}

/// Checks a worker's finish and converts it for the store.
pub(crate) fn new_finish(finish: &Finish) -> Result<NewFinish, ApiProblem> {
    check_finish(finish)?;
    let reason = match (&finish.reason, finish.outcome) {
        (Some(reason), _) => reason.as_str(),
        (None, FinishOutcome::Succeeded) => "Completed",
        (None, FinishOutcome::Failed) => "AgentFailed",
    };
    Ok(NewFinish {
        outcome: finish.outcome.into(),
        reason: reason.to_owned(),
        // Not refused for control characters: it may be an exception's text, and the run must be able to end.
        message: finish.message.as_deref().map(printable).unwrap_or_default(),
        output: finish.output.as_ref().map(|output| output.get().to_owned()),
    })
}

fn check_finish(finish: &Finish) -> Checked {
    if let Some(reason) = &finish.reason {
        TextField { label: "the finish's `reason`", text: reason }.check_short()?;
        let mut bytes = reason.bytes();
        let is_camel_case = bytes.next().is_some_and(|byte| byte.is_ascii_uppercase())
            && bytes.all(|byte| byte.is_ascii_alphanumeric());
        if !is_camel_case {
            return invalid("the finish's `reason` must be one CamelCase word, such as GoalReached");
        }
    }
    if let Some(message) = &finish.message {
        let max = Limits::FINISH_MESSAGE_BYTES;
        Count { label: "bytes of the finish's `message`", count: message.len(), max }.check()?;
    }
    let output = finish.output.as_ref().map_or("", |output| output.get());
    let max = Limits::FINISH_OUTPUT_BYTES;
    Count { label: "bytes of the finish's `output`", count: output.len(), max }.check()?;
    match nesting::deeper_than(Limits::SHOWN_DEPTH, output.as_bytes()) {
        None => Ok(()),
        Some(_) => invalid(format!(
            "the finish's `output` is nested deeper than {} levels; put the inner part into a string",
            Limits::SHOWN_DEPTH
        )),
    }
}

fn check_channels(ops: &ChannelOps) -> Checked {
    let written: BTreeSet<&String> = ops.set.keys().chain(ops.append.keys()).collect();
    let max = Limits::CHANNELS;
    Count { label: "channels in `set` and `append`", count: written.len(), max }.check()?;
    for channel in written.into_iter().chain(&ops.remove).chain(ops.truncate.keys()) {
        TextField { label: "a channel's name", text: channel }.check_name()?;
    }
    if let Some(both) = ops.set.keys().find(|channel| ops.append.contains_key(*channel)) {
        return invalid(format!(
            "channel {both:?} is in `set` and in `append`: a channel is a value or a list, not both"
        ));
    }
    if let Some(channel) = ops.truncate.keys().find(|channel| ops.full || ops.remove.contains(channel)) {
        return invalid(format!(
            "channel {channel:?} is in `truncate`, and the same boundary deletes it by `remove` or `full`"
        ));
    }
    check_payloads(&ops.set, &ops.append)
}

fn check_payloads(set: &BTreeMap<String, Payload>, append: &BTreeMap<String, Vec<Payload>>) -> Checked {
    let items = append.iter().flat_map(|(channel, items)| items.iter().map(move |item| (channel, item)));
    for (channel, payload) in set.iter().chain(items) {
        check_payload(|| format!("channel {channel:?}"), payload)?;
    }
    Ok(())
}

/// Checks a payload that is not JSON; `owner` names what holds it.
fn check_payload(owner: impl FnOnce() -> String, payload: &Payload) -> Checked {
    let Payload::Bytes { media_type, base64 } = payload else { return Ok(()) };
    TextField { label: "`mediaType`", text: media_type }.check_short()?;
    match STANDARD.decode(base64) {
        Ok(_) => Ok(()),
        Err(error) => invalid(format!("{}: `base64` is not standard base64 with padding ({error})", owner())),
    }
}

fn check_planned_calls(calls: &[PlannedCall], boundary: Boundary) -> Checked {
    if boundary == Boundary::Result && !calls.is_empty() {
        return invalid(
            "calls are planned before the tools run: send `calls` with POST turns/{n}/plan, or claim each call",
        );
    }
    let mut seen = BTreeSet::new();
    for call in calls {
        TextField { label: "a call's `id`", text: &call.id }.check_name()?;
        TextField { label: "a call's `key`", text: &call.key }.check_chars(Limits::KEY_CHARS)?;
        if !seen.insert(&call.id) {
            return invalid(format!(
                "two calls have the id {:?}; an id names one call in the whole run",
                call.id
            ));
        }
    }
    Ok(())
}

/// Checks the changes of records in a batch or a boundary.
pub(crate) fn check_records(operations: &[RecordOp]) -> Checked {
    for operation in operations {
        let (space, key) = operation.space_and_key();
        let (entry_id, value) = operation.entry();
        let label = match operation {
            RecordOp::DeletePrefix { .. } => "the `prefix` of records",
            _ => "a record's `key`",
        };
        TextField { label: "a record's `space`", text: space }.check_record_name()?;
        TextField { label, text: key }.check_record_name()?;
        if let Some(entry_id) = entry_id {
            TextField { label: "a record's `entryId`", text: entry_id }.check_record_name()?;
        }
        if let Some(value) = value {
            check_record_value(key, value)?;
        }
    }
    Ok(())
}

/// Checks the keys whose records a worker reads.
pub(crate) fn check_record_keys(space: &str, keys: &[String]) -> Checked {
    TextField { label: "`space`", text: space }.check_record_name()?;
    if keys.is_empty() {
        return invalid("`keys` is empty: there is nothing to read");
    }
    let mut seen = BTreeSet::new();
    for key in keys {
        TextField { label: "a key in `keys`", text: key }.check_record_name()?;
        if !seen.insert(key) {
            return invalid(format!("`keys` names {key:?} twice"));
        }
    }
    Ok(())
}

fn check_record_value(key: &str, value: &Payload) -> Checked {
    check_payload(|| format!("the value of {key:?}"), value)?;
    let bytes = match value {
        Payload::Json(json) => json.get().len(),
        Payload::Bytes { base64, .. } => base64.len(),
    };
    if bytes <= Limits::RECORD_VALUE_BYTES {
        return Ok(());
    }
    Err(ApiProblem::new(
        Code::TooLarge,
        format!(
            "the value of {key:?} has {bytes} bytes, the limit is {}; split it, or store it elsewhere and record a \
             reference to it",
            Limits::RECORD_VALUE_BYTES
        ),
    ))
}

/// Checks the usage of a boundary or a call.
pub(crate) fn check_usage(usage: &Usage) -> Checked {
    let Usage { tokens_in, tokens_out, tool_calls, cost_micro_usd } = *usage;
    let amounts = [
        ("tokensIn", tokens_in),
        ("tokensOut", tokens_out),
        ("toolCalls", tool_calls),
        ("costMicroUSD", cost_micro_usd),
    ];
    match amounts.into_iter().find(|(_, amount)| !(0..=Limits::USAGE).contains(amount)) {
        None => Ok(()),
        Some((field, amount)) => invalid(format!(
            "`usage.{field}` is {amount}; it is what this boundary or this call alone used, from 0 to {}",
            Limits::USAGE
        )),
    }
}

/// A count that has a limit.
struct Count {
    label: &'static str,
    count: usize,
    max: usize,
}

impl Count {
    fn check(&self) -> Checked {
        let Self { label, count, max } = self;
        if count <= max {
            return Ok(());
        }
        invalid(format!("{label}: {count} are too many, the limit is {max}"))
    }
}

fn invalid(detail: impl Into<String>) -> Checked {
    Err(ApiProblem::invalid(detail))
}
