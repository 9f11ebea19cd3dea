//! Records: a fenced keyed space for SDKs.

use dalsegno_protocol::{Boundary, Record};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};
use uuid::Uuid;

use super::columns::{Hash, Which};
use super::judge::{self, Ruling};
use super::row::RunRow;
use super::{Reads as _, Sqlite};
use crate::db_error::DbResult;
use crate::records::{Change, Changes, after_prefix, link, page, payload};
use crate::seal::{AadContext, BodyDigest, PayloadCipher, is_sealed};
use crate::{Digest, RecordBatch, RecordPage, RecordQuery, Result, RunId, Written};

/// One entry more than the page has room for is looked for, so that it is known whether there is more. Values are read
/// only of those that have room.
const READ: &str = "SELECT key, seq, entry_id, value, turn, found FROM ( \
         SELECT key, seq, count(*) OVER () AS found, sum(size) OVER (ORDER BY key, seq) - size AS before \
         FROM ( \
             SELECT key, seq, size FROM held_records \
             WHERE run = ?1 AND space = ?2 AND (key, seq) > (?3, ?4) AND (?5 IS NULL OR key < ?5) \
             ORDER BY key, seq LIMIT ?6 \
         ) \
     ) CROSS JOIN records USING (key, seq) \
     WHERE run = ?1 AND space = ?2 AND before < ?7 ORDER BY key, seq";

/// Whether a key holds anything: what came last says so, however much was there before.
const HOLDS: &str = "SELECT coalesce(( \
         SELECT op <> 'delete' FROM records WHERE run = ? AND space = ? AND key = ? AND NOT undone \
         ORDER BY seq DESC LIMIT 1 \
     ), 0)";

/// Whether an entry is among what a key holds.
const HOLDS_ENTRY: &str = "SELECT EXISTS ( \
         SELECT 1 FROM records INDEXED BY records_by_entry CROSS JOIN held_records USING (run, space, key, seq) \
         WHERE run = ? AND space = ? AND key = ? AND records.entry_id = ? AND NOT records.undone \
     )";

/// A batch with its payloads ready to be kept.
pub(super) struct Batch {
    run: RunId,
    capability: Digest,
    id: Uuid,
    digest: BodyDigest,
    changes: Changes,
}

impl Batch {
    pub fn new(batch: &RecordBatch, cipher: &PayloadCipher) -> Result<Self> {
        Ok(Self {
            run: batch.run,
            capability: batch.capability,
            id: batch.batch_id,
            digest: cipher.body(batch.digest),
            changes: Changes::of(&batch.operations, cipher)?,
        })
    }
}

/// Judges a batch and, if it may, writes it.
pub(super) async fn write(conn: &mut SqliteConnection, now: i64, batch: Batch) -> DbResult<Written> {
    let Some(mut row) = RunRow::load(conn, batch.run).await? else {
        return Ok(Written::NotFound);
    };
    let before: Option<Hash> =
        sqlx::query_scalar("SELECT digest FROM record_batches WHERE run = ? AND id = ? AND NOT undone")
            .bind(batch.run)
            .bind(batch.id)
            .fetch_optional(&mut *conn)
            .await?;
    match judge::records(&row, &batch.capability, before, &batch.digest) {
        Ruling::Accept => {}
        Ruling::Duplicate => return Ok(Written::Duplicate),
        Ruling::Fenced => return Ok(Written::Fenced),
        Ruling::Finished => return Ok(Written::Finished),
        Ruling::UnsettledCalls => return Ok(Written::UnsettledCalls),
        Ruling::Conflict => return Ok(Written::Conflict),
    }
    let after_plan = row.head().is_some_and(|head| head.boundary == Boundary::Plan);
    let at = (row.open_turn(), if after_plan { Boundary::Result } else { Boundary::Plan });
    sqlx::query(
        "INSERT INTO record_batches (run, id, digest, turn, boundary, epoch, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(batch.run)
    .bind(batch.id)
    .bind(Hash(batch.digest.kept))
    .bind(at.0)
    .bind(Which(at.1))
    .bind(row.epoch)
    .bind(now)
    .execute(&mut *conn)
    .await?;
    apply(conn, now, &row, at, &batch.changes).await?;
    if let Some(digest) = batch.changes.digest {
        row.records_digest = Some(Hash(link(row.records_digest.map(|hash| hash.0), &digest)));
        row.save(conn).await?;
    }
    Ok(Written::Ok)
}

/// Where a change is written: in which turn, and whether after its plan.
type At = (i32, Boundary);

/// Writes a batch, as it came and folded.
pub(super) async fn apply(
    conn: &mut SqliteConnection,
    now: i64,
    row: &RunRow,
    at: At,
    Changes { changes, batch, digest }: &Changes,
) -> DbResult<()> {
    let Some(digest) = digest else { return Ok(()) };
    sqlx::query(
        "INSERT INTO record_changes (run, seq, turn, boundary, epoch, digest, batch) \
         SELECT ?1, coalesce(max(seq), 0) + 1, ?2, ?3, ?4, ?5, ?6 FROM record_changes WHERE run = ?1",
    )
    .bind(row.id)
    .bind(at.0)
    .bind(Which(at.1))
    .bind(row.epoch)
    .bind(Hash(*digest))
    .bind(batch)
    .execute(&mut *conn)
    .await?;
    for change in changes {
        if matches!(change.op, "put" | "delete") {
            replace(conn, row.id, at, change).await?;
        }
        let takes_effect = match change.op {
            "put" => true,
            "putIfAbsent" => !holds(conn, row.id, change).await?,
            "append" => !holds_entry(conn, row.id, change).await?,
            // A key that holds nothing needs no row that says so.
            _ => holds(conn, row.id, change).await?,
        };
        if takes_effect {
            insert(conn, now, row, at, change).await?;
        }
    }
    Ok(())
}

/// What is replaced before the next boundary goes: no rewind can ask for it again. However often a key was put, no other
/// boundary's rows are read for it.
async fn replace(conn: &mut SqliteConnection, run: RunId, at: At, change: &Change) -> DbResult<()> {
    sqlx::query(
        "DELETE FROM records INDEXED BY records_by_boundary \
         WHERE run = ? AND space = ? AND key = ? AND turn = ? AND boundary = ? AND NOT undone",
    )
    .bind(run)
    .bind(&change.space)
    .bind(&change.key)
    .bind(at.0)
    .bind(Which(at.1))
    .execute(conn)
    .await?;
    Ok(())
}

/// Whether the change's key holds anything.
async fn holds(conn: &mut SqliteConnection, run: RunId, change: &Change) -> DbResult<bool> {
    Ok(sqlx::query_scalar(HOLDS).bind(run).bind(&change.space).bind(&change.key).fetch_one(conn).await?)
}

/// Whether the change's key holds its entry.
async fn holds_entry(conn: &mut SqliteConnection, run: RunId, change: &Change) -> DbResult<bool> {
    let query = sqlx::query_scalar(HOLDS_ENTRY).bind(run).bind(&change.space).bind(&change.key);
    Ok(query.bind(&change.entry_id).fetch_one(conn).await?)
}

async fn insert(
    conn: &mut SqliteConnection,
    now: i64,
    row: &RunRow,
    at: At,
    change: &Change,
) -> DbResult<()> {
    sqlx::query(
        "INSERT INTO records (run, space, key, seq, op, entry_id, value, size, turn, boundary, epoch, at) \
         VALUES (?1, ?2, ?3, \
                 coalesce((SELECT max(seq) FROM records WHERE run = ?1 AND space = ?2 AND key = ?3), 0) + 1, \
                 ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )
    .bind(row.id)
    .bind(&change.space)
    .bind(&change.key)
    .bind(change.op)
    .bind(&change.entry_id)
    .bind(&change.value)
    .bind(change.size)
    .bind(at.0)
    .bind(Which(at.1))
    .bind(row.epoch)
    .bind(now)
    .execute(conn)
    .await?;
    Ok(())
}

impl Sqlite {
    pub(super) async fn do_read_records(&self, run: RunId, query: RecordQuery) -> Result<RecordPage> {
        let asked = query.clone();
        let rows = self.read("reading records", move |conn, _| Box::pin(read(conn, run, asked))).await?;
        let cipher = self.cipher_to_read(run, rows.iter().any(|row| is_sealed(&row.value))).await?;
        let found = rows.first().map_or(0, |row| row.found);
        let entries = rows.into_iter().map(|row| row.public(&query.space, &cipher));
        Ok(page(entries.collect::<Result<_>>()?, found, &query))
    }
}

/// A change that a key holds, as it is kept.
struct Entry {
    key: String,
    seq: i64,
    entry_id: Option<String>,
    value: Vec<u8>,
    turn: i32,
    found: i64,
}

impl Entry {
    fn public(self, space: &str, cipher: &PayloadCipher) -> Result<(Record, i64)> {
        let Self { key, seq, entry_id, value, turn, found: _ } = self;
        let value = payload(&value, AadContext::Record(space, &key, entry_id.as_deref()), cipher)?;
        Ok((Record { key, entry_id, value, turn }, seq))
    }
}

async fn read(conn: &mut SqliteConnection, run: RunId, query: RecordQuery) -> DbResult<Vec<Entry>> {
    let (after_key, after_seq) = query.begin();
    let rows = sqlx::query(READ)
        .bind(run)
        .bind(&query.space)
        .bind(after_key)
        .bind(after_seq)
        .bind(after_prefix(&query.prefix))
        .bind(i64::from(query.limit) + 1)
        .bind(i64::try_from(query.bytes).unwrap_or(i64::MAX))
        .fetch_all(conn)
        .await?;
    rows.iter().map(entry).collect()
}

fn entry(row: &SqliteRow) -> DbResult<Entry> {
    Ok(Entry {
        key: row.try_get("key")?,
        seq: row.try_get("seq")?,
        entry_id: row.try_get("entry_id")?,
        value: row.try_get("value")?,
        turn: row.try_get("turn")?,
        found: row.try_get("found")?,
    })
}
