//! `GET state`: what a worker may look at.

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use dalsegno_protocol::{Code, StateResponse};
use futures::stream;
use tokio::sync::OwnedSemaphorePermit;

use crate::gateway::Gateway;
use crate::path::{self, Worker};
use crate::refusal::{self, JSON, Refusal};

/// Bytes handed to the connection at a time.
const CHUNK: usize = 256 << 10;

pub(crate) async fn state(
    State(gateway): State<Gateway>,
    worker: Worker,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let turn = query.as_deref().filter(|query| !query.is_empty()).map(turn).transpose()?;
    let store = &gateway.store;
    if !gateway.ask("judging a capability", store.is_current(worker.run, &worker.capability)).await? {
        return Err(Refusal::fenced());
    }
    let Some(state) = gateway.state(worker.run, turn).await? else {
        return Err(Refusal::new(
            Code::NotFound,
            match turn {
                None => "nothing is committed yet: the run begins at turn 1 with no state".to_owned(),
                Some(turn) => format!("turn {turn} is not committed"),
            },
        ));
    };
    let text = Bytes::from(refusal::text(&StateResponse { state })?);
    let budget = budget(&gateway, text.len())?;
    let head = [(header::CONTENT_TYPE, JSON), (header::CONTENT_LENGTH, text.len().into())];
    Ok((head, trickle(text, budget)).into_response())
}

fn turn(query: &str) -> Result<i32, Refusal> {
    match query.split_once('=') {
        Some(("turn", number)) => path::turn(number),
        _ => Err(Refusal::invalid("this call takes one parameter: ?turn=N")),
    }
}

/// An answer takes its place in the process's budget until it has gone out.
fn budget(gateway: &Gateway, bytes: usize) -> Result<OwnedSemaphorePermit, Refusal> {
    let bytes = u32::try_from(bytes.min(gateway.config.body_budget)).unwrap_or(u32::MAX);
    gateway.bodies.clone().try_acquire_many_owned(bytes).map_err(|_| Refusal::full())
}

fn trickle(bytes: Bytes, budget: OwnedSemaphorePermit) -> Body {
    Body::from_stream(stream::unfold((bytes, budget), |(mut bytes, budget)| async move {
        if bytes.is_empty() {
            return None;
        }
        let chunk = bytes.split_to(bytes.len().min(CHUNK));
        Some((Ok::<_, std::convert::Infallible>(chunk), (bytes, budget)))
    }))
}
