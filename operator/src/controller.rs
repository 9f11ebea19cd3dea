//! The controller of AgentRuns: what wakes it, and the three lines of its reconcile.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::{Effect, ObservedStore, decide};
use dalsegno_crds::{AgentRun, names};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::reflector::{ObjectRef, Store as Cache};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use tracing::Instrument;

use crate::act::{Acted, act};
use crate::asked::{self, Wish};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::ground::Ground;
use crate::kept::Run;
use crate::pods::Owner;
use crate::sync::lock;
use crate::telemetry::chain;
use crate::unreadable;

/// A decision comes to rest in far fewer rounds: take up, record, identify, end, reserve, create, record. Ten taken names
/// in a row are twenty.
const ROUNDS: usize = 32;
/// First and longest pause after a reconcile that failed.
const FAILURE_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Reconciles AgentRuns until `stop` is ready, woken by their watch and by `wakes`.
pub async fn run(
    ctx: Arc<Context>,
    runs: impl Stream<Item = watcher::Result<Run>> + Send + 'static,
    cache: Cache<Run>,
    wakes: impl Stream<Item = ObjectRef<Run>> + Send + 'static,
    concurrency: u16,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    Controller::for_stream(runs, cache)
        .with_config(Config::default().concurrency(concurrency))
        .reconcile_on(wakes)
        .graceful_shutdown_on(stop)
        .run(guarded, error_policy, ctx)
        .for_each(|_| async {})
        .await;
}

/// Observe, decide, act; again while acting taught something. Answers when to look again, if nothing happens before.
pub async fn reconcile(run: &AgentRun, ground: &impl Ground) -> Result<Option<Duration>> {
    let mut observed = ground.observe(run).await?;
    let mut told = Vec::new();
    for _ in 0..ROUNDS {
        let decision = decide(run, &observed, Timestamp::now());
        match act(ground, run, decision, &mut told).await {
            Ok(Acted::Learned(facts)) => {
                facts.into_iter().for_each(|fact| observed.apply(fact));
                if observed.must_observe_again() {
                    observed = ground.observe(run).await?;
                }
            }
            Ok(Acted::Done(requeue)) => {
                if let ObservedStore::Found(row) = &observed.store {
                    ground.at_rest(row);
                }
                return Ok(requeue);
            }
            // What may be read and not written, as on a full disk, is a store that is away: the run waits for it.
            Err(error) if error.is_store_away() => {
                ground.store_away(&error);
                observed.store = ObservedStore::Unknown(chain(&error));
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::Restless(ROUNDS))
}

/// The AgentRun is being deleted: fence the row, close it, delete its pods by UID, let go. Waits for no kubelet, and needs no
/// more than the metadata.
async fn clean_up(run: &Run, ctx: &Context) -> Result<Action> {
    let uid = run.uid().unwrap_or_default();
    let closing = Effect::MarkDeleted.name();
    ctx.crash.pass("before", closing);
    let asked = asked::of(run, Wish::Deletion);
    ctx.store.mark_deleted(&uid, &asked).await.map_err(Error::store("closing the row"))?;
    ctx.crash.pass("after", closing);
    for seen in ctx.pods.of(&Owner::of(run)).into_iter().filter(|it| !it.gone) {
        ctx.stop_worker(&run.namespace().unwrap_or_default(), seen.name(), seen.uid().to_owned()).await?;
    }
    Ok(Action::await_change())
}

/// One span and one finalizer around the reconcile; an object that cannot be read stops no other. It comes to an end: so does
/// whatever is asked of the API server ([`crate::client`]) or of the store.
pub(crate) async fn guarded(run: Arc<Run>, ctx: Arc<Context>) -> Result<Action> {
    let read = run.read();
    if let Err(error) = &read
        && run.meta().deletion_timestamp.is_none()
    {
        return Ok(unreadable::tell(&ctx, run.as_ref(), &error.to_string()).await);
    }
    let uid = run.uid().unwrap_or_default();
    ctx.unreadable.forget(&uid, &ctx.metrics);
    let namespace = run.namespace().unwrap_or_default();
    let span = tracing::info_span!("reconcile", namespace, run = run.name_any());
    let started = std::time::Instant::now();
    let api = Api::<Run>::namespaced(ctx.client.clone(), &namespace);
    let outcome = finalizer(&api, names::FINALIZER, run, |event| async {
        match event {
            Event::Apply(_) => {
                let Ok(run) = &read else { return Ok(Action::await_change()) };
                let requeue = reconcile(run, ctx.as_ref()).await?;
                Ok(requeue.map_or_else(Action::await_change, Action::requeue))
            }
            Event::Cleanup(run) => clean_up(&run, &ctx).await,
        }
    })
    .instrument(span)
    .await;
    ctx.metrics.reconciled(started.elapsed(), outcome.is_ok());
    match outcome {
        Ok(action) => {
            lock(&ctx.failures).remove(&uid);
            Ok(action)
        }
        Err(
            kube::runtime::finalizer::Error::ApplyFailed(error)
            | kube::runtime::finalizer::Error::CleanupFailed(error),
        ) => {
            if let Error::Store { source, .. } = &error {
                ctx.metrics.failed("run", source);
            }
            Err(error)
        }
        Err(error) => Err(Error::Finalizer(error.to_string())),
    }
}

fn error_policy(run: Arc<Run>, error: &Error, ctx: Arc<Context>) -> Action {
    if matches!(error, Error::Stale) {
        return Action::requeue(Duration::from_millis(50));
    }
    let times = {
        let mut failures = lock(&ctx.failures);
        let times = failures.entry(run.meta().uid.clone().unwrap_or_default()).or_default();
        *times = times.saturating_add(1);
        *times
    };
    let pause = FAILURE_PAUSE.0.saturating_mul(1 << (times - 1).min(10)).min(FAILURE_PAUSE.1);
    let pause = match error {
        Error::Stray { again: Some(again), .. } => pause.min(*again),
        _ => pause,
    };
    tracing::warn!(
        namespace = run.meta().namespace,
        run = run.meta().name,
        error = chain(error),
        times,
        "a reconcile failed; it starts again from what is there"
    );
    Action::requeue(pause)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use axum::http::Method;
    use dalsegno_crds::{ConditionType, OperatingMode, Reason, Summary, find_condition};
    use dalsegno_store::audit::{actor, kind};
    use dalsegno_store::{Lifecycle, LookUp, RunRecord};
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;
    use crate::pods;
    use crate::world::{self, Asked, Disk, Fault};

    const UID: &str = "11111111-2222-3333-4444-555555555555";

    /// A run whose first worker is lost: nobody knows of its pod.
    struct Lost {
        disk: Disk,
        ctx: Arc<Context>,
        asked: Asked,
        fault: Fault,
        run: AgentRun,
    }

    impl Lost {
        async fn new() -> Self {
            let disk = Disk::new();
            let namespace = json!({ "metadata": { "name": "shop", "uid": "uid-of-shop" } });
            let fault = Fault::default();
            let (ctx, asked) = world::context_with(disk.store().await, vec![namespace], fault.clone());
            let containers = json!([{ "name": names::WORKER_CONTAINER, "image": "agent" }]);
            let run = serde_json::from_value(json!({
                "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
                "metadata": { "name": "nightly", "namespace": "shop", "uid": UID },
                "spec": { "agent": { "template": { "spec": { "containers": containers } } } },
            }));
            let mut lost = Self { disk, ctx, asked, fault, run: run.unwrap() };
            lost.look().await.unwrap();
            lost
        }

        /// Reconciles; the status that is written stands from then on.
        async fn look(&mut self) -> Result<Option<Duration>> {
            let answer = reconcile(&self.run, self.ctx.as_ref()).await;
            let asked = self.asked.lock().unwrap();
            let written = asked.iter().rfind(|(_, path, _)| path.ends_with("/status"));
            self.run.status =
                written.map(|(.., body)| serde_json::from_value(body["status"].clone()).unwrap());
            answer
        }

        /// From now on the API server has this fault, or none.
        fn fault(&self, fault: Option<(Method, &'static str, Option<u16>)>) {
            *self.fault.lock().unwrap() = fault;
        }

        fn ready(&self) -> (String, String, String) {
            let status = self.run.status.as_ref().unwrap();
            let ready = find_condition(&status.conditions, ConditionType::Ready).unwrap().clone();
            (ready.status, ready.reason, ready.message)
        }

        /// Reasons of the events.
        fn events(&self) -> Vec<String> {
            let asked = self.asked.lock().unwrap();
            let events = asked.iter().filter(|(_, path, _)| path.ends_with("/events"));
            events.map(|(.., body)| body["reason"].as_str().unwrap().to_owned()).collect()
        }

        /// How often something was written at the API server.
        fn written(&self) -> usize {
            self.asked.lock().unwrap().iter().filter(|(method, ..)| method != "GET").count()
        }

        async fn row(&self) -> RunRecord {
            let LookUp::Found(row) = self.ctx.store.look_up(UID).await.unwrap() else {
                panic!("it is there")
            };
            *row
        }

        /// The pod that was created last.
        fn pod(&self) -> Value {
            let asked = self.asked.lock().unwrap();
            let created = asked.iter().rfind(|(method, path, _)| method == "POST" && path.ends_with("/pods"));
            created.unwrap().2.clone()
        }

        /// Its worker runs, and that is seen, or what became of it.
        async fn worker(&self, seen: fn(Pod) -> watcher::Event<Pod>) {
            let mut pod = self.pod();
            pod["metadata"]["uid"] = self.row().await.attempt.pod_uid.into();
            let image = format!("registry/agent@sha256:{}", "1".repeat(64));
            let container = json!({
                "name": names::WORKER_CONTAINER, "image": "agent", "imageID": image, "ready": true, "restartCount": 0,
                "state": { "running": { "startedAt": "2026-05-01T00:00:00Z" } },
            });
            pod["status"] = json!({ "phase": "Running", "containerStatuses": [container] });
            let watch = futures::stream::iter([Ok(seen(serde_json::from_value(pod).unwrap()))]);
            pods::follow(self.ctx.pods.clone(), watch).collect::<Vec<_>>().await;
        }

        fn metrics(&self) -> String {
            world::metrics(&self.ctx.metrics)
        }
    }

    #[tokio::test]
    async fn a_run_waits_uncharged_and_tells_why_while_its_store_can_be_read_and_not_written() {
        let mut lost = Lost::new().await;
        lost.disk.fill().await;
        lost.asked.lock().unwrap().clear();
        assert_eq!(lost.look().await.unwrap(), Some(Duration::from_secs(3)));
        let (status, reason, message) = lost.ready();
        assert_eq!((status.as_str(), reason.as_str()), ("Unknown", "StoreUnavailable"));
        assert!(
            message.contains("refused a row (code 1811); no pod is replaced and nothing is charged"),
            "{message}"
        );
        assert_eq!(lost.events(), ["StoreUnavailable"]);
        assert!(lost.metrics().contains("lookups_total{result=\"unknown\"} 1\n"), "{}", lost.metrics());

        // Told once, and once alone.
        let asked = lost.written();
        assert_eq!(lost.look().await.unwrap(), Some(Duration::from_secs(3)));
        assert_eq!(lost.written(), asked);

        lost.disk.make_room().await;
        lost.look().await.unwrap();
        assert_ne!(lost.ready().1, "StoreUnavailable");
        let LookUp::Found(row) = lost.ctx.store.look_up(UID).await.unwrap() else { panic!("it is there") };
        let charged = (row.counters.recovery_attempts, row.counters.disruptions);
        assert_eq!((row.attempt.number, row.past.len(), charged), (2, 1, (0, 1)));
    }

    #[tokio::test]
    async fn what_the_api_server_does_not_answer_fails_a_reconcile_and_the_next_one_goes_on() {
        let lost = Lost::new().await;
        let mut run = serde_json::to_value(&lost.run).unwrap();
        let look = async |run: &Value| {
            let run = Arc::new(serde_json::from_value(run.clone()).unwrap());
            let looking = guarded(run, lost.ctx.clone());
            tokio::time::timeout(Duration::from_secs(20), looking).await.expect("it comes to an end")
        };
        for (method, end) in
            [(Method::PATCH, "/agentruns/nightly"), (Method::POST, "/pods"), (Method::PUT, "/status")]
        {
            lost.fault(Some((method, end, None)));
            let error = chain(&look(&run).await.unwrap_err());
            assert!(error.contains("no answer within"), "{end}: {error}");
            lost.fault(None);
            look(&run).await.unwrap();
            run["metadata"]["finalizers"] = json!([names::FINALIZER]);
        }
        assert_eq!(lost.row().await.attempt.pod_name.as_deref(), Some("nightly-3"));
    }

    #[tokio::test]
    async fn a_pod_that_the_api_server_fails_to_make_is_told_and_made_once_it_can_be() {
        for code in [500, 429] {
            let mut lost = Lost::new().await;
            lost.fault(Some((Method::POST, "/pods", Some(code))));
            assert!(lost.look().await.unwrap().is_some(), "it is tried again");
            let status = lost.run.status.as_ref().unwrap();
            assert_eq!(status.reason, Some(Reason::PodRefused), "{code}");
            let worker = find_condition(&status.conditions, ConditionType::WorkerReady).unwrap();
            assert_eq!((worker.status.as_str(), worker.message.as_str()), ("False", "it is broken"));

            lost.fault(None);
            lock(&lost.ctx.refusals).clear();
            lost.look().await.unwrap();
            assert_eq!(lost.row().await.attempt.pod_name.as_deref(), Some("nightly-2"));
        }
    }

    #[tokio::test]
    async fn a_pod_that_cannot_be_deleted_keeps_nobody_from_reading_where_the_run_stands() {
        let mut lost = Lost::new().await;
        lost.worker(watcher::Event::Apply).await;
        lost.look().await.unwrap();
        lost.run.spec.operating_mode = Some(OperatingMode::Cancelled);
        lost.fault(Some((Method::DELETE, "/pods/nightly-1", Some(403))));
        let error = lost.look().await.unwrap_err();
        assert!(matches!(error, Error::Stray { .. }) && chain(&error).contains("it is broken"), "{error}");
        let status = lost.run.status.as_ref().unwrap();
        assert_eq!(status.summary, Some(Summary::Cancelled));
        assert!(status.completion_time.is_some());
        assert!(lost.events().contains(&"Cancelled".to_owned()), "{:?}", lost.events());

        let action = error_policy(
            Arc::new(serde_json::from_value(serde_json::to_value(&lost.run).unwrap()).unwrap()),
            &Error::Stray { again: Some(Duration::from_millis(9)), source: Box::new(error) },
            lost.ctx.clone(),
        );
        assert_eq!(action, Action::requeue(Duration::from_millis(9)), "what else it waits for comes in time");
        lost.fault(None);
        lost.look().await.unwrap();
    }

    #[tokio::test]
    async fn a_run_whose_agentrun_went_unnoticed_is_ended_by_a_cancelled_one_without_a_worker() {
        let mut lost = Lost::new().await;
        let LookUp::Found(row) = lost.ctx.store.look_up(UID).await.unwrap() else { panic!("it is there") };
        lost.asked.lock().unwrap().clear();
        let run = json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
            "metadata": { "name": "nightly", "namespace": "shop", "uid": "another" },
            "spec": { "agentRef": { "name": "none" }, "operatingMode": "Cancelled", "onPriorRun": "Adopt" },
        });
        lost.run = serde_json::from_value(run).unwrap();
        lost.look().await.unwrap();
        let ended = lost.ctx.store.get_run(row.id).await.unwrap().unwrap();
        assert_eq!((ended.lifecycle, ended.object_uid.as_str()), (Lifecycle::Finished, "another"));
        let asked = lost.asked.lock().unwrap();
        assert!(!asked.iter().any(|(method, path, _)| method == "POST" && path.ends_with("/pods")));
    }

    #[tokio::test]
    async fn an_attempt_is_counted_as_ended_once_and_not_for_each_time_it_could_not_be() {
        let mut lost = Lost::new().await;
        lost.disk.fill().await;
        for _ in 0..3 {
            let _ = lost.look().await;
        }
        assert!(!lost.metrics().contains("attempts_ended_total{"), "{}", lost.metrics());
        lost.disk.make_room().await;
        lost.look().await.unwrap();
        let told = lost.metrics();
        assert!(told.contains("attempts_ended_total{cause=\"PodVanished\"} 1\n"), "{told}");
    }

    #[tokio::test]
    async fn a_run_with_a_damaged_head_is_held_and_with_last_good_goes_on_from_the_turn_before_the_damage() {
        let mut lost = Lost::new().await;
        lost.worker(watcher::Event::Apply).await;
        lost.look().await.unwrap();
        let row = lost.row().await;
        world::work(lost.ctx.store.as_ref(), row.id, &row.attempt.pod_uid.unwrap(), 3).await;
        lost.look().await.unwrap();
        lost.disk.execute("UPDATE boundaries SET ops = substr(ops, 1, length(ops) - 1) WHERE turn = 2").await;
        assert!(lost.metrics().contains("damage_total{place=\"head\"} 0\n"), "{}", lost.metrics());
        lost.worker(watcher::Event::Delete).await;
        lost.look().await.unwrap();
        let (_, reason, message) = lost.ready();
        assert_eq!(reason, "Held");
        assert!(message.contains("the last good checkpoint is turn 1 (result)"), "{message}");
        assert_eq!(lost.pod()["metadata"]["name"], "nightly-1");

        let recovery = json!({ "onCorruptCheckpoint": "LastGood" });
        lost.run.spec.recovery = serde_json::from_value(recovery).unwrap();
        lost.look().await.unwrap();
        let (row, pod) = (lost.row().await, lost.pod());
        let head = row.head.unwrap();
        assert_eq!((head.turn, row.highest_turn, row.attempt.number), (1, 3, 2));
        assert_eq!(row.attempt.pod_name.as_deref(), Some("nightly-2"));
        assert_eq!(pod["metadata"]["name"], "nightly-2");
        assert_eq!(pod["metadata"]["annotations"][names::ANNOTATION_TURN], format!("1/{}", head.position));
        assert!(lost.events().contains(&"Rewound".to_owned()), "{:?}", lost.events());
        let audit = lost.ctx.store.audit(row.id).await.unwrap();
        let rewound = audit.iter().find(|it| it.kind == kind::REWOUND).unwrap();
        assert_eq!(rewound.actor, actor::OPERATOR);
        assert!(rewound.detail.contains("turn 2 (result)"), "{}", rewound.detail);

        // Looked at for the attempt, not again for the wish, and again behind the damage.
        let told = lost.metrics();
        assert!(told.contains("effects_total{effect=\"verify-head\"} 2\n"), "{told}");
        assert!(told.contains("damage_total{place=\"head\"} 1\n"), "{told}");
    }

    #[tokio::test]
    async fn damage_that_is_met_in_a_run_is_counted_whether_it_is_looked_up_or_deleted() {
        let mut lost = Lost::new().await;
        assert!(lost.metrics().contains("damage_total{place=\"run\"} 0\n"), "{}", lost.metrics());
        lost.disk.execute("DELETE FROM attempts").await;
        lost.look().await.unwrap();
        assert!(lost.metrics().contains("damage_total{place=\"run\"} 1\n"), "{}", lost.metrics());

        lost.run.metadata.finalizers = Some(vec![names::FINALIZER.into()]);
        let mut run = serde_json::to_value(&lost.run).unwrap();
        run["metadata"]["deletionTimestamp"] = "2026-05-01T00:00:00Z".into();
        let run = Arc::new(serde_json::from_value(run).unwrap());
        guarded(run, lost.ctx.clone()).await.unwrap_err();
        assert!(lost.metrics().contains("damage_total{place=\"run\"} 2\n"), "{}", lost.metrics());
    }
}
