//! The start of a run's audit, which an anchor names the end of.

use sqlx::SqliteConnection;

use super::change::append;
use super::columns::Hash;
use super::row::RunRow;
use crate::audit::{self, kind};
use crate::fault::{Fault, Work, misread};
use crate::{Prune, header};

/// What the rows that go say of boundaries that a rewind undid.
const UNDONE: &str = "SELECT json_group_array(json(value)) FROM audit, json_each(detail, '$.undone') \
     WHERE run = ? AND seq <= ? AND kind IN ('rewound', 'pruned')";

/// Calls of which no row is left that tells how they began.
const EARLIER_CALLS: &str = "SELECT id FROM calls WHERE run = ?1 AND id NOT IN ( \
         SELECT detail ->> '$.call' FROM audit \
         WHERE run = ?1 AND kind = 'claimed' AND detail ->> '$.key' IS NOT NULL \
         UNION ALL \
         SELECT value ->> '$.call' FROM audit, json_each(detail, '$.calls') \
         WHERE run = ?1 AND kind = 'planned' AND value ->> '$.key' IS NOT NULL \
     ) ORDER BY id";

/// Drops the rows and says so in the next one, which says again what they said of the run.
pub(super) async fn prune(conn: &mut SqliteConnection, now: i64, prune: Prune) -> Work<u64> {
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
    let mut row = RunRow::expect(conn, run).await?;
    let undone: String = sqlx::query_scalar(UNDONE).bind(run).bind(seq).fetch_one(&mut *conn).await?;
    let undone: serde_json::Value = serde_json::from_str(&undone)
        .map_err(|error| Fault::Corrupt(format!("an audit: {}", misread(&error))))?;
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
    let calls: Vec<String> = sqlx::query_scalar(EARLIER_CALLS).bind(run).fetch_all(&mut *conn).await?;
    let names = audit::names_digest(calls.iter().map(String::as_str));
    let detail = serde_json::json!({
        "to": seq, "hash": header::render(&hash), "rows": gone, "reason": reason,
        "tenant": row.tenant, "namespace": row.namespace, "name": row.name, "objectUID": row.object_uid,
        "lifecycle": row.lifecycle.0, "outcome": row.finish_outcome.map(|outcome| outcome.0), "undone": undone,
        "earlierCalls": { "count": calls.len(), "names": header::render(&names) },
    });
    append(conn, &mut row, now, kind::PRUNED, &actor, detail).await?;
    row.save(conn).await?;
    Ok(gone)
}
