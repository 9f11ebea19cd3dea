//! Objects that are not what this version reads, as when they were stored under an older schema. They are left alone,
//! stop no other, and somebody is told.

use dalsegno_crds::Reason;
use kube::Resource;
use kube::runtime::events::{Event, EventType};

use crate::cluster::truncated;
use crate::context::Context;

/// Tells of an object that cannot be read: by the log, the metrics and an event. Its status is left as it is, since
/// nobody knows what else in it would be lost.
pub async fn tell<K: Resource<DynamicType = ()>>(ctx: &Context, object: &K, error: &str) {
    let kind = K::kind(&());
    ctx.metrics.unreadable(&kind);
    tracing::error!(
        kind = %kind,
        namespace = object.meta().namespace,
        name = object.meta().name,
        error,
        "an object cannot be read and is left alone"
    );
    let event = Event {
        type_: EventType::Warning,
        reason: Reason::Malformed.to_string(),
        note: Some(truncated(format!(
            "this {kind} cannot be read and is left alone: {error}. Correct the field, or apply it again"
        ))),
        action: "Read".to_owned(),
        secondary: None,
    };
    if let Err(error) = ctx.recorder().publish(&event, &object.object_ref(&())).await {
        tracing::warn!(%error, "an event could not be written");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use std::sync::Arc;

    use dalsegno_core::AgentSight;
    use dalsegno_crds::AgentRun;
    use serde_json::{Value, json};

    use crate::context::{Context, Definition};
    use crate::run::Run;
    use crate::world::{self, Asked};
    use crate::{controller, definitions, observe};

    /// An API server that has one AgentDefinition.
    async fn context(definition: Value) -> (Arc<Context>, Asked) {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        world::context(store, vec![definition])
    }

    fn object(kind: &str, spec: Value) -> Value {
        json!({ "apiVersion": "dalsegno.dev/v1alpha1", "kind": kind, "spec": spec,
                "metadata": { "name": "nightly", "namespace": "shop", "uid": "uid-1" } })
    }

    fn counted(ctx: &Context, kind: &str) -> bool {
        world::metrics(ctx).contains(&format!("unreadable_total{{kind=\"{kind}\"}} 1"))
    }

    #[tokio::test]
    async fn a_definition_that_cannot_be_read_is_seen_as_such_and_is_no_error() {
        let (ctx, _) = context(object("AgentDefinition", json!({ "template": "a string" }))).await;
        let run = object("AgentRun", json!({ "agentRef": { "name": "nightly" } }));
        let run: AgentRun = serde_json::from_value(run).unwrap();
        let AgentSight::Malformed(why) = observe::observe(&ctx, &run).await.unwrap().agent else {
            panic!("it cannot be read")
        };
        assert!(why.contains("a string"), "{why}");
    }

    #[tokio::test]
    async fn a_run_that_cannot_be_read_is_told_of_and_tried_again_only_when_it_changes() {
        let (ctx, asked) = context(Value::Null).await;
        let run: Run = serde_json::from_value(object("AgentRun", json!({ "agentRef": 7 }))).unwrap();
        let action = controller::guarded(Arc::new(run), ctx.clone()).await.unwrap();
        assert_eq!(action, kube::runtime::controller::Action::await_change());
        assert!(counted(&ctx, "AgentRun"));
        let asked = asked.lock().unwrap();
        let [(method, path, event)] = asked.as_slice() else { panic!("one event: {asked:?}") };
        assert_eq!((method.as_str(), path.ends_with("/namespaces/shop/events")), ("POST", true), "{path}");
        assert_eq!((&event["reason"], &event["type"]), (&json!("Malformed"), &json!("Warning")));
        assert_eq!(event["regarding"]["uid"], "uid-1");
    }

    #[tokio::test]
    async fn a_definition_that_cannot_be_read_is_told_of() {
        let (ctx, asked) = context(Value::Null).await;
        let definition = object("AgentDefinition", json!({ "template": [] }));
        let definition: Definition = serde_json::from_value(definition).unwrap();
        definitions::check(Arc::new(definition), ctx.clone()).await.unwrap();
        assert!(counted(&ctx, "AgentDefinition"));
        assert_eq!(asked.lock().unwrap()[0].2["regarding"]["kind"], "AgentDefinition");
    }
}
