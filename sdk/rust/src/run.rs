//! One attempt at a run.

use std::collections::{BTreeMap, HashMap};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use dalsegno_protocol::{
    AttachResponse, Boundary, Call, Channel, CommitResponse, Decision, Finish, FinishRequest, Head, PLAIN,
    Payload, State, Warning,
};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::calls::Claim;
use crate::http::{CALL, Client};
use crate::json::{from_text, to_bytes};
use crate::watch::Asked;
use crate::{Builder, Commit, Error, Result};

/// One attempt at a run. One per process; dropping it stops the heartbeats.
pub struct Run {
    pub(crate) client: Arc<Client>,
    pub(crate) asked: Arc<Asked>,
    pub(crate) term: Arc<AtomicBool>,
    pub(crate) input: Vec<u8>,
    /// As the gateway answered, with the head moved on by each commit.
    pub(crate) attached: AttachResponse,
    /// Claims that were sent, or are about to be, and are not known to be over, by call.
    pub(crate) claims: Mutex<HashMap<String, Claim>>,
    /// Tells the heartbeats which lease an answer told, in seconds; to drop it ends them.
    pub(crate) beats: Option<Sender<u32>>,
}

impl Run {
    /// Takes the run over as the environment says, with heartbeats and a handler of SIGTERM.
    pub fn attach() -> Result<Self> {
        Self::builder().attach()
    }

    /// Attaches in another way.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// `namespace/name` of the run.
    pub fn name(&self) -> &str {
        &self.attached.run
    }

    /// Number of the attempt, from 1.
    pub fn attempt(&self) -> i32 {
        self.attached.attempt
    }

    /// Whether anything was committed before this attempt.
    pub fn decision(&self) -> Decision {
        self.attached.decision
    }

    /// What a careful worker logs.
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

    /// Whether [`Self::turn`] has its plan already.
    pub fn planned(&self) -> bool {
        self.head().is_some_and(|head| head.boundary == Boundary::Plan)
    }

    /// What the run was asked for; no input reads as `null`. One that is no JSON is the agent's to read itself, from
    /// the file that [`crate::env::INPUT_FILE`] names.
    pub fn input<T: DeserializeOwned>(&self) -> Result<T> {
        let text = if self.input.trim_ascii().is_empty() { b"null" } else { &self.input[..] };
        serde_json::from_slice(text)
            .map_err(|source| Error::Json { doing: "read the file of DALSEGNO_INPUT_FILE", source })
    }

    /// What [`Commit::state`] held last, before this attempt; `None` on a fresh run.
    pub fn state<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        self.value(PLAIN)
    }

    /// A channel that is replaced as a whole, as it stood at attach; `None` where there is none.
    pub fn value<T: DeserializeOwned>(&self, channel: &str) -> Result<Option<T>> {
        match self.channels().get(channel) {
            Some(Channel::Value(payload)) => decode(payload).map(Some),
            Some(Channel::List(_)) | None => Ok(None),
        }
    }

    /// The items of a list, as it stood at attach; empty where there is none.
    pub fn list<T: DeserializeOwned>(&self, channel: &str) -> Result<Vec<T>> {
        match self.channels().get(channel) {
            Some(Channel::List(items)) => items.iter().map(decode).collect(),
            Some(Channel::Value(_)) | None => Ok(Vec::new()),
        }
    }

    /// Every channel, as it stood at attach.
    pub fn channels(&self) -> &State {
        static NONE: State = BTreeMap::new();
        self.attached.state.as_ref().unwrap_or(&NONE)
    }

    /// Calls that an earlier attempt claimed and whose outcome nobody knows.
    pub fn unsettled_calls(&self) -> &[Call] {
        &self.attached.unsettled_calls
    }

    /// Calls of the open turn that were completed, or had failed, before this attempt.
    pub fn completed_calls(&self) -> &[Call] {
        &self.attached.completed_calls
    }

    /// The idempotency key of a call that is given none: the run's own id and the call's, the same in every attempt.
    pub fn key(&self, id: &str) -> String {
        let run = self.client.base.rsplit('/').next().unwrap_or_default();
        format!("{run}:{id}")
    }

    /// Commits a boundary; returns once it is durable.
    pub fn commit(&mut self, commit: Commit) -> Result<CommitResponse> {
        let Commit { turn, boundary, mut request } = commit;
        for call in request.calls.iter_mut().filter(|call| call.key.is_empty()) {
            call.key = self.key(&call.id);
        }
        let path = match boundary {
            Boundary::Plan => format!("turns/{turn}/plan"),
            Boundary::Result => format!("turns/{turn}"),
        };
        let answer: CommitResponse = self.client.call(&path, Some(&to_bytes(&request)?))?;
        self.asked.see(answer.flags);
        if let Some(beats) = &self.beats {
            // Where nobody listens the run is over.
            let _ = beats.send(answer.flags.lease_seconds);
        }
        self.attached.head = answer.head.clone();
        if request.outcome.is_some() {
            self.ended();
        }
        Ok(answer)
    }

    /// Ends the run where there is no new state to commit.
    pub fn finish(&mut self, finish: Finish) -> Result<()> {
        let body = to_bytes(&FinishRequest { commit_id: Uuid::new_v4(), finish })?;
        let _: CommitResponse = self.client.call("finish", Some(&body))?;
        self.ended();
        Ok(())
    }

    /// Whether SIGTERM came: commit what is finished and leave with 143 within [`crate::GRACE`].
    pub fn stopping(&self) -> bool {
        self.term.load(Ordering::SeqCst)
    }

    /// Whether a person cancelled the run: acknowledge and leave.
    pub fn cancelled(&self) -> bool {
        self.asked.cancel.load(Ordering::SeqCst)
    }

    /// Reserved: always false.
    pub fn suspending(&self) -> bool {
        self.asked.suspend.load(Ordering::SeqCst)
    }

    /// Tells the gateway that the cancel was heard. Nothing more is accepted after it: leave.
    pub fn acknowledge_cancel(&self) -> Result<()> {
        self.ended();
        self.client.send("cancelled", Some(b""), CALL)?;
        Ok(())
    }

    /// Between two steps: acknowledges a cancel and exits 0, or exits 143 where the pod has to go.
    pub fn check(&self) -> Result<()> {
        if self.cancelled() {
            self.acknowledge_cancel()?;
            process::exit(0);
        }
        if self.stopping() {
            process::exit(143);
        }
        Ok(())
    }

    fn ended(&self) {
        self.client.ended_here.store(true, Ordering::SeqCst);
    }
}

fn decode<T: DeserializeOwned>(payload: &Payload) -> Result<T> {
    match payload {
        Payload::Json(text) => from_text("read a channel", text.get()),
        Payload::Bytes { media_type, .. } => Err(Error::NotJson { media_type: media_type.clone() }),
    }
}
