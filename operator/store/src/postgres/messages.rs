//! Messages to a run.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use super::commit_statement::{Extras, Proposed, commit_one, parse_committed};
use crate::db_error::DbResult;
use crate::messages::{AUTHORS, page, page_sql};
use crate::reads::MessageRow;
use crate::transitions::SendMessage;
use dalsegno_model::{Committed, MessagePage, MessageQuery, NewMessage, RunId, Sent};

const TAKE: &str = "SELECT ds_take_messages_v1($1, $2, $3, $4) AS missing";

impl Postgres {
    pub(super) async fn do_send_message(&self, message: &NewMessage) -> DbResult<Sent> {
        // People send rarely: the data key is read anew, so that it is the stored one.
        self.keys.forget(message.run);
        let cipher = self.cipher_to_write(message.run).await?;
        let sent = self.transact(message.run, &SendMessage::of(message, &cipher)?).await?;
        if matches!(sent, Sent::Conflict | Sent::Finished) {
            self.ensure_comparable(message.run).await?;
        }
        Ok(sent)
    }

    pub(super) async fn do_messages(&self, run: RunId, query: MessageQuery) -> DbResult<MessagePage> {
        let rows = self
            .pool
            .all(
                sqlx::query(AssertSqlSafe(page_sql(query.unread_only)))
                    .bind(run)
                    .bind(query.after)
                    .bind(i64::from(query.limit) + 1)
                    .bind(i64::try_from(query.bytes).unwrap_or(i64::MAX)),
            )
            .await?;
        let found: i64 = rows.first().map_or(Ok(0), |row| row.try_get("found"))?;
        let rows = rows.iter().map(MessageRow::read).collect::<DbResult<Vec<_>>>()?;
        let cipher = self.cipher_to_read(run, rows.iter().any(MessageRow::looks_sealed)).await?;
        page(&rows, found, &query, &cipher)
    }

    pub(super) async fn do_message_authors(&self, run: RunId) -> DbResult<Vec<String>> {
        let rows = self.pool.all(sqlx::query(AUTHORS).bind(run)).await?;
        rows.iter().map(|row: &PgRow| Ok(row.try_get("author")?)).collect()
    }

    /// Commits a boundary that takes messages: both happen in one transaction, or neither.
    pub(super) async fn commit_and_take(
        &self,
        proposed: &Proposed,
        extras: Extras,
        positions: &[i64],
    ) -> DbResult<Option<Committed>> {
        let run = proposed.run;
        let queued = self.pool.join(run);
        let work = async {
            let _served = queued.acquire().await?;
            let lock = format!("SELECT FROM runs WHERE id = '{run}' FOR UPDATE");
            let (mut transaction, _) = self.pool.begin(&lock).await?;
            let rows = transaction.all(commit_one(proposed, extras)).await?;
            let committed = rows.first().map_or(Ok(Some(Committed::NotFound)), parse_committed)?;
            if !matches!(committed, Some(Committed::Ok(_))) {
                // A duplicate has recorded that it reports a cancel or a suspend.
                transaction.commit().await?;
                return Ok(committed);
            }
            let (turn, boundary) = proposed.turn_and_boundary();
            let query = sqlx::query(TAKE).bind(run).bind(turn).bind(boundary).bind(positions);
            let taken = transaction.all(query).await?;
            let missing = taken.first().map_or(Ok(None), |row| row.try_get::<Option<i64>, _>("missing"))?;
            if let Some(position) = missing {
                transaction.rollback().await?;
                return Ok(Some(Committed::NoSuchMessage { position }));
            }
            transaction.commit().await?;
            Ok(committed)
        };
        self.pool.with_timeout(work).await
    }
}
