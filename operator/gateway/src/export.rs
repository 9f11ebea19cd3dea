//! `GET export`: the run as a bundle that proves itself.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use dalsegno_store::Error;
use dalsegno_store::proof::Signer;
use dalsegno_store::proof::bundle::Export;
use futures::stream;
use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::gateway::{Gateway, chain};
use crate::path::Reader;
use crate::query::Query;
use crate::read;
use crate::refusal::Refusal;

/// A reader that takes nothing for as long has gone: a bundle on its way out holds a connection to the database.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn export(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    Query::parse(query.as_deref(), &[])?;
    let place = gateway.exports.clone().try_acquire_owned().map_err(|_| Refusal::full())?;
    read::judge(&gateway, &reader).await?;
    let signer = signer(&gateway).await?;
    let (signer, run) = (Arc::new(signer), reader.run);
    let begun = async || {
        let (reading, store) = (gateway.store.reading().await?, gateway.store.id().await?);
        Export::begin(reading, store, run, Timestamp::now(), signer.clone()).await
    };
    let begun = gateway.ask("beginning an export", begun).await?.ok_or_else(Refusal::no_such_run)?;
    let (send, lines) = mpsc::channel(1);
    tokio::spawn(write(begun, send, place));
    let body = stream::unfold((lines, reader), |(mut lines, reader)| async move {
        let next: Bytes = lines.recv().await?;
        Some((Ok::<_, Infallible>(next), (lines, reader)))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(body)).into_response())
}

/// What signs the bundle. A key file that cannot be used is no outage of the store, and no retry mends it.
async fn signer(gateway: &Gateway) -> Result<Signer, Refusal> {
    let key = gateway.config.signing_key.as_deref();
    let load = async || match Signer::load(&*gateway.store, key).await {
        Err(Error::Unfit(why)) if key.is_some() => {
            tracing::error!(why, "the signing key cannot be used");
            Ok(Err(Refusal::unsigned()))
        }
        loaded => loaded.map(Ok),
    };
    gateway.ask("fetching the signing key", load).await?
}

/// Writes a bundle out. One that ends early has no last line, and does not verify.
async fn write(mut export: Export, send: mpsc::Sender<Bytes>, _place: OwnedSemaphorePermit) {
    loop {
        match export.next().await {
            Ok(Some(lines)) => match send.send_timeout(lines.into(), PATIENCE).await {
                Ok(()) => {}
                Err(_) => return,
            },
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(error = chain(&error), "an export has ended before its end");
                return;
            }
        }
    }
}
