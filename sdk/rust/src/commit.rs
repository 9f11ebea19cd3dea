//! Builders for a boundary and for a tool call.

use dalsegno_protocol::{
    Boundary, ChannelOps, CommitRequest, Finish, FinishOutcome, Message, Outcome, ParkMode, ParkRequest,
    Payload, PlannedCall, Policy, RawValue, Trigger, Usage,
};
use serde::Serialize;
use uuid::Uuid;

use crate::Result;
use crate::json::raw;

/// A boundary to commit with [`crate::Run::commit`]. Channels that it does not name stay unchanged.
#[derive(Debug)]
pub struct Commit {
    pub(crate) turn: i32,
    pub(crate) boundary: Boundary,
    pub(crate) request: CommitRequest,
}

impl Commit {
    /// The end of a turn.
    pub fn new(turn: i32) -> Self {
        Self::with_boundary(turn, Boundary::Result)
    }

    /// The plan of a turn, before its tools run.
    pub fn plan(turn: i32) -> Self {
        Self::with_boundary(turn, Boundary::Plan)
    }

    fn with_boundary(turn: i32, boundary: Boundary) -> Self {
        let request = CommitRequest {
            commit_id: Uuid::new_v4(),
            state: None,
            channels: None,
            events: Vec::new(),
            calls: Vec::new(),
            open_calls: Vec::new(),
            records: Vec::new(),
            inbox: Vec::new(),
            usage: Usage::default(),
            trigger: None,
            outcome: None,
        };
        Self { turn, boundary, request }
    }

    /// Replaces the whole state. Do not combine it with changes of channels.
    ///
    /// # Errors
    ///
    /// The value cannot be written as JSON. A NaN or an infinity is an error everywhere in this crate: JSON has
    /// neither.
    pub fn state(mut self, state: &impl Serialize) -> Result<Self> {
        self.request.state = Some(raw("write the state as JSON", state)?);
        Ok(self)
    }

    /// Sets a channel to this value, whatever it held.
    pub fn set(mut self, channel: &str, value: &impl Serialize) -> Result<Self> {
        let value = Payload::Json(raw("write a channel as JSON", value)?);
        self.channels().set.insert(channel.to_owned(), value);
        Ok(self)
    }

    /// Appends one item to a list channel.
    pub fn append(mut self, channel: &str, item: &impl Serialize) -> Result<Self> {
        let item = Payload::Json(raw("write an item of a channel as JSON", item)?);
        self.channels().append.entry(channel.to_owned()).or_default().push(item);
        Ok(self)
    }

    /// Cuts a list channel to its first `length` items, before anything is appended.
    pub fn truncate(mut self, channel: &str, length: u32) -> Self {
        self.channels().truncate.insert(channel.to_owned(), length);
        self
    }

    /// Removes a channel.
    pub fn remove(mut self, channel: &str) -> Self {
        self.channels().remove.push(channel.to_owned());
        self
    }

    fn channels(&mut self) -> &mut ChannelOps {
        self.request.channels.get_or_insert_default()
    }

    /// Adds an event, which people can read.
    pub fn event(mut self, event: &impl Serialize) -> Result<Self> {
        self.push_event(event)?;
        Ok(self)
    }

    pub(crate) fn push_event(&mut self, event: &impl Serialize) -> Result<()> {
        self.request.events.push(raw("write an event as JSON", event)?);
        Ok(())
    }

    /// Adds a tool call that the turn will make. The call and its key become durable with the plan.
    pub fn call(mut self, call: ToolCall<'_>, arguments: &impl Serialize) -> Result<Self> {
        let arguments = Some(raw("write a call's arguments as JSON", arguments)?);
        let ToolCall { id, policy, key, approval: _, tool: _ } = call; // a claim names approval and tool
        let (id, key) = (id.to_owned(), key.unwrap_or_default().to_owned());
        self.request.calls.push(PlannedCall { id, policy, key, arguments });
        Ok(self)
    }

    /// Names a started call of this attempt that may stay without an outcome. Without it the boundary is refused while a
    /// call with the policy `probe` or `ask` has none. A finish is refused even with it.
    pub fn open_call(mut self, id: &str) -> Self {
        self.request.open_calls.push(id.to_owned());
        self
    }

    /// Sets what this boundary spent.
    pub fn usage(mut self, usage: Usage) -> Self {
        self.request.usage = usage;
        self
    }

    /// Sets why the boundary was committed. [`Trigger::own`] makes a word of the agent's own.
    pub fn trigger(mut self, trigger: &Trigger) -> Self {
        self.request.trigger = Some(trigger.to_string());
        self
    }

    /// Ends the run with this boundary.
    pub fn finish(mut self, finish: Finish) -> Self {
        self.set_finish(finish);
        self
    }

    pub(crate) fn set_finish(&mut self, finish: Finish) {
        self.request.outcome = Some(Outcome::Finish(finish));
    }

    /// Takes messages of the inbox with this boundary: no later attempt reads them again, unless a rewind undoes the
    /// boundary.
    pub fn take(mut self, messages: &[Message]) -> Self {
        self.request.inbox.extend(messages.iter().map(|message| message.position));
        self
    }

    /// Ends the attempt with this boundary, until all or any of these waits are answered. When the boundary is durable,
    /// [`crate::Run::commit`] exits the process with 0; code after it does not run.
    pub fn park(mut self, on: &[&str], mode: ParkMode) -> Self {
        self.set_park(on, mode);
        self
    }

    pub(crate) fn set_park(&mut self, on: &[&str], mode: ParkMode) {
        self.request.outcome = Some(Outcome::Park(park_request(on, mode)));
    }

    /// The same boundary as the plan of its turn.
    pub(crate) fn into_plan(self) -> Self {
        Self { boundary: Boundary::Plan, ..self }
    }

    /// A plan that was not committed, as the end of its turn, without its state.
    pub(crate) fn into_result(self) -> Self {
        let request = CommitRequest { commit_id: Uuid::new_v4(), state: None, ..self.request };
        Self { boundary: Boundary::Result, request, ..self }
    }

    /// As [`Self::state`], with a state that is written already.
    pub(crate) fn with_state(mut self, state: Box<RawValue>) -> Self {
        self.request.state = Some(state);
        self
    }

    pub(crate) fn add_usage(&mut self, usage: Usage) {
        let spent = &mut self.request.usage;
        spent.tokens_in += usage.tokens_in;
        spent.tokens_out += usage.tokens_out;
        spent.tool_calls += usage.tool_calls;
        spent.cost_micro_usd += usage.cost_micro_usd;
    }
}

/// One tool call: its id, its policy and, if it is not the default one, its idempotency key; and the approval that
/// allows it.
#[derive(Clone, Copy, Debug)]
pub struct ToolCall<'a> {
    pub(crate) id: &'a str,
    pub(crate) policy: Policy,
    pub(crate) key: Option<&'a str>,
    pub(crate) approval: Option<&'a str>,
    pub(crate) tool: Option<&'a str>,
}

impl<'a> ToolCall<'a> {
    /// A call with the default key, [`crate::Run::key`]. `id` is unique in the run; `policy` says what to do if the
    /// outcome is unknown.
    pub fn new(id: &'a str, policy: Policy) -> Self {
        Self { id, policy, key: None, approval: None, tool: None }
    }

    /// Sets another idempotency key.
    pub fn key(mut self, key: &'a str) -> Self {
        self.key = Some(key);
        self
    }

    /// Names the tool. A process that finds the call unsettled reads the name in [`crate::Call::tool`], and a person in the
    /// list of calls. The name that was stored first stays.
    pub fn tool(mut self, name: &'a str) -> Self {
        self.tool = Some(name);
        self
    }

    /// Names the approval that allows this call: the id of a wait of [`crate::WaitFor::approval`]. The store lets an
    /// approval allow one call and no other. Without it an approval is advice.
    pub fn approval(mut self, wait: &'a str) -> Self {
        self.approval = Some(wait);
        self
    }
}

/// The end of a run that reached its goal. Add details with `Finish { reason: …, ..succeeded() }`.
pub fn succeeded() -> Finish {
    Finish { outcome: FinishOutcome::Succeeded, reason: None, message: None, output: None }
}

/// The end of a run that did not reach its goal and never will.
pub fn failed() -> Finish {
    Finish { outcome: FinishOutcome::Failed, ..succeeded() }
}

/// The body of a park, or a boundary's.
pub(crate) fn park_request(on: &[&str], mode: ParkMode) -> ParkRequest {
    ParkRequest { park_id: Uuid::new_v4(), on: on.iter().map(|&id| id.to_owned()).collect(), mode }
}
