//! Reads of encrypted payloads: events, calls and records. Each reads the rows first and then gets the cipher, because
//! a data key may be made in between.

use dalsegno_protocol::Call;

use super::database::{QueryExecutor as _, Sqlite};
use super::{calls, events, records};
use crate::events::StoredEvents;
use crate::reads::CallRow;
use dalsegno_format::records::page;
use dalsegno_format::seal::is_sealed;
use dalsegno_model::{CallFilter, EventPage, EventQuery, RecordPage, RecordQuery, Result, RunId};

impl Sqlite {
    pub(super) async fn read_event_page(&self, run: RunId, query: EventQuery) -> Result<EventPage> {
        let read = self.read("reading events", move |conn, _| Box::pin(events::read(conn, run, query)));
        let (found, over) = read.await?;
        let cipher = self.cipher_to_read(run, found.iter().any(StoredEvents::looks_sealed)).await?;
        Ok(EventPage { events: crate::events::page(found, &query, &cipher)?, over })
    }

    pub(super) async fn list_calls(&self, run: RunId, which: CallFilter) -> Result<Vec<Call>> {
        let operation = "listing calls";
        let rows = self.read(operation, move |conn, _| Box::pin(calls::list(conn, run, which))).await?;
        let cipher = self.cipher_to_read(run, rows.iter().any(CallRow::looks_sealed)).await?;
        rows.iter().map(|row| row.public(&cipher).map_err(|fault| fault.with_context(operation))).collect()
    }

    pub(super) async fn read_record_page(&self, run: RunId, query: RecordQuery) -> Result<RecordPage> {
        let wanted = query.clone();
        let rows = self.read("reading records", move |conn, _| Box::pin(records::read(conn, run, wanted)));
        let rows = rows.await?;
        let cipher = self.cipher_to_read(run, rows.iter().any(|row| is_sealed(&row.value))).await?;
        let found = rows.first().map_or(0, |row| row.found);
        let entries = rows.into_iter().map(|row| row.decrypt(&query.space, &cipher));
        Ok(page(entries.collect::<Result<_>>()?, found, &query))
    }
}
