//! Waits: what a run waits for, and how it parks on that.

use std::collections::BTreeSet;
use std::sync::Arc;

use dalsegno_protocol::{OnTimeout, ParkMode, RawValue, WaitKind, WaitOutcome, WaitState};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Digest, Error, Result, RunId, RunRecord, millis};

/// From this park in a row without progress the next pod waits.
const FREE_PARKS: i32 = 2;

/// How long the next pod waits after the first such park. Each further one doubles it.
const PARK_DELAY_MS: i64 = 10_000;

/// The longest time that the next pod waits after a park.
const MAX_PARK_DELAY_MS: i64 = 300_000;

/// A request to open a wait.
#[derive(Clone, Debug)]
pub struct OpenWaitRequest {
    /// Of which run.
    pub run: RunId,
    /// SHA-256 of the worker's instance.
    pub capability: Digest,
    /// The worker's id of the wait.
    pub id: String,
    /// SHA-256 of the body as it came.
    pub digest: Digest,
    /// The body as it came.
    pub body: Box<RawValue>,
    /// What answers the wait.
    pub asks: WaitAsks,
    /// Time from the opening to the deadline, in milliseconds.
    pub deadline_ms: Option<i64>,
    /// What happens at the deadline.
    pub on_timeout: OnTimeout,
}

/// What answers a wait, with the fields of its kind that the store obeys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitAsks {
    /// A person's decision.
    Approval {
        /// 16 random bytes, so that nobody can guess the proposal from its hash.
        salt: [u8; 16],
        /// SHA-256 over the salt, the title, the summary and the proposal.
        proposal_hash: Digest,
    },
    /// This time, by the store's clock.
    Until(Timestamp),
    /// A message of this topic; `None`: of any topic.
    Message(Option<String>),
    /// The end of a provider's rate limit.
    RateLimit {
        /// The provider.
        provider: String,
        /// When its limit ends, if the provider said so.
        reset: Option<Timestamp>,
    },
}

impl WaitAsks {
    /// The kind.
    pub fn kind(&self) -> WaitKind {
        match self {
            Self::Approval { .. } => WaitKind::Approval,
            Self::Until(_) => WaitKind::Until,
            Self::Message(_) => WaitKind::Message,
            Self::RateLimit { .. } => WaitKind::RateLimit,
        }
    }
}

/// The answer to a request to open a wait.
#[derive(Clone, Debug)]
pub enum WaitOpened {
    /// The wait is open or answered, since now or before.
    Wait(Box<Wait>),
    /// A wait with this id was opened with another body.
    Invalid(String),
    /// The run has [`dalsegno_protocol::Limits::WAITS`] open waits.
    TooMany,
    /// The requests of the open waits would exceed [`dalsegno_protocol::Limits::OPEN_WAIT_BYTES`].
    TooLarge,
    /// The capability is not the current epoch's.
    Fenced,
    /// The run is over.
    Finished,
    /// There is no run with this id.
    NotFound,
}

/// The state of a wait, for a worker that polls it.
#[derive(Clone, Debug)]
pub enum WaitPolled {
    /// The wait.
    Wait(Box<Wait>),
    /// The run has no such wait on its live branch.
    NoSuchWait,
    /// The capability is not the current epoch's, or there is no such run.
    Fenced,
    /// Its answer is damaged, or sealed with a key that this process does not have.
    Unreadable(Arc<Error>),
}

impl WaitPolled {
    /// The result of reading a wait of one run. What is wrong with its payload or its key concerns no other run.
    ///
    /// # Errors
    ///
    /// The store is unavailable, so that no wait can be read.
    pub fn of(read: Result<Wait>) -> Result<Self> {
        match read {
            Ok(wait) => Ok(Self::Wait(Box::new(wait))),
            Err(error @ (Error::Corrupt { .. } | Error::Gone { .. } | Error::Unusable(_))) => {
                Ok(Self::Unreadable(Arc::new(error)))
            }
            Err(error @ (Error::Unavailable { .. } | Error::StorageFull { .. })) => Err(error),
        }
    }
}

/// A wait, with its answer.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Everything but the answer.
    pub facts: OpenWait,
    /// Its state.
    pub state: WaitState,
    /// The answer.
    pub answer: Option<AnsweredWait>,
}

/// The answer of a wait.
#[derive(Clone, Debug)]
pub struct AnsweredWait {
    /// Which answer.
    pub outcome: WaitOutcome,
    /// When.
    pub at: Timestamp,
    /// Position of the message.
    pub position: Option<i64>,
    /// A person's words; `None` for other answers, and if they were shredded.
    pub decision: Option<WaitDecision>,
}

/// A person's words in the answer of a wait.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaitDecision {
    /// Who decided.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What to do instead of the proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Box<RawValue>>,
}

/// An open wait of a run's live branch, without its payloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenWait {
    /// The worker's id of the wait.
    pub id: String,
    /// The epoch it was opened under. It tells waits of the same id on different branches apart.
    pub epoch: i64,
    /// Its number among the waits of the run.
    pub ordinal: i64,
    /// What answers it.
    pub kind: WaitKind,
    /// The turn that was open.
    pub turn: i32,
    /// The attempt that opened it.
    pub attempt: i32,
    /// When it was opened.
    #[serde(with = "millis")]
    pub opened_at: Timestamp,
    /// Its deadline.
    #[serde(with = "millis::option")]
    pub deadline_at: Option<Timestamp>,
    /// What happens at the deadline.
    pub on_timeout: OnTimeout,
    /// When its deadline passed while the run was parked on it, if it stays open after that ([`OnTimeout::Hold`]).
    #[serde(with = "millis::option")]
    pub timed_out_at: Option<Timestamp>,
    /// When the store answers it, if time does.
    #[serde(with = "millis::option")]
    pub wake_at: Option<Timestamp>,
    /// The provider of a rate limit.
    pub provider: Option<String>,
    /// The topic of a message.
    pub topic: Option<String>,
    /// The hash of a proposal.
    pub proposal_hash: Option<Digest>,
}

/// What a parked run waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedOn {
    /// Ids of the waits.
    pub on: Vec<String>,
    /// Whether all of them must be answered, or any of them.
    pub mode: ParkMode,
    /// Since when.
    #[serde(with = "millis")]
    pub at: Timestamp,
}

/// A person's decision on an approval.
#[derive(Clone, Debug)]
pub struct WaitAnswer {
    /// Id of the wait.
    pub id: String,
    /// The epoch it was opened under.
    pub epoch: i64,
    /// [`WaitOutcome::Approved`], `Denied` or `Changed`.
    pub outcome: WaitOutcome,
    /// Who decided, and what they wrote.
    pub decision: WaitDecision,
}

/// A person's decision on an approval that does not count.
#[derive(Clone, Debug)]
pub struct RefusedDecision {
    /// Id of the wait.
    pub id: String,
    /// The epoch it was opened under.
    pub epoch: i64,
    /// Who decided.
    pub by: String,
    /// Why the decision does not count, in one word.
    pub reason: String,
}

/// The result of answering a wait. With the row afterwards.
#[derive(Clone, Debug)]
pub enum Answered {
    /// It is answered by this call.
    Ok(Box<RunRecord>),
    /// It was answered before, by the same decision.
    Duplicate(Box<RunRecord>),
    /// It was answered otherwise, undone or withdrawn.
    NotOpen(Box<RunRecord>),
    /// The run never had such a wait, or it is no approval.
    NoSuchWait(Box<RunRecord>),
}

/// A proposal, for the people who decide.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The wait.
    pub wait: Wait,
    /// The request as the worker sent it; `None` if it was shredded or deleted.
    pub request: Option<Box<RawValue>>,
    /// The salt of its hash.
    pub salt: Option<[u8; 16]>,
}

/// Whether the deadline of an open wait has an effect. That of `Hold` and `Fail` has one only while the run is parked on
/// the wait, and that of `Hold` only once.
pub fn obeys_deadline(on_timeout: OnTimeout, has_timed_out: bool, is_parked_on: bool) -> bool {
    match on_timeout {
        OnTimeout::Answer => true,
        OnTimeout::Hold => is_parked_on && !has_timed_out,
        OnTimeout::Fail => is_parked_on,
    }
}

impl OpenWait {
    /// When its deadline has an effect. `None`: it has none, or none now.
    fn deadline(&self, is_parked_on: bool) -> Option<Timestamp> {
        let has_timed_out = self.timed_out_at.is_some();
        self.deadline_at.filter(|_| obeys_deadline(self.on_timeout, has_timed_out, is_parked_on))
    }
}

impl RunRecord {
    /// Whether the store's clock has something to do for the run's waits ([`crate::Operator::settle_time`]): a time has
    /// come, a deadline has passed, or another run has moved the end of a rate limit. Not for the deadlines of approvals.
    pub fn needs_clock(&self) -> bool {
        if self.wake_at.is_none_or(|at| at > self.now) || self.finish.is_some() {
            return false;
        }
        let is_due = self.timers().any(|at| at <= self.now);
        let times = self.waits.iter().flat_map(|wait| [wait.wake_at, wait.deadline(self.is_parked_on(wait))]);
        is_due || times.flatten().min() != self.wake_at
    }

    /// The next time at which the store's clock has something to do for the run's waits.
    pub fn next_timer(&self) -> Option<Timestamp> {
        self.timers().filter(|at| *at > self.now).min()
    }

    /// When the store's clock has something to do for the run's waits. Without the deadlines of approvals.
    fn timers(&self) -> impl Iterator<Item = Timestamp> {
        let deadline = |wait: &OpenWait| wait.deadline(self.is_parked_on(wait));
        let deadline = move |wait: &OpenWait| deadline(wait).filter(|_| wait.kind != WaitKind::Approval);
        self.waits.iter().flat_map(move |wait| [wait.wake_at, deadline(wait)]).flatten()
    }

    fn is_parked_on(&self, wait: &OpenWait) -> bool {
        self.park.as_ref().is_some_and(|park| park.on.contains(&wait.id))
    }

    /// The waits that the run is parked on and that are open.
    pub fn parked_on(&self) -> impl Iterator<Item = &OpenWait> {
        let on: BTreeSet<_> = self.park.iter().flat_map(|park| &park.on).map(String::as_str).collect();
        self.waits.iter().filter(move |wait| on.contains(wait.id.as_str()))
    }

    /// The wait whose deadline has passed, for which the run is held.
    pub fn timed_out_wait(&self) -> Option<&OpenWait> {
        self.parked_on().find(|wait| wait.timed_out_at.is_some())
    }

    /// A wait that the current attempt has opened since its last boundary. A worker that has one may be silent: it may
    /// not know that it should park.
    pub fn unattended_wait(&self) -> Option<&OpenWait> {
        let head = self.head.as_ref().filter(|head| head.attempt == self.attempt.number).map(|head| head.at);
        self.waits.iter().find(|wait| {
            wait.attempt == self.attempt.number && head.is_none_or(|head| wait.opened_at >= head)
        })
    }

    /// Until when the next pod waits, because the run has parked too often without progress.
    pub fn slowed_until(&self) -> Option<Timestamp> {
        let over = self.parks_without_progress.checked_sub(FREE_PARKS + 1).filter(|over| *over >= 0)?;
        let doubled = PARK_DELAY_MS.checked_shl(over.min(16).unsigned_abs()).unwrap_or(MAX_PARK_DELAY_MS);
        let ended = self.past.first().and_then(|attempt| attempt.ended_at)?;
        Some(ended + jiff::SignedDuration::from_millis(doubled.min(MAX_PARK_DELAY_MS)))
    }
}
