//! How a rule of a run is applied on a connection of the writer.

use dalsegno_protocol::{Boundary, Policy};
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::open_calls;
use super::read::run_rows;
use super::records::{self, RecordsAt};
use super::sqlx_types::{BoundaryColumn, EnumText, Hash, insert, update};
use super::waits;
use crate::db_error::DbResult;
use crate::reads::{
    AttemptRow, CallRow, Column as _, LIVE_BOUNDARIES, LiveBoundary, MessageRef, MessageRow, RunRow,
    TakenSince, WaitRow,
};
use crate::statements::{EFFECTS_SINCE, IS_LIVE};
use crate::transitions::{
    AuditEntry, CopiedRecords, Decision, LastAudit, Needs, NewBase, OutboxEntry, Rows, Transition, UndoQuery,
    WriteSet,
};
use dalsegno_model::{BoundaryId, RunId, Template};

/// Reads the run's rows, decides, and writes.
pub(super) async fn transact<T: Transition>(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    rule: T,
) -> DbResult<T::Answer> {
    let Some(of_run) = run_rows(conn, now, run).await? else { return rule.without_run(run) };
    let started: Vec<(EnumText<Policy>, i64)> = sqlx::query_as(
        "SELECT policy, count(*) FROM calls WHERE run = ? AND state = 'started' GROUP BY policy",
    )
    .bind(run)
    .fetch_all(&mut *conn)
    .await?;
    let started = started.into_iter().map(|(policy, count)| (policy.0, count)).collect();
    let mut rows = Rows::new(of_run, started);
    match rule.needs() {
        Needs::Nothing | Needs::Templates => {}
        Needs::BoundariesFrom(boundary_id) => load_boundaries(conn, boundary_id, &mut rows).await?,
        Needs::Undo(query) => {
            load_undo(conn, query, &mut rows).await?;
        }
        Needs::Call(id) => {
            rows.call = CallRow::load(conn, run, id).await?;
            rows.open_calls = open_calls::bytes(conn, &rows.of_run.run).await?;
        }
        Needs::Message(id) => {
            let query = sqlx::query(MessageRef::SQL).bind(run).bind(id);
            rows.message =
                query.fetch_optional(&mut *conn).await?.as_ref().map(MessageRef::read).transpose()?;
        }
        Needs::LastAudit => {
            let last: Option<(String, String, bool)> =
                sqlx::query_as(LastAudit::SQL).bind(run).fetch_optional(&mut *conn).await?;
            rows.last_audit = last.map(|(kind, detail, has_moved)| LastAudit { kind, detail, has_moved });
        }
        Needs::Waits(query) => waits::load(conn, query, &mut rows).await?,
    }
    let Decision { write, answer } = rule.decide(rows)?;
    apply(conn, now, write).await?;
    Ok(answer)
}

/// Loads the boundaries from this one on, and the attempt that committed it.
async fn load_boundaries(
    conn: &mut SqliteConnection,
    boundary_id: BoundaryId,
    rows: &mut Rows,
) -> DbResult<()> {
    let run = rows.of_run.run.id;
    let query = sqlx::query(LIVE_BOUNDARIES)
        .bind(run)
        .bind(boundary_id.turn)
        .bind(BoundaryColumn(boundary_id.boundary));
    let found = query.fetch_all(&mut *conn).await?;
    rows.boundaries = found.iter().map(LiveBoundary::read).collect::<DbResult<_>>()?;
    load_taken(conn, boundary_id, rows).await
}

/// Loads what a rewind by turns needs.
async fn load_undo(conn: &mut SqliteConnection, query: UndoQuery, rows: &mut Rows) -> DbResult<()> {
    let (run, UndoQuery { to_turn, if_head }) = (rows.of_run.run.id, query);
    let query = sqlx::query(LIVE_BOUNDARIES).bind(run).bind(to_turn).bind(BoundaryColumn(Boundary::Result));
    let found = query.fetch_all(&mut *conn).await?;
    rows.boundaries = found.iter().map(LiveBoundary::read).collect::<DbResult<_>>()?;
    let first_undone = to_turn.saturating_add(1);
    rows.effects =
        sqlx::query_scalar(EFFECTS_SINCE).bind(run).bind(first_undone).fetch_all(&mut *conn).await?;
    if let Some(if_head) = if_head {
        let query = sqlx::query_scalar(IS_LIVE).bind(run).bind(Hash(if_head));
        rows.has_if_head = query.fetch_one(&mut *conn).await?;
    }
    match rows.result_of_turn(to_turn) {
        Some(target) => load_taken(conn, target, rows).await,
        None => Ok(()),
    }
}

/// Loads the messages that boundaries after this one have taken, and the attempt that committed it.
async fn load_taken(conn: &mut SqliteConnection, boundary_id: BoundaryId, rows: &mut Rows) -> DbResult<()> {
    let run = rows.of_run.run.id;
    if rows.has_taken_messages() {
        let query = sqlx::query(TakenSince::SQL)
            .bind(run)
            .bind(boundary_id.turn)
            .bind(BoundaryColumn(boundary_id.boundary))
            .bind(boundary_id.epoch);
        rows.taken_since = TakenSince::read(&query.fetch_one(&mut *conn).await?)?;
    }
    if let Some(number) = rows.missing_attempt(boundary_id) {
        rows.of_run.attempts.extend(AttemptRow::load(conn, run, number).await?);
    }
    Ok(())
}

/// Marks as undone what came after a boundary. The parameters are the run, and the boundary's turn, number and epoch.
const UNDO: [&str; 5] = [
    "UPDATE boundaries SET undone = 1 WHERE run = ?1 AND NOT undone \
     AND ((turn, boundary) > (?2, ?3) OR ((turn, boundary) = (?2, ?3) AND epoch <> ?4))",
    "UPDATE records SET undone = 1 WHERE run = ?1 AND (turn, boundary) > (?2, ?3) AND NOT undone",
    "UPDATE record_batches SET undone = 1 WHERE run = ?1 AND (turn, boundary) > (?2, ?3) AND NOT undone",
    "UPDATE record_changes SET undone = 1 WHERE run = ?1 AND (turn, boundary) > (?2, ?3) AND NOT undone",
    "UPDATE waits SET undone = 1 WHERE run = ?1 AND (turn, boundary) > (?2, ?3) AND NOT undone",
];

/// Writes the decision of a transition.
pub(super) async fn apply(conn: &mut SqliteConnection, now: i64, write: WriteSet) -> DbResult<()> {
    let WriteSet {
        run,
        created,
        mut run_columns,
        is_change,
        attempt_columns,
        reserved,
        call_columns,
        wait_columns,
        opened_wait,
        moved_rate_limit,
        undo_after,
        copied_records,
        base,
        message,
        template,
        outbox,
        audit,
    } = write;
    if let Some(created) = created {
        created.insert(conn).await?;
    }
    if is_change {
        run_columns.push(("changed_at", now.value()));
    }
    update(conn, RunRow::TABLE, run_columns, vec![("id", run.value())]).await?;
    for (number, columns) in attempt_columns {
        let key = vec![("run", run.value()), ("number", number.value())];
        update(conn, AttemptRow::TABLE, columns, key).await?;
    }
    for attempt in reserved {
        attempt.insert(conn).await?;
    }
    if let Some((id, columns)) = call_columns {
        update(conn, CallRow::TABLE, columns, vec![("run", run.value()), ("id", id.value())]).await?;
    }
    for ((id, epoch), columns) in wait_columns {
        let key = vec![("run", run.value()), ("id", id.value()), ("epoch", epoch.value())];
        update(conn, WaitRow::TABLE, columns, key).await?;
    }
    if let Some(wait) = opened_wait {
        insert(conn, WaitRow::TABLE, wait).await?;
    }
    if let Some(moved) = moved_rate_limit {
        waits::move_rate_limit(conn, run, moved).await?;
    }
    if let Some(CopiedRecords { boundary, changes, data_key: _ }) = copied_records {
        records::apply(conn, RecordsAt { run, boundary, now }, &changes).await?;
    }
    if let Some(NewBase { columns, data_key: _ }) = base {
        insert(conn, "boundaries", columns).await?;
    }
    for undo in undo_after.iter().flat_map(|boundary_id| UNDO.map(|undo| (undo, boundary_id))) {
        let (undo, BoundaryId { turn, boundary, epoch }) = undo;
        let query = sqlx::query(undo).bind(run).bind(turn).bind(BoundaryColumn(*boundary)).bind(epoch);
        query.execute(&mut *conn).await?;
    }
    if let Some(BoundaryId { turn, boundary, epoch }) = undo_after {
        let give_back = AssertSqlSafe(TakenSince::give_back("?1", ["?2", "?3", "?4"]));
        let query = sqlx::query(give_back).bind(run).bind(turn).bind(BoundaryColumn(boundary)).bind(epoch);
        query.execute(&mut *conn).await?;
    }
    if let Some(message) = message {
        insert(conn, MessageRow::TABLE, message.assignments()).await?;
    }
    if let Some(Template { hash, document }) = template {
        let keep =
            "INSERT INTO revisions (hash, document, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
        sqlx::query(keep).bind(hash).bind(document).bind(now).execute(&mut *conn).await?;
    }
    for entry in outbox {
        insert(conn, OutboxEntry::TABLE, entry.assignments(run)).await?;
    }
    for entry in audit {
        insert(conn, AuditEntry::TABLE, entry.assignments(run)).await?;
    }
    Ok(())
}
