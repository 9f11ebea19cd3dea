//! Sends the notifications of the store's outbox to one receiver.
//!
//! # Guarantees
//!
//! - Each notification is sent at least once, and has the same id in every try. A process that dies between a delivery and
//!   its record sends it again.
//! - A failed one is tried again after 1, 2, 4 … seconds, at most an hour, and is given up three days after its fact.
//! - One that nobody wants is deleted: its kind is not selected, or no receiver is set.
//! - A look goes on as long as it finds whole batches and gets rid of something, so that the outbox does not grow.

mod address;
mod api_server;
mod message;
mod sender;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use dalsegno_model::{DueNotifications, Notification, NotificationKind, NotificationResult, Store};
use futures::{FutureExt as _, StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use rustls::RootCertStore;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::NotificationArgs;
use crate::log::error_chain;
use crate::metrics::{Metrics, NotificationOutcome};
use crate::mutex::lock;
use address::refusal;
pub use api_server::ApiServer;
use sender::Sender;

/// Interval between two looks into the outbox.
const INTERVAL: Duration = Duration::from_secs(2);
/// The same if no receiver is set: then notifications are only deleted.
const INTERVAL_WITHOUT_RECEIVER: Duration = Duration::from_secs(60);
/// Most notifications that one look takes.
const BATCH: u32 = 64;
/// Most notifications that are sent at the same time.
const CONCURRENCY: usize = 8;
/// First and longest pause before the next try.
const PAUSES_MS: (i64, i64) = (1_000, 3_600_000);
/// From the fact to the last try.
const GIVE_UP_AFTER: SignedDuration = SignedDuration::from_hours(72);

/// The public certificate authorities in the image.
const PUBLIC_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Who gets which notifications.
pub struct Receiver {
    sender: Sender,
    kinds: Vec<NotificationKind>,
    /// `None`: there is no API server, as in a test.
    api_server: Option<ApiServer>,
}

impl Receiver {
    /// The receiver of these arguments. `None`: none is set.
    ///
    /// # Errors
    ///
    /// The system has no certificate authorities, or TLS cannot be configured.
    pub fn new(args: &NotificationArgs, api_server: ApiServer) -> anyhow::Result<Option<Self>> {
        let (Some(target), Some(secret_file)) = (&args.notifications_url, &args.notifications_secret_file)
        else {
            return Ok(None);
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        // A CA of the PostgreSQL server replaces the public ones in the environment. A receiver may be from either.
        let public = rustls_native_certs::load_certs_from_paths(Some(Path::new(PUBLIC_AUTHORITIES)), None);
        roots.add_parsable_certificates(public.certs);
        anyhow::ensure!(
            !roots.is_empty(),
            "the system has no certificate authorities that notifications could trust"
        );
        let known = api_server.known();
        let check = Box::new(move |address| refusal(address, &lock(&known)));
        let sender = Sender::new(target.clone(), secret_file.clone(), roots, check)
            .context("configuring TLS for notifications")?;
        Ok(Some(Self { sender, kinds: args.kinds(), api_server: Some(api_server) }))
    }
}

/// The outbox, and where its notifications go.
pub struct Outbox {
    /// The store.
    pub store: Arc<dyn Store>,
    /// `None`: notifications are deleted.
    pub receiver: Option<Receiver>,
    /// Metrics.
    pub metrics: Metrics,
}

impl Outbox {
    /// Sends until `stop`. If the store is unavailable, the next look tries again.
    pub async fn run(self, stop: CancellationToken) {
        let pause = if self.receiver.is_some() { INTERVAL } else { INTERVAL_WITHOUT_RECEIVER };
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            // A try that the stop interrupts is made again by the next leader, under the same id.
            let Some(looked) = stop.run_until_cancelled(self.drain()).await else { return };
            if let Err(error) = looked {
                self.metrics.count_store_error("notifications", &error);
                tracing::warn!(error = error_chain(&error), "the outbox could not be read");
            }
        }
    }

    /// Tries each notification that is due once. Goes on while there are more of them and some are got rid of; a receiver
    /// that takes nothing is not tried with all of them.
    async fn drain(&self) -> dalsegno_model::Result<()> {
        while self.try_batch().await? {}
        Ok(())
    }

    /// Tries a batch of what is due. Returns whether the next batch is worth a try.
    async fn try_batch(&self) -> dalsegno_model::Result<bool> {
        let due = self.store.due_notifications(BATCH).await?;
        let age = due.oldest.map_or(SignedDuration::ZERO, |oldest| due.now.duration_since(oldest));
        self.metrics.set_notifications_waiting(due.waiting, age.as_secs_f64().max(0.0));
        let DueNotifications { store_id, now, due, .. } = due;
        let api_server = self.receiver.as_ref().and_then(|it| it.api_server.as_ref());
        if let Some(api_server) = api_server.filter(|_| !due.is_empty())
            && let Err(error) = api_server.find().await
        {
            let error = format!("{error:#}");
            tracing::warn!(error, "notifications wait: the addresses of the API server are not known");
            return Ok(false);
        }
        let is_full = due.len() >= BATCH as usize;
        let tries = due.into_iter().map(|notification| self.try_once(notification, store_id, now).boxed());
        let results: Vec<_> = stream::iter(tries).buffer_unordered(CONCURRENCY).collect().await;
        let outcomes = results.into_iter().collect::<dalsegno_model::Result<Vec<_>>>()?;
        Ok(is_full && outcomes.iter().any(|it| *it != NotificationOutcome::Failed))
    }

    async fn try_once(
        &self,
        notification: Notification,
        store_id: Uuid,
        now: Timestamp,
    ) -> dalsegno_model::Result<NotificationOutcome> {
        let (outcome, result) = self.attempt(&notification, store_id, now).await;
        self.store.end_notification(notification.id, result).await?;
        self.metrics.count_notification(notification.kind, outcome);
        Ok(outcome)
    }

    async fn attempt(
        &self,
        notification: &Notification,
        store_id: Uuid,
        now: Timestamp,
    ) -> (NotificationOutcome, NotificationResult) {
        let Notification { id, run, name, kind, created_at, tries, .. } = notification;
        let run = run.map(tracing::field::display);
        // A run that was purged meanwhile has no name.
        let is_wanted = |it: &&Receiver| it.kinds.contains(kind) && !name.is_empty();
        let Some(receiver) = self.receiver.as_ref().filter(is_wanted) else {
            return (NotificationOutcome::Unwanted, NotificationResult::Done);
        };
        let body = message::body(notification, store_id);
        let Err(error) = receiver.sender.send(*id, Timestamp::now().as_second(), body).await else {
            tracing::info!(run, %id, kind = kind.as_str(), "a notification was delivered");
            return (NotificationOutcome::Delivered, NotificationResult::Done);
        };
        if now.duration_since(*created_at) >= GIVE_UP_AFTER {
            let error = error_chain(&error);
            tracing::error!(run, %id, kind = kind.as_str(), error, "a notification is given up after three days");
            return (NotificationOutcome::GivenUp, NotificationResult::Done);
        }
        let after_ms = pause_ms(*tries);
        let error = error_chain(&error);
        tracing::warn!(run, %id, kind = kind.as_str(), error, after_ms, "a notification could not be delivered");
        (NotificationOutcome::Failed, NotificationResult::Retry { after_ms })
    }
}

/// The pause after so many failed tries before this one: 1, 2, 4 … seconds, at most an hour.
fn pause_ms(tries: i32) -> i64 {
    let (first, longest) = PAUSES_MS;
    first.saturating_mul(1_i64 << tries.clamp(0, 30)).min(longest)
}
