//! One attempt at a run.

use std::collections::BTreeMap;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::Sender;

use dalsegno_protocol::{
    AttachResponse, Boundary, Call, Channel, Code, CommitResponse, Decision, Finish, FinishRequest, Head,
    Outcome, PLAIN, Payload, RecordOp, State, Warning,
};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::claims::Claims;
use crate::http::{CALL_TIMEOUT, Client};
use crate::json::{from_text, to_bytes};
use crate::watch::WorkerSignals;
use crate::{Commit, Error, Result, log_line};

/// One attempt at a run. A process has one; dropping it stops the heartbeats.
pub struct Run {
    pub(crate) client: Arc<Client>,
    pub(crate) signals: Arc<WorkerSignals>,
    pub(crate) term: Arc<AtomicBool>,
    pub(crate) input: Vec<u8>,
    /// The gateway's answer to the attach. Each commit replaces its head.
    pub(crate) attached: AttachResponse,
    pub(crate) claims: Claims,
    /// Position of the last message that this process has read.
    pub(crate) read_to: AtomicI64,
    /// Passes the length of the lease, in seconds, to the heartbeats. Dropping it ends them.
    pub(crate) heartbeats: Option<Sender<u32>>,
}

impl Run {
    /// `namespace/name` of the run.
    pub fn name(&self) -> &str {
        &self.attached.run
    }

    /// Number of the attempt, from 1.
    pub fn attempt(&self) -> i32 {
        self.attached.attempt
    }

    /// How often the run was rewound before this attempt. Put it into the id of a call that shall be made again after a
    /// rewind.
    pub fn branch(&self) -> i32 {
        self.attached.branch
    }

    /// Whether anything was committed before this attempt.
    pub fn decision(&self) -> Decision {
        self.attached.decision
    }

    /// The gateway's warnings. A careful worker logs them.
    pub fn warnings(&self) -> &[Warning] {
        &self.attached.warnings
    }

    /// The latest boundary.
    pub fn head(&self) -> Option<&Head> {
        self.attached.head.as_ref()
    }

    /// The next turn to commit, from 1.
    pub fn turn(&self) -> i32 {
        match self.head() {
            None => 1,
            Some(Head { turn, boundary: Boundary::Plan, .. }) => *turn,
            Some(Head { turn, boundary: Boundary::Result, .. }) => turn + 1,
        }
    }

    /// Whether the plan of [`Self::turn`] is committed.
    pub fn planned(&self) -> bool {
        self.head().is_some_and(|head| head.boundary == Boundary::Plan)
    }

    /// The run's input; a missing input reads as `null`. If the input is not JSON, read the file that
    /// [`crate::env::INPUT_FILE`] names instead.
    pub fn input<T: DeserializeOwned>(&self) -> Result<T> {
        let text = if self.input.trim_ascii().is_empty() { b"null" } else { &self.input[..] };
        serde_json::from_slice(text)
            .map_err(|source| Error::Json { operation: "read the file of DALSEGNO_INPUT_FILE", source })
    }

    /// The latest state committed with [`Commit::state`] before this attempt; `None` on a fresh run.
    pub fn state<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        self.value(PLAIN)
    }

    /// A value channel at the time of the attach; `None` if there is no such channel.
    pub fn value<T: DeserializeOwned>(&self, channel: &str) -> Result<Option<T>> {
        match self.channels().get(channel) {
            Some(Channel::Value(payload)) => decode(payload).map(Some),
            Some(Channel::List(_)) | None => Ok(None),
        }
    }

    /// The items of a list channel at the time of the attach; empty if there is no such channel.
    pub fn list<T: DeserializeOwned>(&self, channel: &str) -> Result<Vec<T>> {
        match self.channels().get(channel) {
            Some(Channel::List(items)) => items.iter().map(decode).collect(),
            Some(Channel::Value(_)) | None => Ok(Vec::new()),
        }
    }

    /// All channels at the time of the attach.
    pub fn channels(&self) -> &State {
        static NONE: State = BTreeMap::new();
        self.attached.state.as_ref().unwrap_or(&NONE)
    }

    /// Calls that an earlier attempt claimed and whose outcome is unknown.
    pub fn unsettled_calls(&self) -> &[Call] {
        &self.attached.unsettled_calls
    }

    /// Calls of the open turn that had completed or failed before this attempt.
    pub fn completed_calls(&self) -> &[Call] {
        &self.attached.completed_calls
    }

    /// The default idempotency key of a call: the run's id and the call's id. It is the same in every attempt.
    pub fn key(&self, id: &str) -> String {
        let run = self.client.base.rsplit('/').next().unwrap_or_default();
        format!("{run}:{id}")
    }

    /// Commits a boundary. Returns when the boundary is durable, and exits with 0 then if it parks ([`Commit::park`]).
    pub fn commit(&mut self, mut commit: Commit) -> Result<CommitResponse> {
        self.send_commit(&mut commit)
    }

    /// As [`Self::commit`]. The commit can be sent again with the same bytes.
    pub(crate) fn send_commit(&mut self, commit: &mut Commit) -> Result<CommitResponse> {
        let Commit { turn, boundary, ref mut request } = *commit;
        for call in request.calls.iter_mut().filter(|call| call.key.is_empty()) {
            call.key = self.key(&call.id);
        }
        let path = match boundary {
            Boundary::Plan => format!("turns/{turn}/plan"),
            Boundary::Result => format!("turns/{turn}"),
        };
        self.client.await_contract(&path, RecordOp::contract_of(&request.records))?;
        let body = to_bytes(request)?;
        if matches!(request.outcome, Some(Outcome::Park(_))) {
            return self.commit_and_exit(&path, &body);
        }
        let answer: CommitResponse = self.client.call(&path, Some(&body))?;
        self.signals.update(answer.flags);
        if let Some(heartbeats) = &self.heartbeats {
            // The send fails only if the run has ended and with it the heartbeats.
            let _ = heartbeats.send(answer.flags.lease_seconds);
        }
        self.attached.head = answer.head.clone();
        if request.outcome.is_some() {
            self.mark_ended();
        }
        Ok(answer)
    }

    /// Ends the run without committing a new state.
    pub fn finish(&mut self, finish: Finish) -> Result<()> {
        let body = to_bytes(&FinishRequest { commit_id: Uuid::new_v4(), finish })?;
        let _: CommitResponse = self.client.call("finish", Some(&body))?;
        self.mark_ended();
        Ok(())
    }

    /// Whether the process received SIGTERM: commit what is finished, and exit with 143 within [`crate::GRACE`].
    pub fn stopping(&self) -> bool {
        self.term.load(Ordering::SeqCst)
    }

    /// Whether a person has cancelled the run: acknowledge the cancel and exit.
    pub fn cancelled(&self) -> bool {
        self.signals.cancel.load(Ordering::SeqCst)
    }

    /// Whether the run has reached one of its limits: commit or drop the current step, then exit with 0 within 30 s. It
    /// becomes `false` again if the limit is raised.
    pub fn at_limit(&self) -> bool {
        self.signals.limit.load(Ordering::SeqCst)
    }

    /// Whether a person has suspended the run: complete every open call with the policy `probe` or `ask`, commit or drop
    /// the current step, then [`Self::park`] and exit. It becomes `false` again if the suspend is lifted.
    pub fn suspending(&self) -> bool {
        self.signals.suspend.load(Ordering::SeqCst)
    }

    /// Acknowledges the cancel. The gateway accepts nothing more afterwards: exit.
    pub fn acknowledge_cancel(&self) -> Result<()> {
        self.mark_ended();
        self.client.send("cancelled", Some(b""), CALL_TIMEOUT)?;
        Ok(())
    }

    /// Call this between two steps.
    ///
    /// - If the run is cancelled, it acknowledges the cancel and exits with 0.
    /// - If the run is suspended, it parks and exits with 0. It returns if the suspend was lifted, and if calls of an
    ///   earlier attempt are unsettled: the next step claims or settles them, and the check after that step parks.
    /// - If the run has reached one of its limits, it exits with 0, unless this process has an open call with the policy
    ///   `probe` or `ask`.
    /// - If SIGTERM was received, it exits with 143.
    ///
    /// # Errors
    ///
    /// As [`Self::park`], if this process has an open call with the policy `probe` or `ask`. An agent with such calls
    /// completes them when [`Self::suspending`] becomes true.
    pub fn check(&self) -> Result<()> {
        if self.cancelled() {
            self.acknowledge_cancel()?;
            leave(0, "the run is cancelled");
        }
        if self.suspending() && self.park_between_steps()? {
            leave(0, "the run is suspended");
        }
        if self.at_limit() && !self.has_open_call() {
            leave(0, "the run has reached a limit");
        }
        if self.stopping() {
            leave(143, "the pod has to go (SIGTERM)");
        }
        Ok(())
    }

    /// As [`Self::park`]. Calls of an earlier attempt that are unsettled are no error: the next step handles them.
    fn park_between_steps(&self) -> Result<bool> {
        match self.park() {
            Err(Error::Refused { problem, .. })
                if problem.code == Code::UnsettledCalls && !self.has_open_call() =>
            {
                Ok(false)
            }
            parked => parked,
        }
    }

    /// Whether anything asks this process to leave.
    pub(crate) fn must_leave(&self) -> bool {
        self.cancelled() || self.suspending() || self.at_limit() || self.stopping()
    }

    pub(crate) fn mark_ended(&self) {
        self.client.ended_here.store(true, Ordering::SeqCst);
    }
}

/// Ends the process between two steps, and says why.
pub(crate) fn leave(exit_code: i32, why: &str) -> ! {
    log_line(why);
    process::exit(exit_code)
}

pub(crate) fn decode<T: DeserializeOwned>(payload: &Payload) -> Result<T> {
    match payload {
        Payload::Json(text) => from_text("read a channel", text.get()),
        Payload::Bytes { media_type, .. } => Err(Error::NotJson { media_type: media_type.clone() }),
    }
}
