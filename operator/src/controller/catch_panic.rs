//! A panic in one reconcile. It is a defect of this program that one object triggers, so all other objects go on.
//!
//! *Guarantees:* the panic is counted and logged, an event on the object reports it, and the object is paused
//! ([`super::panics`]).

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use dalsegno_crds::EventReason;
use futures::FutureExt as _;
use kube::Resource;
use kube::runtime::events::{Event, EventType};

use super::context::Context;
use super::publish::truncate_note;

/// Runs the reconcile of an object. If it panics, reports that, and returns the pause as the error.
pub async fn catch_panic<K: Resource<DynamicType = ()>, T>(
    ctx: &Context,
    object: &K,
    reconciling: impl Future<Output = T>,
) -> Result<T, Duration> {
    // What a reconcile shares with others are caches, which are valid after every single change.
    match AssertUnwindSafe(reconciling).catch_unwind().await {
        Ok(ended) => {
            ctx.panics.remove(object.meta().uid.as_deref().unwrap_or_default());
            Ok(ended)
        }
        Err(panic) => {
            let pause = ctx.panics.record(object, Instant::now());
            report(ctx, object, &message_of(panic.as_ref()), pause).await;
            Err(pause)
        }
    }
}

async fn report<K: Resource<DynamicType = ()>>(ctx: &Context, object: &K, message: &str, pause: Duration) {
    ctx.metrics.count_panic();
    let kind = K::kind(&());
    tracing::error!(
        kind = %kind,
        namespace = object.meta().namespace,
        name = object.meta().name,
        panic = message,
        pause_seconds = pause.as_secs(),
        "a reconcile panicked and will be retried"
    );
    let event = Event {
        type_: EventType::Warning,
        reason: EventReason::ReconcilePanicked.to_string(),
        note: Some(truncate_note(format!(
            "a defect of the operator stopped the reconcile of this {kind}, which is retried after {} s: {message}. Please \
             report it",
            pause.as_secs()
        ))),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    if let Err(error) = ctx.recorder().publish(&event, &object.object_ref(&())).await {
        tracing::warn!(%error, "an event could not be written");
    }
}

/// The message of a panic, if it has one.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|it| (*it).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
