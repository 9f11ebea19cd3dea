//! Publishes what a reconcile decided: the status, and Kubernetes events.

use dalsegno_core::{EventLevel, EventSpec};
use dalsegno_crds::{AgentRun, AgentRunStatus};
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType};
use kube::{Resource as _, ResourceExt};

use super::context::Context;
use super::error::{Error, Result};

/// Longest note of an event, in bytes. The API server accepts 1,024.
const MAX_NOTE_BYTES: usize = 1_000;

/// Writes the status, guarded by the resource version. Succeeds if the AgentRun is gone.
pub async fn write_status(ctx: &Context, run: &AgentRun, status: AgentRunStatus) -> Result<()> {
    let mut new = run.clone();
    new.status = Some(status);
    new.metadata.managed_fields = None;
    let api = ctx.runs(&run.namespace().unwrap_or_default());
    match api.replace_status(&run.name_any(), &PostParams::default(), &new).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(kube::Error::Api(status)) if status.is_conflict() => {
            ctx.metrics.count_status_conflict();
            Err(Error::Conflict)
        }
        Err(error) => Err(Error::api("writing the status")(error)),
    }
}

/// Publishes events, best effort. After the first failure the others are only logged: each would wait for its own timeout.
pub async fn publish_events(ctx: &Context, run: &AgentRun, events: &mut Vec<EventSpec>) {
    if events.is_empty() {
        return;
    }
    let (recorder, reference) = (ctx.recorder(), run.object_ref(&()));
    let mut failed = false;
    for notice in events.drain(..) {
        match notice.level {
            EventLevel::Normal => tracing::info!(reason = notice.reason, "{}", notice.log),
            EventLevel::Warning => tracing::warn!(reason = notice.reason, "{}", notice.log),
        }
        if failed {
            continue;
        }
        let event = Event {
            type_: match notice.level {
                EventLevel::Normal => EventType::Normal,
                EventLevel::Warning => EventType::Warning,
            },
            reason: notice.reason.clone(),
            note: Some(truncate_note(notice.note)),
            action: notice.action,
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &reference).await {
            failed = true;
            tracing::warn!(%error, "an event could not be written; the events after it are not written either");
        }
    }
}

/// Shortens the note of an event to what the API server accepts.
pub fn truncate_note(mut note: String) -> String {
    if note.len() > MAX_NOTE_BYTES {
        let end = (0..=MAX_NOTE_BYTES).rev().find(|at| note.is_char_boundary(*at)).unwrap_or_default();
        note.truncate(end);
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::controller::context::EVENT_TIMEOUT;
    use crate::test_context::TestContext;

    #[tokio::test]
    async fn after_one_event_timed_out_the_other_events_are_not_tried() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let mut ctx = TestContext::new(store, vec![]).ctx;
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let silent = tower::service_fn(move |_: Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            pending::<std::result::Result<Response<Body>, Infallible>>()
        });
        Arc::get_mut(&mut ctx).unwrap().client = Client::new(silent, "shop");
        let run = json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun", "spec": {},
                          "metadata": { "name": "nightly", "namespace": "shop", "uid": "uid-1" } });
        let run = serde_json::from_value(run).unwrap();
        let event = |reason: &str| EventSpec {
            level: EventLevel::Normal,
            reason: reason.to_owned(),
            note: String::new(),
            log: String::new(),
            action: "Watch".to_owned(),
        };
        let mut events = ["Starting", "Running", "Done"].map(event).to_vec();
        let publishing = publish_events(&ctx, &run, &mut events);
        tokio::time::timeout(EVENT_TIMEOUT * 2, publishing).await.expect("it ends");
        assert_eq!((requests.load(Ordering::Relaxed), events.len()), (1, 0));
    }
}
