//! Commands that only read, on a standby that streams from the primary.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_model::{CallFilter, Error, EventQuery, RecordQuery, RunId, Store};
use dalsegno_proof::bundle::{self, Export, ExportOf};
use dalsegno_proof::{Anchors, Signer, check_store, verify};
use dalsegno_protocol::{Policy, RecordOp};
use jiff::Timestamp;
use tokio::time::timeout;

use crate::context::*;
use crate::open;
use crate::pg::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_serves_everything_that_only_reads() {
    let primary = Server::start(&[]);
    let url = primary.database().await;
    let cx = open(&url).await;
    let run = run_with_everything(&cx).await;
    Signer::load(&*cx.store, None).await.unwrap();
    let standby = primary.standby_at(free_port());
    let url = standby.url(database_of(&url));
    let store = dalsegno_store::open_read_only(&url, None).await.unwrap();
    wait_for(&*store, run, 4).await;

    // `show`
    let record = cx.get_run(run).await.unwrap().unwrap();
    let record = store.find(&record.namespace, &record.name).await.unwrap().remove(0);
    assert_eq!(record.id, run);
    assert_eq!(store.boundaries(run, 1, 9).await.unwrap().len(), 4);
    assert!(store.state(run, None).await.unwrap().is_some());
    assert!(!store.calls(run, CallFilter::All).await.unwrap().is_empty());
    assert!(!store.audit(run).await.unwrap().is_empty());
    store.events(run, EventQuery { from: 0, limit: 10, bytes: 1 << 20 }).await.unwrap();
    let query = RecordQuery { space: "s".into(), limit: 10, bytes: 1 << 20, ..RecordQuery::default() };
    assert_eq!(store.read_records(run, &query).await.unwrap().records.len(), 1);
    // `verify` and `audit verify`
    assert_eq!(verify::scan(&*store, &record).await.unwrap().damage, []);
    let mut reading = store.begin_read().await.unwrap();
    let checked = check_store(&mut *reading, Anchors::default(), &mut |it| panic!("{it}")).await.unwrap();
    assert_eq!((checked.runs, checked.problems), (1, 0));
    // `export`
    let signer = Arc::new(Signer::load(&*store, None).await.unwrap());
    let reading = store.begin_read().await.unwrap();
    let of = ExportOf { store: record.store_id, run, at: Timestamp::now() };
    let export = Export::begin(reading, of, signer);
    let (mut export, mut file) = (export.await.unwrap().unwrap(), Vec::new());
    while let Some(lines) = export.next().await.unwrap() {
        file.extend_from_slice(&lines);
    }
    assert_eq!(bundle::verify(&file[..], None).unwrap().problems.len(), 0);

    let refused = store.request_cancel(run, &Default::default()).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    let refused =
        dalsegno_store::open(&url, None).await.err().expect("operator and gateway need the primary");
    assert!(std::error::Error::source(&refused).unwrap().to_string().contains("standby"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_opened_for_reading_refuses_writes_on_the_primary_too() {
    let (cx, url) = crate::fresh().await;
    let worker = cx.worker().await;
    let store = dalsegno_store::open_read_only(&url, None).await.unwrap();
    store.commit(&worker.result(1)).await.unwrap_err();
    assert_eq!(cx.run_of(&worker).await.head, None);
}

/// The servers of one cluster after a fail-over: the first is a standby now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_servers_the_one_that_accepts_writes_is_used() {
    let [primary_port, standby_port, nobody] = [free_port(), free_port(), free_port()];
    let primary = Server::start_at(primary_port, &[]);
    let url = primary.database().await;
    let worker = open(&url).await.worker().await;
    let _standby = primary.standby_at(standby_port);
    let several = format!(
        "postgres://postgres@127.0.0.1:{nobody},127.0.0.1:{standby_port},127.0.0.1:{primary_port}/{}\
         ?sslmode=disable&target_session_attrs=read-write",
        database_of(&url)
    );
    open(&several).await.commit_turn(&worker, 1).await;
}

/// A run with boundaries, calls and records.
async fn run_with_everything(cx: &TestContext) -> RunId {
    let worker = cx.worker().await;
    for turn in 1..=3 {
        cx.commit_turn(&worker, turn).await;
    }
    let claim = worker.claim("call", Policy::Probe);
    cx.claim(&claim).await.unwrap();
    cx.complete(&worker.complete(&claim)).await.unwrap();
    let (space, key) = ("s".into(), "k".into());
    let put = RecordOp::Put { space, key, value: dalsegno_protocol::Payload::Json(json("1")) };
    cx.write_records(&worker.record_batch(vec![put])).await.unwrap();
    cx.commit_turn(&worker, 4).await;
    worker.run
}

/// Waits until the store has this turn.
async fn wait_for(store: &dyn Store, run: RunId, turn: i32) {
    let arrived = timeout(Duration::from_secs(30), async {
        while store.get_run(run).await.unwrap().and_then(|run| run.head).is_none_or(|head| head.turn < turn) {
            sleep_ms(20).await;
        }
    });
    arrived.await.expect("the standby streams from the primary");
}

fn database_of(url: &str) -> &str {
    url.split_once('?').unwrap().0.rsplit_once('/').unwrap().1
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
