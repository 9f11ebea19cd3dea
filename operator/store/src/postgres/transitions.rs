//! Transitions under the lock of the run's row.
//!
//! # Guarantees
//!
//! - Three trips where something is written, two where nothing is. The first begins the transaction, locks the run's row
//!   and then reads all that the rule needs; between the first and the second the rule decides; the second writes, in one
//!   statement; the third commits.
//! - The lock keeps its order: whoever waits for the row is served before those that come later, however busy the run is.
//! - A call that fails or is given up leaves no open transaction on a connection that is used again ([`Transaction`]),
//!   and the server ends one whose client has vanished.

use dalsegno_protocol::Policy;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use super::columns::bind;
use super::pool::{Pool, Transaction};
use super::read::NOW;
use crate::fault::{Fault, Work};
use crate::reads::{Assignment, AttemptRow, Column, EnumText, Found, RunRow, Value, record_sql};
use crate::transitions::{AuditEntry, Decision, Rows, Transition, WriteSet};
use crate::{Result, RunId};

impl Postgres {
    /// Does a transition of a run.
    pub(super) async fn transition<T: Transition>(&self, run: RunId, rule: T) -> Result<T::Answer> {
        self.transact(run, &rule).await.map_err(|fault| fault.while_(T::OPERATION))
    }

    pub(super) async fn transact<T: Transition>(&self, run: RunId, rule: &T) -> Work<T::Answer> {
        let place = self.pool.join(run);
        let work = async {
            let _served = place.served().await?;
            let (mut transaction, rows) = self.lock(run).await?;
            let Some(rows) = rows else {
                transaction.roll_back().await?;
                return rule.without_run(run);
            };
            let Decision { write, answer } = rule.decide(rows)?;
            if write.is_empty() {
                transaction.roll_back().await?;
            } else {
                apply(&mut transaction, write).await?;
                transaction.commit().await?;
            }
            Ok(answer)
        };
        self.pool.in_time(work).await
    }

    /// Locks a run's row, and reads what rules need once it is locked.
    pub(super) async fn lock(&self, run: RunId) -> Work<(Transaction<'_>, Option<Rows>)> {
        let record = record_sql(&format!("r.id = '{run}'"), NOW);
        let sql = format!(
            "SELECT FROM runs WHERE id = '{run}' FOR UPDATE; {record}; \
             SELECT policy, count(*) AS count FROM calls WHERE run = '{run}' AND state = 'started' GROUP BY policy"
        );
        let (transaction, answers) = self.pool.begin(&sql).await?;
        let [_, record, started] = &answers[..] else {
            return Err(Fault::Corrupt(format!("{} statements answered", answers.len())));
        };
        let Some(of_run) = Found::read(record, None)?.runs.pop() else { return Ok((transaction, None)) };
        let of_policy =
            |row: &_| Ok((EnumText::<Policy>::read(row, "policy")?.0, Column::read(row, "count")?));
        let started = started.iter().map(of_policy).collect::<Work<_>>()?;
        Ok((transaction, Some(Rows { of_run, started })))
    }
}

/// Writes what a transition has decided, in one statement of its transaction. False, and nothing is written: a run that
/// was to be created is there.
pub(super) async fn apply(transaction: &mut Transaction<'_>, set: WriteSet) -> Work<bool> {
    let (sql, values) = statement(set).finish();
    is_written(&transaction.all(bind_all(&sql, values)).await?)
}

/// The same of a run that is created, which has no lock.
pub(super) async fn create(pool: &Pool, set: WriteSet) -> Work<bool> {
    let (sql, values) = statement(set).finish();
    is_written(&pool.all(bind_all(&sql, values)).await?)
}

fn is_written(rows: &[PgRow]) -> Work<bool> {
    let row = rows.first().ok_or_else(|| Fault::Corrupt("a write answered nothing".into()))?;
    Ok(row.try_get("is_written")?)
}

fn statement(set: WriteSet) -> Statement {
    let WriteSet { run, created, run_columns, is_change, attempt_columns, reserved, audit } = set;
    let mut statement = Statement::default();
    if let Some(created) = created {
        statement.create(created.assignments());
    }
    let mut columns = statement.set(run_columns);
    if is_change {
        columns.push("changed_at = ds_now_v1()".into());
    }
    statement.update(RunRow::TABLE, columns, vec![("id", run.value())]);
    for (number, columns) in attempt_columns {
        let columns = statement.set(columns);
        let key = vec![("run", run.value()), ("number", number.value())];
        statement.update(AttemptRow::TABLE, columns, key);
    }
    for attempt in reserved {
        statement.insert(AttemptRow::TABLE, attempt.assignments());
    }
    for entry in audit {
        statement.insert(AuditEntry::TABLE, entry.assignments(run));
    }
    statement
}

fn bind_all(sql: &str, values: Vec<Value>) -> Query<'_, sqlx::Postgres, PgArguments> {
    values.into_iter().fold(sqlx::query(AssertSqlSafe(sql)), bind)
}

/// A statement of several parts, each of which changes other rows.
#[derive(Default)]
struct Statement {
    parts: Vec<String>,
    values: Vec<Value>,
    /// The first part creates a row, or finds that it is there; then the others write nothing.
    creates: bool,
}

impl Statement {
    /// The next parameter's name.
    fn parameter(&mut self, value: Value) -> String {
        self.values.push(value);
        format!("${}", self.values.len())
    }

    /// Columns with what they are set to.
    fn set(&mut self, columns: Vec<Assignment>) -> Vec<String> {
        columns.into_iter().map(|(column, value)| format!("{column} = {}", self.parameter(value))).collect()
    }

    fn update(&mut self, table: &str, columns: Vec<String>, key: Vec<Assignment>) {
        if columns.is_empty() {
            return;
        }
        let key = self.set(key).join(" AND ");
        self.parts.push(format!("UPDATE {table} SET {} WHERE {key}", columns.join(", ")));
    }

    /// The row of a run, unless one stands in its way.
    fn create(&mut self, row: Vec<Assignment>) {
        let row = row.into_iter().filter(|(column, _)| *column != "changed_at").collect();
        let (columns, values) = self.row(row);
        self.creates = true;
        self.parts.push(format!(
            "INSERT INTO runs (changed_at, {columns}) SELECT ds_now_v1(), {values} ON CONFLICT DO NOTHING RETURNING id"
        ));
    }

    fn insert(&mut self, table: &str, row: Vec<Assignment>) {
        let (columns, values) = self.row(row);
        let guard = if self.creates { " WHERE EXISTS (SELECT FROM part_0)" } else { "" };
        self.parts.push(format!("INSERT INTO {table} ({columns}) SELECT {values}{guard}"));
    }

    /// Columns, and what they are.
    fn row(&mut self, row: Vec<Assignment>) -> (String, String) {
        let columns: Vec<_> = row.iter().map(|(column, _)| *column).collect();
        let values: Vec<_> = row.into_iter().map(|(_, value)| self.parameter(value)).collect();
        (columns.join(", "), values.join(", "))
    }

    /// Its text and its parameters.
    fn finish(self) -> (String, Vec<Value>) {
        let parts: Vec<_> = self
            .parts
            .iter()
            .enumerate()
            .map(|(number, part)| format!("part_{number} AS ({part})"))
            .collect();
        let is_written = if self.creates { "EXISTS (SELECT FROM part_0)" } else { "true" };
        (format!("WITH {} SELECT {is_written} AS is_written", parts.join(", ")), self.values)
    }
}
