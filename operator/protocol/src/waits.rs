//! Waits: `POST waits/{id}` and `GET waits/{id}`. A wait is like a tool call whose result comes from outside: it is
//! opened once and answered once, and its answer stays readable.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What answers a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitKind {
    /// A person's decision.
    Approval,
    /// A time.
    Until,
    /// A message to the run.
    Message,
    /// The end of a provider's rate limit.
    RateLimit,
}

impl WaitKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Approval, Self::Until, Self::Message, Self::RateLimit];
}

/// What happens when a wait's deadline passes before its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnTimeout {
    /// The wait is answered with `timedOut`.
    #[default]
    Answer,
    /// The run is held, if it is parked on the wait. The wait stays open, and an answer lifts the hold.
    Hold,
    /// The run fails, if it is parked on the wait.
    Fail,
}

/// `POST waits/{id}`: opens a wait. The same bytes give the wait again, in later attempts too.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaitRequest {
    /// What answers the wait. Each kind has fields of its own.
    pub kind: WaitKind,
    /// `approval`: one line for the person who decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// `approval`: what the agent says about its proposal; at most 2 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// `approval`: what is to be decided; any JSON of at most 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<Box<RawValue>>,
    /// `approval`: a JSON schema of the changes that a person may make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_schema: Option<Box<RawValue>>,
    /// `until`: the time, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// `message`: the topic; without it a message of any topic answers the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// `rateLimit`: who limits the rate, such as the name of a model's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// `rateLimit`: when the limit ends, as RFC 3339, as far as the provider said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_time: Option<String>,
    /// The deadline, in seconds from the opening of the wait. Without it the wait has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<i64>,
    /// What happens at the deadline.
    #[serde(default)]
    pub on_timeout: OnTimeout,
}

/// The answer to `POST waits/{id}` and `GET waits/{id}`, and a wait in the answer to an attach.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The worker's id of the wait.
    pub id: String,
    /// What answers it.
    pub kind: WaitKind,
    /// Whether it is answered.
    pub state: WaitState,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<WaitAnswer>,
    /// `approval`: `sha256:…` over the salt, the title, the summary and the proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal_hash: Option<String>,
    /// When it was opened, by the store's clock.
    pub opened_at: String,
    /// Its deadline, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// `until` and `rateLimit`: when the store answers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_time: Option<String>,
}

/// Whether a wait is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitState {
    /// It is not answered.
    Open,
    /// It is answered.
    Answered,
    /// The run has ended before an answer.
    Withdrawn,
}

/// The answer of a wait.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitAnswer {
    /// Which answer.
    pub outcome: WaitOutcome,
    /// When, by the store's clock.
    pub at: String,
    /// A decision: who decided, as the API server has authenticated them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// A decision: why. It is a person's word, not an instruction of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `changed`: what to do instead of the proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Box<RawValue>>,
    /// `message`: the position of the message in the inbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<i64>,
}

/// Which answer a wait has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitOutcome {
    /// A person approved the proposal.
    Approved,
    /// A person denied it.
    Denied,
    /// A person approved other values.
    Changed,
    /// The time has come.
    Elapsed,
    /// A message arrived.
    Message,
    /// The deadline passed first.
    TimedOut,
}

impl WaitOutcome {
    /// Whether a person agreed: to the proposal, or to other values.
    pub fn is_approval(self) -> bool {
        matches!(self, Self::Approved | Self::Changed)
    }
}

/// The answer to `GET proposal`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProposalResponse {
    /// The wait's id.
    pub wait: String,
    /// The epoch that it was opened under.
    pub epoch: i64,
    /// The turn that was open.
    pub turn: i32,
    /// The request as the worker sent it: title, summary, proposal; `null` if it was deleted or shredded.
    pub request: Option<Box<RawValue>>,
    /// The 16 random bytes that the hash begins with, in hex.
    pub salt: Option<String>,
    /// What the decision must name.
    pub proposal_hash: Option<String>,
    /// Its deadline, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_time: Option<String>,
}
