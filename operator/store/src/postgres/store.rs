//! The store's traits: each method calls the file that owns its statement, and adds the operation to its errors.

use async_trait::async_trait;
use dalsegno_protocol::{Call, State};
use uuid::Uuid;

use super::Postgres;

use crate::transitions::{
    AcknowledgeCancel, Adopt, Announce, Attach, EndAttempt, ForgiveEnd, MarkDeleted, ParkUnattended,
    PutRevision, RecordIdentity, RecordPod, RecordScheduled, RecordStarted, RefuseDecision, RefuseUse,
    RequestCancel, RequestRewind, ResetBudget, Resume, SendMessage, SetDeadlines, SetLimits, SetRetention,
    SettleTime, Suspend, TimeOutWait, Transition as _,
};
use crate::{branch, fork, pages, snapshot_writer};
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
impl Operator for Postgres {
    async fn poll_deadlines(&self, since: PollSince) -> Result<DeadlinePoll> {
        self.do_poll_deadlines(since).await.map_err(|fault| fault.with_context("polling the runs"))
    }

    async fn namespace_usage(&self, namespaces: u32) -> Result<Vec<NamespaceUsage>> {
        self.do_namespace_usage(namespaces)
            .await
            .map_err(|fault| fault.with_context("adding up stored bytes"))
    }

    async fn create_run(&self, new: &NewRun) -> Result<Created> {
        let created = self.do_create_run(new).await;
        let mut created = created.map_err(|fault| fault.with_context(Adopt::OPERATION))?;
        self.open_texts(&mut created).await?;
        Ok(created)
    }

    async fn find_by_object(&self, object_uid: &str) -> Result<LookUp> {
        let found = self.do_find_by_object(object_uid).await;
        let mut found = found.map_err(|fault| fault.with_context("finding a run"))?;
        self.open_texts(&mut found).await?;
        Ok(found)
    }

    async fn end_attempt(&self, run: RunId, ending: &Ending, then: &NextStep) -> Result<RunRecord> {
        let cipher = self.cipher_of_texts(run).await?;
        self.transition(run, EndAttempt::of(ending, then, cipher.as_deref())).await
    }

    async fn forgive_end(&self, run: RunId, forgiveness: &Forgiveness) -> Result<RunRecord> {
        let cipher = self.cipher_of_texts(run).await?;
        self.transition(run, ForgiveEnd::of(forgiveness, cipher.as_deref())).await
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

    async fn request_cancel(&self, run: RunId, by: &RequestedBy) -> Result<RunRecord> {
        self.transition(run, RequestCancel { requested_by: by.clone() }).await
    }

    async fn suspend(&self, run: RunId, by: &RequestedBy) -> Result<RunRecord> {
        self.transition(run, Suspend { requested_by: by.clone() }).await
    }

    async fn resume(&self, run: RunId, by: &RequestedBy) -> Result<RunRecord> {
        self.transition(run, Resume { requested_by: by.clone() }).await
    }

    async fn answer_wait(&self, run: RunId, answer: &WaitAnswer) -> Result<Answered> {
        self.do_answer_wait(run, answer).await.map_err(|fault| fault.with_context("answering a wait"))
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
        self.do_runs_to_expire(after)
            .await
            .map_err(|fault| fault.with_context("listing runs past their retention"))
    }

    async fn expire(&self, run: RunId, rows: u32) -> Result<Dropped> {
        self.do_expire(run, rows)
            .await
            .map_err(|fault| fault.with_context("deleting payloads past their retention"))
    }

    async fn delete_unused_revisions(&self, rows: u32) -> Result<u64> {
        self.do_drop_revisions(rows).await.map_err(|fault| fault.with_context("deleting unused templates"))
    }

    async fn runs_to_compact(&self, after: RunId) -> Result<Vec<RunId>> {
        self.do_runs_to_compact(after)
            .await
            .map_err(|fault| fault.with_context("listing runs with old payloads"))
    }

    async fn compact(&self, run: RunId, rows: u32) -> Result<Dropped> {
        self.with_fresh_key(run, || self.do_compact(run, rows)).await
    }

    async fn announce(&self, run: RunId, hold: &HoldNotice) -> Result<RunRecord> {
        self.transition(run, Announce(hold.clone())).await
    }

    async fn announce_object(&self, hold: &ObjectHold) -> Result<()> {
        self.do_announce_object(hold).await.map_err(|fault| fault.with_context("announcing a hold"))
    }

    async fn due_notifications(&self, limit: u32) -> Result<DueNotifications> {
        self.do_due_notifications(limit).await.map_err(|fault| fault.with_context("reading the outbox"))
    }

    async fn end_notification(&self, id: Uuid, result: NotificationResult) -> Result<()> {
        self.do_end_notification(id, result)
            .await
            .map_err(|fault| fault.with_context("recording a try of a notification"))
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

    async fn mark_deleted(&self, object_uid: &str, by: &RequestedBy) -> Result<()> {
        self.do_mark_deleted(object_uid, by).await.map_err(|fault| fault.with_context(MarkDeleted::OPERATION))
    }

    async fn put_revision(&self, run: RunId, attempt: i32, template: &Template) -> Result<Recorded> {
        let (template, nonce) = (template.clone(), Uuid::new_v4().to_string());
        self.transition(run, PutRevision { attempt, template, nonce }).await
    }

    async fn get_revision(&self, hash: &str) -> Result<Option<String>> {
        self.do_get_revision(hash).await.map_err(|fault| fault.with_context("fetching a template"))
    }

    async fn heads_to_anchor(&self, after: RunId) -> Result<HeadsToAnchor> {
        self.do_heads_to_anchor(after).await.map_err(|fault| fault.with_context("reading heads to anchor"))
    }

    async fn put_anchor(&self, anchor: &NewAnchor) -> Result<bool> {
        self.do_put_anchor(anchor).await.map_err(|fault| fault.with_context("storing an anchor"))
    }
}

#[async_trait]
impl Worker for Postgres {
    async fn record_gateway_heartbeat(&self) -> Result<i32> {
        self.do_gateway_heartbeat().await.map_err(|fault| fault.with_context("recording a gateway heartbeat"))
    }

    async fn attach(&self, run: RunId, pod_uid: &str, instance: &Digest) -> Result<Attached> {
        let rule = Attach { pod_uid: pod_uid.to_owned(), instance: *instance };
        self.read_then_transact(run, &rule).await.map_err(|fault| fault.with_context(Attach::OPERATION))
    }

    async fn commit(&self, commit: &Commit) -> Result<Committed> {
        let done = self.with_stored_key(commit.run, || self.do_commit(commit)).await;
        done.map_err(|fault| fault.with_context("committing a boundary"))
    }

    async fn heartbeats(&self, workers: &[(RunId, Digest)]) -> Result<Vec<HeartbeatAnswer>> {
        self.do_heartbeats(workers).await.map_err(|fault| fault.with_context("renewing leases"))
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let done = self.with_stored_key(claim.run, || self.do_claim(claim)).await;
        let claimed = done.map_err(|fault| fault.with_context("claiming a call"))?;
        if let Some(refused) = RefuseUse::of(claim, &claimed) {
            self.transition(claim.run, refused).await?;
        }
        Ok(claimed)
    }

    async fn complete(&self, complete: &Complete) -> Result<Completed> {
        let done = self.with_stored_key(complete.run, || self.do_complete(complete)).await;
        done.map_err(|fault| fault.with_context("completing a call"))
    }

    async fn settle(&self, settle: &Settle) -> Result<Completed> {
        self.do_settle(settle).await.map_err(|fault| fault.with_context("settling a call"))
    }

    async fn write_records(&self, batch: &RecordBatch) -> Result<Written> {
        let done = self.with_stored_key(batch.run, || self.do_write_records(batch)).await;
        done.map_err(|fault| fault.with_context("writing records"))
    }

    async fn finish(&self, finish: &FinishCall) -> Result<Committed> {
        self.do_finish(finish).await.map_err(|fault| fault.with_context("finishing a run"))
    }

    async fn acknowledge_cancel(&self, run: RunId, capability: &Digest) -> Result<Acknowledged> {
        self.transition(run, AcknowledgeCancel { capability: *capability }).await
    }

    async fn park(&self, park: &Park) -> Result<Parked> {
        self.transition(park.run, park.clone()).await
    }

    async fn open_wait(&self, request: &OpenWaitRequest) -> Result<WaitOpened> {
        self.do_open_wait(request).await.map_err(|fault| fault.with_context("opening a wait"))
    }

    async fn wait_states(&self, waits: &[(RunId, Digest, String)]) -> Result<Vec<WaitPolled>> {
        self.do_wait_states(waits).await.map_err(|fault| fault.with_context("polling waits"))
    }

    async fn snapshot(&self, run: RunId) -> Result<Snapshotted> {
        let make = || async { snapshot_writer::make(&self.snapshot_store(), run).await };
        let done = self.with_fresh_key(run, make).await?;
        if !done.made && done.lag >= done.due {
            // It was not stored, perhaps since the stored data key is another one. The next try reads that.
            self.keys.forget(run);
        }
        Ok(done)
    }

    async fn is_current(&self, run: RunId, capability: &Digest) -> Result<bool> {
        self.do_is_current(run, capability).await.map_err(|fault| fault.with_context("checking a capability"))
    }
}

#[async_trait]
impl Read for Postgres {
    async fn id(&self) -> Result<Uuid> {
        self.do_id().await.map_err(|fault| fault.with_context("reading the store's id"))
    }

    async fn read_records(&self, run: RunId, query: &RecordQuery) -> Result<RecordPage> {
        let read = || async {
            self.do_read_records(run, query).await.map_err(|fault| fault.with_context("reading records"))
        };
        self.with_fresh_key(run, read).await
    }

    async fn read_record_keys(&self, run: RunId, query: &RecordQuery) -> Result<RecordKeyPage> {
        let read = self.do_read_record_keys(run, query).await;
        read.map_err(|fault| fault.with_context("reading keys of records"))
    }

    async fn read_records_of(&self, run: RunId, query: &RecordKeysQuery) -> Result<RecordPage> {
        let read = || async {
            let read = self.do_read_records_of(run, query).await;
            read.map_err(|fault| fault.with_context("reading records of keys"))
        };
        self.with_fresh_key(run, read).await
    }

    async fn messages(&self, run: RunId, query: &MessageQuery) -> Result<MessagePage> {
        let read = || async {
            self.do_messages(run, *query).await.map_err(|fault| fault.with_context("reading messages"))
        };
        self.with_fresh_key(run, read).await
    }

    async fn message_authors(&self, run: RunId) -> Result<Vec<String>> {
        let authors = self.do_message_authors(run).await;
        authors.map_err(|fault| fault.with_context("listing the authors of messages"))
    }

    async fn events(&self, run: RunId, query: EventQuery) -> Result<EventPage> {
        let read = || async {
            self.do_events(run, query).await.map_err(|fault| fault.with_context("reading events"))
        };
        self.with_fresh_key(run, read).await
    }

    async fn first_event(&self, run: RunId, turn: i32) -> Result<Option<i64>> {
        self.do_first_event(run, turn).await.map_err(|fault| fault.with_context("finding a turn"))
    }

    async fn state(&self, run: RunId, turn: Option<i32>) -> Result<Option<State>> {
        let read = || async { branch::state(&self.snapshot_store(), run, turn).await };
        Ok(self.with_fresh_key(run, read).await?.map(|at| at.state))
    }

    async fn boundary(&self, run: RunId, which: BoundaryQuery) -> Result<Option<(BoundaryRow, State)>> {
        let read = || async {
            match which {
                BoundaryQuery::Turn(turn) => branch::state(&self.snapshot_store(), run, Some(turn)).await,
                BoundaryQuery::Id(id) => branch::state_by_id(&self.snapshot_store(), run, id).await,
            }
        };
        Ok(self.with_fresh_key(run, read).await?.map(|at| (at.row, at.state)))
    }

    async fn boundary_facts(&self, run: RunId, boundary: BoundaryId) -> Result<Option<BoundaryFacts>> {
        let read = || async {
            let facts = self.do_boundary_facts(run, boundary).await;
            facts.map_err(|fault| fault.with_context("reading the facts of a boundary"))
        };
        self.with_fresh_key(run, read).await
    }

    async fn sizes(&self, run: RunId) -> Result<Sizes> {
        self.do_sizes(run).await.map_err(|fault| fault.with_context("reading the size of the head"))
    }

    async fn calls(&self, run: RunId, which: CallFilter) -> Result<Vec<Call>> {
        let read =
            || async { self.do_calls(run, which).await.map_err(|fault| fault.with_context("listing calls")) };
        self.with_fresh_key(run, read).await
    }

    async fn calls_to_settle(&self, run: RunId, limit: u32) -> Result<Vec<String>> {
        let ids = self.do_calls_to_settle(run, limit).await;
        ids.map_err(|fault| fault.with_context("listing the calls to settle"))
    }

    async fn get_run(&self, run: RunId) -> Result<Option<RunRecord>> {
        let mut found = self.do_get_run(run).await.map_err(|fault| fault.with_context("reading a run"))?;
        if let Some(record) = &mut found {
            self.open_texts(record).await?;
        }
        Ok(found)
    }

    async fn find(&self, namespace: &str, name: &str) -> Result<Vec<RunRecord>> {
        let found = self.do_find(namespace, name).await;
        let mut found = found.map_err(|fault| fault.with_context("finding runs by name"))?;
        for record in &mut found {
            self.open_texts(record).await?;
        }
        Ok(found)
    }

    async fn waits(&self, run: RunId) -> Result<Vec<Wait>> {
        self.do_waits(run).await.map_err(|fault| fault.with_context("listing waits"))
    }

    async fn proposal(&self, run: RunId, id: &str, epoch: i64) -> Result<Option<Proposal>> {
        self.do_proposal(run, id, epoch).await.map_err(|fault| fault.with_context("reading a proposal"))
    }

    async fn attempt(&self, run: RunId, number: i32) -> Result<Option<Attempt>> {
        let found = self.do_attempt(run, number).await;
        let mut found = found.map_err(|fault| fault.with_context("reading an attempt"))?;
        if let Some(attempt) = &mut found {
            self.open_end(run, attempt).await?;
        }
        Ok(found)
    }

    async fn boundaries(&self, run: RunId, from: i32, to: i32) -> Result<Vec<BoundaryRow>> {
        branch::boundaries(&self.snapshot_store(), run, from, to).await
    }

    async fn check_boundaries(&self, run: RunId, after: Option<BoundaryId>) -> Result<Vec<BoundaryCheck>> {
        pages::check(&self.snapshot_store(), run, after).await
    }

    async fn run_ids(&self, after: RunId) -> Result<Vec<RunId>> {
        self.do_run_ids(after).await.map_err(|fault| fault.with_context("listing runs"))
    }

    async fn audit(&self, run: RunId) -> Result<Vec<AuditRow>> {
        self.do_audit(run).await.map_err(|fault| fault.with_context("reading the audit chain"))
    }

    async fn count_unsealed(&self, run: RunId) -> Result<u64> {
        self.do_count_unsealed(run)
            .await
            .map_err(|fault| fault.with_context("counting payloads in plain text"))
    }

    async fn begin_read(&self) -> Result<Box<dyn ReadTransaction>> {
        self.do_begin_read().await.map_err(|fault| fault.with_context("beginning a read transaction"))
    }
}

#[async_trait]
impl Admin for Postgres {
    async fn send_message(&self, message: &NewMessage) -> Result<Sent> {
        self.do_send_message(message).await.map_err(|fault| fault.with_context(SendMessage::OPERATION))
    }

    async fn adopt_namespace(&self, adoption: &NamespaceAdoption) -> Result<u64> {
        self.do_adopt_namespace(adoption).await.map_err(|fault| fault.with_context("adopting a namespace"))
    }

    async fn prune_audit(&self, prune: &Prune) -> Result<u64> {
        self.do_prune_audit(prune).await.map_err(|fault| fault.with_context("pruning an audit"))
    }

    async fn request_anchors_from(&self, first: i64) -> Result<u64> {
        self.do_request_anchors_from(first)
            .await
            .map_err(|fault| fault.with_context("requesting that anchors be pruned"))
    }

    async fn prune_anchors(&self, below: i64) -> Result<u64> {
        self.do_prune_anchors(below).await.map_err(|fault| fault.with_context("pruning anchors"))
    }

    async fn runs_to_purge(&self, scope: &PurgeScope, after: EndedRun) -> Result<Vec<EndedRun>> {
        self.do_runs_to_purge(scope, after).await.map_err(|fault| fault.with_context("listing runs to purge"))
    }

    async fn purge(&self, purge: &Purge, rows: u32) -> Result<PurgeStep> {
        self.do_purge(purge, rows).await.map_err(|fault| fault.with_context("purging a run"))
    }

    async fn forget_purges(&self, after: RunId) -> Result<ForgottenPurges> {
        self.do_forget_purges(after).await.map_err(|fault| fault.with_context("deleting purge records"))
    }

    async fn signing_key(&self, fresh: &[u8]) -> Result<Vec<u8>> {
        self.do_signing_key(fresh).await.map_err(|fault| fault.with_context("fetching the signing key"))
    }

    async fn rewrap_keys(&self) -> Result<Rewrapped> {
        self.keys.rewrap(&self.snapshot_store()).await
    }

    async fn shred(&self, shred: &Shred) -> Result<Shredded> {
        self.do_shred(shred).await.map_err(|fault| fault.with_context("shredding a run"))
    }
}
