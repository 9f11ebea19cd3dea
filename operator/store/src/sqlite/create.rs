//! Taking a run up: anew, or over a prior run of the same name.

use sqlx::SqliteConnection;

use super::change::{append, cut_off, end_noted, neutral, reserve_next, reserved};
use super::columns::{Hash, Word};
use super::read::record;
use super::row::RunRow;
use crate::audit::{actor, kind};
use crate::fault::Work;
use crate::{AskedBy, AttemptState, Created, Lifecycle, NewRun, OnPrior, PriorRun, header};

/// Creates, returns, adopts, or says what stands in the way.
pub(super) async fn create_run(conn: &mut SqliteConnection, now: i64, new: NewRun) -> Work<Created> {
    let own = sqlx::query("SELECT * FROM runs WHERE object_uid = ?")
        .bind(&new.object_uid)
        .fetch_optional(&mut *conn)
        .await?;
    let row = if let Some(own) = own {
        RunRow::read(&own)?
    } else {
        let prior = prior_runs(conn, &new).await?;
        match (prior.into_iter().next(), new.on_prior) {
            (None, _) => begin(conn, now, new).await?,
            (Some(prior), OnPrior::Adopt) if prior.tenant == new.tenant => {
                adopt(conn, now, prior, new).await?
            }
            (Some(prior), OnPrior::Hold | OnPrior::Adopt) => {
                return Ok(Created::Prior(PriorRun {
                    id: prior.id,
                    object_uid: prior.object_uid,
                    tenant: prior.tenant,
                    asked_by: new.tenant,
                    turn: prior.head_turn.unwrap_or_default(),
                }));
            }
            (Some(_), OnPrior::Ignore) => {
                for prior in prior_runs(conn, &new).await? {
                    abandon(conn, now, prior, &new).await?;
                }
                begin(conn, now, new).await?
            }
        }
    };
    Ok(Created::Run(Box::new(record(conn, now, row).await?)))
}

/// Rows that bear the name and were not closed on purpose, the newest first.
async fn prior_runs(conn: &mut SqliteConnection, new: &NewRun) -> Work<Vec<RunRow>> {
    let rows = sqlx::query(
        "SELECT * FROM runs WHERE namespace = ? AND name = ? AND lifecycle IN ('live', 'finished') \
         ORDER BY created_at DESC, id DESC",
    )
    .bind(&new.namespace)
    .bind(&new.name)
    .fetch_all(conn)
    .await?;
    rows.iter().map(RunRow::read).collect()
}

async fn begin(conn: &mut SqliteConnection, now: i64, new: NewRun) -> Work<RunRow> {
    let mut row = fresh(now, new);
    row.insert(conn).await?;
    reserved(row.id, row.attempt, row.epoch, 0, now).insert(conn).await?;
    let created = serde_json::json!({
        "tenant": row.tenant, "namespace": row.namespace, "name": row.name, "objectUID": row.object_uid,
    });
    append(conn, &mut row, now, kind::CREATED, actor::OPERATOR, created).await?;
    let reserved = serde_json::json!({ "attempt": row.attempt, "epoch": row.epoch });
    append(conn, &mut row, now, kind::RESERVED, actor::OPERATOR, reserved).await?;
    row.save(conn).await?;
    Ok(row)
}

fn fresh(now: i64, new: NewRun) -> RunRow {
    let NewRun { id, tenant, namespace, name, object_uid, reset_generation, deadlines, on_prior: _ } = new;
    RunRow {
        id,
        tenant,
        namespace,
        name,
        object_uid,
        created_at: now,
        lifecycle: Word(Lifecycle::Live),
        epoch: 1,
        capability: None,
        last_capability: None,
        attempt: 1,
        attempt_state: Word(AttemptState::Reserved),
        pod_uid: None,
        attempt_turn: 0,
        attempt_completed: 0,
        verdict: None,
        remark: None,
        scheduled_at: None,
        attached_at: None,
        lease_renewed_at: None,
        lease_ms: 0,
        spent: false,
        head_turn: None,
        head_boundary: None,
        head_epoch: None,
        head_attempt: None,
        head_commit_id: None,
        head_digest: None,
        head_hash: None,
        head_position: 0,
        head_at: None,
        highest_turn: 0,
        completed_calls: 0,
        unsettled_retry_same_key: 0,
        unsettled_probe: 0,
        unsettled_ask: 0,
        unsettled_read_only: 0,
        keys_refused: 0,
        recovery_attempts: 0,
        recovery_attempts_base: 0,
        attempts_without_progress: 0,
        disruptions: 0,
        disruptions_base: 0,
        disruptions_without_progress: 0,
        observed_reset_generation: reset_generation,
        reset_attempt: 0,
        stored_bytes: 0,
        tokens_in: 0,
        tokens_out: 0,
        tool_calls: 0,
        cost_micro_usd: 0,
        cancel_requested_at: None,
        cancel_told_at: None,
        suspend: false,
        heartbeat_ms: deadlines.heartbeat_ms,
        start_ms: deadlines.start_ms,
        progress_ms: deadlines.progress_ms,
        finish_outcome: None,
        finish_reason: None,
        finish_message: None,
        finish_output: None,
        finish_commit_id: None,
        finish_digest: None,
        finish_at: None,
        changed_at: now,
        audit_seq: 0,
        audit_hash: Hash(header::NO_PARENT),
        records_digest: None,
        retention_days: 30,
        expired_at: None,
        emptied: false,
        keep_last: None,
        dropped_turn: None,
        dropped_boundary: None,
        dropped_epoch: None,
        over_at: None,
        state_bytes: Some(0),
        state_hash: None,
        open_calls_bytes: None,
        open_calls_turn: None,
    }
}

/// Gives the row to the new object, under a new epoch.
async fn adopt(conn: &mut SqliteConnection, now: i64, mut row: RunRow, new: NewRun) -> Work<RunRow> {
    let detail = serde_json::json!({ "from": row.object_uid, "to": new.object_uid });
    append(conn, &mut row, now, kind::ADOPTED, actor::OPERATOR, detail).await?;
    sqlx::query("UPDATE runs SET object_uid = ? WHERE id = ?")
        .bind(&new.object_uid)
        .bind(row.id)
        .execute(&mut *conn)
        .await?;
    row.object_uid = new.object_uid;
    row.observed_reset_generation = row.observed_reset_generation.max(new.reset_generation);
    row.heartbeat_ms = new.deadlines.heartbeat_ms;
    row.start_ms = new.deadlines.start_ms;
    row.progress_ms = new.deadlines.progress_ms;
    if row.lifecycle.0 == Lifecycle::Finished || row.attempt_state.0 == AttemptState::Ended {
        cut_off(conn, &mut row, now, "Adopted").await?;
    } else {
        let ending = neutral(row.attempt, "Adopted");
        end_noted(conn, &mut row, now, &ending).await?;
    }
    if row.lifecycle.0 == Lifecycle::Live {
        reserve_next(conn, &mut row, now).await?;
    }
    row.save(conn).await?;
    Ok(row)
}

/// Closes a prior run for good.
async fn abandon(conn: &mut SqliteConnection, now: i64, mut row: RunRow, new: &NewRun) -> Work<()> {
    cut_off(conn, &mut row, now, "Abandoned").await?;
    (row.lifecycle, row.over_at) = (Word(Lifecycle::Abandoned), Some(now));
    let detail = serde_json::json!({ "by": new.object_uid, "epoch": row.epoch });
    append(conn, &mut row, now, kind::ABANDONED, actor::OPERATOR, detail).await?;
    Ok(row.save(conn).await?)
}

/// Closes the run of a deleted AgentRun for good.
pub(super) async fn mark_deleted(
    conn: &mut SqliteConnection,
    now: i64,
    object_uid: String,
    asked: AskedBy,
) -> Work<()> {
    let found = sqlx::query("SELECT * FROM runs WHERE object_uid = ?")
        .bind(object_uid)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(mut row) = found.as_ref().map(RunRow::read).transpose()? else {
        return Ok(());
    };
    if matches!(row.lifecycle.0, Lifecycle::Deleted | Lifecycle::Abandoned) {
        return Ok(());
    }
    cut_off(conn, &mut row, now, "Deleted").await?;
    (row.lifecycle, row.over_at) = (Word(Lifecycle::Deleted), Some(now));
    let detail = asked.in_detail(serde_json::json!({ "epoch": row.epoch }));
    append(conn, &mut row, now, kind::DELETED, actor::OPERATOR, detail).await?;
    Ok(row.save(conn).await?)
}
