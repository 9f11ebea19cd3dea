//! The floor of a reaction: a bare loop on kube's watcher. A pod that has ended or is gone is made again, under the next
//! number, once one row is committed.

use dalsegno_e2e::{Result, objects};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};

use crate::floor::Floor;

/// What the loop's pods are known by.
pub const LABEL: (&str, &str) = ("bench", "bare");

/// Bytes of the row: about what a row of an attempt has.
const ROW: [u8; 256] = [7; 256];

/// Loops until the watch fails.
pub async fn run(client: Client, namespace: String, mut floor: Floor) -> Result {
    let api: Api<Pod> = Api::namespaced(client, &namespace);
    let config = watcher::Config::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let mut events = Box::pin(watcher(api.clone(), config));
    while let Some(event) = events.try_next().await? {
        let pod = match event {
            Event::Apply(pod) if objects::has_ended(&pod) => pod,
            Event::Delete(pod) => pod,
            _ => continue,
        };
        if let Some(first) = pod.name_any().strip_suffix("-1") {
            floor.insert(&ROW).await;
            api.create(&PostParams::default(), &like(&pod, format!("{first}-2"))).await?;
        }
    }
    Ok(())
}

/// A new pod of the loop like this one, on no node yet.
pub fn like(pod: &Pod, name: String) -> Pod {
    let labels = [(LABEL.0.to_owned(), LABEL.1.to_owned())];
    let mut spec = pod.spec.clone();
    if let Some(spec) = &mut spec {
        spec.node_name = None;
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            annotations: pod.metadata.annotations.clone(),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}
