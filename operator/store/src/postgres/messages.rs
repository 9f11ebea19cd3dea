//! Messages to a run.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use super::commit_statement::Proposed;
use super::transaction::Transaction;
use crate::db_error::DbResult;
use crate::messages::{AUTHORS, page, page_sql};
use crate::reads::MessageRow;
use crate::transitions::SendMessage;
use dalsegno_model::{MessagePage, MessageQuery, NewMessage, RunId, Sent};

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
}

/// A boundary that this transaction has committed takes messages. Returns the first of them that there is not.
pub(super) async fn take(
    transaction: &mut Transaction<'_>,
    proposed: &Proposed,
    positions: &[i64],
) -> DbResult<Option<i64>> {
    if positions.is_empty() {
        return Ok(None);
    }
    let (turn, boundary) = proposed.turn_and_boundary();
    let query = sqlx::query(TAKE).bind(proposed.run).bind(turn).bind(boundary).bind(positions);
    transaction.all(query).await?.first().map_or(Ok(None), |row| Ok(row.try_get("missing")?))
}
