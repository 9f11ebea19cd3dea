//! Statements of records: a keyed space for SDKs, which only the current epoch may write.

use dalsegno_protocol::{Boundary, Limits};
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::admission::{self, Admission};
use super::disk::Room;
use super::row::RunRow;
use super::sqlx_types::{BoundaryColumn, Hash};
use crate::db_error::DbResult;
use dalsegno_format::record_pages::after_prefix;
use dalsegno_format::records::{Change, Changes, DELETE_PREFIX, link};
use dalsegno_format::seal::{BodyDigest, PayloadCipher};
use dalsegno_model::{BoundaryId, Digest, RecordBatch, Result, RunId, Written};

/// Whether a key has a value or entries. The last change of the key shows it, so this reads one row.
pub(super) const HAS_VALUE: &str = "SELECT coalesce(( \
         SELECT op <> 'delete' FROM records WHERE run = ? AND space = ? AND key = ? AND NOT undone \
         ORDER BY seq DESC LIMIT 1 \
     ), 0)";

/// Whether a key has the entry with this id.
const HAS_ENTRY: &str = "SELECT EXISTS ( \
         SELECT 1 FROM records INDEXED BY records_by_entry CROSS JOIN held_records USING (run, space, key, seq) \
         WHERE run = ? AND space = ? AND key = ? AND records.entry_id = ? AND NOT records.undone \
     )";

/// The keys of the space `?2` from `?3` to before `?4`. Goes from key to key.
macro_rules! with_keys {
    () => {
        "WITH RECURSIVE keys (key) AS ( \
             SELECT min(key) FROM records WHERE run = ?1 AND space = ?2 AND key >= ?3 AND key < ?4 \
             UNION ALL \
             SELECT (SELECT min(r.key) FROM records r \
                     WHERE r.run = ?1 AND r.space = ?2 AND r.key > keys.key AND r.key < ?4) \
             FROM keys WHERE keys.key IS NOT NULL \
         ) "
    };
}

/// Those of these keys that hold something. Of each it reads the last change.
macro_rules! from_held_keys {
    () => {
        "FROM keys WHERE key IS NOT NULL AND coalesce(( \
             SELECT op <> 'delete' FROM records r \
             WHERE r.run = ?1 AND r.space = ?2 AND r.key = keys.key AND NOT r.undone ORDER BY r.seq DESC LIMIT 1 \
         ), 0)"
    };
}

/// What keys that hold something got after the last boundary: no rewind can ask for it again.
const DELETE_REPLACED_BY_PREFIX: &str = concat!(
    with_keys!(),
    "DELETE FROM records INDEXED BY records_by_boundary \
     WHERE run = ?1 AND turn = ?5 AND boundary = ?6 AND space = ?2 AND key >= ?3 AND key < ?4 AND NOT undone \
       AND key IN (SELECT key ",
    from_held_keys!(),
    ")"
);

/// Counts no further than `?5`.
const COUNT_HELD_KEYS: &str =
    concat!(with_keys!(), "SELECT count(*) FROM (SELECT key ", from_held_keys!(), " LIMIT ?5)");

const DELETE_PREFIX_SQL: &str = concat!(
    with_keys!(),
    "INSERT INTO records (run, space, key, seq, op, size, turn, boundary, epoch, at) \
     SELECT ?1, ?2, key, \
            (SELECT max(seq) FROM records r WHERE r.run = ?1 AND r.space = ?2 AND r.key = keys.key) + 1, \
            'delete', 0, ?5, ?6, ?7, ?8 ",
    from_held_keys!()
);

/// A batch whose payloads are encoded, so that the writer only compares and writes.
pub(super) struct PreparedBatch {
    run: RunId,
    capability: Digest,
    id: Uuid,
    digest: BodyDigest,
    changes: Changes,
    room: Room,
}

impl PreparedBatch {
    pub fn new(batch: &RecordBatch, cipher: &PayloadCipher, room: Room) -> Result<Self> {
        Ok(Self {
            run: batch.run,
            capability: batch.capability,
            id: batch.batch_id,
            digest: cipher.body(batch.digest),
            changes: Changes::of(&batch.operations, cipher)?,
            room,
        })
    }
}

/// Checks whether a batch is admitted and, if so, writes it.
pub(super) async fn write(conn: &mut SqliteConnection, now: i64, batch: PreparedBatch) -> DbResult<Written> {
    let Some(mut row) = RunRow::load(conn, batch.run).await? else {
        return Ok(Written::NotFound);
    };
    let stored: Option<Hash> =
        sqlx::query_scalar("SELECT digest FROM record_batches WHERE run = ? AND id = ? AND NOT undone")
            .bind(batch.run)
            .bind(batch.id)
            .fetch_optional(&mut *conn)
            .await?;
    match admission::admit_records(&row, &batch.capability, stored, &batch.digest) {
        Admission::Accept => batch.room.check()?,
        Admission::Duplicate => return Ok(Written::Duplicate),
        Admission::Fenced => return Ok(Written::Fenced),
        Admission::Finished => return Ok(Written::Finished),
        // A batch may pass the attempt's own open calls.
        Admission::UnsettledCalls | Admission::OpenCalls => return Ok(Written::UnsettledCalls),
        Admission::Conflict => return Ok(Written::Conflict),
    }
    if empties_too_many_keys(conn, batch.run, &batch.changes).await? {
        return Ok(Written::TooManyKeys);
    }
    let after_plan = row.head().is_some_and(|head| head.boundary == Boundary::Plan);
    let boundary = if after_plan { Boundary::Result } else { Boundary::Plan };
    let at = BoundaryId { turn: row.open_turn(), boundary, epoch: row.epoch };
    sqlx::query(
        "INSERT INTO record_batches (run, id, digest, turn, boundary, epoch, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(batch.run)
    .bind(batch.id)
    .bind(Hash(batch.digest.stored))
    .bind(at.turn)
    .bind(BoundaryColumn(at.boundary))
    .bind(at.epoch)
    .bind(now)
    .execute(&mut *conn)
    .await?;
    apply(conn, RecordsAt { run: batch.run, boundary: at, now }, &batch.changes).await?;
    if let Some(digest) = batch.changes.digest {
        row.records_digest = Some(Hash(link(row.records_digest.map(|hash| hash.0), &digest)));
        row.save(conn).await?;
    }
    Ok(Written::Ok)
}

/// Whether deletions of prefixes would empty more keys than one batch may. No prefix of a batch starts with another one
/// of its space, so no key is counted twice.
pub(super) async fn empties_too_many_keys(
    conn: &mut SqliteConnection,
    run: RunId,
    Changes { changes, .. }: &Changes,
) -> DbResult<bool> {
    let mut left = Limits::PREFIX_KEYS;
    for change in changes.iter().take_while(|change| change.op == DELETE_PREFIX) {
        let held: i64 = sqlx::query_scalar(COUNT_HELD_KEYS)
            .bind(run)
            .bind(&change.space)
            .bind(&change.key)
            .bind(after_prefix(&change.key))
            .bind(left + 1)
            .fetch_one(&mut *conn)
            .await?;
        left -= held;
        if left < 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where and when changes are stored.
#[derive(Clone, Copy)]
pub(super) struct RecordsAt {
    pub run: RunId,
    /// A rewind to a boundary undoes the changes stored under later ones.
    pub boundary: BoundaryId,
    pub now: i64,
}

/// Writes a batch twice: as it was sent, and each change that takes effect under its key.
pub(super) async fn apply(
    conn: &mut SqliteConnection,
    at: RecordsAt,
    Changes { changes, batch, digest }: &Changes,
) -> DbResult<()> {
    let RecordsAt { run, boundary: BoundaryId { turn, boundary, epoch }, .. } = at;
    let Some(digest) = digest else { return Ok(()) };
    sqlx::query(
        "INSERT INTO record_changes (run, seq, turn, boundary, epoch, digest, batch) \
         SELECT ?1, coalesce(max(seq), 0) + 1, ?2, ?3, ?4, ?5, ?6 FROM record_changes WHERE run = ?1",
    )
    .bind(run)
    .bind(turn)
    .bind(BoundaryColumn(boundary))
    .bind(epoch)
    .bind(Hash(*digest))
    .bind(batch)
    .execute(&mut *conn)
    .await?;
    for change in changes {
        if change.op == DELETE_PREFIX {
            delete_prefix(conn, at, change).await?;
            continue;
        }
        if matches!(change.op, "put" | "delete") {
            delete_replaced(conn, at, change).await?;
        }
        let takes_effect = match change.op {
            "put" => true,
            "putIfAbsent" => !has_value(conn, run, change).await?,
            "append" => !has_entry(conn, run, change).await?,
            // A delete of a key without a value has no effect.
            _ => has_value(conn, run, change).await?,
        };
        if takes_effect {
            insert(conn, at, change).await?;
        }
    }
    Ok(())
}

/// Deletes the earlier changes of the key under the same boundary: no rewind can make them visible again. Reads the
/// rows of this boundary only, however often the key was changed before.
async fn delete_replaced(conn: &mut SqliteConnection, at: RecordsAt, change: &Change) -> DbResult<()> {
    sqlx::query(
        "DELETE FROM records INDEXED BY records_by_boundary \
         WHERE run = ? AND space = ? AND key = ? AND turn = ? AND boundary = ? AND NOT undone",
    )
    .bind(at.run)
    .bind(&change.space)
    .bind(&change.key)
    .bind(at.boundary.turn)
    .bind(BoundaryColumn(at.boundary.boundary))
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes what the keys with a prefix hold. Changes under this boundary are deleted as in [`delete_replaced`]. Each key
/// that then still holds something gets a `delete`, which a rewind can hide.
async fn delete_prefix(conn: &mut SqliteConnection, at: RecordsAt, change: &Change) -> DbResult<()> {
    let RecordsAt { run, boundary: BoundaryId { turn, boundary, epoch }, now } = at;
    let (prefix, end) = (&change.key, after_prefix(&change.key));
    sqlx::query(DELETE_REPLACED_BY_PREFIX)
        .bind(run)
        .bind(&change.space)
        .bind(prefix)
        .bind(&end)
        .bind(turn)
        .bind(BoundaryColumn(boundary))
        .execute(&mut *conn)
        .await?;
    sqlx::query(DELETE_PREFIX_SQL)
        .bind(run)
        .bind(&change.space)
        .bind(prefix)
        .bind(&end)
        .bind(turn)
        .bind(BoundaryColumn(boundary))
        .bind(epoch)
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}

async fn has_value(conn: &mut SqliteConnection, run: RunId, change: &Change) -> DbResult<bool> {
    Ok(sqlx::query_scalar(HAS_VALUE).bind(run).bind(&change.space).bind(&change.key).fetch_one(conn).await?)
}

async fn has_entry(conn: &mut SqliteConnection, run: RunId, change: &Change) -> DbResult<bool> {
    let query = sqlx::query_scalar(HAS_ENTRY).bind(run).bind(&change.space).bind(&change.key);
    Ok(query.bind(&change.entry_id).fetch_one(conn).await?)
}

async fn insert(conn: &mut SqliteConnection, at: RecordsAt, change: &Change) -> DbResult<()> {
    let RecordsAt { run, boundary: BoundaryId { turn, boundary, epoch }, now } = at;
    sqlx::query(
        "INSERT INTO records (run, space, key, seq, op, entry_id, value, size, turn, boundary, epoch, at) \
         VALUES (?1, ?2, ?3, \
                 coalesce((SELECT max(seq) FROM records WHERE run = ?1 AND space = ?2 AND key = ?3), 0) + 1, \
                 ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )
    .bind(run)
    .bind(&change.space)
    .bind(&change.key)
    .bind(change.op)
    .bind(&change.entry_id)
    .bind(&change.value)
    .bind(change.size)
    .bind(turn)
    .bind(BoundaryColumn(boundary))
    .bind(epoch)
    .bind(now)
    .execute(conn)
    .await?;
    Ok(())
}
