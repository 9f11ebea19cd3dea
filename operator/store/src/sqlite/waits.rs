//! Statements of waits.

use serde_json::json;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::audit::append;
use super::row::RunRow;
use super::sqlx_types::Hash;
use crate::db_error::DbResult;
use crate::reads::{Column, StoredWait};
use crate::statements::{PROPOSAL, RATE_LIMIT_QUEUE, UNREAD_MESSAGE, WAIT_STATE, WAITS, WAITS_OF_RUN};
use crate::transitions::{
    AuditEvent, MovedRateLimit, RateLimitQuery, RateLimitQueue, Rows, UnreadQuery, WaitsQuery,
    withdrawn_detail,
};
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{Digest, RunId};

/// As [`MovedRateLimit`]. The parameters are the run, the tenant, the provider, the new end and the longest move.
pub(super) const MOVE_RATE_LIMIT: &str = "UPDATE waits \
     SET wake_at = wake_at + min(?4 - reset_at, ?5), reset_at = reset_at + min(?4 - reset_at, ?5) \
     WHERE provider = ?3 AND kind = 'rateLimit' AND state = 'open' AND NOT undone AND run <> ?1 AND reset_at < ?4 \
       AND EXISTS (SELECT 1 FROM runs WHERE runs.id = waits.run AND runs.tenant = ?2)";

/// Loads the waits that a rule needs besides the open ones.
pub(super) async fn load(
    conn: &mut SqliteConnection,
    query: WaitsQuery<'_>,
    rows: &mut Rows,
) -> DbResult<()> {
    let run = &rows.of_run.run;
    for id in query.ids {
        let found = sqlx::query(AssertSqlSafe(WAITS.as_str()))
            .bind(run.id)
            .bind(id)
            .fetch_optional(&mut *conn)
            .await?;
        rows.named_waits.extend(found.as_ref().map(StoredWait::read).transpose()?);
    }
    if let Some(RateLimitQuery { provider, probe_ms, first_ms }) = query.rate_limit {
        let since = rows.of_run.now - probe_ms;
        let query = sqlx::query_as(RATE_LIMIT_QUEUE).bind(run.id).bind(&run.tenant);
        let query = query.bind(provider).bind(since).bind(first_ms);
        let (others, first, is_probe) = query.fetch_one(&mut *conn).await?;
        rows.rate_limit = RateLimitQueue { others, first, is_probe };
    }
    if let Some(UnreadQuery { topic }) = query.unread {
        let query = sqlx::query_scalar(UNREAD_MESSAGE).bind(run.id).bind(topic);
        rows.unread_message = query.fetch_one(&mut *conn).await?;
    }
    Ok(())
}

/// The first of these ids that no wait of the run's live branch has.
pub(super) async fn first_unknown(
    conn: &mut SqliteConnection,
    run: RunId,
    ids: &[String],
) -> DbResult<Option<String>> {
    for id in ids {
        let known =
            sqlx::query("SELECT 1 FROM waits WHERE run = ? AND id = ? AND NOT undone").bind(run).bind(id);
        if known.fetch_optional(&mut *conn).await?.is_none() {
            return Ok(Some(id.clone()));
        }
    }
    Ok(None)
}

/// Moves the waits of other runs for a rate limit.
pub(super) async fn move_rate_limit(
    conn: &mut SqliteConnection,
    run: RunId,
    moved: MovedRateLimit,
) -> DbResult<()> {
    let MovedRateLimit { tenant, provider, reset_at } = moved;
    let query = sqlx::query(MOVE_RATE_LIMIT).bind(run).bind(tenant).bind(provider).bind(reset_at);
    let query = query.bind(MovedRateLimit::MOST_MS);
    query.execute(conn).await?;
    Ok(())
}

/// Withdraws the open waits of a run that ends with a boundary. The caller saves the run's row.
pub(super) async fn withdraw(conn: &mut SqliteConnection, now: i64, row: &mut RunRow) -> DbResult<()> {
    if row.open_waits == 0 {
        row.clear_waits();
        return Ok(());
    }
    let open = "SELECT id, epoch FROM waits WHERE run = ? AND state = 'open' AND NOT undone ORDER BY ordinal";
    let waits: Vec<(String, i64)> = sqlx::query_as(open).bind(row.id).fetch_all(&mut *conn).await?;
    let withdraw = "UPDATE waits SET state = 'withdrawn' WHERE run = ? AND state = 'open' AND NOT undone";
    sqlx::query(withdraw).bind(row.id).execute(&mut *conn).await?;
    row.clear_waits();
    let detail = withdrawn_detail(&waits);
    append(conn, row, now, AuditEvent { kind: kind::WAIT_WITHDRAWN, actor: actor::OPERATOR, detail }).await
}

/// An approval, and the call that uses it.
#[derive(Debug)]
pub(super) struct UsedApproval {
    pub run: RunId,
    /// Id of its wait.
    pub approval: String,
    pub call: String,
}

/// Which call has used a granted approval of the live branch, if one has. `None`: it is not granted.
pub(super) async fn approval_use(
    conn: &mut SqliteConnection,
    run: RunId,
    approval: &str,
) -> DbResult<Option<Option<String>>> {
    let query = sqlx::query_scalar(
        "SELECT used_by FROM waits WHERE run = ? AND id = ? AND NOT undone AND kind = 'approval' \
           AND outcome IN ('approved', 'changed')",
    );
    Ok(query.bind(run).bind(approval).fetch_optional(conn).await?)
}

/// Notes that the call uses the approval, if it does not already.
pub(super) async fn use_approval(conn: &mut SqliteConnection, now: i64, used: UsedApproval) -> DbResult<()> {
    let UsedApproval { run, approval, call } = used;
    let query = sqlx::query_scalar(
        "UPDATE waits SET used_by = ?3 WHERE run = ?1 AND id = ?2 AND NOT undone AND used_by IS NULL RETURNING epoch",
    );
    let epoch: Option<i64> = query.bind(run).bind(&approval).bind(&call).fetch_optional(&mut *conn).await?;
    if let (Some(epoch), Some(mut row)) = (epoch, RunRow::load(conn, run).await?) {
        let detail = json!({ "wait": approval, "epoch": epoch, "call": call });
        let event = AuditEvent { kind: kind::APPROVAL_USED, actor: actor::WORKER, detail };
        append(conn, &mut row, now, event).await?;
        row.save(conn).await?;
    }
    Ok(())
}

/// One wait that a worker polls.
#[derive(Debug)]
pub(super) struct PolledWait {
    /// Whether the capability is the current epoch's.
    pub is_current: bool,
    pub wait: Option<StoredWait>,
}

/// The states of these waits.
pub(super) async fn states(
    conn: &mut SqliteConnection,
    waits: Vec<(RunId, Digest, String)>,
) -> DbResult<Vec<PolledWait>> {
    let mut states = Vec::with_capacity(waits.len());
    for (run, capability, id) in waits {
        let query = sqlx::query(AssertSqlSafe(WAIT_STATE.as_str())).bind(run).bind(Hash(capability)).bind(id);
        states.push(match query.fetch_optional(&mut *conn).await? {
            None => PolledWait { is_current: false, wait: None },
            Some(row) => {
                let id: Option<String> = Column::read(&row, "id")?;
                PolledWait { is_current: true, wait: id.map(|_| StoredWait::read(&row)).transpose()? }
            }
        });
    }
    Ok(states)
}

/// The open waits of a run, and those that were answered since its head.
pub(super) async fn of_run(conn: &mut SqliteConnection, run: RunId) -> DbResult<Vec<StoredWait>> {
    let rows = sqlx::query(AssertSqlSafe(WAITS_OF_RUN.as_str())).bind(run).fetch_all(conn).await?;
    rows.iter().map(StoredWait::read).collect()
}

/// A wait and its request.
pub(super) async fn proposal(
    conn: &mut SqliteConnection,
    run: RunId,
    id: String,
    epoch: i64,
) -> DbResult<Option<(StoredWait, Option<Vec<u8>>)>> {
    let query = sqlx::query(AssertSqlSafe(PROPOSAL.as_str())).bind(run).bind(id).bind(epoch);
    let row = query.fetch_optional(conn).await?;
    row.map(|row| Ok((StoredWait::read(&row)?, Column::read(&row, "request")?))).transpose()
}
