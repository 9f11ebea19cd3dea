//! Statements that delete the start of a run's audit, up to an entry that an anchor contains.

use serde_json::{Value, json};
use sqlx::SqliteConnection;

use super::audit::append;
use super::row::RunRow;
use super::sqlx_types::Hash;
use crate::db_error::{DbError, DbResult, redacted_json_error};
use crate::transitions::AuditEvent;
use dalsegno_format::audit::{self, CALLS_MISMATCH, kind};
use dalsegno_format::header;
use dalsegno_model::{Prune, RunId};

/// The undone boundaries that the deleted entries list.
const UNDONE: &str = "SELECT json_group_array(json(value)) FROM audit, json_each(detail, '$.undone') \
     WHERE run = ? AND seq <= ? AND kind IN ('rewound', 'pruned')";

/// Ids of the calls whose start is in the audit.
macro_rules! calls_in_audit {
    () => {
        "SELECT detail ->> '$.call' FROM audit \
         WHERE run = ?1 AND kind = 'claimed' AND detail ->> '$.key' IS NOT NULL \
         UNION ALL \
         SELECT value ->> '$.call' FROM audit, json_each(detail, '$.calls') \
         WHERE run = ?1 AND kind = 'planned' AND value ->> '$.key' IS NOT NULL"
    };
}

/// Calls whose start is not in the audit: an earlier prune deleted its entry.
const EARLIER_CALLS: &str =
    concat!("SELECT id FROM calls WHERE run = ?1 AND id NOT IN (", calls_in_audit!(), ") ORDER BY id");

/// Whether a call that is in the audit is missing.
const IS_CALL_MISSING: &str = concat!(
    "SELECT EXISTS (SELECT * FROM (",
    calls_in_audit!(),
    ") EXCEPT SELECT id FROM calls WHERE run = ?1)"
);

/// The summary of earlier calls in the last entry of a prune.
const LAST_SUMMARY: &str = "SELECT detail -> '$.earlierCalls' FROM audit \
     WHERE run = ? AND kind = 'pruned' ORDER BY seq DESC LIMIT 1";

/// Returns the summary of earlier calls: their count, and the digest of their ids.
async fn earlier_calls(conn: &mut SqliteConnection, run: RunId) -> DbResult<Value> {
    let calls: Vec<String> = sqlx::query_scalar(EARLIER_CALLS).bind(run).fetch_all(conn).await?;
    let names = audit::names_digest(calls.iter().map(String::as_str));
    Ok(json!({ "count": calls.len(), "names": header::render(&names) }))
}

/// Returns whether the calls are those that the audit lists.
async fn calls_match_audit(conn: &mut SqliteConnection, run: RunId) -> DbResult<bool> {
    let found = earlier_calls(conn, run).await?;
    let last: Option<Option<String>> =
        sqlx::query_scalar(LAST_SUMMARY).bind(run).fetch_optional(&mut *conn).await?;
    let same = match last.flatten() {
        Some(summary) => parse(&summary)? == found,
        None => found["count"] == 0,
    };
    Ok(same && !sqlx::query_scalar::<_, bool>(IS_CALL_MISSING).bind(run).fetch_one(conn).await?)
}

fn parse(text: &str) -> DbResult<Value> {
    serde_json::from_str(text)
        .map_err(|error| DbError::Corrupt(format!("an audit: {}", redacted_json_error(&error))))
}

/// Deletes the entries, and appends one that repeats what they say of the run. Returns the number of deleted entries; 0
/// if the entry `seq` does not have this hash.
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
    if !calls_match_audit(conn, run).await? {
        return Err(DbError::Corrupt(CALLS_MISMATCH.into()));
    }
    let mut row = RunRow::expect(conn, run).await?;
    let undone: String = sqlx::query_scalar(UNDONE).bind(run).bind(seq).fetch_one(&mut *conn).await?;
    let undone = parse(&undone)?;
    sqlx::query("INSERT INTO audit_prunes (run, to_seq) VALUES (?, ?)")
        .bind(run)
        .bind(seq)
        .execute(&mut *conn)
        .await?;
    let deleted = sqlx::query("DELETE FROM audit WHERE run = ? AND seq <= ?")
        .bind(run)
        .bind(seq)
        .execute(&mut *conn)
        .await?
        .rows_affected();
    sqlx::query("DELETE FROM audit_prunes WHERE run = ?").bind(run).execute(&mut *conn).await?;
    let detail = json!({
        "to": seq, "hash": header::render(&hash), "rows": deleted, "reason": reason,
        "tenant": row.tenant, "namespace": row.namespace, "name": row.name, "objectUID": row.object_uid,
        "lifecycle": row.lifecycle.0, "outcome": row.finish_outcome.map(|outcome| outcome.0), "undone": undone,
        "earlierCalls": earlier_calls(conn, run).await?,
    });
    append(conn, &mut row, now, AuditEvent { kind: kind::PRUNED, actor: &actor, detail }).await?;
    row.save(conn).await?;
    Ok(deleted)
}
