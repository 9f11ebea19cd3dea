//! Statements of data keys: each is stored wrapped.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::audit::append;
use super::row::RunRow;
use crate::db_error::{DbError, DbResult};
use crate::keys::{DATA_KEY_LOST, KeyState, PAGE_ROWS, Rewrapping, Wrapped};
use crate::statements::COUNT_UNSEALED;
use crate::transitions::AuditEvent;
use dalsegno_format::seal::SEALED;
use dalsegno_model::audit::kind;
use dalsegno_model::{Lifecycle, RunId, Shred, Shredded};

/// Returns the data key of a run.
pub(super) async fn get(conn: &mut SqliteConnection, run: RunId) -> DbResult<Option<KeyState>> {
    let row = sqlx::query(
        "SELECT key_id, wrapped, lifecycle = 'live' AS lives FROM data_keys JOIN runs ON runs.id = run WHERE run = ?",
    )
    .bind(run)
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    match wrapped(&row)? {
        Some(wrapped) => Ok(Some(KeyState::Wrapped(wrapped))),
        None if row.try_get("lives")? => Err(DbError::Corrupt(DATA_KEY_LOST.into())),
        None => Ok(Some(KeyState::Shredded)),
    }
}

/// Stores the first data key of a run that is live. Returns the stored one, which another process may have made.
pub(super) async fn put_first(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    new: Wrapped,
) -> DbResult<Option<KeyState>> {
    sqlx::query(
        "INSERT INTO data_keys (run, key_id, wrapped, created_at) SELECT id, ?, ?, ? FROM runs \
         WHERE id = ? AND lifecycle = 'live' ON CONFLICT (run) DO NOTHING",
    )
    .bind(new.key_id)
    .bind(new.bytes)
    .bind(now)
    .bind(run)
    .execute(&mut *conn)
    .await?;
    get(conn, run).await
}

/// Lists the wrapped data keys of the runs after this one, in order.
pub(super) async fn list(conn: &mut SqliteConnection, after: RunId) -> DbResult<Vec<(RunId, Wrapped)>> {
    let rows = sqlx::query(
        "SELECT run, key_id, wrapped FROM data_keys WHERE run > ? AND wrapped IS NOT NULL ORDER BY run LIMIT ?",
    )
    .bind(after)
    .bind(PAGE_ROWS)
    .fetch_all(conn)
    .await?;
    let key = |row: &SqliteRow| {
        DbResult::Ok(wrapped(row)?.map(|wrapped| DbResult::Ok((row.try_get("run")?, wrapped))))
    };
    rows.iter().filter_map(|row| key(row).and_then(Option::transpose).transpose()).collect()
}

/// Replaces the wrapped data key of a run, if `old` is still the stored one.
pub(super) async fn replace(
    conn: &mut SqliteConnection,
    run: RunId,
    Rewrapping { old, new }: Rewrapping,
) -> DbResult<()> {
    sqlx::query("UPDATE data_keys SET key_id = ?, wrapped = ? WHERE run = ? AND wrapped = ?")
        .bind(new.key_id)
        .bind(new.bytes)
        .bind(run)
        .bind(old.bytes)
        .execute(conn)
        .await?;
    Ok(())
}

/// Counts the payloads of a run that are stored in plain text.
pub(super) async fn count_unsealed(conn: &mut SqliteConnection, run: RunId) -> DbResult<u64> {
    let count: i64 =
        sqlx::query_scalar(COUNT_UNSEALED).bind(run).bind([SEALED].as_slice()).fetch_one(conn).await?;
    Ok(count.unsigned_abs())
}

/// Returns whether the run has a data key or had one.
pub(super) async fn has_data_key(conn: &mut SqliteConnection, run: RunId) -> DbResult<bool> {
    let exists = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM data_keys WHERE run = ?)");
    Ok(exists.bind(run).fetch_one(conn).await?)
}

/// Deletes the data key of a run that has ended.
pub(super) async fn shred(conn: &mut SqliteConnection, now: i64, shred: Shred) -> DbResult<Shredded> {
    let Shred { run, actor, reason } = shred;
    let Some(mut row) = RunRow::load(conn, run).await? else {
        return Ok(Shredded::NotFound);
    };
    if row.lifecycle.0 == Lifecycle::Live {
        return Ok(Shredded::Live);
    }
    if !has_data_key(conn, run).await? {
        return Ok(Shredded::NeverSealed);
    }
    let deleted = sqlx::query(
        "UPDATE data_keys SET key_id = NULL, wrapped = NULL, shredded_at = ?2 WHERE run = ?1 AND shredded_at IS NULL",
    )
    .bind(run)
    .bind(now)
    .execute(&mut *conn)
    .await?;
    if deleted.rows_affected() == 0 {
        return Ok(Shredded::GoneBefore);
    }
    let detail = serde_json::json!({ "reason": reason });
    append(conn, &mut row, now, AuditEvent { kind: kind::SHREDDED, actor: &actor, detail }).await?;
    row.save(conn).await?;
    Ok(Shredded::Done)
}

fn wrapped(row: &SqliteRow) -> DbResult<Option<Wrapped>> {
    let (key_id, bytes): (Option<String>, Option<Vec<u8>>) =
        (row.try_get("key_id")?, row.try_get("wrapped")?);
    Ok(key_id.zip(bytes).map(|(key_id, bytes)| Wrapped { key_id, bytes }))
}
