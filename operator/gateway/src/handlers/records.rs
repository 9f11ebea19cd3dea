//! `POST records` and `GET records`: a fenced key-value space for SDKs.

use axum::extract::{RawQuery, Request, State};
use axum::response::Response;
use dalsegno_model::{RecordBatch, RecordQuery, Written};
use dalsegno_protocol::{Acknowledgement, Code, CommitResult, Limits, RecordsRequest, RecordsResponse};

use crate::extractors::{Reader, Worker};
use crate::gateway::Gateway;
use crate::limits::request_body;
use crate::limits::response_body::json_response;
use crate::query::Query;
use crate::response::{self, ApiProblem};
use crate::validation::check_records;

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
        Written::NotFound => return Err(ApiProblem::no_such_run()),
    };
    response::ok(&Acknowledgement { result })
}

pub(crate) async fn list(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let mut query = Query::parse(query.as_deref(), &["space", "prefix", "after", "limit"])?;
    let Some(space) = query.take("space") else {
        return Err(ApiProblem::invalid("this call needs the parameter `space`"));
    };
    let query = RecordQuery {
        space,
        prefix: query.take("prefix").unwrap_or_default(),
        after: query.take("after").map(|after| parse_cursor(&after)).transpose()?,
        limit: query.take_limit()?,
        bytes: Limits::PAGE_BYTES,
    };
    gateway.authorize_reader(&reader).await?;
    let _permit = gateway.page_permit(&reader.owner).await?;
    let read = || gateway.store.read_records(reader.run, &query);
    let page = gateway.call_with_retry("reading records", read).await?;
    let next = page.next.map(|(key, entry)| format!("{entry}.{key}"));
    json_response(&gateway, &reader.owner, &RecordsResponse { records: page.records, next })
}

/// Parses `after`, which names the last entry of the previous page as `<number of the entry>.<key>`.
fn parse_cursor(text: &str) -> Result<(String, i64), ApiProblem> {
    text.split_once('.')
        .and_then(|(entry, key)| Some((key.to_owned(), entry.parse().ok()?)))
        .ok_or_else(|| ApiProblem::invalid("`after` is not a `next` of this call"))
}
