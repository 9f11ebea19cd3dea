//! `GET export`: the run as a signed bundle that can be verified offline.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use dalsegno_model::Error;
use dalsegno_proof::Signer;
use dalsegno_proof::bundle::{Export as Bundle, ExportOf};
use futures::stream;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::error_chain::error_chain;
use crate::extractors::Reader;
use crate::gateway::Gateway;
use crate::limits::response_body::abort_error;
use crate::limits::shared_limit::{LimitOwner, LimitPermit};
use crate::query::Query;
use crate::response::ApiProblem;

/// An export whose client reads nothing for this long ends: it holds a database connection.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn export(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    Query::parse(query.as_deref(), &[])?;
    gateway.authorize_reader(&reader).await?;
    let permit = gateway.exports.acquire(LimitOwner::Run(reader.run), 1)?;
    let signer = Arc::new(load_signer(&gateway).await?);
    let run = reader.run;
    let begin = async || {
        let (reading, store) = (gateway.store.begin_read().await?, gateway.store.id().await?);
        Bundle::begin(reading, ExportOf { store, run, at: Timestamp::now() }, signer.clone()).await
    };
    let bundle = gateway.call_with_retry("starting an export", begin).await?;
    let bundle = bundle.ok_or_else(ApiProblem::no_such_run)?;
    let (sender, chunks) = mpsc::channel(1);
    tokio::spawn(Export { gateway, reader, bundle, _permit: permit }.run(sender));
    // The connection polls for a chunk once the one before it is sent, so its permit is dropped then.
    let body = stream::unfold((chunks, None::<LimitPermit>), |(mut chunks, sent)| async move {
        drop(sent);
        let (lines, permit) = match chunks.recv().await? {
            Ok((lines, permit)) => (Ok(lines), Some(permit)),
            Err(error) => (Err(error), None),
        };
        Some((lines, (chunks, permit)))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(body)).into_response())
}

/// Loads the key that signs the bundle. A key file that cannot be used is not a failure of the store, and a retry does
/// not help.
async fn load_signer(gateway: &Gateway) -> Result<Signer, ApiProblem> {
    let key = gateway.config.signing_key.as_deref();
    let load = async || match Signer::load(&*gateway.store, key).await {
        Err(Error::Unusable(why)) if key.is_some() => {
            tracing::error!(why, "the signing key cannot be used");
            Ok(Err(ApiProblem::signing_key_unusable()))
        }
        loaded => loaded.map(Ok),
    };
    gateway.call_with_retry("loading the signing key", load).await?
}

/// An export under way. It counts among the caller's calls under way for as long as it lasts.
struct Export {
    gateway: Gateway,
    reader: Reader,
    bundle: Bundle,
    _permit: LimitPermit,
}

/// Lines to send, and the permit for their bytes.
type Chunk = (Bytes, LimitPermit);

impl Export {
    /// Sends the bundle within `max_response_duration`. If it ends early, the response is cut off: the bundle lacks its
    /// last line and does not verify.
    async fn run(self, sender: mpsc::Sender<io::Result<Chunk>>) {
        let limit = self.gateway.config.max_response_duration;
        let error = match timeout(limit, self.send_chunks(&sender)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => io::Error::other("it took longer than the limit"),
        };
        tracing::warn!(error = error_chain(&error), "an export ended early");
        let _ = sender.send_timeout(Err(error), READ_TIMEOUT).await;
    }

    async fn send_chunks(mut self, sender: &mpsc::Sender<io::Result<Chunk>>) -> io::Result<()> {
        let mut authorized = Instant::now();
        while let Some(lines) = self.bundle.next().await.map_err(|error| self.store_failed(error))? {
            if authorized.elapsed() >= self.gateway.config.reauthorize_interval {
                self.gateway.authorize_reader(&self.reader).await.map_err(abort_error)?;
                authorized = Instant::now();
            }
            let permit = response_permit(&self.gateway, &self.reader.owner, lines.len()).await?;
            let sent = sender.send_timeout(Ok((lines.into(), permit)), READ_TIMEOUT).await;
            sent.map_err(|_| io::Error::other("the client does not read"))?;
        }
        Ok(())
    }

    fn store_failed(&self, error: Error) -> io::Error {
        self.gateway.metrics.store_call_failed(&error);
        io::Error::other(error)
    }
}

/// Waits up to [`READ_TIMEOUT`] for a permit for this many bytes. Takes no [`Export`]: a reference to its bundle cannot
/// be held across an await.
async fn response_permit(gateway: &Gateway, owner: &LimitOwner, bytes: usize) -> io::Result<LimitPermit> {
    let since = Instant::now();
    loop {
        match gateway.response_bytes.acquire(owner.clone(), bytes) {
            Err(_) if since.elapsed() < READ_TIMEOUT => sleep(gateway.config.poll_interval).await,
            acquired => return acquired.map_err(|exceeded| abort_error(exceeded.into())),
        }
    }
}
