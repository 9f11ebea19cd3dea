//! `POST records`, `GET records` and `POST records/read`: a fenced key-value space for SDKs.

use axum::extract::{RawQuery, Request, State};
use axum::response::Response;
use dalsegno_model::{RecordBatch, RecordKeysQuery, RecordPage, RecordQuery, Written};
use dalsegno_protocol::{
    Acknowledgement, Code, CommitResult, Limits, ReadRecordsRequest, RecordKey, RecordKeysResponse,
    RecordOrder, RecordsRequest, RecordsResponse,
};

use crate::extractors::{Reader, Worker};
use crate::gateway::Gateway;
use crate::limits::request_body;
use crate::limits::response_body::json_response;
use crate::query::Query;
use crate::response::{self, ApiProblem};
use crate::validation::{check_record_keys, check_records};

pub(crate) async fn write(
    State(gateway): State<Gateway>,
    worker: Worker,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read(&gateway, &worker, request).await?;
    let RecordsRequest { batch_id, operations } = body.parse()?;
    if operations.is_empty() {
        return Err(ApiProblem::invalid("`operations` is empty: there is nothing to write"));
    }
    check_records(&operations)?;
    let (digest, _permit) = body.release();
    let batch = RecordBatch { run: worker.run, capability: worker.capability, batch_id, digest, operations };
    let written = gateway.call_with_retry("writing records", || gateway.store.write_records(&batch)).await?;
    let result = match written {
        Written::Ok => CommitResult::Ok,
        Written::Duplicate => CommitResult::Duplicate,
        Written::Conflict => {
            return Err(ApiProblem::new(
                Code::Conflict,
                "this batchId was used before with other bytes; make a new one for each batch",
            ));
        }
        Written::Fenced => return Err(ApiProblem::fenced()),
        Written::Finished => return Err(ApiProblem::finished()),
        Written::UnsettledCalls => return Err(ApiProblem::unsettled_calls()),
        Written::TooManyKeys => return Err(ApiProblem::too_many_keys()),
        Written::NotFound => return Err(ApiProblem::no_such_run()),
    };
    response::ok(&Acknowledgement { result })
}

pub(crate) async fn list(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let known = ["space", "prefix", "after", "limit", "order", "keysOnly"];
    let mut query = Query::parse(query.as_deref(), &known)?;
    let Some(space) = query.take("space") else {
        return Err(ApiProblem::invalid("this call needs the parameter `space`"));
    };
    let orders = [("asc", RecordOrder::Asc), ("desc", RecordOrder::Desc)];
    let order = query.take_word("order", &orders)?.unwrap_or_default();
    let keys_only = query.take_word("keysOnly", &[("true", true), ("false", false)])?.unwrap_or_default();
    let query = RecordQuery {
        space,
        prefix: query.take("prefix").unwrap_or_default(),
        order,
        after: query.take("after").map(|after| parse_cursor(&after)).transpose()?,
        limit: query.take_limit()?,
        bytes: Limits::PAGE_BYTES,
    };
    gateway.authorize_reader(&reader).await?;
    let _permit = gateway.page_permit(&reader.owner).await?;
    if keys_only {
        let read = || gateway.store.read_record_keys(reader.run, &query);
        let page = gateway.call_with_retry("reading keys of records", read).await?;
        let records = page.keys.into_iter().map(|key| RecordKey { key }).collect();
        let next = page.next.map(cursor);
        return json_response(&gateway, &reader.owner, &RecordKeysResponse { records, next });
    }
    let read = || gateway.store.read_records(reader.run, &query);
    let page = gateway.call_with_retry("reading records", read).await?;
    json_response(&gateway, &reader.owner, &response_of(page))
}

/// Reads the records of some keys. A POST because a URL has no room for them; it changes nothing.
pub(crate) async fn read(
    State(gateway): State<Gateway>,
    worker: Worker,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read(&gateway, &worker, request).await?;
    let ReadRecordsRequest { space, mut keys, after } = body.parse()?;
    check_record_keys(&space, &keys)?;
    let mut first = 0;
    if let Some(after) = after {
        let (key, entry) = parse_cursor(&after)?;
        let Some(index) = keys.iter().position(|it| *it == key) else {
            return Err(ApiProblem::invalid("`after` is not a `next` of these keys"));
        };
        keys.drain(..index);
        first = entry;
    }
    let reader = Reader::of_worker(worker);
    gateway.authorize_reader(&reader).await?;
    let _permit = gateway.page_permit(&reader.owner).await?;
    let query = RecordKeysQuery { space, keys, after: first, limit: Limits::PAGE, bytes: Limits::PAGE_BYTES };
    let read = || gateway.store.read_records_of(reader.run, &query);
    let page = gateway.call_with_retry("reading records of keys", read).await?;
    json_response(&gateway, &reader.owner, &response_of(page))
}

fn response_of(page: RecordPage) -> RecordsResponse {
    RecordsResponse { records: page.records, next: page.next.map(cursor) }
}

/// Names the last entry of a page, as `<number of the entry>.<key>`.
fn cursor((key, entry): (String, i64)) -> String {
    format!("{entry}.{key}")
}

/// Parses `after`, which names the last entry of the page before. The entry after it has a number too.
fn parse_cursor(text: &str) -> Result<(String, i64), ApiProblem> {
    text.split_once('.')
        .and_then(|(entry, key)| Some((key.to_owned(), entry.parse().ok()?)))
        .filter(|(_, entry)| (0..i64::MAX).contains(entry))
        .ok_or_else(|| ApiProblem::invalid("`after` is not a `next` of this call"))
}
