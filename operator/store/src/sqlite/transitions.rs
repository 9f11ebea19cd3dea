//! Transitions in the writer's transaction.

use dalsegno_protocol::Policy;
use sqlx::SqliteConnection;

use super::Sqlite;
use super::columns::{Word, insert, update};
use super::read::rows_of;
use crate::fault::Work;
use crate::reads::{AttemptRow, Column as _, RunRow};
use crate::transitions::{AuditEntry, Decision, Rows, Transition, WriteSet};
use crate::{Result, RunId};

impl Sqlite {
    /// Does a transition of a run.
    pub(super) async fn transition<T: Transition>(&self, run: RunId, rule: T) -> Result<T::Answer> {
        self.write(T::OPERATION, move |conn, now| Box::pin(transact(conn, now, run, rule))).await
    }
}

/// Reads the run's rows, decides, and writes.
pub(super) async fn transact<T: Transition>(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    rule: T,
) -> Work<T::Answer> {
    let Some(of_run) = rows_of(conn, now, run).await? else { return rule.without_run(run) };
    let started: Vec<(Word<Policy>, i64)> = sqlx::query_as(
        "SELECT policy, count(*) FROM calls WHERE run = ? AND state = 'started' GROUP BY policy",
    )
    .bind(run)
    .fetch_all(&mut *conn)
    .await?;
    let started = started.into_iter().map(|(policy, count)| (policy.0, count)).collect();
    let Decision { write, answer } = rule.decide(Rows { of_run, started })?;
    apply(conn, now, write).await?;
    Ok(answer)
}

/// Writes what a transition has decided.
pub(super) async fn apply(conn: &mut SqliteConnection, now: i64, write: WriteSet) -> Work<()> {
    let WriteSet { run, created, mut run_columns, is_change, attempt_columns, reserved, audit } = write;
    if let Some(created) = created {
        created.insert(conn).await?;
    }
    if is_change {
        run_columns.push(("changed_at", now.value()));
    }
    update(conn, RunRow::TABLE, run_columns, vec![("id", run.value())]).await?;
    for (number, columns) in attempt_columns {
        update(conn, AttemptRow::TABLE, columns, vec![("run", run.value()), ("number", number.value())])
            .await?;
    }
    for attempt in reserved {
        attempt.insert(conn).await?;
    }
    for entry in audit {
        insert(conn, AuditEntry::TABLE, entry.assignments(run)).await?;
    }
    Ok(())
}
