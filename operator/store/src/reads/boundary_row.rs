//! Rows of boundaries, and of the records that boundaries wrote.

use dalsegno_protocol::Usage;
use uuid::Uuid;

use super::{BoundaryColumn, Column as _, Columns, Hash};
use crate::db_error::{DbResult, timestamp};
use crate::stored_rows::ReadRecord as _;
use dalsegno_format::chain::{EncodedBoundary, EncodedSnapshot, Payloads};
use dalsegno_format::records::is_digest_of;
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::read_transaction::{RecordKey, StoredBatch, StoredRecord};
use dalsegno_model::{BoundaryId, BoundaryRow, DecodedBoundary, Digest, ForkedFrom};

/// The turn, boundary and epoch in a row.
pub(crate) fn boundary_id(row: &impl Columns) -> DbResult<BoundaryId> {
    Ok(BoundaryId {
        turn: i32::read(row, "turn")?,
        boundary: BoundaryColumn::read(row, "boundary")?.0,
        epoch: i64::read(row, "epoch")?,
    })
}

/// A boundary with its payloads still encoded, and the snapshot of the state after it.
pub(crate) fn encoded_boundary(row: &impl Columns) -> DbResult<EncodedBoundary> {
    let BoundaryId { turn, boundary, epoch } = boundary_id(row)?;
    let parent = DecodedBoundary::parent(
        Option::read(row, "parent_turn")?,
        Option::read(row, "parent_boundary")?.map(|BoundaryColumn(parent)| parent),
        Option::read(row, "parent_epoch")?,
    );
    let decoded = DecodedBoundary {
        row: BoundaryRow {
            turn,
            boundary,
            epoch,
            attempt: i32::read(row, "attempt")?,
            position: i64::read(row, "position")?,
            commit_id: Uuid::read(row, "commit_id")?,
            digest: Hash::read(row, "digest")?.0,
            parent_hash: Hash::read(row, "parent_hash")?.0,
            content_hash: Hash::read(row, "content_hash")?.0,
            at: timestamp(i64::read(row, "at")?)?,
            ops: None,
            full: bool::read(row, "is_full")?,
            events: Vec::new(),
            usage: Usage {
                tokens_in: i64::read(row, "tokens_in")?,
                tokens_out: i64::read(row, "tokens_out")?,
                tool_calls: i64::read(row, "tool_calls")?,
                cost_micro_usd: i64::read(row, "cost_micro_usd")?,
            },
            trigger: Option::read(row, "trigger_word")?,
            records_digest: optional_digest(row, "records_digest")?,
            forked_from: forked_from(row)?,
        },
        parent,
        ops_digest: optional_digest(row, "ops_digest")?,
        events_digest: optional_digest(row, "events_digest")?,
        event_count: Some(i64::read(row, "event_count")?),
        digest_key: None,
        has_payloads: false,
    };
    let payloads = if bool::read(row, "has_payloads")? {
        Some(Payloads { ops: row.bytes("ops")?, events: row.bytes("events")? })
    } else {
        None
    };
    let snapshot = row.bytes("document")?.zip(row.bytes("snapshot_digest")?);
    Ok(EncodedBoundary {
        boundary: decoded,
        payloads,
        dropped: bool::read(row, "is_dropped")?,
        snapshot: snapshot.map(|(document, digest)| EncodedSnapshot { document, digest }),
    })
}

/// A batch of changes of records. `cipher`: the one that its digest was made with.
pub(crate) fn stored_batch(row: &impl Columns, cipher: &PayloadCipher) -> DbResult<StoredBatch> {
    let (Hash(digest), batch) = (Hash::read(row, "digest")?, Vec::<u8>::read(row, "batch")?);
    Ok(StoredBatch {
        seq: i64::read(row, "seq")?,
        boundary: boundary_id(row)?,
        undone: bool::read(row, "undone")?,
        is_whole: is_digest_of(&digest, &batch, cipher),
        digest,
        batch,
    })
}

/// A record. `cipher`: the one that the digest of its value was made with.
pub(crate) fn stored_record(row: &impl Columns, cipher: &PayloadCipher) -> DbResult<StoredRecord> {
    let stored = StoredRecord {
        at: RecordKey {
            space: String::read(row, "space")?,
            key: String::read(row, "key")?,
            seq: i64::read(row, "seq")?,
        },
        entry_id: Option::read(row, "entry_id")?,
        boundary: boundary_id(row)?,
        value: None,
        text: None,
        damage: None,
    };
    stored.with(&row.bytes("value")?.unwrap_or_default(), cipher)
}

/// The boundary of another run after which a fork begins. A row that has only some of the columns is damaged: then its
/// hash is another one.
fn forked_from(row: &impl Columns) -> DbResult<Option<ForkedFrom>> {
    let (run, turn) = (Option::read(row, "forked_run")?, Option::read(row, "forked_turn")?);
    let content_hash = optional_digest(row, "forked_hash")?;
    if (run, turn, content_hash) == (None, None, None) {
        return Ok(None);
    }
    Ok(Some(ForkedFrom {
        run: run.unwrap_or_default(),
        turn: turn.unwrap_or_default(),
        content_hash: content_hash.unwrap_or_default(),
    }))
}

fn optional_digest(row: &impl Columns, column: &str) -> DbResult<Option<Digest>> {
    Ok(Option::read(row, column)?.map(|Hash(digest)| digest))
}
