//! Messages to a run: `GET inbox` of its worker, `POST messages` and `GET messages` of people.

use axum::extract::{RawQuery, Request, State};
use axum::response::Response;
use dalsegno_model::{MessageQuery, NewMessage, Sent};
use dalsegno_protocol::{Code, CommitResult, Limits, MessagesResponse, SendRequest, SendResponse};

use crate::extractors::{Reader, Writer};
use crate::gateway::Gateway;
use crate::limits::request_body;
use crate::limits::response_body::json_response;
use crate::query::Query;
use crate::response::{self, ApiProblem};
use crate::validation::check_message;

/// The worker's unread messages.
pub(crate) async fn inbox(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    page(&gateway, &reader, query.as_deref(), true).await
}

/// All messages, for people.
pub(crate) async fn list(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    page(&gateway, &reader, query.as_deref(), false).await
}

async fn page(
    gateway: &Gateway,
    reader: &Reader,
    query: Option<&str>,
    unread_only: bool,
) -> Result<Response, ApiProblem> {
    let mut query = Query::parse(query, &["after", "limit"])?;
    let query = MessageQuery {
        after: query.take_number("after", 0)?.unwrap_or_default(),
        unread_only,
        limit: query.take_limit()?,
        bytes: Limits::PAGE_BYTES,
    };
    gateway.authorize_reader(reader).await?;
    let _permit = gateway.page_permit(&reader.owner).await?;
    let read = || gateway.store.messages(reader.run, &query);
    let page = gateway.call_with_retry("reading messages", read).await?;
    json_response(gateway, &reader.owner, &MessagesResponse { messages: page.messages, next: page.next })
}

pub(crate) async fn send(
    State(gateway): State<Gateway>,
    writer: Writer,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read_from_user(&gateway, &writer, request).await?;
    let SendRequest { id, topic, value } = body.parse()?;
    check_message(&id, topic.as_deref(), &value)?;
    let (_, _permit) = body.release();
    let message =
        NewMessage { run: writer.run, id, topic, value, author: writer.user, audit_id: writer.audit_id };
    let send = || gateway.store.send_message(&message);
    let (result, position) = match gateway.call_with_retry("sending a message", send).await? {
        Sent::Ok(position) => (CommitResult::Ok, position),
        Sent::Duplicate(position) => (CommitResult::Duplicate, position),
        Sent::Conflict => {
            return Err(ApiProblem::new(
                Code::Conflict,
                "this id was used before for another message, or by another sender; make a new one for each message",
            ));
        }
        Sent::TooMany => return Err(ApiProblem::too_many_messages()),
        Sent::Finished => {
            return Err(ApiProblem::new(Code::Finished, "the run is over and reads no further messages"));
        }
        Sent::NotFound => return Err(ApiProblem::no_such_run()),
    };
    response::ok(&SendResponse { result, position })
}
