//! Reports objects that cannot be parsed. Such an object is left unchanged until it is corrected or deleted, and stops no
//! other object.

use dalsegno_core::decide::RECHECK_INTERVAL;
use dalsegno_crds::Reason;
use kube::Resource;
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType};

use super::context::Context;
use super::publish::truncate_note;
use crate::cache::invalid_objects::ObjectGeneration;

/// Reports an invalid object once per generation: in the log, and as an event, which is retried until the API server
/// accepts it. The metric counts the object as long as it is invalid. Its status is not written, since fields that cannot
/// be parsed would be lost.
///
/// Returns a requeue, since not every change of an object triggers its controller.
pub async fn report<K: Resource<DynamicType = ()>>(ctx: &Context, object: &K, error: &str) -> Action {
    let (uid, generation) = (object.meta().uid.clone().unwrap_or_default(), object.meta().generation);
    let kind = K::kind(&());
    let known =
        ctx.invalid_objects.insert(ObjectGeneration { uid: &uid, kind: &kind, generation }, &ctx.metrics);
    if known.is_new {
        tracing::error!(
            kind = %kind,
            namespace = object.meta().namespace,
            name = object.meta().name,
            error,
            "an object is invalid and is left unchanged"
        );
    }
    if !known.is_reported {
        let event = Event {
            type_: EventType::Warning,
            reason: Reason::Malformed.to_string(),
            note: Some(truncate_note(format!(
                "this {kind} is invalid and is left unchanged: {error}. Correct the field, or apply the object again"
            ))),
            action: "Read".to_owned(),
            secondary: None,
        };
        match ctx.recorder().publish(&event, &object.object_ref(&())).await {
            Ok(()) => ctx.invalid_objects.mark_reported(&uid),
            Err(error) => tracing::warn!(%error, "an event could not be written"),
        }
    }
    Action::requeue(RECHECK_INTERVAL)
}

#[cfg(test)]
mod tests;
