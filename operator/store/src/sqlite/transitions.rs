//! How the rules of a run are applied: in the writer's transaction.

use std::collections::BTreeMap;

use dalsegno_protocol::Policy;
use sqlx::SqliteConnection;

use super::database::{QueryExecutor as _, Sqlite};
use super::open_calls;
use super::read::run_rows;
use super::sqlx_types::{BoundaryColumn, EnumText, insert, update};
use crate::db_error::DbResult;
use crate::reads::{AttemptRow, CallRow, Column as _, LIVE_BOUNDARIES, LiveBoundary, RunRow};
use crate::transitions::{AuditEntry, Decision, LastAudit, Needs, OutboxEntry, Rows, Transition, WriteSet};
use dalsegno_model::{BoundaryId, Result, RunId, Template};

impl Sqlite {
    /// Performs a transition of a run.
    pub(super) async fn transition<T: Transition>(&self, run: RunId, rule: T) -> Result<T::Answer> {
        self.write(T::OPERATION, move |conn, now| Box::pin(transact(conn, now, run, rule))).await
    }

    /// Performs a transition that rarely writes, and whose rule needs only the run and its attempts. If the rule writes
    /// nothing on the rows as they are, this takes neither the writer nor the disk.
    pub(super) async fn read_then_transition<T: Transition + Clone>(
        &self,
        run: RunId,
        rule: T,
    ) -> Result<T::Answer> {
        let first = rule.clone();
        let looked = self.read(T::OPERATION, move |conn, now| Box::pin(look(conn, now, run, first))).await?;
        match looked {
            Some(answer) => Ok(answer),
            None => self.transition(run, rule).await,
        }
    }
}

/// The answer of a rule that writes nothing on the rows as they are. `None`: it would write.
async fn look<T: Transition>(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    rule: T,
) -> DbResult<Option<T::Answer>> {
    let Some(of_run) = run_rows(conn, now, run).await? else { return rule.without_run(run).map(Some) };
    let Decision { write, answer } = rule.decide(Rows::new(of_run, BTreeMap::new()))?;
    Ok(write.is_empty().then_some(answer))
}

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
        Needs::Call(id) => {
            rows.call = CallRow::load(conn, run, id).await?;
            rows.open_calls = open_calls::bytes(conn, &rows.of_run.run).await?;
        }
        Needs::LastAudit => {
            let last: Option<(String, bool)> =
                sqlx::query_as(LastAudit::SQL).bind(run).fetch_optional(&mut *conn).await?;
            rows.last_audit = last.map(|(kind, has_moved)| LastAudit { kind, has_moved });
        }
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
    if let Some(number) = rows.missing_attempt(boundary_id) {
        rows.of_run.attempts.extend(AttemptRow::load(conn, run, number).await?);
    }
    Ok(())
}

/// Marks as undone what came after a boundary. The parameters are the run, and the boundary's turn, number and epoch.
const UNDO: [&str; 4] = [
    "UPDATE boundaries SET undone = 1 WHERE run = ?1 AND NOT undone \
     AND ((turn, boundary) > (?2, ?3) OR ((turn, boundary) = (?2, ?3) AND epoch <> ?4))",
    "UPDATE records SET undone = 1 WHERE run = ?1 AND (turn, boundary) > (?2, ?3) AND NOT undone",
    "UPDATE record_batches SET undone = 1 WHERE run = ?1 AND (turn, boundary) > (?2, ?3) AND NOT undone",
    "UPDATE record_changes SET undone = 1 WHERE run = ?1 AND (turn, boundary) > (?2, ?3) AND NOT undone",
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
        undo_after,
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
    for undo in undo_after.iter().flat_map(|boundary_id| UNDO.map(|undo| (undo, boundary_id))) {
        let (undo, BoundaryId { turn, boundary, epoch }) = undo;
        let query = sqlx::query(undo).bind(run).bind(turn).bind(BoundaryColumn(*boundary)).bind(epoch);
        query.execute(&mut *conn).await?;
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
