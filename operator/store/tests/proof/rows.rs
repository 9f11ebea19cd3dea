//! Hand-made rows: two rewound runs, and a reading that returns them as a database would.

use async_trait::async_trait;
use dalsegno_format::audit;
use dalsegno_format::header::{self, Header, NO_PARENT, events_digest, ops_digest};
use dalsegno_format::messages::MessageContent;
use dalsegno_format::seal::{CallDigests, CallDigestsExt as _};
use dalsegno_model::anchor::{AnchorRow, AnchoredHead};
use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::{
    AuditKey, BoundaryKey, CallKey, HeadRef, LeafKey, ReadTransaction, RecordKey, RunHead, RunLeafKey,
    StoredBatch, StoredBoundary, StoredCall, StoredMessage, StoredRecord, StoredSnapshot, StoredWait,
    WaitKey,
};
use dalsegno_model::{
    AuditRow, BoundaryId, BoundaryRow, DecodedBoundary, Digest, Lifecycle, OpenWait, Result, RunId,
};
use dalsegno_protocol::{
    Boundary, Call, CallState, Message, OnTimeout, Policy, RawValue, TakenBy, Usage, WaitKind, WaitOutcome,
    WaitState,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// Rows per page. Few, so that pages end in the middle of a run.
const PAGE: usize = 4;

/// The digest of a batch of records.
const BATCH: Digest = [7; 32];

/// The digest of one batch of changes since the boundary before: `f(x)` in `header.rs`.
fn of_one_batch() -> Digest {
    Sha256::digest([&0_u32.to_be_bytes(), &32_u32.to_be_bytes(), &BATCH[..]].concat()).into()
}

/// All rows of a store.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    pub runs: Vec<RunHead>,
    pub audit: Vec<(RunId, AuditRow)>,
    pub boundaries: Vec<StoredBoundary>,
    pub calls: Vec<(RunId, StoredCall)>,
    pub waits: Vec<(RunId, StoredWait)>,
    pub messages: Vec<(RunId, StoredMessage)>,
    pub anchors: Vec<AnchorRow>,
    pub leaves: Vec<(i64, AnchoredHead)>,
    pub purges: Vec<(RunId, AuditRow)>,
    /// The records digest in each boundary's hash.
    records_digest: Digest,
}

/// A boundary to add.
pub struct NewBoundary {
    pub turn: i32,
    pub boundary: Boundary,
    pub epoch: i64,
    /// Id, hash and position of the boundary before it.
    pub parent: Option<(BoundaryId, Digest, i64)>,
    pub undone: bool,
}

impl Rows {
    /// Two valid runs.
    pub fn valid() -> Self {
        Self::with(of_one_batch())
    }

    /// Two runs whose boundaries have this records digest.
    pub fn with(records_digest: Digest) -> Self {
        let mut rows = Self { records_digest, ..Self::default() };
        for number in 1..=2 {
            rows.add(Uuid::from_u128(number << 64));
        }
        rows
    }

    /// Sorts the rows as a database does.
    pub fn sort(&mut self) {
        self.runs.sort_by_key(|run| run.id);
        self.audit.sort_by_key(|(run, row)| (*run, row.seq));
        self.boundaries.sort_by_key(StoredBoundary::key);
    }

    /// Adds a run of six turns. After turn 6 it was rewound to turn 4, and turns 5 and 6 were committed again.
    fn add(&mut self, run: RunId) {
        let mut parent = None;
        for turn in 1..=4 {
            for boundary in [Boundary::Plan, Boundary::Result] {
                let new = NewBoundary { turn, boundary, epoch: 1, parent, undone: false };
                parent = Some(self.boundary(run, new));
            }
        }
        let rewound_to = parent;
        let mut undone = Vec::new();
        for turn in 5..=6 {
            let new = NewBoundary { turn, boundary: Boundary::Result, epoch: 1, parent, undone: true };
            let (boundary_id, hash, position) = self.boundary(run, new);
            undone.push(
                json!({ "turn": turn, "boundary": boundary_id.boundary, "hash": header::render(&hash) }),
            );
            parent = Some((boundary_id, hash, position));
        }
        parent = rewound_to;
        for turn in 5..=6 {
            for boundary in [Boundary::Plan, Boundary::Result] {
                let new = NewBoundary { turn, boundary, epoch: 2, parent, undone: false };
                parent = Some(self.boundary(run, new));
            }
        }
        let (boundary_id, content_hash, position) = parent.unwrap();
        let (namespace, name, object_uid) = ("agents", format!("run-{run}"), format!("object-{run}"));
        self.runs.push(RunHead {
            id: run,
            tenant: "tenant".into(),
            namespace: namespace.into(),
            name: name.clone(),
            object_uid: object_uid.clone(),
            created_at: Timestamp::UNIX_EPOCH,
            lifecycle: Lifecycle::Live,
            outcome: None,
            epoch: 2,
            head: Some(HeadRef { boundary: boundary_id, content_hash, position }),
            audit_seq: 0,
            audit_hash: NO_PARENT,
            records_digest: None,
        });
        let created = json!({ "namespace": namespace, "name": name, "objectUID": object_uid });
        self.append_audit(run, kind::CREATED, &created);
        self.append_audit(run, kind::RESERVED, &json!({ "attempt": 1 }));
        self.append_audit(run, kind::RESERVED, &json!({ "attempt": 2 }));
        self.call(run);
        self.append_audit(run, kind::REWOUND, &json!({ "undone": undone }));
        self.append_audit(run, kind::RESERVED, &json!({ "attempt": 3 }));
        self.sort();
    }

    /// Adds a call that was planned, claimed and completed.
    fn call(&mut self, run: RunId) {
        let (key, arguments, result) = ("key-of-pay", r#"{"amount":  1}"#, r#"{"done":  true}"#);
        let digest = |text: &str| header::render(&CallDigests::Plain.of(text));
        let planned = json!({
            "call": "pay", "policy": "probe", "key": digest(key), "arguments": digest(arguments)
        });
        self.append_audit(run, kind::PLANNED, &json!({ "turn": 2, "calls": [planned] }));
        let claimed = json!({ "call": "pay", "attempt": 2, "turn": 2 });
        self.append_audit(run, kind::CLAIMED, &claimed);
        let completed = json!({ "call": "pay", "turn": 2, "result": digest(result) });
        self.append_audit(run, kind::COMPLETED, &completed);
        let json = |text: &str| RawValue::from_string(text.into()).ok();
        let call = Call {
            id: "pay".into(),
            turn: 2,
            policy: Policy::Probe,
            key: key.into(),
            state: CallState::Completed,
            tool: None,
            arguments: json(arguments),
            result: json(result),
        };
        let digests = CallDigests::Plain;
        let (attempt, touched, usage) = (Some(2), Some(2), Usage::default());
        let stored = StoredCall { ordinal: 1, call, attempt, touched, usage, digests, damage: None };
        self.calls.push((run, stored));
    }

    /// Adds an approval that a person answered.
    pub fn wait(&mut self, run: RunId) {
        let (request, answer) = (r#"{"kind":"approval",  "title":"pay"}"#, r#"{"by":"ada"}"#);
        let digest = |text: &str| header::render(&CallDigests::Plain.of(text));
        let (id, epoch, proposal_hash) = ("pay-ann", 2, [9; 32]);
        let opened = json!({
            "wait": id, "epoch": epoch, "kind": "approval", "turn": 7, "boundary": "plan",
            "request": digest(request), "proposalHash": header::render(&proposal_hash),
        });
        self.append_audit(run, kind::WAIT_OPENED, &opened);
        let answered = json!({ "wait": id, "epoch": epoch, "outcome": "approved", "answer": digest(answer) });
        self.append_audit(run, kind::WAIT_ANSWERED, &answered);
        let at = |second| Timestamp::from_second(second).unwrap();
        let facts = OpenWait {
            id: id.into(),
            epoch,
            ordinal: 1,
            kind: WaitKind::Approval,
            turn: 7,
            attempt: 3,
            opened_at: at(9),
            deadline_at: Some(at(99)),
            on_timeout: OnTimeout::Hold,
            timed_out_at: None,
            wake_at: None,
            provider: None,
            topic: None,
            proposal_hash: Some(proposal_hash),
        };
        let json = |text: &str| RawValue::from_string(text.into()).ok();
        let stored = StoredWait {
            facts,
            boundary: BoundaryId { turn: 7, boundary: Boundary::Plan, epoch },
            undone: false,
            state: WaitState::Answered,
            outcome: Some(WaitOutcome::Approved),
            request: json(request),
            answer: json(answer),
            digests: CallDigests::Plain,
            damage: None,
        };
        self.waits.push((run, stored));
    }

    /// Adds a message that the last boundary has taken.
    pub fn message(&mut self, run: RunId) {
        let (id, topic, author, value) = ("offer-1", "price", "ada", r#"{"cents":  500}"#);
        let digest = MessageContent { id, topic: Some(topic), author, value }.digest();
        let sent = json!({ "position": 1, "message": id, "topic": topic, "digest": header::render(&digest) });
        self.append_audit_by(run, author, (kind::MESSAGE_SENT, &sent));
        let sent_at = self.audit.iter().filter(|(of, _)| *of == run).map(|(_, row)| row.at).max().unwrap();
        let taken = json!({ "turn": 6, "boundary": "result", "positions": [1] });
        self.append_audit(run, kind::MESSAGES_TAKEN, &taken);
        let message = Message {
            position: 1,
            id: id.into(),
            topic: Some(topic.into()),
            value: RawValue::from_string(value.into()).ok(),
            author: author.into(),
            at: sent_at.to_string(),
            taken_by: Some(TakenBy { turn: 6, boundary: Boundary::Result }),
        };
        let stored = StoredMessage {
            message,
            at: sent_at.as_millisecond(),
            taken_epoch: Some(2),
            digest,
            digests: CallDigests::Plain,
            damage: None,
        };
        self.messages.push((run, stored));
    }

    /// Appends a row to the run's audit.
    pub fn append_audit(&mut self, run: RunId, kind: &str, detail: &Value) {
        self.append_audit_by(run, "operator", (kind, detail));
    }

    fn append_audit_by(&mut self, run: RunId, actor: &str, (kind, detail): (&str, &Value)) {
        let head = self.runs.iter_mut().find(|it| it.id == run).unwrap();
        let (seq, parent_hash, detail) = (head.audit_seq + 1, head.audit_hash, detail.to_string());
        let at = 1_000 * seq;
        let link =
            audit::AuditHeader { parent_hash: &parent_hash, run, seq, at, kind, actor, detail: &detail };
        let hash = link.hash();
        (head.audit_seq, head.audit_hash) = (seq, hash);
        let at = Timestamp::from_millisecond(at).unwrap();
        let (kind, actor) = (kind.into(), actor.into());
        self.audit.push((run, AuditRow { seq, at, kind, actor, detail, parent_hash, hash }));
        self.sort();
    }

    /// Rewinds the run to the result of a turn without an audit row.
    pub fn rewind_silently(&mut self, run: RunId, turn: i32) {
        let later = self.boundaries.iter_mut().filter(|it| it.run == run && it.decoded.row.turn > turn);
        later.for_each(|it| it.undone = true);
        self.set_head(run);
    }

    /// Makes the last boundary of the live branch the head. The position stays: positions never go back.
    pub fn set_head(&mut self, run: RunId) {
        let live = self.boundaries.iter().filter(|it| it.run == run && !it.undone);
        let last = live.max_by_key(|it| it.decoded.id()).unwrap();
        let (boundary_id, content_hash) = (last.decoded.id(), last.decoded.row.content_hash);
        let head = self.runs.iter_mut().find(|it| it.id == run).unwrap().head.as_mut().unwrap();
        (head.boundary, head.content_hash) = (boundary_id, content_hash);
    }

    pub fn boundary(&mut self, run: RunId, new: NewBoundary) -> (BoundaryId, Digest, i64) {
        let NewBoundary { turn, boundary, epoch, parent, undone } = new;
        let ops = format!(r#"{{"set":{{"state":{{"json":{{"turn":{turn},"of":{epoch}}}}}}}}}"#);
        let events = vec![RawValue::from_string(format!(r#"{{"event":{turn}}}"#)).unwrap()];
        let before =
            self.boundaries.iter().filter(|it| it.run == run).map(|it| it.decoded.row.position).max();
        let position = before.unwrap_or_default() + 1;
        let header = Header {
            parent_hash: parent.map_or(NO_PARENT, |(_, hash, _)| hash),
            run,
            turn,
            boundary,
            epoch,
            attempt: 1,
            at: 1_000 * i64::from(turn),
            position,
            commit_id: Uuid::from_u128(turn as u128 | 1 << 90),
            digest: [turn as u8; 32],
            ops_digest: ops_digest(Some(ops.as_bytes())),
            full: false,
            events_digest: events_digest(&events),
            usage: Usage { tokens_in: 1, tokens_out: 2, tool_calls: 3, cost_micro_usd: 4 },
            trigger: Some("TASK_END"),
            records_digest: Some(self.records_digest),
            forked_from: None,
        };
        let content_hash = header.content_hash();
        let row = BoundaryRow {
            turn,
            boundary,
            epoch,
            attempt: 1,
            position,
            commit_id: header.commit_id,
            digest: header.digest,
            parent_hash: header.parent_hash,
            content_hash,
            at: Timestamp::from_millisecond(header.at).unwrap(),
            ops: Some(ops),
            full: false,
            events,
            usage: header.usage,
            trigger: Some("TASK_END".into()),
            records_digest: header.records_digest,
            forked_from: None,
        };
        let decoded = DecodedBoundary {
            row,
            parent: parent.map(|(boundary_id, ..)| boundary_id),
            ops_digest: header.ops_digest,
            events_digest: header.events_digest,
            event_count: None,
            digest_key: None,
            has_payloads: true,
        };
        let boundary_id = decoded.id();
        self.boundaries.push(StoredBoundary { run, decoded, undone, payload_loss: None, damage: None });
        (boundary_id, content_hash, position)
    }
}

#[async_trait]
impl ReadTransaction for Rows {
    async fn renew(&mut self) -> Result<()> {
        Ok(())
    }

    async fn runs(&mut self, after: Option<RunId>) -> Result<Vec<RunHead>> {
        let rest = self.runs.iter().filter(|run| after.is_none_or(|after| run.id > after));
        Ok(rest.take(PAGE).cloned().collect())
    }

    async fn unwrap_data_key(&mut self, _: RunId) -> Result<()> {
        Ok(())
    }

    async fn audit(&mut self, after: AuditKey, to: RunId) -> Result<Vec<(RunId, AuditRow)>> {
        let rest =
            self.audit.iter().filter(|(run, row)| AuditKey { run: *run, seq: row.seq } > after && *run <= to);
        Ok(rest.take(PAGE).cloned().collect())
    }

    async fn boundaries(&mut self, after: BoundaryKey, to: RunId) -> Result<Vec<StoredBoundary>> {
        let rest = self.boundaries.iter().filter(|it| it.key() > after && it.run <= to);
        Ok(rest.take(PAGE).cloned().collect())
    }

    async fn anchors(&mut self, after: i64) -> Result<Vec<AnchorRow>> {
        let rest = self.anchors.iter().filter(|row| row.seq > after);
        Ok(rest.take(PAGE).cloned().collect())
    }

    async fn leaves(&mut self, after: LeafKey) -> Result<Vec<(i64, AnchoredHead)>> {
        let key = |(anchor, leaf): &(i64, AnchoredHead)| LeafKey { anchor: *anchor, run: leaf.run };
        let mut sorted = self.leaves.clone();
        sorted.sort_by_key(key);
        Ok(sorted.into_iter().filter(|leaf| key(leaf) > after).take(PAGE).collect())
    }

    async fn leaves_by_run(&mut self, after: RunLeafKey, to: RunId) -> Result<Vec<(i64, AnchoredHead)>> {
        let key = |(anchor, leaf): &(i64, AnchoredHead)| RunLeafKey { run: leaf.run, anchor: *anchor };
        let mut sorted = self.leaves.clone();
        sorted.sort_by_key(key);
        Ok(sorted.into_iter().filter(|leaf| key(leaf) > after && leaf.1.run <= to).take(PAGE).collect())
    }

    async fn purges(&mut self, after: RunId, to: RunId) -> Result<Vec<(RunId, AuditRow)>> {
        let rest = self.purges.iter().filter(|(run, _)| *run > after && *run <= to);
        Ok(rest.take(PAGE).cloned().collect())
    }

    async fn snapshots(&mut self, _: RunId) -> Result<Vec<StoredSnapshot>> {
        Ok(Vec::new())
    }

    async fn calls(&mut self, run: RunId, after: Option<CallKey>) -> Result<Vec<StoredCall>> {
        let rest = self.calls.iter().filter(|(of, call)| *of == run && Some(call.key()) > after);
        Ok(rest.take(PAGE).map(|(_, call)| call.clone()).collect())
    }

    async fn messages(&mut self, run: RunId, after: i64) -> Result<Vec<StoredMessage>> {
        let rest = self.messages.iter().filter(|(of, it)| *of == run && it.message.position > after);
        Ok(rest.take(PAGE).map(|(_, message)| message.clone()).collect())
    }

    async fn waits(&mut self, run: RunId, after: Option<WaitKey>) -> Result<Vec<StoredWait>> {
        let rest = self.waits.iter().filter(|(of, wait)| *of == run && Some(wait.key()) > after);
        Ok(rest.take(PAGE).map(|(_, wait)| wait.clone()).collect())
    }

    /// One batch per boundary, with no changes.
    async fn record_changes(&mut self, run: RunId, after: i64) -> Result<Vec<StoredBatch>> {
        let all = (1..).zip(self.boundaries.iter().filter(|it| it.run == run));
        let batches = all.map(|(seq, of)| StoredBatch {
            seq,
            boundary: of.decoded.id(),
            undone: of.undone,
            digest: BATCH,
            batch: Vec::new(),
            is_whole: true,
        });
        Ok(batches.filter(|batch| batch.seq > after).take(PAGE).collect())
    }

    async fn records(&mut self, _: RunId, _: &RecordKey) -> Result<Vec<StoredRecord>> {
        Ok(Vec::new())
    }
}
