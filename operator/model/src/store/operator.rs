//! The operator's calls to the store.

use async_trait::async_trait;
use uuid::Uuid;

use crate::{
    Answered, BudgetReset, Created, DeadlinePoll, Deadlines, Dropped, DueNotifications, Ending, Forgiveness,
    ForkRequest, Forked, HeadsToAnchor, HoldNotice, Identity, LookUp, NamespaceUsage, NewAnchor, NewRun,
    NextStep, NotificationResult, ObjectHold, PodRecord, PollSince, Recorded, RefusedDecision, RequestedBy,
    Result, Retention, Rewind, RewindRequest, Rewound, RunId, RunLimits, RunRecord, StepBack, Template,
    WaitAnswer,
};

/// The operator's calls: each transition of a run, what is due in any run, and what is past its retention.
#[async_trait]
pub trait Operator: Send + Sync + 'static {
    /// Creates a run with attempt 1 `reserved`, or returns the row that this object already has.
    ///
    /// A *prior run* is a live, finished or held row of the same namespace and name that belongs to another object
    /// and was not deleted or abandoned. [`NewRun::on_prior`] decides what to do about it. An adopted row gets the
    /// new object UID and a new epoch; its attempt ends as `Adopted` (neutral), and the next one is reserved. A
    /// finished run that is adopted stays finished. Adoption needs the same tenant (namespace UID).
    async fn create_run(&self, new: &NewRun) -> Result<Created>;

    /// The run of the object with this UID.
    async fn find_by_object(&self, object_uid: &str) -> Result<LookUp>;

    /// Ends an attempt, and with it the right of its worker to write.
    ///
    /// All of this happens in one step. If `ending.attempt` is not the current attempt, nothing changes. Otherwise,
    /// unless the attempt is already `ended`: compute its progress from the head that this step fences, count its end
    /// (see [`crate::Class`]), end it, and move the epoch. Then do what `then` says. Returns the row afterwards.
    ///
    /// A finished run is never changed.
    async fn end_attempt(&self, run: RunId, ending: &Ending, then: &NextStep) -> Result<RunRecord>;

    /// Takes back the charge of an attempt that has ended: its end becomes a disruption with this cause, and the
    /// counters become what they would be if it had been one from the start. The epoch does not move.
    ///
    /// Nothing changes if the attempt was not charged, is none of the latest eleven, or was forgiven by a granted budget.
    async fn forgive_end(&self, run: RunId, forgiveness: &Forgiveness) -> Result<RunRecord>;

    /// `reserved → created`: records the attempt's only pod. If the image is named by digest, `pod` also contains the
    /// identity and its verdict, so that no second call is needed.
    ///
    /// Recording the same pod again is allowed. Refused ([`Recorded::Refused`]) if the attempt is not the current
    /// one, or is no longer `reserved` and has another pod.
    async fn record_pod(&self, run: RunId, attempt: i32, pod: &PodRecord) -> Result<Recorded>;

    /// Records that the pod has a node; the start deadline starts now. Only the first call has an effect.
    async fn record_scheduled(&self, run: RunId, attempt: i32, node: &str) -> Result<Recorded>;

    /// Records that the worker of an agent with checkpoints of its own ([`crate::NewRun::is_external`]) has started: from now
    /// on the attempt counts as attached. Refused for any other run.
    async fn record_started(&self, run: RunId, attempt: i32) -> Result<Recorded>;

    /// Records the identity of the worker's image, and whether the run may continue with it. Only the first call has
    /// an effect.
    async fn record_identity(&self, run: RunId, attempt: i32, identity: &Identity) -> Result<Recorded>;

    /// Requests a cancel. Workers are notified with the answer to their next call. Only the first call has an effect.
    async fn request_cancel(&self, run: RunId, requested_by: &RequestedBy) -> Result<RunRecord>;

    /// Suspends the run. Workers are notified with the answer to their next call. A run that is suspended already is not
    /// changed.
    async fn suspend(&self, run: RunId, requested_by: &RequestedBy) -> Result<RunRecord>;

    /// Lifts the suspend. A run that is not suspended is not changed.
    async fn resume(&self, run: RunId, requested_by: &RequestedBy) -> Result<RunRecord>;

    /// A person's decision on an approval. If the run's park was waiting for it, the run is no longer parked.
    async fn answer_wait(&self, run: RunId, answer: &WaitAnswer) -> Result<Answered>;

    /// A decision on an open approval does not count: only its audit says so. Repeated, it is recorded again.
    async fn refuse_decision(&self, run: RunId, refused: &RefusedDecision) -> Result<RunRecord>;

    /// Answers the waits whose time has come by the store's clock, and does what the waits whose deadline has passed ask
    /// for. Not the deadlines of approvals: the operator must look for a decision first ([`Self::time_out_wait`]).
    async fn settle_time(&self, run: RunId) -> Result<RunRecord>;

    /// Does what an approval asks for whose deadline has passed. The caller has looked for a decision after the
    /// deadline, and found none. A wait that is not open, or whose deadline has not passed, is not changed.
    async fn time_out_wait(&self, run: RunId, id: &str, epoch: i64) -> Result<RunRecord>;

    /// Parks the run on all its open waits, on behalf of a worker that neither parks nor commits: any answer wakes it.
    /// Nothing changes unless the attempt is the current one, is attached, and has opened a wait since its last boundary.
    async fn park_unattended(&self, run: RunId, attempt: i32) -> Result<RunRecord>;

    /// Grants one fresh recovery budget. If the row's `observed_reset_generation` is still [`BudgetReset::observed`],
    /// it becomes [`BudgetReset::to`], the consecutive counters become 0, the totals become the new bases, and attempts that have ended are no
    /// longer evidence for a hold (`reset_attempt`).
    async fn reset_budget(&self, run: RunId, reset: &BudgetReset) -> Result<RunRecord>;

    /// Sets the deadlines. They take effect at once, except for a shorter lease, which takes effect when it is next
    /// renewed.
    async fn set_deadlines(&self, run: RunId, deadlines: &Deadlines) -> Result<RunRecord>;

    /// Sets the retention. It takes effect at once, also for a run that has ended.
    async fn set_retention(&self, run: RunId, retention: &Retention) -> Result<RunRecord>;

    /// Sets the limits. They take effect at once: for the answer to the worker's next call, and before the next pod.
    async fn set_limits(&self, run: RunId, limits: &RunLimits) -> Result<RunRecord>;

    /// Puts a notification into the outbox that the run is held, unless the last one was about the same hold. Of a run that
    /// is over nothing changes.
    async fn announce(&self, run: RunId, hold: &HoldNotice) -> Result<RunRecord>;

    /// Puts a notification into the outbox that an AgentRun is held whose run in the store cannot be used. The id of the
    /// notification is made from the hold, so one that still waits is not added again.
    async fn announce_object(&self, hold: &ObjectHold) -> Result<()>;

    /// The notifications whose next try is due, at most so many of them.
    async fn due_notifications(&self, limit: u32) -> Result<DueNotifications>;

    /// Records a try of a notification. One that is not there any more is no error.
    async fn end_notification(&self, id: Uuid, result: NotificationResult) -> Result<()>;

    /// Rewinds the run to an earlier boundary of the live branch. In one step this moves the epoch, marks the later
    /// boundaries as undone, hides the records written after the boundary, and makes the boundary the head. Event
    /// positions continue from the highest ever; calls keep their keys and results. A reserved attempt stays reserved
    /// in the new epoch; an attempt with a pod ends as `Rewound` (neutral), and the next one is reserved; an ended
    /// attempt stays ended.
    ///
    /// Refused ([`Rewound::Refused`]) if there is no such boundary, or if the epoch is no longer [`Rewind::epoch`];
    /// so a repeated rewind changes nothing. A run is never rewound to a boundary before [`RunRecord::dropped_to`].
    async fn rewind(&self, run: RunId, rewind: &Rewind) -> Result<Rewound>;

    /// A person's rewind to the end of an earlier turn: made as by [`Self::rewind`], or refused. Either way the request
    /// is observed, and the same request again changes nothing. [`crate::RunRecord::rewind`] says what became of it.
    ///
    /// A run that is over is never changed.
    async fn request_rewind(&self, run: RunId, request: &RewindRequest) -> Result<RunRecord>;

    /// Rewinds a run whose attempt is reserved to the result of the turn before its head. Refused
    /// ([`Rewound::Refused`]) if the run has another epoch or head, if there is no such boundary, or if a call of the
    /// turns that are undone may have changed something ([`crate::Effects`]).
    async fn step_back(&self, run: RunId, step: &StepBack) -> Result<Rewound>;

    /// One step of a fork: accepts it, copies one page of records, or copies the state and ends the fork. Safe to
    /// repeat, and by several callers at once. Never changes the parent.
    async fn fork(&self, run: RunId, request: &ForkRequest) -> Result<Forked>;

    /// Records that the AgentRun is being deleted on purpose: fences the row and closes it for good. Idempotent. A
    /// run that the store does not know is no error.
    async fn mark_deleted(&self, object_uid: &str, requested_by: &RequestedBy) -> Result<()>;

    /// Stores the pod template for a reserved attempt under the hash of its bytes, unless it is already there. The
    /// template is kept while the attempt is reserved ([`crate::CANDIDATES`]) and, once the pod is recorded, while
    /// the run is live.
    ///
    /// Refused ([`Recorded::Refused`]) if the attempt is not the current one of a live run, or is not `reserved`.
    async fn put_revision(&self, run: RunId, attempt: i32, template: &Template) -> Result<Recorded>;

    /// The pod template with this hash.
    async fn get_revision(&self, hash: &str) -> Result<Option<String>>;

    /// One query over all runs: deadlines that have expired by the store's clock, and runs that changed since then.
    ///
    /// A deadline is listed only while the gateways send heartbeats (the last one is recent), and only if its full
    /// length has passed since these heartbeats began. So an outage of the gateways restarts every deadline.
    async fn poll_deadlines(&self, since: PollSince) -> Result<DeadlinePoll>;

    /// Runs that are past their retention, in order, after this one ([`RunId::nil`]: from the first). Returns a part
    /// of them; an empty answer means that there are no more.
    async fn runs_to_expire(&self, after: RunId) -> Result<Vec<RunId>>;

    /// Deletes expired data in one step, of one run that is finished, deleted or abandoned: at most `rows` rows, and
    /// no further row once 8 MiB are reached. Payloads of boundaries and calls, records, and snapshots are deleted,
    /// and with the last of them the data key. Headers are kept, so that the chain can still be verified; so are the
    /// audit, which records the deletion first, and the run's own row. A live run, or one that is in use by somebody
    /// else, is not changed.
    async fn expire(&self, run: RunId, rows: u32) -> Result<Dropped>;

    /// Runs that keep only their last boundaries and may have more, in order, after this one ([`RunId::nil`]: from
    /// the first). Returns a part of them; an empty answer means that there are no more.
    async fn runs_to_compact(&self, after: RunId) -> Result<Vec<RunId>>;

    /// Deletes the payloads before the last boundaries that a run keeps ([`Retention::keep_last`]), in one step. Up
    /// to nine more boundaries keep their payloads while the run is live.
    ///
    /// First, a snapshot of the state before the kept boundaries is made, read back, and compared with the state that
    /// the boundaries produce. Only then the payloads of at most `rows` boundaries of the live branch are deleted,
    /// and with them the payloads of undone boundaries of the same turns. Older snapshots are deleted afterwards, one
    /// per step. Headers, calls, records and the audit, which records each step, are kept.
    ///
    /// [`crate::Error::Corrupt`]: the state cannot be rebuilt, and nothing was deleted.
    async fn compact(&self, run: RunId, rows: u32) -> Result<Dropped>;

    /// Deletes pod templates that no run needs, in one step: at most `rows`, and no further one once 8 MiB are
    /// reached. A live run needs the templates of all its attempts, since a rewind may go back to any of them, and
    /// the candidates for the pod of its reserved attempt. Returns the number of deleted templates.
    async fn delete_unused_revisions(&self, rows: u32) -> Result<u64>;

    /// The stored bytes of the largest namespaces, at most `namespaces` of them, in the order of their names, and the
    /// sum of all others without a name. Reads only the runs' own rows, no payload.
    async fn namespace_usage(&self, namespaces: u32) -> Result<Vec<NamespaceUsage>>;

    /// The last anchor, and the runs after `after` that have moved since an anchor named them; at most as many as one
    /// anchor may name. Reads only the rows of these runs.
    async fn heads_to_anchor(&self, after: RunId) -> Result<HeadsToAnchor>;

    /// Stores an anchor and its leaves. Returns false, and stores nothing, if another anchor has its number.
    ///
    /// If this fails half-way, or if a run is locked by another statement, the next list of moved runs contains some of
    /// these runs once more. That does no harm.
    async fn put_anchor(&self, anchor: &NewAnchor) -> Result<bool>;
}
