//! The start of a run's audit, which an anchor names the end of.

use serde_json::{Value, json};
use sqlx::SqliteConnection;

use super::audit::append;
use super::columns::Hash;
use super::row::RunRow;
use crate::audit::{self, CALLS_MISMATCH, kind};
use crate::db_error::{DbError, DbResult, redacted_json_error};
use crate::{Prune, RunId, header};

/// What the rows that go say of boundaries that a rewind undid.
const UNDONE: &str = "SELECT json_group_array(json(value)) FROM audit, json_each(detail, '$.undone') \
     WHERE run = ? AND seq <= ? AND kind IN ('rewound', 'pruned')";

/// Names of calls of which a row tells how they began.
macro_rules! told {
    () => {
        "SELECT detail ->> '$.call' FROM audit \
         WHERE run = ?1 AND kind = 'claimed' AND detail ->> '$.key' IS NOT NULL \
         UNION ALL \
         SELECT value ->> '$.call' FROM audit, json_each(detail, '$.calls') \
         WHERE run = ?1 AND kind = 'planned' AND value ->> '$.key' IS NOT NULL"
    };
}

/// Calls of which none does.
const EARLIER: &str =
    concat!("SELECT id FROM calls WHERE run = ?1 AND id NOT IN (", told!(), ") ORDER BY id");

/// Whether any of those is not there.
const IS_GONE: &str =
    concat!("SELECT EXISTS (SELECT * FROM (", told!(), ") EXCEPT SELECT id FROM calls WHERE run = ?1)");

/// What the last row says that tells of others that were pruned.
const LAST: &str = "SELECT detail -> '$.earlierCalls' FROM audit WHERE run = ? AND kind = 'pruned' ORDER BY seq DESC LIMIT 1";

/// What a row that tells of pruned ones says of calls.
async fn earlier(conn: &mut SqliteConnection, run: RunId) -> DbResult<Value> {
    let calls: Vec<String> = sqlx::query_scalar(EARLIER).bind(run).fetch_all(conn).await?;
    let names = audit::names_digest(calls.iter().map(String::as_str));
    Ok(json!({ "count": calls.len(), "names": header::render(&names) }))
}

/// Whether the calls are those that the rows tell of.
async fn are_told(conn: &mut SqliteConnection, run: RunId) -> DbResult<bool> {
    let stands = earlier(conn, run).await?;
    let last: Option<Option<String>> = sqlx::query_scalar(LAST).bind(run).fetch_optional(&mut *conn).await?;
    let same = match last.flatten() {
        Some(told) => parsed(&told)? == stands,
        None => stands["count"] == 0,
    };
    Ok(same && !sqlx::query_scalar::<_, bool>(IS_GONE).bind(run).fetch_one(conn).await?)
}

fn parsed(text: &str) -> DbResult<Value> {
    serde_json::from_str(text)
        .map_err(|error| DbError::Corrupt(format!("an audit: {}", redacted_json_error(&error))))
}

/// Drops the rows and says so in the next one, which says again what they said of the run.
pub(super) async fn prune(conn: &mut SqliteConnection, now: i64, prune: Prune) -> DbResult<u64> {
    let Prune { run, seq, hash, actor, reason } = prune;
    let found: i64 = sqlx::query_scalar("SELECT count(*) FROM audit WHERE run = ? AND seq = ? AND hash = ?")
        .bind(run)
        .bind(seq)
        .bind(Hash(hash))
        .fetch_one(&mut *conn)
        .await?;
    if found == 0 {
        return Ok(0);
    }
    if !are_told(conn, run).await? {
        return Err(DbError::Corrupt(CALLS_MISMATCH.into()));
    }
    let mut row = RunRow::expect(conn, run).await?;
    let undone: String = sqlx::query_scalar(UNDONE).bind(run).bind(seq).fetch_one(&mut *conn).await?;
    let undone = parsed(&undone)?;
    sqlx::query("INSERT INTO audit_prunes (run, to_seq) VALUES (?, ?)")
        .bind(run)
        .bind(seq)
        .execute(&mut *conn)
        .await?;
    let gone = sqlx::query("DELETE FROM audit WHERE run = ? AND seq <= ?")
        .bind(run)
        .bind(seq)
        .execute(&mut *conn)
        .await?
        .rows_affected();
    sqlx::query("DELETE FROM audit_prunes WHERE run = ?").bind(run).execute(&mut *conn).await?;
    let detail = json!({
        "to": seq, "hash": header::render(&hash), "rows": gone, "reason": reason,
        "tenant": row.tenant, "namespace": row.namespace, "name": row.name, "objectUID": row.object_uid,
        "lifecycle": row.lifecycle.0, "outcome": row.finish_outcome.map(|outcome| outcome.0), "undone": undone,
        "earlierCalls": earlier(conn, run).await?,
    });
    append(conn, &mut row, now, kind::PRUNED, &actor, detail).await?;
    row.save(conn).await?;
    Ok(gone)
}
