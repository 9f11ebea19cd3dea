use dalsegno_store::sqlite::Sqlite;
use prometheus_client::encoding::text::encode;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::metrics::tests::{documented, registered};
use crate::test_context::TestContext;

async fn served() -> (TempDir, Sqlite, Arc<Disk>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    let store = Sqlite::open(&path).await.unwrap();
    let disk = store.disk().unwrap();
    while disk.status().total_bytes == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (dir, store, disk)
}

#[tokio::test]
async fn the_page_of_metrics_lists_exactly_the_metrics_of_the_volume() {
    let (_dir, _store, disk) = served().await;
    let (mut registry, mut text) = (Registry::with_prefix("dalsegno"), String::new());
    register(disk, &mut registry);
    encode(&mut text, &registry).unwrap();
    assert_eq!(documented("Embedded store"), registered(&text));
    assert!(text.contains("\ndalsegno_store_is_full 0\n"), "{text}");
}

#[tokio::test]
async fn a_change_of_the_level_is_an_event_on_the_own_pod() {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod",
                      "metadata": { "name": "dalsegno-0", "namespace": "system", "uid": "pod-uid" } });
    let (_dir, store, _disk) = served().await;
    let api = TestContext::new(Arc::new(store), vec![pod]);
    let args = OperatorArgs {
        policies: Default::default(),
        gateway_url: String::new(),
        watch_namespaces: Vec::new(),
        anchor_sink: crate::config::AnchorSinkKind::None,
        anchor_file: None,
        leader_election: false,
        namespace: "system".into(),
        pod_name: "dalsegno-0".into(),
        concurrency: 1,
        state_read_bytes: 0,
        anchor_every: Duration::from_secs(60),
        purge_days: None,
        snapshot_every: None,
        notifications: crate::config::NotificationArgs::default(),
        people_api: crate::config::PeopleApiArgs::default(),
        crash_at: None,
    };
    for (level, kind, reason) in [
        (DiskLevel::Filling, "Warning", "VolumeFilling"),
        (DiskLevel::Full, "Warning", "VolumeFull"),
        (DiskLevel::Ok, "Normal", "VolumeHasSpace"),
    ] {
        let status =
            DiskStatus { level, total_bytes: 10 << 30, free_bytes: 1 << 30, ..DiskStatus::default() };
        publish(&status, &api.ctx.client, &args).await.unwrap();
        let requests = api.requests.lock().unwrap();
        let (_, path, event) = requests.last().unwrap();
        assert!(path.ends_with("/namespaces/system/events"), "{path}");
        assert_eq!((&event["type"], &event["reason"]), (&json!(kind), &json!(reason)));
        assert_eq!(event["regarding"]["uid"], "pod-uid");
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("1024 MiB of 10240 MiB"), "{note}");
    }
}
