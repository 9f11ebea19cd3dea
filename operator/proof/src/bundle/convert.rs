//! Converts between the lines of a bundle and the rows of a store.

use dalsegno_format::header::sha256;
use dalsegno_format::seal::{CallDigests, DigestKey};
use dalsegno_model::read_transaction::{
    HeadRef, RecordKey, RunHead, StoredBatch, StoredBoundary, StoredCall, StoredMessage, StoredRecord,
    StoredWait,
};
use dalsegno_model::{AuditRow, BoundaryId, BoundaryRow, DecodedBoundary, ForkedFrom, OpenWait, PayloadLoss};
use dalsegno_protocol::{Call, Message, RawValue, TakenBy};
use jiff::Timestamp;
use uuid::Uuid;

use super::lines::{
    AuditLine, BoundaryIdLine, BoundaryLine, CallLine, ForkedFromLine, HeadLine, MessageLine,
    RecordBatchLine, RecordLine, RunLine, WaitLine,
};
use crate::encoding::{Base64, Bytes, Hash};

impl From<&RunHead> for RunLine {
    fn from(run: &RunHead) -> Self {
        Self {
            id: run.id,
            tenant: run.tenant.clone(),
            namespace: run.namespace.clone(),
            name: run.name.clone(),
            object_uid: run.object_uid.clone(),
            created_at: run.created_at.as_millisecond(),
            lifecycle: run.lifecycle,
            epoch: run.epoch,
            head: run.head.map(|head| HeadLine {
                boundary: head.boundary.into(),
                content_hash: Hash(head.content_hash),
                position: head.position,
            }),
            audit_seq: run.audit_seq,
            audit_hash: Hash(run.audit_hash),
            records_digest: run.records_digest.map(Hash),
        }
    }
}

impl RunLine {
    /// The run's own row, except for its outcome.
    pub fn stored(&self) -> Result<RunHead, String> {
        Ok(RunHead {
            id: self.id,
            tenant: self.tenant.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            object_uid: self.object_uid.clone(),
            created_at: time(self.created_at)?,
            lifecycle: self.lifecycle,
            outcome: None,
            epoch: self.epoch,
            head: self.head.as_ref().map(|head| HeadRef {
                boundary: head.boundary.id(),
                content_hash: head.content_hash.0,
                position: head.position,
            }),
            audit_seq: self.audit_seq,
            audit_hash: self.audit_hash.0,
            records_digest: self.records_digest.map(|hash| hash.0),
        })
    }
}

impl From<BoundaryId> for BoundaryIdLine {
    fn from(BoundaryId { turn, boundary, epoch }: BoundaryId) -> Self {
        Self { turn, boundary, epoch }
    }
}

impl BoundaryIdLine {
    fn id(&self) -> BoundaryId {
        BoundaryId { turn: self.turn, boundary: self.boundary, epoch: self.epoch }
    }
}

impl From<StoredBoundary> for BoundaryLine {
    fn from(boundary: StoredBoundary) -> Self {
        let StoredBoundary { run: _, decoded, undone, payload_loss: gone, damage: _ } = boundary;
        let DecodedBoundary {
            row,
            parent,
            ops_digest,
            events_digest,
            event_count: _,
            digest_key,
            has_payloads: _,
        } = decoded;
        Self {
            turn: row.turn,
            boundary: row.boundary,
            epoch: row.epoch,
            attempt: row.attempt,
            at: row.at.as_millisecond(),
            position: row.position,
            commit_id: row.commit_id,
            body_digest: Hash(row.digest),
            parent: parent.map(BoundaryIdLine::from),
            parent_hash: Hash(row.parent_hash),
            content_hash: Hash(row.content_hash),
            ops: row.ops,
            ops_digest: ops_digest.map(Hash),
            full: row.full,
            events: row.events.iter().map(|event| event.get().to_owned()).collect(),
            events_digest: events_digest.map(Hash),
            usage: row.usage,
            trigger: row.trigger,
            records_digest: row.records_digest.map(Hash),
            forked_from: row.forked_from.map(|from| ForkedFromLine {
                run: from.run,
                turn: from.turn,
                content_hash: Hash(from.content_hash),
            }),
            undone,
            dropped: gone == Some(PayloadLoss::Dropped),
            shredded: gone == Some(PayloadLoss::Shredded),
            digest_key: digest_key.map(|key| Bytes(key.0)),
        }
    }
}

impl BoundaryLine {
    /// Why its payloads are missing on purpose, if they are.
    pub fn gone(&self) -> Option<PayloadLoss> {
        let dropped = self.dropped.then_some(PayloadLoss::Dropped);
        dropped.or_else(|| self.shredded.then_some(PayloadLoss::Shredded))
    }

    /// The boundary in the form of a store's row.
    pub fn stored(self, run: Uuid) -> Result<StoredBoundary, String> {
        let gone = self.gone();
        let events = self.events.into_iter().map(RawValue::from_string).collect::<Result<Vec<_>, _>>();
        let row = BoundaryRow {
            turn: self.turn,
            boundary: self.boundary,
            epoch: self.epoch,
            attempt: self.attempt,
            position: self.position,
            commit_id: self.commit_id,
            digest: self.body_digest.0,
            parent_hash: self.parent_hash.0,
            content_hash: self.content_hash.0,
            at: time(self.at)?,
            ops: self.ops,
            full: self.full,
            events: events.map_err(|error| format!("an event is not JSON: {error}"))?,
            usage: self.usage,
            trigger: self.trigger,
            records_digest: self.records_digest.map(|hash| hash.0),
            forked_from: self.forked_from.map(|from| ForkedFrom {
                run: from.run,
                turn: from.turn,
                content_hash: from.content_hash.0,
            }),
        };
        let decoded = DecodedBoundary {
            row,
            parent: self.parent.map(|parent| parent.id()),
            ops_digest: self.ops_digest.map(|hash| hash.0),
            events_digest: self.events_digest.map(|hash| hash.0),
            event_count: None,
            digest_key: self.digest_key.map(|key| DigestKey(key.0)),
            has_payloads: gone.is_none(),
        };
        Ok(StoredBoundary { run, decoded, undone: self.undone, payload_loss: gone, damage: None })
    }
}

impl From<StoredCall> for CallLine {
    fn from(call: StoredCall) -> Self {
        let StoredCall { ordinal: _, call, attempt, touched: _, usage, digests, damage: _ } = call;
        let text = |json: Option<Box<RawValue>>| json.map(|json| json.get().to_owned());
        Self {
            id: call.id,
            turn: call.turn,
            policy: call.policy,
            key: call.key,
            state: call.state,
            arguments: text(call.arguments),
            result: text(call.result),
            attempt,
            tool: call.tool,
            usage,
            shredded: digests == CallDigests::Lost,
            digest_key: digest_key(digests),
        }
    }
}

impl CallLine {
    /// The call in the form of a store's row.
    pub fn stored(self) -> Result<StoredCall, String> {
        let Self { id, turn, policy, key, state, arguments, result, .. } = self;
        let (attempt, tool, usage) = (self.attempt, self.tool, self.usage);
        let (shredded, digest_key) = (self.shredded, self.digest_key);
        let json = |text: Option<String>| {
            let json = text.map(RawValue::from_string).transpose();
            json.map_err(|error| format!("a payload of call {id:?} is not JSON: {error}"))
        };
        let (arguments, result) = (json(arguments)?, json(result)?);
        Ok(StoredCall {
            ordinal: 0,
            call: Call { id, turn, policy, key, state, tool, arguments, result },
            attempt,
            touched: None,
            usage,
            digests: digests(shredded, digest_key),
            damage: None,
        })
    }
}

/// The key of digests, as a line has it.
fn digest_key(digests: CallDigests) -> Option<Bytes<32>> {
    match digests {
        CallDigests::Keyed(key) => Some(Bytes(key.0)),
        CallDigests::Plain | CallDigests::Lost => None,
    }
}

/// How digests are computed, from what a line says.
fn digests(shredded: bool, digest_key: Option<Bytes<32>>) -> CallDigests {
    match digest_key {
        _ if shredded => CallDigests::Lost,
        Some(key) => CallDigests::Keyed(DigestKey(key.0)),
        None => CallDigests::Plain,
    }
}

impl From<StoredMessage> for MessageLine {
    fn from(stored: StoredMessage) -> Self {
        let StoredMessage { message, at, taken_epoch, digest, digests, damage: _ } = stored;
        let Message { position, id, topic, value, author, at: _, taken_by } = message;
        let taken_by = taken_by.zip(taken_epoch);
        Self {
            position,
            id,
            topic,
            value: value.map(|json| json.get().to_owned()),
            author,
            at,
            taken_by: taken_by.map(|(TakenBy { turn, boundary }, epoch)| BoundaryIdLine {
                turn,
                boundary,
                epoch,
            }),
            digest: Hash(digest),
            shredded: digests == CallDigests::Lost,
            digest_key: digest_key(digests),
        }
    }
}

impl MessageLine {
    /// The message in the form of a store's row.
    pub fn stored(self) -> Result<StoredMessage, String> {
        let Self { position, id, topic, value, author, at, taken_by, digest, shredded, digest_key } = self;
        let value = value.map(RawValue::from_string).transpose();
        let value = value.map_err(|error| format!("the value of message {position} is not JSON: {error}"))?;
        let taken_epoch = taken_by.as_ref().map(|by| by.epoch);
        let taken_by = taken_by.map(|by| TakenBy { turn: by.turn, boundary: by.boundary });
        let time = time(at)?.to_string();
        Ok(StoredMessage {
            message: Message { position, id, topic, value, author, at: time, taken_by },
            at,
            taken_epoch,
            digest: digest.0,
            digests: digests(shredded, digest_key),
            damage: None,
        })
    }
}

impl From<StoredWait> for WaitLine {
    fn from(wait: StoredWait) -> Self {
        let StoredWait { facts, boundary, undone, state, outcome, request, answer, digests, damage: _ } =
            wait;
        let text = |json: Option<Box<RawValue>>| json.map(|json| json.get().to_owned());
        let ms = |at: Option<Timestamp>| at.map(Timestamp::as_millisecond);
        Self {
            id: facts.id,
            epoch: facts.epoch,
            ordinal: facts.ordinal,
            turn: boundary.turn,
            boundary: boundary.boundary,
            undone,
            attempt: facts.attempt,
            kind: facts.kind,
            state,
            opened_at: facts.opened_at.as_millisecond(),
            deadline_at: ms(facts.deadline_at),
            on_timeout: facts.on_timeout,
            wake_at: ms(facts.wake_at),
            provider: facts.provider,
            topic: facts.topic,
            proposal_hash: facts.proposal_hash.map(Hash),
            outcome,
            request: text(request),
            answer: text(answer),
            shredded: digests == CallDigests::Lost,
            digest_key: match digests {
                CallDigests::Keyed(key) => Some(Bytes(key.0)),
                CallDigests::Plain | CallDigests::Lost => None,
            },
        }
    }
}

impl WaitLine {
    /// The wait in the form of a store's row.
    pub fn stored(self) -> Result<StoredWait, String> {
        let id = self.id.clone();
        let json = |text: Option<String>| {
            let json = text.map(RawValue::from_string).transpose();
            json.map_err(|error| format!("a payload of wait {id:?} is not JSON: {error}"))
        };
        let facts = OpenWait {
            id: self.id,
            epoch: self.epoch,
            ordinal: self.ordinal,
            kind: self.kind,
            turn: self.turn,
            attempt: self.attempt,
            opened_at: time(self.opened_at)?,
            deadline_at: self.deadline_at.map(time).transpose()?,
            on_timeout: self.on_timeout,
            timed_out_at: None,
            wake_at: self.wake_at.map(time).transpose()?,
            provider: self.provider,
            topic: self.topic,
            proposal_hash: self.proposal_hash.map(|hash| hash.0),
        };
        Ok(StoredWait {
            facts,
            boundary: BoundaryId { turn: self.turn, boundary: self.boundary, epoch: self.epoch },
            undone: self.undone,
            state: self.state,
            outcome: self.outcome,
            request: json(self.request)?,
            answer: json(self.answer)?,
            digests: match self.digest_key {
                _ if self.shredded => CallDigests::Lost,
                Some(key) => CallDigests::Keyed(DigestKey(key.0)),
                None => CallDigests::Plain,
            },
            damage: None,
        })
    }
}

impl From<StoredBatch> for RecordBatchLine {
    fn from(batch: StoredBatch) -> Self {
        let StoredBatch { seq, boundary, undone, digest, batch, is_whole: _ } = batch;
        let keyed = sha256(&batch) != digest;
        Self { seq, boundary: boundary.into(), undone, digest: Hash(digest), batch: Base64(batch), keyed }
    }
}

impl RecordBatchLine {
    /// The batch in the form of a store's row.
    pub fn stored(self) -> StoredBatch {
        let Self { seq, boundary, undone, digest: Hash(digest), batch: Base64(batch), keyed } = self;
        let is_whole = keyed || sha256(&batch) == digest;
        StoredBatch { seq, boundary: boundary.id(), undone, digest, batch, is_whole }
    }
}

impl From<StoredRecord> for RecordLine {
    fn from(record: StoredRecord) -> Self {
        let StoredRecord { at: RecordKey { space, key, seq }, entry_id, boundary, value, text, damage: _ } =
            record;
        let keyed = text.as_ref().zip(value).is_some_and(|(text, value)| sha256(text.as_bytes()) != value);
        let (digest, boundary) = (value.map(Hash), boundary.into());
        Self { space, key, seq, entry_id, boundary, value: text, digest, keyed }
    }
}

impl RecordLine {
    /// The record in the form of a store's row.
    pub fn stored(self) -> StoredRecord {
        let Self { space, key, seq, entry_id, boundary, value: text, digest, keyed } = self;
        let value = match &text {
            Some(text) if !keyed => Some(sha256(text.as_bytes())),
            _ => digest.map(|hash| hash.0),
        };
        let at = RecordKey { space, key, seq };
        StoredRecord { at, entry_id, boundary: boundary.id(), value, text, damage: None }
    }
}

impl From<AuditRow> for AuditLine {
    fn from(row: AuditRow) -> Self {
        Self {
            seq: row.seq,
            at: row.at.as_millisecond(),
            kind: row.kind,
            actor: row.actor,
            detail: row.detail,
            parent_hash: Hash(row.parent_hash),
            hash: Hash(row.hash),
        }
    }
}

impl AuditLine {
    /// The audit row in the form of a store's row.
    pub fn row(self) -> Result<AuditRow, String> {
        let Self { seq, at, kind, actor, detail, parent_hash, hash } = self;
        Ok(AuditRow { seq, at: time(at)?, kind, actor, detail, parent_hash: parent_hash.0, hash: hash.0 })
    }
}

fn time(ms: i64) -> Result<Timestamp, String> {
    Timestamp::from_millisecond(ms).map_err(|error| error.to_string())
}
