//! The lines of a bundle.

use dalsegno_format::seal::{CallDigests, DigestKey};
use dalsegno_model::reading::{HeadMark, RunHead, StoredBoundary, StoredCall};
use dalsegno_model::{AuditRow, BoundaryRow, Gone, Kept, Lifecycle, Place};
use dalsegno_protocol::{Boundary, Call, CallState, Policy, RawValue, Usage};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::texts::{Bytes, Hash};

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    Bundle(BundleLine),
    Boundary(Box<BoundaryLine>),
    Call(Box<CallLine>),
    Audit(AuditLine),
    End(EndLine),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleLine {
    pub version: u32,
    pub store: Uuid,
    pub exported_at: i64,
    pub public_key: Bytes<32>,
    pub run: RunLine,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunLine {
    pub id: Uuid,
    pub tenant: String,
    pub namespace: String,
    pub name: String,
    pub object_uid: String,
    pub created_at: i64,
    pub lifecycle: Lifecycle,
    pub epoch: i64,
    pub head: Option<HeadLine>,
    pub audit_seq: i64,
    pub audit_hash: Hash,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlaceLine {
    pub turn: i32,
    pub boundary: Boundary,
    pub epoch: i64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeadLine {
    pub place: PlaceLine,
    pub content_hash: Hash,
    pub position: i64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BoundaryLine {
    pub turn: i32,
    pub boundary: Boundary,
    pub epoch: i64,
    pub attempt: i32,
    pub at: i64,
    pub position: i64,
    pub commit_id: Uuid,
    pub body_digest: Hash,
    pub parent: Option<PlaceLine>,
    pub parent_hash: Hash,
    pub content_hash: Hash,
    pub ops: Option<String>,
    pub ops_digest: Option<Hash>,
    pub full: bool,
    pub events: Vec<String>,
    pub events_digest: Option<Hash>,
    pub usage: Usage,
    pub trigger: Option<String>,
    pub records_digest: Option<Hash>,
    pub undone: bool,
    /// Its payloads were dropped, as the retention says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropped: bool,
    /// Its payloads were shredded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shredded: bool,
    /// What the digests of its payloads are made with, where these were sealed in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest_key: Option<Bytes<32>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallLine {
    pub id: String,
    pub turn: i32,
    pub policy: Policy,
    pub key: String,
    pub state: CallState,
    pub arguments: Option<String>,
    pub result: Option<String>,
    /// The attempt that claimed it last. Version 1 has it not.
    #[serde(default)]
    pub attempt: Option<i32>,
    /// Nobody can make its digests any more: the run's data key was deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shredded: bool,
    /// What its digests are made with, where the run has a data key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest_key: Option<Bytes<32>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditLine {
    pub seq: i64,
    pub at: i64,
    pub kind: String,
    pub actor: String,
    pub detail: String,
    pub parent_hash: Hash,
    pub hash: Hash,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndLine {
    pub boundaries: i64,
    pub events: i64,
    pub calls: i64,
    pub audit: i64,
    pub sha256: Hash,
    pub signature: Bytes<64>,
}

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
                place: head.place.into(),
                content_hash: Hash(head.content_hash),
                position: head.position,
            }),
            audit_seq: run.audit_seq,
            audit_hash: Hash(run.audit_hash),
        }
    }
}

impl RunLine {
    /// The run's own row, but for its outcome.
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
            head: self.head.as_ref().map(|head| HeadMark {
                place: head.place.place(),
                content_hash: head.content_hash.0,
                position: head.position,
            }),
            audit_seq: self.audit_seq,
            audit_hash: self.audit_hash.0,
            records_digest: None,
        })
    }
}

impl From<Place> for PlaceLine {
    fn from(Place { turn, boundary, epoch }: Place) -> Self {
        Self { turn, boundary, epoch }
    }
}

impl PlaceLine {
    fn place(&self) -> Place {
        Place { turn: self.turn, boundary: self.boundary, epoch: self.epoch }
    }
}

impl From<StoredBoundary> for BoundaryLine {
    fn from(boundary: StoredBoundary) -> Self {
        let StoredBoundary { run: _, kept, undone, gone, damage: _ } = boundary;
        let Kept { row, parent, ops_digest, events_digest, event_count: _, digest_key, has_payloads: _ } =
            kept;
        Self {
            turn: row.turn,
            boundary: row.boundary,
            epoch: row.epoch,
            attempt: row.attempt,
            at: row.at.as_millisecond(),
            position: row.position,
            commit_id: row.commit_id,
            body_digest: Hash(row.digest),
            parent: parent.map(PlaceLine::from),
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
            undone,
            dropped: gone == Some(Gone::Dropped),
            shredded: gone == Some(Gone::Shredded),
            digest_key: digest_key.map(|key| Bytes(key.0)),
        }
    }
}

impl BoundaryLine {
    /// Why its payloads are not there any more.
    pub fn gone(&self) -> Option<Gone> {
        let dropped = self.dropped.then_some(Gone::Dropped);
        dropped.or_else(|| self.shredded.then_some(Gone::Shredded))
    }

    /// The boundary as a store keeps it.
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
        };
        let kept = Kept {
            row,
            parent: self.parent.map(|parent| parent.place()),
            ops_digest: self.ops_digest.map(|hash| hash.0),
            events_digest: self.events_digest.map(|hash| hash.0),
            event_count: None,
            digest_key: self.digest_key.map(|key| DigestKey(key.0)),
            has_payloads: gone.is_none(),
        };
        Ok(StoredBoundary { run, kept, undone: self.undone, gone, damage: None })
    }
}

impl From<StoredCall> for CallLine {
    fn from(StoredCall { ordinal: _, call, attempt, touched: _, digests, damage: _ }: StoredCall) -> Self {
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
            shredded: digests == CallDigests::Lost,
            digest_key: match digests {
                CallDigests::Keyed(key) => Some(Bytes(key.0)),
                CallDigests::Plain | CallDigests::Lost => None,
            },
        }
    }
}

impl CallLine {
    /// The call as a store keeps it.
    pub fn stored(self) -> Result<StoredCall, String> {
        let Self { id, turn, policy, key, state, arguments, result, attempt, shredded, digest_key } = self;
        let json = |text: Option<String>| {
            let json = text.map(RawValue::from_string).transpose();
            json.map_err(|error| format!("a payload of call {id:?} is not JSON: {error}"))
        };
        let (arguments, result) = (json(arguments)?, json(result)?);
        Ok(StoredCall {
            ordinal: 0,
            call: Call { id, turn, policy, key, state, arguments, result },
            attempt,
            touched: None,
            digests: match digest_key {
                _ if shredded => CallDigests::Lost,
                Some(key) => CallDigests::Keyed(DigestKey(key.0)),
                None => CallDigests::Plain,
            },
            damage: None,
        })
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
    /// The row as a store keeps it.
    pub fn row(self) -> Result<AuditRow, String> {
        let Self { seq, at, kind, actor, detail, parent_hash, hash } = self;
        Ok(AuditRow { seq, at: time(at)?, kind, actor, detail, parent_hash: parent_hash.0, hash: hash.0 })
    }
}

fn time(ms: i64) -> Result<Timestamp, String> {
    Timestamp::from_millisecond(ms).map_err(|error| error.to_string())
}
