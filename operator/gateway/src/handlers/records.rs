//! `POST records` and `GET records`: a fenced keyed space for SDKs.

use axum::extract::{RawQuery, Request, State};
use axum::response::Response;
use dalsegno_protocol::{Acknowledgement, Code, CommitResult, Limits, RecordsRequest, RecordsResponse};
use dalsegno_store::{RecordBatch, RecordQuery, Written};

use crate::extractors::{Reader, Worker};
use crate::gateway::Gateway;
use crate::limits::request_body;
use crate::limits::response_body;
use crate::query::Query;
use crate::response::{self, Refusal};
use crate::store_reads;
use crate::validation;

pub(crate) async fn write(
    State(gateway): State<Gateway>,
    worker: Worker,
    request: Request,
) -> Result<Response, Refusal> {
    let received = request_body::receive(&gateway, &worker, request).await?;
    let RecordsRequest { batch_id, operations } = received.parse()?;
    if operations.is_empty() {
        return Err(Refusal::invalid("`operations` is empty: there is nothing to write"));
    }
    validation::records(&operations)?;
    let (digest, _budget) = received.release();
    let batch = RecordBatch { run: worker.run, capability: worker.capability, batch_id, digest, operations };
    let result = match gateway.ask("writing records", || gateway.store.write_records(&batch)).await? {
        Written::Ok => CommitResult::Ok,
        Written::Duplicate => CommitResult::Duplicate,
        Written::Conflict => {
            return Err(Refusal::new(
                Code::Conflict,
                "this batchId was used before with other bytes; make a new one for each batch",
            ));
        }
        Written::Fenced => return Err(Refusal::fenced()),
        Written::Finished => return Err(Refusal::finished()),
        Written::UnsettledCalls => return Err(Refusal::unsettled()),
        Written::NotFound => return Err(Refusal::no_such_run()),
    };
    response::ok(&Acknowledgement { result })
}

pub(crate) async fn list(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let mut query = Query::parse(query.as_deref(), &["space", "prefix", "after", "limit"])?;
    let Some(space) = query.take("space") else {
        return Err(Refusal::invalid("this call needs the parameter `space`"));
    };
    let query = RecordQuery {
        space,
        prefix: query.take("prefix").unwrap_or_default(),
        after: query.take("after").map(|after| cursor(&after)).transpose()?,
        limit: query.limit()?,
        bytes: Limits::PAGE_BYTES,
    };
    store_reads::judge(&gateway, &reader).await?;
    let page = gateway.ask("reading records", || gateway.store.read_records(reader.run, &query)).await?;
    let next = page.next.map(|(key, place)| format!("{place}.{key}"));
    response_body::answer(&gateway, &reader.who, &RecordsResponse { records: page.records, next })
}

/// The last entry of the page before: its place in its key, and the key.
fn cursor(text: &str) -> Result<(String, i64), Refusal> {
    text.split_once('.')
        .and_then(|(place, key)| Some((key.to_owned(), place.parse().ok()?)))
        .ok_or_else(|| Refusal::invalid("`after` is not a `next` of this call"))
}
