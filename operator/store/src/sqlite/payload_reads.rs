//! Reads of encrypted payloads: events, calls and records. Each reads the rows first and then gets the cipher, because
//! a data key may be made in between.

use dalsegno_protocol::{Call, State};

use super::boundary_facts::{self, EncodedFacts};
use super::database::{QueryExecutor as _, Sqlite};
use super::record_reads::{self, Entries};
use super::waits::{self, PolledWait};
use super::{calls, events};
use crate::branch;
use crate::events::StoredEvents;
use crate::reads::{CallRow, StoredWait, proposal};
use dalsegno_format::record_pages::{key_page, page};
use dalsegno_format::seal::is_sealed;
use dalsegno_model::{
    BoundaryFacts, BoundaryId, BoundaryQuery, BoundaryRow, CallFilter, Digest, EventPage, EventQuery,
    Proposal, RecordKeyPage, RecordKeysQuery, RecordPage, RecordQuery, Result, RunId, Wait, WaitPolled,
};

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

    pub(super) async fn read_boundary(
        &self,
        run: RunId,
        which: BoundaryQuery,
    ) -> Result<Option<(BoundaryRow, State)>> {
        let store = self.snapshot_store();
        let found = match which {
            BoundaryQuery::Turn(turn) => branch::state(&store, run, Some(turn)).await?,
            BoundaryQuery::Id(id) => branch::state_by_id(&store, run, id).await?,
        };
        Ok(found.map(|at| (at.row, at.state)))
    }

    pub(super) async fn read_boundary_facts(
        &self,
        run: RunId,
        id: BoundaryId,
    ) -> Result<Option<BoundaryFacts>> {
        let operation = "reading the facts of a boundary";
        let found =
            self.read(operation, move |conn, _| Box::pin(boundary_facts::read(conn, run, id))).await?;
        let Some(EncodedFacts { row, calls, led_by }) = found else { return Ok(None) };
        let cipher = self.cipher_to_read(run, calls.iter().any(|it| it.call.looks_sealed())).await?;
        row.with(&calls, led_by, &cipher).map(Some).map_err(|fault| fault.with_context(operation))
    }

    pub(super) async fn list_waits(&self, run: RunId) -> Result<Vec<Wait>> {
        let operation = "listing waits";
        let rows = self.read(operation, move |conn, _| Box::pin(waits::of_run(conn, run))).await?;
        let cipher = self.cipher_to_read(run, rows.iter().any(StoredWait::looks_sealed)).await?;
        rows.iter().map(|row| row.public(&cipher).map_err(|fault| fault.with_context(operation))).collect()
    }

    pub(super) async fn read_wait_states(
        &self,
        polled: &[(RunId, Digest, String)],
    ) -> Result<Vec<WaitPolled>> {
        let (operation, polled) = ("polling waits", polled.to_vec());
        let rows = self.read(operation, move |conn, _| Box::pin(waits::states(conn, polled))).await?;
        let mut states = Vec::with_capacity(rows.len());
        for polled in rows {
            states.push(match polled {
                PolledWait { is_current: false, .. } => WaitPolled::Fenced,
                PolledWait { wait: None, .. } => WaitPolled::NoSuchWait,
                PolledWait { wait: Some(wait), .. } => {
                    let cipher = self.cipher_to_read(wait.row.run, wait.looks_sealed()).await;
                    let read = |cipher| wait.public(&cipher).map_err(|fault| fault.with_context(operation));
                    WaitPolled::of(cipher.and_then(read))?
                }
            });
        }
        Ok(states)
    }

    pub(super) async fn read_proposal(&self, run: RunId, id: &str, epoch: i64) -> Result<Option<Proposal>> {
        let (operation, id) = ("reading a proposal", id.to_owned());
        let found =
            self.read(operation, move |conn, _| Box::pin(waits::proposal(conn, run, id, epoch))).await?;
        let Some((wait, request)) = found else { return Ok(None) };
        let looks_sealed = wait.looks_sealed() || request.as_deref().is_some_and(is_sealed);
        let cipher = self.cipher_to_read(run, looks_sealed).await?;
        let proposal = proposal(&wait, request.as_deref(), &cipher);
        proposal.map(Some).map_err(|fault| fault.with_context(operation))
    }

    pub(super) async fn read_record_page(&self, run: RunId, query: RecordQuery) -> Result<RecordPage> {
        let (space, limit) = (query.space.clone(), query.limit);
        let read =
            self.read("reading records", move |conn, _| Box::pin(record_reads::read(conn, run, query)));
        self.record_page(read.await?, (run, &space), limit).await
    }

    pub(super) async fn read_key_page(&self, run: RunId, query: RecordQuery) -> Result<RecordKeyPage> {
        let limit = query.limit;
        let operation = "reading keys of records";
        let keys = self.read(operation, move |conn, _| Box::pin(record_reads::read_keys(conn, run, query)));
        Ok(key_page(keys.await?, limit))
    }

    pub(super) async fn read_page_of_keys(&self, run: RunId, query: RecordKeysQuery) -> Result<RecordPage> {
        let (space, limit) = (query.space.clone(), query.limit);
        let operation = "reading records of keys";
        let read = self.read(operation, move |conn, _| Box::pin(record_reads::read_of(conn, run, query)));
        self.record_page(read.await?, (run, &space), limit).await
    }

    async fn record_page(&self, read: Entries, of: (RunId, &str), limit: u32) -> Result<RecordPage> {
        let Entries { entries, found } = read;
        let (run, space) = of;
        let cipher = self.cipher_to_read(run, entries.iter().any(|row| is_sealed(&row.value))).await?;
        let entries = entries.into_iter().map(|row| row.decrypt(space, &cipher));
        Ok(page(entries.collect::<Result<_>>()?, found, limit))
    }
}
