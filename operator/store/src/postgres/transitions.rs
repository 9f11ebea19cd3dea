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

use std::collections::BTreeMap;

use dalsegno_protocol::Policy;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use super::columns::bind;
use super::pool::{Pool, Transaction};
use super::read::NOW;
use super::row::{number, text};
use crate::db_error::{DbError, DbResult};
use crate::reads::{
    Assignment, AttemptRow, BoundaryColumn, CallRow, Column, Columns, EnumText, FoundRuns, LIVE_BOUNDARIES,
    LiveBoundary, RunRow, Value, record_sql,
};
use crate::transitions::{AuditEntry, Decision, Needs, Rows, Template, Transition, WriteSet};
use crate::{Place, Result, RunId};

impl Postgres {
    /// Does a transition of a run.
    pub(super) async fn transition<T: Transition>(&self, run: RunId, rule: T) -> Result<T::Answer> {
        self.transact(run, &rule).await.map_err(|fault| fault.with_context(T::OPERATION))
    }

    pub(super) async fn transact<T: Transition>(&self, run: RunId, rule: &T) -> DbResult<T::Answer> {
        let place = self.pool.join(run);
        let work = async {
            let _served = place.acquire().await?;
            let (mut transaction, rows) = self.lock(run, rule.needs()).await?;
            let Some(mut rows) = rows else {
                transaction.roll_back().await?;
                return rule.without_run(run);
            };
            read_more(&mut transaction, rule.needs(), &mut rows).await?;
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

    /// The same of a rule that mostly changes nothing, and needs nothing but the run and its attempts: one trip, and no
    /// lock, where a look at them shows that it would not.
    pub(super) async fn look_then_transact<T: Transition>(
        &self,
        run: RunId,
        rule: &T,
    ) -> DbResult<T::Answer> {
        let Some(of_run) = self.rows_of(run).await? else { return rule.without_run(run) };
        let Decision { write, answer } = rule.decide(Rows::new(of_run, BTreeMap::new()))?;
        if write.is_empty() { Ok(answer) } else { self.transact(run, rule).await }
    }

    /// Locks a run's row, and reads what every rule needs once it is locked.
    pub(super) async fn lock(
        &self,
        run: RunId,
        needs: Needs<'_>,
    ) -> DbResult<(Transaction<'_>, Option<Rows>)> {
        let record = record_sql(&format!("r.id = '{run}'"), NOW);
        let templates = match needs {
            Needs::Templates => LOCK_TEMPLATES,
            Needs::Nothing | Needs::BoundariesFrom(_) | Needs::Call(_) => "",
        };
        let sql = format!(
            "SELECT FROM runs WHERE id = '{run}' FOR UPDATE; {record}; \
             SELECT policy, count(*) AS count FROM calls WHERE run = '{run}' AND state = 'started' GROUP BY policy; \
             {templates}"
        );
        let (transaction, answers) = self.pool.begin(&sql).await?;
        let [_, record, started, ..] = &answers[..] else {
            return Err(DbError::Corrupt(format!("{} statements answered", answers.len())));
        };
        let Some(of_run) = FoundRuns::read(record, None)?.runs.pop() else { return Ok((transaction, None)) };
        let of_policy =
            |row: &_| Ok((EnumText::<Policy>::read(row, "policy")?.0, Column::read(row, "count")?));
        let started = started.iter().map(of_policy).collect::<DbResult<_>>()?;
        Ok((transaction, Some(Rows::new(of_run, started))))
    }
}

/// Whoever drops templates waits for the end of the transaction, and this one for theirs: what is found there is named
/// before anybody looks for what nobody names.
const LOCK_TEMPLATES: &str = "SELECT pg_advisory_xact_lock_shared(hashtextextended('templates', 0))";

/// A call, and what the open calls of its run count.
const CALL: &str = "SELECT calls.*, ds_open_calls_v1(runs) AS open_calls \
     FROM runs LEFT JOIN calls ON calls.run = runs.id AND calls.id = $2 WHERE runs.id = $1";

const ATTEMPT: &str = "SELECT * FROM attempts WHERE run = $1 AND number = $2";

/// Reads what only some rules need.
async fn read_more(transaction: &mut Transaction<'_>, needs: Needs<'_>, rows: &mut Rows) -> DbResult<()> {
    let run = rows.of_run.run.id;
    match needs {
        Needs::Nothing | Needs::Templates => {}
        Needs::BoundariesFrom(place) => {
            let query = sqlx::query(LIVE_BOUNDARIES).bind(run).bind(place.turn).bind(number(place.boundary));
            let found = transaction.all(query).await?;
            rows.boundaries = found.iter().map(LiveBoundary::read).collect::<DbResult<_>>()?;
            if let Some(number) = rows.missing_attempt(place) {
                let found = transaction.all(sqlx::query(ATTEMPT).bind(run).bind(number)).await?;
                rows.of_run.attempts.extend(found.first().map(AttemptRow::read).transpose()?);
            }
        }
        Needs::Call(id) => {
            let found = transaction.all(sqlx::query(CALL).bind(run).bind(text(id))).await?;
            let row = found.first().ok_or_else(|| DbError::Corrupt("a locked run is not there".into()))?;
            rows.open_calls = Column::read(row, "open_calls")?;
            rows.call = Columns::text(row, "id")?.map(|_| CallRow::read(row)).transpose()?;
        }
    }
    Ok(())
}

/// Writes what a transition has decided, in one statement of its transaction. False, and nothing is written: a run that
/// was to be created is there.
pub(super) async fn apply(transaction: &mut Transaction<'_>, set: WriteSet) -> DbResult<bool> {
    let (sql, values) = statement(set).finish();
    is_written(&transaction.all(bind_all(&sql, values)).await?)
}

/// The same of a run that is created, which has no lock.
pub(super) async fn create(pool: &Pool, set: WriteSet) -> DbResult<bool> {
    let (sql, values) = statement(set).finish();
    is_written(&pool.all(bind_all(&sql, values)).await?)
}

fn is_written(rows: &[PgRow]) -> DbResult<bool> {
    let row = rows.first().ok_or_else(|| DbError::Corrupt("a write answered nothing".into()))?;
    Ok(row.try_get("is_written")?)
}

fn statement(set: WriteSet) -> Statement {
    let WriteSet {
        run,
        created,
        run_columns,
        is_change,
        attempt_columns,
        reserved,
        call_columns,
        undo_after,
        template,
        audit,
    } = set;
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
    if let Some((id, columns)) = call_columns {
        let columns = statement.set(columns);
        statement.update(CallRow::TABLE, columns, vec![("run", run.value()), ("id", id.value())]);
    }
    if let Some(place) = undo_after {
        statement.undo(run, place);
    }
    if let Some(template) = template {
        statement.keep(template);
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

    /// What came after a boundary is undone.
    fn undo(&mut self, run: RunId, place: Place) {
        let run = self.parameter(run.value());
        let turn = self.parameter(place.turn.value());
        let boundary = self.parameter(BoundaryColumn(place.boundary).value());
        let epoch = self.parameter(place.epoch.value());
        let (live, place) = (format!("run = {run} AND NOT undone"), format!("({turn}, {boundary})"));
        self.parts.push(format!(
            "UPDATE boundaries SET undone = true WHERE {live} \
             AND ((turn, boundary) > {place} OR ((turn, boundary) = {place} AND epoch <> {epoch}))"
        ));
        for table in ["records", "record_batches", "record_changes"] {
            self.parts.push(format!(
                "UPDATE {table} SET undone = true WHERE {live} AND (turn, boundary) > {place}"
            ));
        }
    }

    /// A template, unless it is there.
    fn keep(&mut self, template: Template) {
        let Template { hash, document } = template;
        let (hash, document) = (self.parameter(hash.value()), self.parameter(document.value()));
        self.parts.push(format!(
            "INSERT INTO revisions (hash, document, created_at) SELECT {hash}, {document}, ds_now_v1() \
             ON CONFLICT (hash) DO NOTHING"
        ));
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
