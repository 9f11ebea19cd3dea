//! `GET audit`: the audit of a run, for people.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use dalsegno_format::header;
use dalsegno_model::AuditRow;
use dalsegno_model::read_transaction::AuditKey;
use dalsegno_protocol::{AuditEntry, AuditResponse};

use crate::extractors::Reader;
use crate::gateway::Gateway;
use crate::limits::response_body::json_response;
use crate::query::Query;
use crate::response::ApiProblem;

pub(crate) async fn audit(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let mut query = Query::parse(query.as_deref(), &["after"])?;
    let after = AuditKey { run: reader.run, seq: query.take_number("after", 0)?.unwrap_or_default() };
    gateway.authorize_reader(&reader).await?;
    let _permit = gateway.page_permit(&reader.owner).await?;
    let read = async || gateway.store.begin_read().await?.audit(after, reader.run).await;
    let rows = gateway.call_with_retry("reading the audit", read).await?;
    // A page that is not empty is followed by another one, which may be empty.
    let next = rows.last().map(|(_, row)| row.seq);
    let rows = rows.into_iter().map(|(_, row)| entry(row)).collect();
    json_response(&gateway, &reader.owner, &AuditResponse { rows, next })
}

fn entry(row: AuditRow) -> AuditEntry {
    let AuditRow { seq, at, kind, actor, detail, parent_hash, hash } = row;
    AuditEntry {
        seq,
        at: at.to_string(),
        kind,
        actor,
        detail,
        parent_hash: header::render(&parent_hash),
        hash: header::render(&hash),
    }
}
