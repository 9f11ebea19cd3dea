//! Pages of messages, for both databases.

use crate::db_error::DbResult;
use crate::reads::MessageRow;
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::{MessagePage, MessageQuery};

/// A page of messages of the run `$1` after the position `$2`: at most `$3`, or one message more than `$4` bytes.
/// `found`: how many there are, those without room on the page included.
pub(crate) fn page_sql(unread_only: bool) -> String {
    let unread = if unread_only { " AND taken_turn IS NULL" } else { "" };
    let columns = MessageRow::columns_of("m");
    format!(
        "WITH page AS ( \
             SELECT position, count(*) OVER () AS found, sum(bytes) OVER (ORDER BY position) - bytes AS before \
             FROM (SELECT position, bytes FROM messages WHERE run = $1 AND position > $2{unread} \
                   ORDER BY position LIMIT $3) AS next \
         ) \
         SELECT {columns}, page.found FROM page JOIN messages m ON m.run = $1 AND m.position = page.position \
         WHERE page.before < $4 ORDER BY m.position"
    )
}

/// Everybody who has sent a message to the run `$1`.
pub(crate) const AUTHORS: &str = "SELECT DISTINCT author FROM messages WHERE run = $1 ORDER BY author";

/// The page of these rows. `found`: how many rows there were, one more than the limit at most.
pub(crate) fn page(
    rows: &[MessageRow],
    found: i64,
    query: &MessageQuery,
    cipher: &PayloadCipher,
) -> DbResult<MessagePage> {
    let limit = query.limit as usize;
    let shown = &rows[..rows.len().min(limit)];
    let has_more = usize::try_from(found).is_ok_and(|found| found > shown.len());
    Ok(MessagePage {
        messages: shown.iter().map(|row| row.public(cipher)).collect::<DbResult<_>>()?,
        next: shown.last().filter(|_| has_more).map(|row| row.position),
    })
}
