//! A store that measures how long each of its operations takes.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use dalsegno_protocol::{Call, State};
use uuid::Uuid;

use crate::metrics::StoreMetrics;
use dalsegno_model::*;

/// The same store, which counts the time of each operation.
pub fn measured(inner: Arc<dyn Store>, metrics: StoreMetrics) -> Arc<dyn Store> {
    Arc::new(MeasuredStore { inner, metrics })
}

struct MeasuredStore {
    inner: Arc<dyn Store>,
    metrics: StoreMetrics,
}

/// Measures each method of a trait, also one that fails. The label is the method's name.
macro_rules! measure {
    ($face:ident { $(async fn $name:ident(&$this:ident $(, $argument:ident: $kind:ty)*) -> $answer:ty;)* }) => {
        #[async_trait]
        impl $face for MeasuredStore {
            $(async fn $name(&$this $(, $argument: $kind)*) -> $answer {
                let started = Instant::now();
                let answer = $this.inner.$name($($argument),*).await;
                $this.metrics.operation_took(stringify!($name), started.elapsed());
                answer
            })*
        }
    };
}

measure! {
    Operator {
        async fn poll_deadlines(&self, since: PollSince) -> Result<DeadlinePoll>;
        async fn namespace_usage(&self, namespaces: u32) -> Result<Vec<NamespaceUsage>>;
        async fn create_run(&self, new: &NewRun) -> Result<Created>;
        async fn find_by_object(&self, object_uid: &str) -> Result<LookUp>;
        async fn end_attempt(&self, run: RunId, ending: &Ending, then: &NextStep) -> Result<RunRecord>;
        async fn forgive_end(&self, run: RunId, forgiveness: &Forgiveness) -> Result<RunRecord>;
        async fn record_pod(&self, run: RunId, attempt: i32, pod: &PodRecord) -> Result<Recorded>;
        async fn record_scheduled(&self, run: RunId, attempt: i32, node: &str) -> Result<Recorded>;
        async fn record_started(&self, run: RunId, attempt: i32) -> Result<Recorded>;
        async fn record_identity(&self, run: RunId, attempt: i32, identity: &Identity) -> Result<Recorded>;
        async fn request_cancel(&self, run: RunId, by: &RequestedBy) -> Result<RunRecord>;
        async fn suspend(&self, run: RunId, by: &RequestedBy) -> Result<RunRecord>;
        async fn resume(&self, run: RunId, by: &RequestedBy) -> Result<RunRecord>;
        async fn refuse_decision(&self, run: RunId, refused: &RefusedDecision) -> Result<RunRecord>;
        async fn answer_wait(&self, run: RunId, answer: &WaitAnswer) -> Result<Answered>;
        async fn settle_time(&self, run: RunId) -> Result<RunRecord>;
        async fn time_out_wait(&self, run: RunId, id: &str, epoch: i64) -> Result<RunRecord>;
        async fn park_unattended(&self, run: RunId, attempt: i32) -> Result<RunRecord>;
        async fn reset_budget(&self, run: RunId, reset: &BudgetReset) -> Result<RunRecord>;
        async fn set_deadlines(&self, run: RunId, deadlines: &Deadlines) -> Result<RunRecord>;
        async fn set_limits(&self, run: RunId, limits: &RunLimits) -> Result<RunRecord>;
        async fn announce(&self, run: RunId, hold: &HoldNotice) -> Result<RunRecord>;
        async fn announce_object(&self, hold: &ObjectHold) -> Result<()>;
        async fn due_notifications(&self, limit: u32) -> Result<DueNotifications>;
        async fn end_notification(&self, id: Uuid, result: NotificationResult) -> Result<()>;
        async fn set_retention(&self, run: RunId, retention: &Retention) -> Result<RunRecord>;
        async fn runs_to_compact(&self, after: RunId) -> Result<Vec<RunId>>;
        async fn compact(&self, run: RunId, rows: u32) -> Result<Dropped>;
        async fn runs_to_expire(&self, after: RunId) -> Result<Vec<RunId>>;
        async fn expire(&self, run: RunId, rows: u32) -> Result<Dropped>;
        async fn rewind(&self, run: RunId, rewind: &Rewind) -> Result<Rewound>;
        async fn request_rewind(&self, run: RunId, request: &RewindRequest) -> Result<RunRecord>;
        async fn step_back(&self, run: RunId, step: &StepBack) -> Result<Rewound>;
        async fn fork(&self, run: RunId, request: &ForkRequest) -> Result<Forked>;
        async fn mark_deleted(&self, object_uid: &str, by: &RequestedBy) -> Result<()>;
        async fn put_revision(&self, run: RunId, attempt: i32, template: &Template) -> Result<Recorded>;
        async fn delete_unused_revisions(&self, rows: u32) -> Result<u64>;
        async fn get_revision(&self, hash: &str) -> Result<Option<String>>;
        async fn heads_to_anchor(&self, after: RunId) -> Result<HeadsToAnchor>;
        async fn put_anchor(&self, anchor: &NewAnchor) -> Result<bool>;
    }
}

measure! {
    Worker {
        async fn record_gateway_heartbeat(&self) -> Result<i32>;
        async fn heartbeats(&self, workers: &[(RunId, Digest)]) -> Result<Vec<HeartbeatAnswer>>;
        async fn is_current(&self, run: RunId, capability: &Digest) -> Result<bool>;
        async fn snapshot(&self, run: RunId) -> Result<Snapshotted>;
        async fn attach(&self, run: RunId, pod_uid: &str, instance: &Digest) -> Result<Attached>;
        async fn commit(&self, commit: &Commit) -> Result<Committed>;
        async fn claim(&self, claim: &Claim) -> Result<Claimed>;
        async fn complete(&self, complete: &Complete) -> Result<Completed>;
        async fn settle(&self, settle: &Settle) -> Result<Completed>;
        async fn write_records(&self, batch: &RecordBatch) -> Result<Written>;
        async fn finish(&self, finish: &FinishCall) -> Result<Committed>;
        async fn acknowledge_cancel(&self, run: RunId, capability: &Digest) -> Result<Acknowledged>;
        async fn park(&self, park: &Park) -> Result<Parked>;
        async fn open_wait(&self, request: &OpenWaitRequest) -> Result<WaitOpened>;
        async fn wait_states(&self, waits: &[(RunId, Digest, String)]) -> Result<Vec<WaitPolled>>;
    }
}

measure! {
    Read {
        async fn state(&self, run: RunId, turn: Option<i32>) -> Result<Option<State>>;
        async fn boundaries(&self, run: RunId, from: i32, to: i32) -> Result<Vec<BoundaryRow>>;
        async fn boundary(&self, run: RunId, which: BoundaryQuery) -> Result<Option<(BoundaryRow, State)>>;
        async fn boundary_facts(&self, run: RunId, boundary: BoundaryId) -> Result<Option<BoundaryFacts>>;
        async fn sizes(&self, run: RunId) -> Result<Sizes>;
        async fn count_unsealed(&self, run: RunId) -> Result<u64>;
        async fn id(&self) -> Result<Uuid>;
        async fn check_boundaries(&self, run: RunId, after: Option<BoundaryId>) -> Result<Vec<BoundaryCheck>>;
        async fn run_ids(&self, after: RunId) -> Result<Vec<RunId>>;
        async fn read_records(&self, run: RunId, query: &RecordQuery) -> Result<RecordPage>;
        async fn read_record_keys(&self, run: RunId, query: &RecordQuery) -> Result<RecordKeyPage>;
        async fn read_records_of(&self, run: RunId, query: &RecordKeysQuery) -> Result<RecordPage>;
        async fn messages(&self, run: RunId, query: &MessageQuery) -> Result<MessagePage>;
        async fn message_authors(&self, run: RunId) -> Result<Vec<String>>;
        async fn events(&self, run: RunId, query: EventQuery) -> Result<EventPage>;
        async fn first_event(&self, run: RunId, turn: i32) -> Result<Option<i64>>;
        async fn calls(&self, run: RunId, which: CallFilter) -> Result<Vec<Call>>;
        async fn calls_to_settle(&self, run: RunId, limit: u32) -> Result<Vec<String>>;
        async fn get_run(&self, run: RunId) -> Result<Option<RunRecord>>;
        async fn find(&self, namespace: &str, name: &str) -> Result<Vec<RunRecord>>;
        async fn attempt(&self, run: RunId, number: i32) -> Result<Option<Attempt>>;
        async fn waits(&self, run: RunId) -> Result<Vec<Wait>>;
        async fn proposal(&self, run: RunId, id: &str, epoch: i64) -> Result<Option<Proposal>>;
        async fn audit(&self, run: RunId) -> Result<Vec<AuditRow>>;
        async fn begin_read(&self) -> Result<Box<dyn ReadTransaction>>;
    }
}

measure! {
    Admin {
        async fn send_message(&self, message: &NewMessage) -> Result<Sent>;
        async fn rewrap_keys(&self) -> Result<Rewrapped>;
        async fn shred(&self, shred: &Shred) -> Result<Shredded>;
        async fn prune_audit(&self, prune: &Prune) -> Result<u64>;
        async fn request_anchors_from(&self, first: i64) -> Result<u64>;
        async fn prune_anchors(&self, below: i64) -> Result<u64>;
        async fn runs_to_purge(&self, scope: &PurgeScope, after: EndedRun) -> Result<Vec<EndedRun>>;
        async fn purge(&self, purge: &Purge, rows: u32) -> Result<PurgeStep>;
        async fn forget_purges(&self, after: RunId) -> Result<ForgottenPurges>;
        async fn adopt_namespace(&self, adoption: &NamespaceAdoption) -> Result<u64>;
        async fn signing_key(&self, fresh: &[u8]) -> Result<Vec<u8>>;
    }
}
