//! Waits: statements of rules, and reads.

use std::sync::LazyLock;

use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use super::row::without_nul;
use super::transaction::Transaction;
use crate::db_error::{DbError, DbResult};
use crate::reads::{Column, Columns, StoredWait, proposal};
use crate::statements::{PROPOSAL, RATE_LIMIT_QUEUE, UNREAD_MESSAGE, WAITS_OF_RUN};
use crate::transitions::{
    AnswerWait, OpenWait, RateLimitQuery, RateLimitQueue, Rows, UnreadQuery, WaitsQuery,
};
use dalsegno_format::seal::{PayloadCipher, is_sealed};
use dalsegno_model::{
    Answered, Digest, OpenWaitRequest, Proposal, RunId, Wait, WaitAnswer, WaitOpened, WaitPolled,
};

/// The waits of a run's live branch with these ids.
static NAMED: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {} FROM waits WHERE run = $1 AND id = ANY ($2) AND NOT undone",
        StoredWait::columns_of("waits")
    )
});

/// The waits that workers poll: runs, capabilities and ids.
static STATES: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT runs.id IS NOT NULL AS is_current, {} \
         FROM unnest($1, $2, $3) WITH ORDINALITY AS polled (run, capability, id, idx) \
         LEFT JOIN runs ON runs.id = polled.run AND runs.capability = polled.capability \
         LEFT JOIN waits ON waits.run = runs.id AND waits.id = polled.id AND NOT waits.undone \
         ORDER BY polled.idx",
        StoredWait::columns_of("waits")
    )
});

/// One run at a time counts the waits for a rate limit and adds its own: runs that are limited at the same moment get a
/// place each. It is a statement of its own, so that the count sees what the run before has committed. A transaction takes
/// this lock after the lock of its run, and waits for none after it, so that no two wait for each other.
const LOCK_RATE_LIMIT: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('rateLimit/' || $1::text || '/' || $2::text, 0))";

/// Reads the waits that a rule needs besides the open ones.
pub(super) async fn load(
    transaction: &mut Transaction<'_>,
    query: WaitsQuery<'_>,
    rows: &mut Rows,
) -> DbResult<()> {
    let run = &rows.of_run.run;
    let ids: Vec<_> = query.ids.iter().map(|id| without_nul(id)).collect();
    let found = transaction.all(sqlx::query(AssertSqlSafe(NAMED.as_str())).bind(run.id).bind(ids)).await?;
    rows.named_waits = found.iter().map(StoredWait::read).collect::<DbResult<_>>()?;
    if let Some(RateLimitQuery { provider, probe_ms, first_ms }) = query.rate_limit {
        let (provider, since) = (without_nul(provider), rows.of_run.now - probe_ms);
        transaction.all(sqlx::query(LOCK_RATE_LIMIT).bind(&run.tenant).bind(&provider)).await?;
        let query = sqlx::query(RATE_LIMIT_QUEUE).bind(run.id).bind(&run.tenant).bind(provider);
        let found = transaction.all(query.bind(since).bind(first_ms)).await?;
        let row = found.first().ok_or_else(|| DbError::Corrupt("a count returned no row".into()))?;
        rows.rate_limit = RateLimitQueue {
            others: row.try_get("others")?,
            first: row.try_get("first")?,
            is_probe: row.try_get("is_probe")?,
        };
    }
    if let Some(UnreadQuery { topic }) = query.unread {
        let query = sqlx::query(UNREAD_MESSAGE).bind(run.id).bind(topic.map(without_nul));
        let found = transaction.all(query).await?;
        rows.unread_message = found.first().map_or(Ok(None), |row| row.try_get(0))?;
    }
    Ok(())
}

impl Postgres {
    pub(super) async fn do_open_wait(&self, request: &OpenWaitRequest) -> DbResult<WaitOpened> {
        // A run waits rarely: the data key is read anew, so that it is the stored one.
        self.keys.forget(request.run);
        let cipher = self.cipher_to_write(request.run).await?;
        self.transact(request.run, &OpenWait::of(request, PayloadCipher::clone(&cipher))?).await
    }

    pub(super) async fn do_answer_wait(&self, run: RunId, answer: &WaitAnswer) -> DbResult<Answered> {
        self.keys.forget(run);
        let cipher = self.cipher_to_write(run).await?;
        self.transact(run, &AnswerWait::of(answer, &cipher)?).await
    }

    pub(super) async fn do_wait_states(
        &self,
        waits: &[(RunId, Digest, String)],
    ) -> DbResult<Vec<WaitPolled>> {
        let runs: Vec<_> = waits.iter().map(|(run, _, _)| *run).collect();
        let capabilities: Vec<_> = waits.iter().map(|(_, capability, _)| capability.as_slice()).collect();
        let ids: Vec<_> = waits.iter().map(|(_, _, id)| without_nul(id)).collect();
        let query = sqlx::query(AssertSqlSafe(STATES.as_str())).bind(runs).bind(capabilities).bind(ids);
        let rows = self.pool.all(query).await?;
        let mut states = Vec::with_capacity(rows.len());
        for row in &rows {
            let exists = Columns::text(row, "id")?.is_some();
            states.push(match (row.try_get("is_current")?, exists) {
                (false, _) => WaitPolled::Fenced,
                (true, false) => WaitPolled::NoSuchWait,
                (true, true) => {
                    let wait = StoredWait::read(row)?;
                    let read = async || {
                        self.public_wait(&wait).await.map_err(|fault| fault.with_context("polling waits"))
                    };
                    WaitPolled::of(self.with_fresh_key(wait.row.run, read).await)?
                }
            });
        }
        Ok(states)
    }

    async fn public_wait(&self, wait: &StoredWait) -> DbResult<Wait> {
        let cipher = if wait.looks_sealed() {
            self.cipher_to_read(wait.row.run, true).await?
        } else {
            PayloadCipher::default()
        };
        wait.public(&cipher)
    }

    pub(super) async fn do_waits(&self, run: RunId) -> DbResult<Vec<Wait>> {
        let rows = self.pool.all(sqlx::query(AssertSqlSafe(WAITS_OF_RUN.as_str())).bind(run)).await?;
        let waits = rows.iter().map(StoredWait::read).collect::<DbResult<Vec<_>>>()?;
        let cipher = self.cipher_to_read(run, waits.iter().any(StoredWait::looks_sealed)).await?;
        waits.iter().map(|wait| wait.public(&cipher)).collect()
    }

    pub(super) async fn do_proposal(&self, run: RunId, id: &str, epoch: i64) -> DbResult<Option<Proposal>> {
        let query = sqlx::query(AssertSqlSafe(PROPOSAL.as_str())).bind(run).bind(without_nul(id)).bind(epoch);
        let Some(row) = self.pool.optional(query).await? else { return Ok(None) };
        let (wait, request): (_, Option<Vec<u8>>) = (StoredWait::read(&row)?, Column::read(&row, "request")?);
        let looks_sealed = wait.looks_sealed() || request.as_deref().is_some_and(is_sealed);
        let cipher = self.cipher_to_read(run, looks_sealed).await?;
        proposal(&wait, request.as_deref(), &cipher).map(Some)
    }
}
