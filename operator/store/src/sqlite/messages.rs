//! Messages: people send them, and read them.

use super::database::{QueryExecutor as _, Sqlite};
use super::message_statements::read;
use crate::messages::{AUTHORS, page};
use crate::reads::MessageRow;
use crate::transitions::SendMessage;
use dalsegno_model::{MessagePage, MessageQuery, NewMessage, Result, RunId, Sent};

impl Sqlite {
    pub(super) async fn do_send_message(&self, message: &NewMessage) -> Result<Sent> {
        let cipher = self.cipher_to_write(message.run).await?;
        let rule = SendMessage::of(message, &cipher)?.unless_full(self.room().check());
        let sent = self.transition(message.run, rule).await?;
        if matches!(sent, Sent::Conflict | Sent::Finished) {
            self.check_can_compare(message.run).await?;
        }
        Ok(sent)
    }

    pub(super) async fn read_message_page(&self, run: RunId, query: MessageQuery) -> Result<MessagePage> {
        let operation = "reading messages";
        let read = self.read(operation, move |conn, _| Box::pin(read(conn, run, query)));
        let (rows, found) = read.await?;
        let cipher = self.cipher_to_read(run, rows.iter().any(MessageRow::looks_sealed)).await?;
        page(&rows, found, &query, &cipher).map_err(|fault| fault.with_context(operation))
    }

    pub(super) async fn read_message_authors(&self, run: RunId) -> Result<Vec<String>> {
        self.read("listing the authors of messages", move |conn, _| {
            Box::pin(async move { Ok(sqlx::query_scalar(AUTHORS).bind(run).fetch_all(conn).await?) })
        })
        .await
    }
}
