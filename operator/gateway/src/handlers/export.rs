//! `GET export`: the run as a bundle that proves itself.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use dalsegno_store::Error;
use dalsegno_store::proof::Signer;
use dalsegno_store::proof::bundle::Export as Bundle;
use futures::stream;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::error_chain::chain;
use crate::extractors::Reader;
use crate::gateway::Gateway;
use crate::limits::response_body;
use crate::limits::shared_limit::{Part, Who};
use crate::query::Query;
use crate::response::Refusal;
use crate::store_reads;

/// A reader that takes nothing for as long has gone: a bundle on its way out holds a connection to the database.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn export(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    Query::parse(query.as_deref(), &[])?;
    store_reads::judge(&gateway, &reader).await?;
    let place = gateway.exports.take(Who::Run(reader.run), 1)?;
    let signer = signer(&gateway).await?;
    let (signer, run) = (Arc::new(signer), reader.run);
    let begun = async || {
        let (reading, store) = (gateway.store.reading().await?, gateway.store.id().await?);
        Bundle::begin(reading, store, run, Timestamp::now(), signer.clone()).await
    };
    let bundle = gateway.ask("beginning an export", begun).await?.ok_or_else(Refusal::no_such_run)?;
    let (send, pieces) = mpsc::channel(1);
    tokio::spawn(write(Export { gateway, reader, bundle, _place: place }, send));
    // A piece has gone out once the next one is asked for.
    let body = stream::unfold((pieces, None::<Part>), |(mut pieces, before)| async move {
        drop(before);
        let (lines, part) = match pieces.recv().await? {
            Ok((lines, part)) => (Ok(lines), Some(part)),
            Err(broken) => (Err(broken), None),
        };
        Some((lines, (pieces, part)))
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

/// A bundle on its way out. It counts among the run's calls for as long as it lasts.
struct Export {
    gateway: Gateway,
    reader: Reader,
    bundle: Bundle,
    _place: Part,
}

/// Lines that go out at once, in their place among the answers.
type Piece = (Bytes, Part);

/// Writes a bundle out, for no longer than its reader was judged for. One that ends early breaks off: it has no last line,
/// and does not verify.
async fn write(export: Export, send: mpsc::Sender<io::Result<Piece>>) {
    let limit = export.gateway.config.follow_limit;
    let broken = match timeout(limit, export.write(&send)).await {
        Ok(Ok(())) => return,
        Ok(Err(broken)) => broken,
        Err(_) => io::Error::other("it took longer than it may"),
    };
    tracing::warn!(error = chain(&broken), "an export has ended before its end");
    let _ = send.send_timeout(Err(broken), PATIENCE).await;
}

impl Export {
    async fn write(mut self, send: &mpsc::Sender<io::Result<Piece>>) -> io::Result<()> {
        let mut judged = Instant::now();
        while let Some(lines) = self.bundle.next().await.map_err(|error| self.failed(error))? {
            if judged.elapsed() >= self.gateway.config.rejudge {
                store_reads::judge(&self.gateway, &self.reader).await.map_err(response_body::broken)?;
                judged = Instant::now();
            }
            let part = place(&self.gateway, &self.reader.who, lines.len()).await?;
            let sent = send.send_timeout(Ok((lines.into(), part)), PATIENCE).await;
            sent.map_err(|_| io::Error::other("its reader has gone"))?;
        }
        Ok(())
    }

    fn failed(&self, error: Error) -> io::Error {
        self.gateway.metrics.store_failed(&error);
        io::Error::other(error)
    }
}

/// A place among the answers, once there is one.
async fn place(gateway: &Gateway, who: &Who, bytes: usize) -> io::Result<Part> {
    let since = Instant::now();
    loop {
        match gateway.answers.take(who.clone(), bytes) {
            Err(_) if since.elapsed() < PATIENCE => sleep(gateway.config.poll).await,
            taken => return taken.map_err(|full| response_body::broken(full.into())),
        }
    }
}
