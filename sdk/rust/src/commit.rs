//! A boundary, put together.

use dalsegno_protocol::{
    Boundary, ChannelOps, CommitRequest, Finish, FinishOutcome, Outcome, Payload, PlannedCall, Policy, Usage,
};
use serde::Serialize;
use uuid::Uuid;

use crate::Result;
use crate::json::raw;

/// A boundary to commit with [`crate::Run::commit`]. What it does not mention stays as it was.
#[derive(Debug)]
pub struct Commit {
    pub(crate) turn: i32,
    pub(crate) boundary: Boundary,
    pub(crate) request: CommitRequest,
}

impl Commit {
    /// The end of a turn.
    pub fn new(turn: i32) -> Self {
        Self::of(turn, Boundary::Result)
    }

    /// The plan of a turn, before its tools run.
    pub fn plan(turn: i32) -> Self {
        Self::of(turn, Boundary::Plan)
    }

    fn of(turn: i32, boundary: Boundary) -> Self {
        let request = CommitRequest {
            commit_id: Uuid::new_v4(),
            state: None,
            channels: None,
            events: Vec::new(),
            calls: Vec::new(),
            records: Vec::new(),
            usage: Usage::default(),
            trigger: None,
            outcome: None,
        };
        Self { turn, boundary, request }
    }

    /// The whole state, in place of everything there was. Not together with channels. A NaN or an infinity is an error,
    /// here and in all that this crate writes: JSON has none.
    pub fn state(mut self, state: &impl Serialize) -> Result<Self> {
        self.request.state = Some(raw("write the state as JSON", state)?);
        Ok(self)
    }

    /// A channel that is replaced as a whole.
    pub fn set(mut self, channel: &str, value: &impl Serialize) -> Result<Self> {
        let value = Payload::Json(raw("write a channel as JSON", value)?);
        self.channels().set.insert(channel.to_owned(), value);
        Ok(self)
    }

    /// One more item at the end of a list.
    pub fn append(mut self, channel: &str, item: &impl Serialize) -> Result<Self> {
        let item = Payload::Json(raw("write an item of a channel as JSON", item)?);
        self.channels().append.entry(channel.to_owned()).or_default().push(item);
        Ok(self)
    }

    /// A list cut to its first `length` items, before anything is appended.
    pub fn truncate(mut self, channel: &str, length: u32) -> Self {
        self.channels().truncate.insert(channel.to_owned(), length);
        self
    }

    /// A channel that goes.
    pub fn remove(mut self, channel: &str) -> Self {
        self.channels().remove.push(channel.to_owned());
        self
    }

    fn channels(&mut self) -> &mut ChannelOps {
        self.request.channels.get_or_insert_default()
    }

    /// Something that happened, for people.
    pub fn event(mut self, event: &impl Serialize) -> Result<Self> {
        self.request.events.push(raw("write an event as JSON", event)?);
        Ok(self)
    }

    /// A call that the turn will make; it and its key (unless given: [`crate::Run::key`]) are durable with the plan.
    pub fn call(
        mut self,
        id: &str,
        policy: Policy,
        key: Option<&str>,
        arguments: &impl Serialize,
    ) -> Result<Self> {
        let arguments = Some(raw("write a call's arguments as JSON", arguments)?);
        let (id, key) = (id.to_owned(), key.unwrap_or_default().to_owned());
        self.request.calls.push(PlannedCall { id, policy, key, arguments });
        Ok(self)
    }

    /// What this boundary spent.
    pub fn usage(mut self, usage: Usage) -> Self {
        self.request.usage = usage;
        self
    }

    /// Why the boundary was committed, in one word.
    pub fn trigger(mut self, trigger: &str) -> Self {
        self.request.trigger = Some(trigger.to_owned());
        self
    }

    /// Ends the run with this boundary.
    pub fn finish(mut self, finish: Finish) -> Self {
        self.request.outcome = Some(Outcome::Finish(finish));
        self
    }
}

/// The end of a run that reached its goal. Say more by `Finish { reason: …, ..succeeded() }`.
pub fn succeeded() -> Finish {
    Finish { outcome: FinishOutcome::Succeeded, reason: None, message: None, output: None }
}

/// The end of a run that did not, and never will.
pub fn failed() -> Finish {
    Finish { outcome: FinishOutcome::Failed, ..succeeded() }
}
