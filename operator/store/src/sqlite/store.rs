//! The traits of the store: each method gives one operation to the writer or to a reader.

use async_trait::async_trait;
use dalsegno_protocol::{CONTRACT, Call, State};
use uuid::Uuid;

use super::database::{QueryExecutor as _, Sqlite};
use super::{
    anchors, boundary_pages, branch, calls, compaction, data_keys, deadline_poll, events, heartbeats, outbox,
    prune, purge, read, read_transaction, retention, revisions,
};
use crate::fork;
use crate::texts::cipher_if_any;
use crate::transitions::{
    AcknowledgeCancel, Announce, AnswerWait, Attach, EndAttempt, ForgiveEnd, ParkUnattended, PutRevision,
    RecordIdentity, RecordPod, RecordScheduled, RecordStarted, RefuseDecision, RefuseUse, RequestCancel,
    RequestRewind, ResetBudget, Resume, SetDeadlines, SetLimits, SetRetention, SettleTime, Suspend,
    TimeOutWait, held_object,
};
use dalsegno_model::{
    Acknowledged, Admin, Answered, Attached, Attempt, AuditRow, BoundaryCheck, BoundaryFacts, BoundaryId,
    BoundaryQuery, BoundaryRow, BudgetReset, CallFilter, Claim, Claimed, Commit, Committed, Complete,
    Completed, Created, DeadlinePoll, Deadlines, Digest, Dropped, DueNotifications, EndedRun, Ending,
    EventPage, EventQuery, FinishCall, Forgiveness, ForgottenPurges, ForkRequest, Forked, HeadsToAnchor,
    HeartbeatAnswer, HoldNotice, Identity, LookUp, MessagePage, MessageQuery, NamespaceAdoption,
    NamespaceUsage, NewAnchor, NewMessage, NewRun, NextStep, NotificationResult, ObjectHold, OpenWaitRequest,
    Operator, Park, Parked, PodRecord, PollSince, Proposal, Prune, Purge, PurgeScope, PurgeStep, Read,
    ReadTransaction, RecordBatch, RecordKeyPage, RecordKeysQuery, RecordPage, RecordQuery, Recorded,
    RefusedDecision, RequestedBy, Result, Retention, Rewind, RewindRequest, Rewound, Rewrapped, RunId,
    RunLimits, RunRecord, Sent, Settle, Shred, Shredded, Sizes, Snapshotted, StepBack, Template, Wait,
    WaitAnswer, WaitOpened, WaitPolled, Worker, Written,
};

#[async_trait]
impl Operator for Sqlite {
    async fn poll_deadlines(&self, since: PollSince) -> Result<DeadlinePoll> {
        self.read("polling the runs", move |conn, now| Box::pin(deadline_poll::poll(conn, now, since))).await
    }

    async fn namespace_usage(&self, namespaces: u32) -> Result<Vec<NamespaceUsage>> {
        self.read("adding up stored bytes", move |conn, _| Box::pin(read::namespace_usage(conn, namespaces)))
            .await
    }

    async fn create_run(&self, new: &NewRun) -> Result<Created> {
        let mut created = self.create(new).await?;
        self.open_texts(&mut created).await?;
        Ok(created)
    }

    async fn find_by_object(&self, object_uid: &str) -> Result<LookUp> {
        let uid = object_uid.to_owned();
        let found = self.read("finding a run", |conn, now| Box::pin(read::find_by_object(conn, now, uid)));
        let mut found = found.await?;
        self.open_texts(&mut found).await?;
        Ok(found)
    }

    async fn end_attempt(&self, run: RunId, ending: &Ending, then: &NextStep) -> Result<RunRecord> {
        let cipher = cipher_if_any(self.cipher_to_write(run).await)?;
        self.transition(run, EndAttempt::of(ending, then, cipher.as_ref())).await
    }

    async fn forgive_end(&self, run: RunId, forgiveness: &Forgiveness) -> Result<RunRecord> {
        let cipher = cipher_if_any(self.cipher_to_write(run).await)?;
        self.transition(run, ForgiveEnd::of(forgiveness, cipher.as_ref())).await
    }

    async fn record_pod(&self, run: RunId, attempt: i32, pod: &PodRecord) -> Result<Recorded> {
        self.transition(run, RecordPod { attempt, pod: pod.clone() }).await
    }

    async fn record_scheduled(&self, run: RunId, attempt: i32, node: &str) -> Result<Recorded> {
        self.transition(run, RecordScheduled { attempt, node: node.to_owned() }).await
    }

    async fn record_started(&self, run: RunId, attempt: i32) -> Result<Recorded> {
        self.transition(run, RecordStarted { attempt }).await
    }

    async fn record_identity(&self, run: RunId, attempt: i32, identity: &Identity) -> Result<Recorded> {
        self.transition(run, RecordIdentity { attempt, identity: identity.clone() }).await
    }

    async fn request_cancel(&self, run: RunId, requested_by: &RequestedBy) -> Result<RunRecord> {
        self.transition(run, RequestCancel { requested_by: requested_by.clone() }).await
    }

    async fn suspend(&self, run: RunId, requested_by: &RequestedBy) -> Result<RunRecord> {
        self.transition(run, Suspend { requested_by: requested_by.clone() }).await
    }

    async fn resume(&self, run: RunId, requested_by: &RequestedBy) -> Result<RunRecord> {
        self.transition(run, Resume { requested_by: requested_by.clone() }).await
    }

    async fn answer_wait(&self, run: RunId, answer: &WaitAnswer) -> Result<Answered> {
        let cipher = self.cipher_to_write(run).await?;
        self.transition(run, AnswerWait::of(answer, &cipher)?).await
    }

    async fn refuse_decision(&self, run: RunId, refused: &RefusedDecision) -> Result<RunRecord> {
        self.transition(run, RefuseDecision(refused.clone())).await
    }

    async fn settle_time(&self, run: RunId) -> Result<RunRecord> {
        self.transition(run, SettleTime).await
    }

    async fn time_out_wait(&self, run: RunId, id: &str, epoch: i64) -> Result<RunRecord> {
        self.transition(run, TimeOutWait { id: id.to_owned(), epoch }).await
    }

    async fn park_unattended(&self, run: RunId, attempt: i32) -> Result<RunRecord> {
        self.transition(run, ParkUnattended { attempt }).await
    }

    async fn reset_budget(&self, run: RunId, reset: &BudgetReset) -> Result<RunRecord> {
        self.transition(run, ResetBudget(reset.clone())).await
    }

    async fn set_deadlines(&self, run: RunId, deadlines: &Deadlines) -> Result<RunRecord> {
        self.transition(run, SetDeadlines(*deadlines)).await
    }

    async fn set_limits(&self, run: RunId, limits: &RunLimits) -> Result<RunRecord> {
        self.transition(run, SetLimits(*limits)).await
    }

    async fn set_retention(&self, run: RunId, retention: &Retention) -> Result<RunRecord> {
        self.transition(run, SetRetention(*retention)).await
    }

    async fn runs_to_expire(&self, after: RunId) -> Result<Vec<RunId>> {
        let operation = "listing runs past their retention";
        self.read(operation, move |conn, now| Box::pin(retention::runs_to_expire(conn, now, after))).await
    }

    async fn expire(&self, run: RunId, rows: u32) -> Result<Dropped> {
        let operation = "deleting payloads past their retention";
        let work = self.write(operation, move |conn, now| Box::pin(retention::expire(conn, now, run, rows)));
        let dropped = work.await?;
        if let Some(run) = dropped.run {
            self.keys.forget(run);
        }
        Ok(dropped)
    }

    async fn delete_unused_revisions(&self, rows: u32) -> Result<u64> {
        let operation = "deleting unused templates";
        self.write(operation, move |conn, _| Box::pin(revisions::delete_unused(conn, rows))).await
    }

    async fn runs_to_compact(&self, after: RunId) -> Result<Vec<RunId>> {
        let operation = "listing runs with old payloads";
        self.read(operation, move |conn, _| Box::pin(compaction::runs_to_compact(conn, after))).await
    }

    async fn compact(&self, run: RunId, rows: u32) -> Result<Dropped> {
        crate::compaction::step(&self.snapshot_store(), run, rows).await
    }

    async fn announce(&self, run: RunId, hold: &HoldNotice) -> Result<RunRecord> {
        self.transition(run, Announce(hold.clone())).await
    }

    async fn announce_object(&self, hold: &ObjectHold) -> Result<()> {
        let entry = held_object(hold);
        self.write("announcing a hold", move |conn, now| Box::pin(outbox::announce_object(conn, now, entry)))
            .await
    }

    async fn due_notifications(&self, limit: u32) -> Result<DueNotifications> {
        let operation = "reading the outbox";
        self.read(operation, move |conn, now| Box::pin(outbox::due(conn, now, limit))).await
    }

    async fn end_notification(&self, id: Uuid, result: NotificationResult) -> Result<()> {
        let operation = "recording a try of a notification";
        self.write(operation, move |conn, now| Box::pin(outbox::end(conn, now, id, result))).await
    }

    async fn rewind(&self, run: RunId, rewind: &Rewind) -> Result<Rewound> {
        self.transition(run, rewind.clone()).await
    }

    async fn request_rewind(&self, run: RunId, request: &RewindRequest) -> Result<RunRecord> {
        self.transition(run, RequestRewind(request.clone())).await
    }

    async fn step_back(&self, run: RunId, step: &StepBack) -> Result<Rewound> {
        self.transition(run, step.clone()).await
    }

    async fn fork(&self, run: RunId, request: &ForkRequest) -> Result<Forked> {
        fork::step(self, run, request).await
    }

    async fn mark_deleted(&self, object_uid: &str, requested_by: &RequestedBy) -> Result<()> {
        self.mark_object_deleted(object_uid, requested_by).await
    }

    async fn put_revision(&self, run: RunId, attempt: i32, template: &Template) -> Result<Recorded> {
        let (template, nonce) = (template.clone(), Uuid::new_v4().to_string());
        self.transition(run, PutRevision { attempt, template, nonce }).await
    }

    async fn get_revision(&self, hash: &str) -> Result<Option<String>> {
        let hash = hash.to_owned();
        self.read("fetching a template", |conn, _| Box::pin(revisions::get(conn, hash))).await
    }

    async fn heads_to_anchor(&self, after: RunId) -> Result<HeadsToAnchor> {
        self.read("reading heads to anchor", move |conn, _| Box::pin(anchors::heads_to_anchor(conn, after)))
            .await
    }

    async fn put_anchor(&self, anchor: &NewAnchor) -> Result<bool> {
        let put = anchor.clone();
        self.write("storing an anchor", |conn, _| Box::pin(anchors::put(conn, put))).await
    }
}

#[async_trait]
impl Worker for Sqlite {
    async fn record_gateway_heartbeat(&self) -> Result<i32> {
        let gateway = self.gateway;
        self.write_unsynced("recording a gateway heartbeat", move |conn, now| {
            Box::pin(heartbeats::gateway_heartbeat(conn, now, gateway))
        })
        .await?;
        // One process at a time opens the database, so there is no other gateway.
        Ok(CONTRACT)
    }

    async fn attach(&self, run: RunId, pod_uid: &str, instance: &Digest) -> Result<Attached> {
        self.read_then_transition(run, Attach { pod_uid: pod_uid.to_owned(), instance: *instance }).await
    }

    async fn commit(&self, commit: &Commit) -> Result<Committed> {
        self.commit_boundary(commit).await
    }

    async fn heartbeats(&self, workers: &[(RunId, Digest)]) -> Result<Vec<HeartbeatAnswer>> {
        let (gateway, workers) = (self.gateway, workers.to_vec());
        self.write_unsynced("renewing leases", move |conn, now| {
            Box::pin(heartbeats::heartbeats(conn, now, gateway, workers))
        })
        .await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let claimed = self.claim_call(claim).await?;
        if let Some(refused) = RefuseUse::of(claim, &claimed) {
            self.transition(claim.run, refused).await?;
        }
        Ok(claimed)
    }

    async fn complete(&self, complete: &Complete) -> Result<Completed> {
        self.complete_call(complete).await
    }

    async fn settle(&self, settle: &Settle) -> Result<Completed> {
        self.settle_call(settle).await
    }

    async fn write_records(&self, batch: &RecordBatch) -> Result<Written> {
        self.write_record_batch(batch).await
    }

    async fn finish(&self, finish: &FinishCall) -> Result<Committed> {
        self.finish_run(finish).await
    }

    async fn acknowledge_cancel(&self, run: RunId, capability: &Digest) -> Result<Acknowledged> {
        self.transition(run, AcknowledgeCancel { capability: *capability }).await
    }

    async fn park(&self, park: &Park) -> Result<Parked> {
        self.transition(park.run, park.clone()).await
    }

    async fn open_wait(&self, request: &OpenWaitRequest) -> Result<WaitOpened> {
        self.open_wait_of(request).await
    }

    async fn wait_states(&self, waits: &[(RunId, Digest, String)]) -> Result<Vec<WaitPolled>> {
        self.read_wait_states(waits).await
    }

    async fn snapshot(&self, run: RunId) -> Result<Snapshotted> {
        self.room().check().map_err(|fault| fault.with_context("making a snapshot"))?;
        crate::snapshot_writer::make(&self.snapshot_store(), run).await
    }

    async fn is_current(&self, run: RunId, capability: &Digest) -> Result<bool> {
        let capability = *capability;
        self.read("checking a capability", move |conn, _| Box::pin(read::is_current(conn, run, capability)))
            .await
    }
}

#[async_trait]
impl Read for Sqlite {
    async fn id(&self) -> Result<Uuid> {
        Ok(self.id)
    }

    async fn read_records(&self, run: RunId, query: &RecordQuery) -> Result<RecordPage> {
        self.read_record_page(run, query.clone()).await
    }

    async fn read_record_keys(&self, run: RunId, query: &RecordQuery) -> Result<RecordKeyPage> {
        self.read_key_page(run, query.clone()).await
    }

    async fn read_records_of(&self, run: RunId, query: &RecordKeysQuery) -> Result<RecordPage> {
        self.read_page_of_keys(run, query.clone()).await
    }

    async fn messages(&self, run: RunId, query: &MessageQuery) -> Result<MessagePage> {
        self.read_message_page(run, *query).await
    }

    async fn message_authors(&self, run: RunId) -> Result<Vec<String>> {
        self.read_message_authors(run).await
    }

    async fn events(&self, run: RunId, query: EventQuery) -> Result<EventPage> {
        self.read_event_page(run, query).await
    }

    async fn first_event(&self, run: RunId, turn: i32) -> Result<Option<i64>> {
        self.read("finding a turn", move |conn, _| Box::pin(events::first(conn, run, turn))).await
    }

    async fn state(&self, run: RunId, turn: Option<i32>) -> Result<Option<State>> {
        Ok(crate::branch::state(&self.snapshot_store(), run, turn).await?.map(|at| at.state))
    }

    async fn boundary(&self, run: RunId, which: BoundaryQuery) -> Result<Option<(BoundaryRow, State)>> {
        self.read_boundary(run, which).await
    }

    async fn boundary_facts(&self, run: RunId, boundary: BoundaryId) -> Result<Option<BoundaryFacts>> {
        self.read_boundary_facts(run, boundary).await
    }

    async fn sizes(&self, run: RunId) -> Result<Sizes> {
        self.read("reading the size of the head", move |conn, _| Box::pin(read::sizes(conn, run))).await
    }

    async fn calls(&self, run: RunId, which: CallFilter) -> Result<Vec<Call>> {
        self.list_calls(run, which).await
    }

    async fn calls_to_settle(&self, run: RunId, limit: u32) -> Result<Vec<String>> {
        self.read("listing the calls to settle", move |conn, _| {
            Box::pin(calls::ids_to_settle(conn, run, limit))
        })
        .await
    }

    async fn get_run(&self, run: RunId) -> Result<Option<RunRecord>> {
        let found = self.read("reading a run", move |conn, now| Box::pin(read::get_run(conn, now, run)));
        let mut found = found.await?;
        if let Some(record) = &mut found {
            self.open_texts(record).await?;
        }
        Ok(found)
    }

    async fn find(&self, namespace: &str, name: &str) -> Result<Vec<RunRecord>> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let found =
            self.read("finding runs by name", |conn, now| Box::pin(read::find(conn, now, namespace, name)));
        let mut found = found.await?;
        for record in &mut found {
            self.open_texts(record).await?;
        }
        Ok(found)
    }

    async fn waits(&self, run: RunId) -> Result<Vec<Wait>> {
        self.list_waits(run).await
    }

    async fn proposal(&self, run: RunId, id: &str, epoch: i64) -> Result<Option<Proposal>> {
        self.read_proposal(run, id, epoch).await
    }

    async fn attempt(&self, run: RunId, number: i32) -> Result<Option<Attempt>> {
        let found =
            self.read("reading an attempt", move |conn, _| Box::pin(read::attempt(conn, run, number)));
        let mut found = found.await?;
        if let Some(attempt) = &mut found {
            self.open_end(run, attempt).await?;
        }
        Ok(found)
    }

    async fn boundaries(&self, run: RunId, from: i32, to: i32) -> Result<Vec<BoundaryRow>> {
        crate::branch::boundaries(&self.snapshot_store(), run, from, to).await
    }

    async fn check_boundaries(&self, run: RunId, after: Option<BoundaryId>) -> Result<Vec<BoundaryCheck>> {
        crate::pages::check(&self.snapshot_store(), run, after).await
    }

    async fn run_ids(&self, after: RunId) -> Result<Vec<RunId>> {
        self.read("listing runs", move |conn, _| Box::pin(boundary_pages::run_ids(conn, after))).await
    }

    async fn audit(&self, run: RunId) -> Result<Vec<AuditRow>> {
        self.read("reading the audit chain", move |conn, _| Box::pin(branch::audit(conn, run))).await
    }

    async fn count_unsealed(&self, run: RunId) -> Result<u64> {
        self.read("counting payloads in plain text", move |conn, _| {
            Box::pin(data_keys::count_unsealed(conn, run))
        })
        .await
    }

    async fn begin_read(&self) -> Result<Box<dyn ReadTransaction>> {
        self.begin_read_transaction().await
    }
}

#[async_trait]
impl Admin for Sqlite {
    async fn send_message(&self, message: &NewMessage) -> Result<Sent> {
        self.do_send_message(message).await
    }

    async fn adopt_namespace(&self, adoption: &NamespaceAdoption) -> Result<u64> {
        self.adopt_pages(adoption).await
    }

    async fn prune_audit(&self, prune: &Prune) -> Result<u64> {
        let prune = prune.clone();
        self.write("pruning an audit", |conn, now| Box::pin(prune::prune(conn, now, prune))).await
    }

    async fn request_anchors_from(&self, first: i64) -> Result<u64> {
        self.write("requesting that anchors be pruned", move |conn, _| {
            Box::pin(anchors::request_from(conn, first))
        })
        .await
    }

    async fn prune_anchors(&self, below: i64) -> Result<u64> {
        self.write("pruning anchors", move |conn, _| Box::pin(anchors::prune(conn, below))).await
    }

    async fn runs_to_purge(&self, scope: &PurgeScope, after: EndedRun) -> Result<Vec<EndedRun>> {
        let scope = scope.clone();
        self.read("listing runs to purge", move |conn, _| Box::pin(purge::runs_to_purge(conn, scope, after)))
            .await
    }

    async fn purge(&self, purge: &Purge, rows: u32) -> Result<PurgeStep> {
        let (run, purge) = (purge.run, purge.clone());
        let work =
            self.write("purging a run", move |conn, now| Box::pin(purge::purge(conn, now, purge, rows)));
        let step = work.await?;
        if matches!(step, PurgeStep::Deleted { done: true, .. }) {
            self.keys.forget(run);
        }
        Ok(step)
    }

    async fn forget_purges(&self, after: RunId) -> Result<ForgottenPurges> {
        self.write("deleting purge records", move |conn, _| Box::pin(purge::forget(conn, after))).await
    }

    async fn signing_key(&self, fresh: &[u8]) -> Result<Vec<u8>> {
        let fresh = fresh.to_vec();
        self.write("fetching the signing key", |conn, now| {
            Box::pin(read_transaction::signing_key(conn, now, fresh))
        })
        .await
    }

    async fn rewrap_keys(&self) -> Result<Rewrapped> {
        self.keys.rewrap(&self.snapshot_store()).await
    }

    async fn shred(&self, shred: &Shred) -> Result<Shredded> {
        let request = shred.clone();
        let work =
            self.write("shredding a run", move |conn, now| Box::pin(data_keys::shred(conn, now, request)));
        let answer = work.await;
        self.keys.forget(shred.run);
        answer
    }
}
