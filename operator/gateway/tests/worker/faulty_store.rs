//! A real store with injected faults.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use dalsegno_model::read_transaction::*;
use dalsegno_model::*;
use dalsegno_protocol::{Call, State};
use futures::future::BoxFuture;
use tokio::sync::Notify;
use uuid::Uuid;

/// The fault of the next calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    Fails,
    Hangs,
    Panics,
    /// The store's volume is full.
    Full,
    /// Only reading a state fails, as for a damaged one.
    Corrupt,
}

/// A store whose calls can be made to fail, hang or panic.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    fault: Mutex<Fault>,
    released: Notify,
    /// Batches of heartbeats.
    pub batches: AtomicUsize,
    pub gateway_heartbeats: AtomicUsize,
    /// Queries that only check a capability.
    pub capability_checks: AtomicUsize,
    /// Queries for the answers of waits.
    pub wait_polls: AtomicUsize,
    /// The fault of snapshots alone.
    snapshots: Mutex<Fault>,
    /// The fault of reads of earlier turns alone.
    turn_reads: Mutex<Fault>,
    /// The run of which alone reads of pages of records and events have this fault.
    pages: Mutex<(RunId, Fault)>,
    /// The run of which alone no wait can be read.
    unreadable_waits: Mutex<RunId>,
    /// Runs once after the next read of a boundary or a state.
    after_read: Mutex<Option<BoxFuture<'static, ()>>>,
    /// Calls that hang now.
    pub waiting: AtomicUsize,
}

impl FaultyStore {
    pub fn new(inner: Arc<dyn Store>) -> Self {
        let (fault, released) = (Mutex::new(Fault::None), Notify::new());
        let (batches, gateway_heartbeats, capability_checks, wait_polls, waiting) = Default::default();
        let [snapshots, turn_reads] = [const { Mutex::new(Fault::None) }; 2];
        let (after_read, pages) = (Mutex::default(), Mutex::new((RunId::nil(), Fault::None)));
        Self {
            inner,
            unreadable_waits: Mutex::new(RunId::nil()),
            fault,
            released,
            batches,
            gateway_heartbeats,
            capability_checks,
            wait_polls,
            snapshots,
            turn_reads,
            pages,
            after_read,
            waiting,
        }
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
        self.released.notify_waiters();
    }

    /// As [`Self::set`], for snapshots alone.
    pub fn set_snapshots(&self, fault: Fault) {
        *self.snapshots.lock().unwrap() = fault;
        self.released.notify_waiters();
    }

    /// As [`Self::set`], for reads of earlier turns alone.
    pub fn set_turn_reads(&self, fault: Fault) {
        *self.turn_reads.lock().unwrap() = fault;
        self.released.notify_waiters();
    }

    /// As [`Self::set`], for reads of pages of one run alone.
    pub fn set_pages(&self, run: RunId, fault: Fault) {
        *self.pages.lock().unwrap() = (run, fault);
        self.released.notify_waiters();
    }

    /// No wait of this run can be read.
    pub fn set_unreadable_waits(&self, run: RunId) {
        *self.unreadable_waits.lock().unwrap() = run;
    }

    fn polled(&self, (run, _, id): &(RunId, Digest, String), polled: WaitPolled) -> WaitPolled {
        if *run != *self.unreadable_waits.lock().unwrap() {
            return polled;
        }
        let detail = format!("wait {id:?} cannot be opened");
        WaitPolled::Unreadable(Arc::new(Error::Corrupt { operation: "injecting a fault", detail }))
    }

    async fn inject_page(&self, run: RunId) -> Result<()> {
        let (of, fault) = *self.pages.lock().unwrap();
        if of == run { self.inject(&Mutex::new(fault)).await } else { Ok(()) }
    }

    /// Runs this future once, after the next read of a boundary or a state.
    pub fn run_after_next_read(&self, action: impl Future<Output = ()> + Send + 'static) {
        *self.after_read.lock().unwrap() = Some(Box::pin(action));
    }

    async fn read<T>(&self, answer: Result<T>) -> Result<T> {
        let action = self.after_read.lock().unwrap().take();
        if let Some(action) = action {
            action.await;
        }
        answer
    }

    async fn inject_common(&self) -> Result<()> {
        self.inject(&self.fault).await
    }

    async fn inject(&self, fault: &Mutex<Fault>) -> Result<()> {
        loop {
            let released = self.released.notified();
            let fault = *fault.lock().unwrap();
            match fault {
                Fault::None | Fault::Corrupt => return Ok(()),
                Fault::Panics => panic!("a defect"),
                Fault::Fails => {
                    return Err(Error::Unavailable {
                        operation: "injecting a fault",
                        source: "no route to host".into(),
                    });
                }
                Fault::Full => {
                    return Err(Error::StorageFull {
                        operation: "injecting a fault",
                        source: "no space left on device".into(),
                    });
                }
                Fault::Hangs => {
                    self.waiting.fetch_add(1, Ordering::SeqCst);
                    released.await;
                }
            }
        }
    }
}

macro_rules! forward {
    (
        impl $face:ident { $($own:tt)* }
        pass { $(async fn $name:ident(&$this:ident $(, $argument:ident: $kind:ty)*) -> $answer:ty;)* }
    ) => {
        #[async_trait]
        impl $face for FaultyStore {
            $($own)*

            $(async fn $name(&$this $(, $argument: $kind)*) -> $answer {
                $this.inject_common().await?;
                $this.inner.$name($($argument),*).await
            })*
        }
    };
}

forward! {
    impl Operator {}
    pass {
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
        async fn request_cancel(&self, run: RunId, asked: &RequestedBy) -> Result<RunRecord>;
        async fn suspend(&self, run: RunId, asked: &RequestedBy) -> Result<RunRecord>;
        async fn resume(&self, run: RunId, asked: &RequestedBy) -> Result<RunRecord>;
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
        async fn mark_deleted(&self, object_uid: &str, asked: &RequestedBy) -> Result<()>;
        async fn put_revision(&self, run: RunId, attempt: i32, template: &Template) -> Result<Recorded>;
        async fn delete_unused_revisions(&self, rows: u32) -> Result<u64>;
        async fn get_revision(&self, hash: &str) -> Result<Option<String>>;
        async fn heads_to_anchor(&self, after: RunId) -> Result<HeadsToAnchor>;
        async fn put_anchor(&self, anchor: &NewAnchor) -> Result<bool>;
    }
}

forward! {
    impl Worker {
        async fn record_gateway_heartbeat(&self) -> Result<i32> {
            self.gateway_heartbeats.fetch_add(1, Ordering::SeqCst);
            self.inject_common().await?;
            self.inner.record_gateway_heartbeat().await
        }

        async fn heartbeats(&self, workers: &[(RunId, Digest)]) -> Result<Vec<HeartbeatAnswer>> {
            self.batches.fetch_add(1, Ordering::SeqCst);
            self.inject_common().await?;
            self.inner.heartbeats(workers).await
        }

        async fn wait_states(&self, waits: &[(RunId, Digest, String)]) -> Result<Vec<WaitPolled>> {
            self.wait_polls.fetch_add(1, Ordering::SeqCst);
            self.inject_common().await?;
            let polled = self.inner.wait_states(waits).await?.into_iter();
            Ok(waits.iter().zip(polled).map(|(wait, polled)| self.polled(wait, polled)).collect())
        }

        async fn is_current(&self, run: RunId, capability: &Digest) -> Result<bool> {
            self.capability_checks.fetch_add(1, Ordering::SeqCst);
            self.inject_common().await?;
            self.inner.is_current(run, capability).await
        }

        async fn snapshot(&self, run: RunId) -> Result<Snapshotted> {
            self.inject_common().await?;
            self.inject(&self.snapshots).await?;
            self.inner.snapshot(run).await
        }
    }
    pass {
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
    }
}

forward! {
    impl Read {
        async fn state(&self, run: RunId, turn: Option<i32>) -> Result<Option<State>> {
            self.inject_common().await?;
            if *self.fault.lock().unwrap() == Fault::Corrupt {
                let detail = "turn 1 (result): its hash does not match".into();
                return Err(Error::Corrupt { operation: "rebuilding a state", detail });
            }
            if turn.is_some() {
                self.inject(&self.turn_reads).await?;
            }
            self.read(self.inner.state(run, turn).await).await
        }

        async fn boundaries(&self, run: RunId, from: i32, to: i32) -> Result<Vec<BoundaryRow>> {
            self.inject_common().await?;
            self.read(self.inner.boundaries(run, from, to).await).await
        }

        async fn boundary(&self, run: RunId, which: BoundaryQuery) -> Result<Option<(BoundaryRow, State)>> {
            self.inject_common().await?;
            self.read(self.inner.boundary(run, which).await).await
        }

        async fn read_records(&self, run: RunId, query: &RecordQuery) -> Result<RecordPage> {
            self.inject_common().await?;
            self.inject_page(run).await?;
            self.inner.read_records(run, query).await
        }

        async fn read_record_keys(&self, run: RunId, query: &RecordQuery) -> Result<RecordKeyPage> {
            self.inject_common().await?;
            self.inject_page(run).await?;
            self.inner.read_record_keys(run, query).await
        }

        async fn read_records_of(&self, run: RunId, query: &RecordKeysQuery) -> Result<RecordPage> {
            self.inject_common().await?;
            self.inject_page(run).await?;
            self.inner.read_records_of(run, query).await
        }

        async fn events(&self, run: RunId, query: EventQuery) -> Result<EventPage> {
            self.inject_common().await?;
            self.inject_page(run).await?;
            self.inner.events(run, query).await
        }
    }
    pass {
        async fn sizes(&self, run: RunId) -> Result<Sizes>;
        async fn boundary_facts(&self, run: RunId, boundary: BoundaryId) -> Result<Option<BoundaryFacts>>;
        async fn count_unsealed(&self, run: RunId) -> Result<u64>;
        async fn id(&self) -> Result<Uuid>;
        async fn check_boundaries(&self, run: RunId, after: Option<BoundaryId>) -> Result<Vec<BoundaryCheck>>;
        async fn run_ids(&self, after: RunId) -> Result<Vec<RunId>>;
        async fn messages(&self, run: RunId, query: &MessageQuery) -> Result<MessagePage>;
        async fn message_authors(&self, run: RunId) -> Result<Vec<String>>;
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

forward! {
    impl Admin {}
    pass {
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
