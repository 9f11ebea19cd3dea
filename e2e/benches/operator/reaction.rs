//! The time from the watch event of a run's first disruption to the POST of the replacement pod, compared with two bare
//! loops on kube: one on a watch, and one on a controller, whose queue waits for whole milliseconds.
//!
//! Both ends use this machine's clock: this process's watch gives the time of the event, and the API server's audit log
//! the time of the POST.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use dalsegno_e2e::audit::Entry;
use dalsegno_e2e::{AuditLog, Result, objects, test_context};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::bare::Loop;
use crate::figures::{Samples, about, print_table, times};
use crate::fleet::Fleet;
use crate::floor::Floor;
use crate::pg;
use crate::program::{Program, Role, free_port};

/// The number of disruptions of each kind, for the operator's runs and for each loop's pods.
const SAMPLES: usize = 60;
/// The wait between two disruptions, so that the work after one does not delay the next.
const PAUSE: Duration = Duration::from_millis(150);

/// How a pod is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// Its container ends after an eviction. The status says so.
    Evicted,
    /// It is deleted at once, and its container's end is unknown.
    Deleted,
}

/// Prints the table for both stores.
pub async fn measure() -> Result {
    let folder = tempfile::tempdir()?;
    let server = tokio::task::spawn_blocking(|| pg::Server::start(&[])).await?;
    let file = |name: &str| folder.path().join(name);
    let (sqlite, postgres) =
        (format!("sqlite://{}", file("runs.db").display()), server.empty_database().await);
    let sqlite_floors = [Floor::sqlite(&file("watch.db")).await, Floor::sqlite(&file("controller.db")).await];
    let [watch, controller] = [server.empty_database().await, server.empty_database().await];
    let postgres_floors = [Floor::postgres(&watch).await, Floor::postgres(&controller).await];
    let mut rows = Vec::new();
    for (store, url, floors) in [("SQLite", sqlite, sqlite_floors), ("PostgreSQL", postgres, postgres_floors)]
    {
        for (event, [ours, watch, controller]) in measure_on(&url, floors).await? {
            let over = |floor: &Samples| [0.5, 0.99].map(|share| times(ours.over(floor, share))).join(" / ");
            rows.push([
                store.to_owned(),
                event.to_owned(),
                about(watch.quantile(0.5)),
                over(&watch),
                about(controller.quantile(0.5)),
                over(&controller),
            ]);
        }
    }
    print_table(
        "Watch event of a first disruption → POST of the replacement; ratios at p50 / p99",
        ["store", "the event", "bare watch p50", "ours ÷ watch", "bare controller p50", "ours ÷ controller"],
        &rows,
    );
    Ok(())
}

/// The samples of the operator, of the loop on a watch and of the loop on a controller, for each kind of loss.
async fn measure_on(database: &str, floors: [Floor; 2]) -> Result<Vec<(&'static str, [Samples; 3])>> {
    let role = Role { command: "all", user: "operator", database, gateway: free_port()? };
    let program = Program::start(&role).await?;
    let mut fleet = Fleet::new("reaction").await?;
    let audit = AuditLog::from_now(&fleet.namespace)?;
    let watched = WatchedPods::start(&fleet).await?;

    let losses =
        [(Loss::Evicted, "evicted", "its container's end"), (Loss::Deleted, "deleted", "the pod is gone")];
    let names = |kind: &str| (0..SAMPLES).map(move |i| format!("{kind}-{i}")).collect::<Vec<_>>();
    for (_, kind, _) in losses {
        fleet.start(names(kind)).await?;
    }
    let model = fleet.pods().get("evicted-0-1").await?;
    let loops = [Loop::Watch, Loop::Controller];
    let copies = loops
        .map(|bare| losses.map(|(_, kind, _)| names(kind)).concat().into_iter().map(move |it| (bare, it)));
    stream::iter(copies.into_iter().flatten())
        .map(|(bare, name)| start_bare(&fleet, &model, bare, format!("{}-{name}", bare.name())))
        .buffer_unordered(16)
        .try_collect::<Vec<_>>()
        .await?;
    for (bare, floor) in loops.into_iter().zip(floors) {
        let (client, namespace) = (test_context::clients().await?.0, fleet.namespace.clone());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(bare.run(client, namespace, floor)).unwrap();
        });
    }
    sleep(Duration::from_secs(3)).await;

    for (loss, kind, _) in losses {
        for name in names(kind) {
            for name in [format!("watch-{name}"), format!("controller-{name}"), name] {
                lose(&fleet, loss, &format!("{name}-1")).await?;
                watched.wait_for(&format!("{name}-2")).await?;
                sleep(PAUSE).await;
            }
        }
    }
    let posts = posts(&audit)?;
    let samples = losses.map(|(_, kind, event)| {
        let of =
            |prefix: &str| watched.samples(names(kind).iter().map(|name| format!("{prefix}{name}")), &posts);
        Ok((event, [of("")?, of("watch-")?, of("controller-")?]))
    });
    // The next measurement's operator would reconcile what is left here.
    fleet.end().await?;
    drop(program);
    samples.into_iter().collect()
}

async fn start_bare(fleet: &Fleet, model: &Pod, bare: Loop, name: String) -> Result {
    bare.start(&fleet.client, model, &name).await?;
    fleet.wait_for_running(&format!("{name}-1")).await?;
    Ok(())
}

async fn lose(fleet: &Fleet, loss: Loss, pod: &str) -> Result {
    let pods = fleet.pods();
    match loss {
        Loss::Deleted => {
            pods.delete(pod, &DeleteParams::default().grace_period(0)).await?;
        }
        Loss::Evicted => {
            let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let ended = json!({ "exitCode": 143, "reason": "Error", "startedAt": now, "finishedAt": now });
            let status = json!({
                "phase": "Failed",
                "conditions": [{
                    "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                    "message": "Eviction API: evicting", "lastTransitionTime": now,
                }],
                "containerStatuses": [{
                    "name": "agent", "image": "agent", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "terminated": ended },
                }],
            });
            let change = Patch::Merge(json!({ "status": status }));
            pods.patch_status(pod, &PatchParams::default(), &change).await?;
        }
    }
    Ok(())
}

/// The time of each pod's POST, from the audit log.
fn posts(audit: &AuditLog) -> Result<HashMap<String, Timestamp>> {
    let is_post = |entry: &Entry| entry.verb == "create" && entry.is_pod() && entry.succeeded();
    let entries = audit.entries()?;
    Ok(entries.into_iter().filter(is_post).map(|entry| (entry.name, entry.at)).collect())
}

/// The pods that this process's watch has reported.
#[derive(Clone, Default)]
struct WatchedPods(Arc<Mutex<PodEvents>>);

#[derive(Default)]
struct PodEvents {
    /// The time of the first event that reports the end of each pod.
    lost: HashMap<String, Timestamp>,
    created: HashSet<String>,
}

impl WatchedPods {
    /// Starts to watch the pods of a namespace.
    async fn start(fleet: &Fleet) -> Result<Self> {
        let api: Api<Pod> = Api::namespaced(test_context::clients().await?.0, &fleet.namespace);
        let watched = Self::default();
        let recorder = watched.clone();
        tokio::spawn(async move {
            let mut events = Box::pin(watcher(api, watcher::Config::default()));
            while let Some(event) = events.next().await {
                if let Ok(event) = event {
                    recorder.record(event, Timestamp::now());
                }
            }
        });
        Ok(watched)
    }

    fn record(&self, event: Event<Pod>, now: Timestamp) {
        let mut events = self.0.lock().unwrap();
        match event {
            Event::Apply(pod) if !objects::has_ended(&pod) => drop(events.created.insert(pod.name_any())),
            Event::Apply(pod) | Event::Delete(pod) => {
                events.lost.entry(pod.name_any()).or_insert(now);
            }
            Event::Init | Event::InitApply(_) | Event::InitDone => {}
        }
    }

    /// Waits up to 30 s until the watch has reported this pod.
    async fn wait_for(&self, pod: &str) -> Result {
        let limit = Instant::now() + Duration::from_secs(30);
        while !self.0.lock().unwrap().created.contains(pod) {
            anyhow::ensure!(Instant::now() < limit, "timed out after 30 s waiting for pod {pod}");
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// The time from the loss of each first pod to the POST of the second one.
    fn samples(
        &self,
        names: impl Iterator<Item = String>,
        posts: &HashMap<String, Timestamp>,
    ) -> Result<Samples> {
        let events = self.0.lock().unwrap();
        let mut samples = Samples::default();
        for name in names {
            let lost =
                events.lost.get(&format!("{name}-1")).with_context(|| format!("{name} was not lost"))?;
            let post = posts.get(&format!("{name}-2")).with_context(|| format!("{name} was not replaced"))?;
            samples.push(post.duration_since(*lost).unsigned_abs());
        }
        Ok(samples)
    }
}
