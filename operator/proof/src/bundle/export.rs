//! Writes a bundle, one page of rows at a time.

use std::sync::Arc;

use dalsegno_model::read_transaction::{
    AuditKey, BoundaryKey, CallKey, RecordKey, RunHead, WaitKey, run_head,
};
use dalsegno_model::{Digest, Error, ReadTransaction, Result, RunId};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::lines::{BundleLine, EndLine, Line, RunLine};
use super::{VERSION, signed};
use crate::Signer;
use crate::encoding::{Bytes, Hash};

/// What is exported.
#[derive(Clone, Copy, Debug)]
pub struct ExportOf {
    /// The id of the store.
    pub store: Uuid,
    /// The run.
    pub run: RunId,
    /// The time of the export.
    pub at: Timestamp,
}

/// An export in progress: a run as it was at one moment.
pub struct Export {
    reading: Box<dyn ReadTransaction>,
    store: Uuid,
    run: RunHead,
    at: Timestamp,
    signer: Arc<Signer>,
    next: Stage,
    digest: Sha256,
    boundaries: i64,
    events: i64,
    calls: i64,
    waits: i64,
    messages: i64,
    batches: i64,
    records: i64,
    audit: i64,
}

/// The part of the bundle that is written next.
#[derive(Clone)]
enum Stage {
    Head,
    Boundaries(BoundaryKey),
    Calls(Option<CallKey>),
    Waits(Option<WaitKey>),
    Messages(i64),
    Batches(i64),
    Records(RecordKey),
    Audit(AuditKey),
    End,
    Done,
}

impl Export {
    /// Starts an export; `None` if the store has no such run.
    pub async fn begin(
        mut reading: Box<dyn ReadTransaction>,
        of: ExportOf,
        signer: Arc<Signer>,
    ) -> Result<Option<Self>> {
        let ExportOf { store, run, at } = of;
        let Some(run) = run_head(&mut *reading, run).await? else { return Ok(None) };
        reading.unwrap_data_key(run.id).await?;
        Ok(Some(Self {
            reading,
            store,
            run,
            at,
            signer,
            next: Stage::Head,
            digest: Sha256::new(),
            boundaries: 0,
            events: 0,
            calls: 0,
            waits: 0,
            messages: 0,
            batches: 0,
            records: 0,
            audit: 0,
        }))
    }

    /// The next lines, as bytes; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let run = self.run.id;
            let lines = match self.next.clone() {
                Stage::Head => {
                    self.next = Stage::Boundaries(BoundaryKey::before(run));
                    vec![self.head()]
                }
                Stage::Boundaries(after) => {
                    let page = self.reading.boundaries(after, run).await?;
                    if let Some(damage) = page.iter().find_map(|it| it.damage.as_ref()) {
                        return Err(Error::Corrupt { operation: "exporting a run", detail: damage.clone() });
                    }
                    self.next = page.last().map_or(Stage::Calls(None), |it| Stage::Boundaries(it.key()));
                    self.boundaries += page.len() as i64;
                    self.events += page.iter().map(|it| it.decoded.row.events.len() as i64).sum::<i64>();
                    page.into_iter().map(|it| Line::Boundary(Box::new(it.into()))).collect()
                }
                Stage::Calls(after) => {
                    let page = self.reading.calls(run, after).await?;
                    if let Some(damage) = page.iter().find_map(|it| it.damage.as_ref()) {
                        return Err(Error::Corrupt { operation: "exporting a run", detail: damage.clone() });
                    }
                    self.next = page.last().map_or(Stage::Waits(None), |it| Stage::Calls(Some(it.key())));
                    self.calls += page.len() as i64;
                    page.into_iter().map(|it| Line::Call(Box::new(it.into()))).collect()
                }
                Stage::Waits(after) => {
                    let page = self.reading.waits(run, after).await?;
                    if let Some(damage) = page.iter().find_map(|it| it.damage.as_ref()) {
                        return Err(Error::Corrupt { operation: "exporting a run", detail: damage.clone() });
                    }
                    self.next = page.last().map_or(Stage::Messages(0), |it| Stage::Waits(Some(it.key())));
                    self.waits += page.len() as i64;
                    page.into_iter().map(|it| Line::Wait(Box::new(it.into()))).collect()
                }
                Stage::Messages(after) => {
                    let page = self.reading.messages(run, after).await?;
                    if let Some(damage) = page.iter().find_map(|it| it.damage.as_ref()) {
                        return Err(Error::Corrupt { operation: "exporting a run", detail: damage.clone() });
                    }
                    self.next =
                        page.last().map_or(Stage::Batches(0), |it| Stage::Messages(it.message.position));
                    self.messages += page.len() as i64;
                    page.into_iter().map(|it| Line::Message(Box::new(it.into()))).collect()
                }
                Stage::Batches(after) => {
                    let page = self.reading.record_changes(run, after).await?;
                    self.next =
                        page.last().map_or(Stage::Records(RecordKey::default()), |it| Stage::Batches(it.seq));
                    self.batches += page.len() as i64;
                    page.into_iter().map(|it| Line::RecordBatch(Box::new(it.into()))).collect()
                }
                Stage::Records(after) => {
                    let page = self.reading.records(run, &after).await?;
                    if let Some(damage) = page.iter().find_map(|it| it.damage.as_ref()) {
                        return Err(Error::Corrupt { operation: "exporting a run", detail: damage.clone() });
                    }
                    self.next = page
                        .last()
                        .map_or(Stage::Audit(AuditKey::before(run)), |it| Stage::Records(it.at.clone()));
                    self.records += page.len() as i64;
                    page.into_iter().map(|it| Line::Record(Box::new(it.into()))).collect()
                }
                Stage::Audit(after) => {
                    let page = self.reading.audit(after, run).await?;
                    self.next = page
                        .last()
                        .map_or(Stage::End, |(run, row)| Stage::Audit(AuditKey { run: *run, seq: row.seq }));
                    self.audit += page.len() as i64;
                    page.into_iter().map(|(_, row)| Line::Audit(row.into())).collect()
                }
                Stage::End => {
                    self.next = Stage::Done;
                    return text(&[self.end()]).map(Some);
                }
                Stage::Done => return Ok(None),
            };
            if !lines.is_empty() {
                let text = text(&lines)?;
                self.digest.update(&text);
                return Ok(Some(text));
            }
        }
    }

    fn head(&self) -> Line {
        Line::Bundle(BundleLine {
            version: VERSION,
            store: self.store,
            exported_at: self.at.as_millisecond(),
            public_key: Bytes(self.signer.public_key()),
            run: RunLine::from(&self.run),
        })
    }

    fn end(&self) -> Line {
        let sha256: Digest = self.digest.clone().finalize().into();
        Line::End(EndLine {
            boundaries: self.boundaries,
            events: self.events,
            calls: self.calls,
            waits: Some(self.waits),
            messages: Some(self.messages),
            record_batches: Some(self.batches),
            records: Some(self.records),
            audit: self.audit,
            sha256: Hash(sha256),
            signature: Bytes(self.signer.sign(&signed(&sha256))),
        })
    }
}

fn text(lines: &[Line]) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, line)
            .map_err(|error| Error::Corrupt { operation: "writing a bundle", detail: error.to_string() })?;
        text.push(b'\n');
    }
    Ok(text)
}
