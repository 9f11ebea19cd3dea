//! Transitions under the lock of the run's row.
//!
//! # Guarantees
//!
//! - A transition takes three round trips, or two if it writes nothing. The first begins the transaction, locks the
//!   run's row and then reads the rows that every rule needs. The rule decides. The second writes, in one statement.
//!   The third commits. A rule that needs more rows takes one or two round trips more to read them.
//! - The lock is granted in the order of requests: on a busy run, too, a transition waits only for those before it.
//! - A call that fails or is cancelled leaves no open transaction on a pooled connection ([`Transaction`]). The server
//!   ends the transaction of a client that has died.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use dalsegno_protocol::{Boundary, Policy};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use super::fork;
use super::pool::Pool;
use super::read::{NOW, attempt_query};
use super::row::{boundary_number, without_nul};
use super::sqlx_types::bind;
use super::transaction::Transaction;
use super::waits;
use crate::db_error::{DbError, DbResult};
use crate::reads::{
    Assignment, AttemptRow, BoundaryColumn, CallRow, Column, Columns, EnumText, FoundRuns, LIVE_BOUNDARIES,
    LiveBoundary, MessageRef, MessageRow, OpenWaitsSql, RunRow, TakenSince, Value, WaitRow, record_sql,
};
use crate::statements::{EFFECTS_SINCE, IS_LIVE};
use crate::transitions::{
    AuditEntry, Decision, LastAudit, MovedRateLimit, Needs, OutboxEntry, Rows, Transition, UndoQuery,
    WriteSet,
};
use dalsegno_model::{BoundaryId, Result, RunId, Template};

impl Postgres {
    /// Runs a transition of a run; an error names the operation.
    pub(super) async fn transition<T: Transition>(&self, run: RunId, rule: T) -> Result<T::Answer> {
        self.transact(run, &rule).await.map_err(|fault| fault.with_context(T::OPERATION))
    }

    /// Runs a transition of a run under the lock of its row.
    pub(super) async fn transact<T: Transition>(&self, run: RunId, rule: &T) -> DbResult<T::Answer> {
        let queued = self.pool.join(run);
        let work = async {
            let _served = queued.acquire().await?;
            let (mut transaction, rows) = self.lock(run, rule.needs()).await?;
            let Some(mut rows) = rows else {
                transaction.rollback().await?;
                return rule.without_run(run);
            };
            read_more(&mut transaction, rule.needs(), &mut rows).await?;
            let Decision { write, answer } = rule.decide(rows)?;
            if write.is_empty() {
                transaction.rollback().await?;
            } else {
                apply(&mut transaction, write).await?;
                transaction.commit().await?;
            }
            Ok(answer)
        };
        let mut answer = self.pool.with_timeout(work).await?;
        self.open_texts(&mut answer).await?;
        Ok(answer)
    }

    /// Runs a transition that rarely writes, and whose rule needs only the run and its attempts. If the rule writes
    /// nothing on the rows as they are without the lock, this takes one round trip and no lock.
    pub(super) async fn read_then_transact<T: Transition>(
        &self,
        run: RunId,
        rule: &T,
    ) -> DbResult<T::Answer> {
        let Some(of_run) = self.run_rows(run).await? else { return rule.without_run(run) };
        let Decision { write, answer } = rule.decide(Rows::new(of_run, BTreeMap::new()))?;
        if write.is_empty() { Ok(answer) } else { self.transact(run, rule).await }
    }

    /// Begins a transaction, locks a run's row, and then reads what every rule needs. `None`: there is no such run.
    pub(super) async fn lock(
        &self,
        run: RunId,
        needs: Needs<'_>,
    ) -> DbResult<(Transaction<'_>, Option<Rows>)> {
        let sql = format!("SELECT FROM runs WHERE id = '{run}' FOR UPDATE; {}", rows_sql(run, needs));
        let (transaction, results) = self.pool.begin(&sql).await?;
        let rows = read_rows(results.get(1..).unwrap_or_default())?;
        Ok((transaction, rows))
    }
}

/// Statements that read what every rule needs of a run.
fn rows_sql(run: RunId, needs: Needs<'_>) -> String {
    let record = record_sql(&format!("r.id = '{run}'"), NOW, OpenWaitsSql::Postgres);
    let templates = match needs {
        Needs::Templates => LOCK_TEMPLATES,
        Needs::Nothing
        | Needs::BoundariesFrom(_)
        | Needs::Undo(_)
        | Needs::Call(_)
        | Needs::Message(_)
        | Needs::LastAudit
        | Needs::Waits(_) => "",
    };
    format!(
        "{record}; \
         SELECT policy, count(*) AS count FROM calls WHERE run = '{run}' AND state = 'started' GROUP BY policy; \
         {templates}"
    )
}

/// The results of [`rows_sql`]. `None`: there is no such run.
fn read_rows(results: &[Vec<PgRow>]) -> DbResult<Option<Rows>> {
    let [record, started, ..] = results else {
        return Err(DbError::Corrupt(format!("{} statements returned a result", results.len())));
    };
    let Some(of_run) = FoundRuns::read(record, None)?.runs.pop() else { return Ok(None) };
    let count_of_policy =
        |row: &_| Ok((EnumText::<Policy>::read(row, "policy")?.0, Column::read(row, "count")?));
    let started = started.iter().map(count_of_policy).collect::<DbResult<_>>()?;
    Ok(Some(Rows::new(of_run, started)))
}

/// Runs a rule in a transaction that holds the lock of the run's row and has written to it. The caller commits, or
/// rolls back.
pub(super) async fn transact_within<T: Transition>(
    transaction: &mut Transaction<'_>,
    run: RunId,
    rule: &T,
) -> DbResult<T::Answer> {
    let results = transaction.run_simple(rows_sql(run, rule.needs())).await?;
    let Some(mut rows) = read_rows(&results)? else { return rule.without_run(run) };
    read_more(transaction, rule.needs(), &mut rows).await?;
    let Decision { write, answer } = rule.decide(rows)?;
    if !write.is_empty() {
        apply(transaction, write).await?;
    }
    Ok(answer)
}

/// Excludes the transactions that delete unused templates, which take the same lock exclusively: a template that this
/// transaction finds is referenced before anything can delete it as unused.
const LOCK_TEMPLATES: &str = "SELECT pg_advisory_xact_lock_shared(hashtextextended('templates', 0))";

/// A call, and the sum of the open calls of its run in bytes.
static CALL: LazyLock<String> = LazyLock::new(|| {
    let call = CallRow::columns_of("calls");
    format!(
        "SELECT {call}, ds_open_calls_v1(runs) AS open_calls \
         FROM runs LEFT JOIN calls ON calls.run = runs.id AND calls.id = $2 WHERE runs.id = $1"
    )
});

/// Reads the rows that only some rules need.
async fn read_more(transaction: &mut Transaction<'_>, needs: Needs<'_>, rows: &mut Rows) -> DbResult<()> {
    let run = rows.of_run.run.id;
    match needs {
        Needs::Nothing | Needs::Templates => {}
        Needs::BoundariesFrom(first) => {
            let query =
                sqlx::query(LIVE_BOUNDARIES).bind(run).bind(first.turn).bind(boundary_number(first.boundary));
            let found = transaction.all(query).await?;
            rows.boundaries = found.iter().map(LiveBoundary::read).collect::<DbResult<_>>()?;
            read_taken(transaction, first, rows).await?;
        }
        Needs::Undo(query) => read_undo(transaction, query, rows).await?,
        Needs::Call(id) => {
            let found = transaction
                .all(sqlx::query(AssertSqlSafe(CALL.as_str())).bind(run).bind(without_nul(id)))
                .await?;
            let row = found.first().ok_or_else(|| DbError::Corrupt("a locked run does not exist".into()))?;
            rows.open_calls = Column::read(row, "open_calls")?;
            rows.call = Columns::text(row, "id")?.map(|_| CallRow::read(row)).transpose()?;
        }
        Needs::Message(id) => {
            let query = sqlx::query(MessageRef::SQL).bind(run).bind(without_nul(id));
            rows.message = transaction.all(query).await?.first().map(MessageRef::read).transpose()?;
        }
        Needs::LastAudit => {
            let found = transaction.all(sqlx::query(LastAudit::SQL).bind(run)).await?;
            let last = |row: &PgRow| -> DbResult<_> {
                Ok(LastAudit {
                    kind: row.try_get("kind")?,
                    detail: row.try_get("detail")?,
                    has_moved: row.try_get("has_moved")?,
                })
            };
            rows.last_audit = found.first().map(last).transpose()?;
        }
        Needs::Waits(query) => waits::load(transaction, query, rows).await?,
    }
    Ok(())
}

/// Reads what a rewind by turns needs.
async fn read_undo(transaction: &mut Transaction<'_>, query: UndoQuery, rows: &mut Rows) -> DbResult<()> {
    let (run, UndoQuery { to_turn, if_head }) = (rows.of_run.run.id, query);
    let query = sqlx::query(LIVE_BOUNDARIES).bind(run).bind(to_turn).bind(boundary_number(Boundary::Result));
    let found = transaction.all(query).await?;
    rows.boundaries = found.iter().map(LiveBoundary::read).collect::<DbResult<_>>()?;
    let query = sqlx::query(EFFECTS_SINCE).bind(run).bind(to_turn.saturating_add(1));
    let found = transaction.all(query).await?;
    rows.effects = found.iter().map(|row| Ok(row.try_get("id")?)).collect::<DbResult<_>>()?;
    if let Some(if_head) = if_head {
        let found = transaction.all(sqlx::query(IS_LIVE).bind(run).bind(Vec::from(if_head))).await?;
        rows.has_if_head = found.first().map_or(Ok(false), |row| row.try_get("is_live"))?;
    }
    match rows.result_of_turn(to_turn) {
        Some(target) => read_taken(transaction, target, rows).await,
        None => Ok(()),
    }
}

/// Reads the messages that boundaries after this one have taken, and the attempt that committed it.
async fn read_taken(transaction: &mut Transaction<'_>, first: BoundaryId, rows: &mut Rows) -> DbResult<()> {
    let run = rows.of_run.run.id;
    if rows.has_taken_messages() {
        let query = sqlx::query(TakenSince::SQL).bind(run).bind(first.turn);
        let query = query.bind(boundary_number(first.boundary)).bind(first.epoch);
        let found = transaction.all(query).await?;
        rows.taken_since = found.first().map(TakenSince::read).transpose()?.unwrap_or_default();
    }
    if let Some(number) = rows.missing_attempt(first) {
        let found = transaction.all(attempt_query().bind(run).bind(number)).await?;
        rows.of_run.attempts.extend(found.first().map(AttemptRow::read).transpose()?);
    }
    Ok(())
}

/// Writes the changes of a transition, in one statement of its transaction. Returns false, and writes nothing, if the
/// run to be created exists already.
pub(super) async fn apply(transaction: &mut Transaction<'_>, mut set: WriteSet) -> DbResult<bool> {
    if let Some(records) = set.copied_records.take() {
        fork::apply_records(transaction, set.run, records).await?;
    }
    if let Some(base) = &set.base {
        fork::check_key(transaction, set.run, base).await?;
    }
    let (sql, values) = statement(set).finish();
    is_written(&transaction.all(bind_all(&sql, values)).await?)
}

/// Creates a run, outside a transaction: there is no row to lock yet. Returns as [`apply`].
pub(super) async fn apply_create(pool: &Pool, set: WriteSet) -> DbResult<bool> {
    let (sql, values) = statement(set).finish();
    is_written(&pool.all(bind_all(&sql, values)).await?)
}

fn is_written(rows: &[PgRow]) -> DbResult<bool> {
    let row = rows.first().ok_or_else(|| DbError::Corrupt("a write returned no row".into()))?;
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
        wait_columns,
        opened_wait,
        moved_rate_limit,
        undo_after,
        // Stored by a statement of its own.
        copied_records: _,
        base,
        message,
        template,
        outbox,
        audit,
    } = set;
    let mut statement = Statement::default();
    if let Some(created) = created {
        statement.create(created.assignments());
    }
    let mut columns = statement.assignments(run_columns);
    if is_change {
        columns.push("changed_at = ds_now_v1()".into());
    }
    statement.update(RunRow::TABLE, columns, vec![("id", run.value())]);
    for (number, columns) in attempt_columns {
        let columns = statement.assignments(columns);
        let key = vec![("run", run.value()), ("number", number.value())];
        statement.update(AttemptRow::TABLE, columns, key);
    }
    for attempt in reserved {
        statement.insert(AttemptRow::TABLE, attempt.assignments());
    }
    if let Some((id, columns)) = call_columns {
        let columns = statement.assignments(columns);
        statement.update(CallRow::TABLE, columns, vec![("run", run.value()), ("id", id.value())]);
    }
    for ((id, epoch), columns) in wait_columns {
        let columns = statement.assignments(columns);
        let key = vec![("run", run.value()), ("id", id.value()), ("epoch", epoch.value())];
        statement.update(WaitRow::TABLE, columns, key);
    }
    if let Some(wait) = opened_wait {
        statement.insert(WaitRow::TABLE, wait);
    }
    if let Some(moved) = moved_rate_limit {
        statement.move_rate_limit(run, moved);
    }
    if let Some(base) = base {
        statement.insert("boundaries", base.columns);
    }
    if let Some(last) = undo_after {
        statement.undo_after(run, last);
    }
    if let Some(message) = message {
        statement.insert(MessageRow::TABLE, message.assignments());
    }
    if let Some(template) = template {
        statement.insert_template(template);
    }
    for entry in outbox {
        statement.insert(OutboxEntry::TABLE, entry.assignments(run));
    }
    for entry in audit {
        statement.insert(AuditEntry::TABLE, entry.assignments(run));
    }
    statement
}

fn bind_all(sql: &str, values: Vec<Value>) -> Query<'_, sqlx::Postgres, PgArguments> {
    values.into_iter().fold(sqlx::query(AssertSqlSafe(sql)), bind)
}

/// A statement of several parts. No two parts change the same row.
#[derive(Default)]
struct Statement {
    parts: Vec<String>,
    values: Vec<Value>,
    /// Whether the first part creates the run. If the run exists already, the other parts write nothing.
    creates: bool,
}

impl Statement {
    /// Adds a parameter and returns its name.
    fn parameter(&mut self, value: Value) -> String {
        self.values.push(value);
        format!("${}", self.values.len())
    }

    /// `column = parameter` for each assignment.
    fn assignments(&mut self, columns: Vec<Assignment>) -> Vec<String> {
        columns.into_iter().map(|(column, value)| format!("{column} = {}", self.parameter(value))).collect()
    }

    fn update(&mut self, table: &str, columns: Vec<String>, key: Vec<Assignment>) {
        if columns.is_empty() {
            return;
        }
        let key = self.assignments(key).join(" AND ");
        self.parts.push(format!("UPDATE {table} SET {} WHERE {key}", columns.join(", ")));
    }

    /// Inserts the row of a run unless it conflicts with an existing one.
    fn create(&mut self, row: Vec<Assignment>) {
        let row = row.into_iter().filter(|(column, _)| *column != "changed_at").collect();
        let (columns, values) = self.columns_and_values(row);
        self.creates = true;
        self.parts.push(format!(
            "INSERT INTO runs (changed_at, {columns}) SELECT ds_now_v1(), {values} ON CONFLICT DO NOTHING RETURNING id"
        ));
    }

    fn insert(&mut self, table: &str, row: Vec<Assignment>) {
        let (columns, values) = self.columns_and_values(row);
        let guard = if self.creates { " WHERE EXISTS (SELECT FROM part_0)" } else { "" };
        self.parts.push(format!("INSERT INTO {table} ({columns}) SELECT {values}{guard}"));
    }

    /// Marks everything after a boundary as undone.
    fn undo_after(&mut self, run: RunId, last: BoundaryId) {
        let run = self.parameter(run.value());
        let turn = self.parameter(last.turn.value());
        let boundary = self.parameter(BoundaryColumn(last.boundary).value());
        let epoch = self.parameter(last.epoch.value());
        let (live, last) = (format!("run = {run} AND NOT undone"), format!("({turn}, {boundary})"));
        self.parts.push(format!(
            "UPDATE boundaries SET undone = true WHERE {live} \
             AND ((turn, boundary) > {last} OR ((turn, boundary) = {last} AND epoch <> {epoch}))"
        ));
        self.parts.push(TakenSince::give_back(&run, [&turn, &boundary, &epoch]));
        for table in ["records", "record_batches", "record_changes", "waits"] {
            self.parts
                .push(format!("UPDATE {table} SET undone = true WHERE {live} AND (turn, boundary) > {last}"));
        }
    }

    /// Moves the waits of other runs for a rate limit. One that another transaction holds is left: it is being changed.
    fn move_rate_limit(&mut self, run: RunId, moved: MovedRateLimit) {
        let MovedRateLimit { tenant, provider, reset_at } = moved;
        let (run, tenant) = (self.parameter(run.value()), self.parameter(tenant.value()));
        let (provider, reset_at) = (self.parameter(provider.value()), self.parameter(reset_at.value()));
        let most = MovedRateLimit::MOST_MS;
        self.parts.push(format!(
            "UPDATE waits SET wake_at = waits.wake_at + later.by_ms, reset_at = waits.reset_at + later.by_ms \
             FROM (SELECT w.run, w.id, w.epoch, least({reset_at} - w.reset_at, {most}) AS by_ms \
                   FROM waits AS w JOIN runs ON runs.id = w.run \
                   WHERE w.provider = {provider} AND w.kind = 'rateLimit' AND w.state = 'open' AND NOT w.undone \
                     AND w.run <> {run} AND w.reset_at < {reset_at} AND runs.tenant = {tenant} \
                   FOR UPDATE OF w SKIP LOCKED) AS later \
             WHERE (waits.run, waits.id, waits.epoch) = (later.run, later.id, later.epoch)"
        ));
    }

    /// Inserts a template unless it exists.
    fn insert_template(&mut self, template: Template) {
        let Template { hash, document } = template;
        let (hash, document) = (self.parameter(hash.value()), self.parameter(document.value()));
        self.parts.push(format!(
            "INSERT INTO revisions (hash, document, created_at) SELECT {hash}, {document}, ds_now_v1() \
             ON CONFLICT (hash) DO NOTHING"
        ));
    }

    /// The columns of a row, and their parameters.
    fn columns_and_values(&mut self, row: Vec<Assignment>) -> (String, String) {
        let columns: Vec<_> = row.iter().map(|(column, _)| *column).collect();
        let values: Vec<_> = row.into_iter().map(|(_, value)| self.parameter(value)).collect();
        (columns.join(", "), values.join(", "))
    }

    /// The text and the parameters.
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
