//! `dalsegno runs purge`.

use dalsegno_model::{RequestedBy, Retention, RunId, Store};
use dalsegno_proof::{Anchor, Signer};
use jiff::Timestamp;

use crate::test_context::{RUN, TestContext, create_run};

fn purge(context: &TestContext, before: &str, more: &[&str]) -> (bool, String) {
    let command = ["runs", "purge", "--before", before, "--reason", "it is archived", "--by", "grace"];
    context.run(&[&command, more].concat(), true)
}

async fn anchor(store: &dyn Store) {
    let moved = store.heads_to_anchor(RunId::nil()).await.unwrap();
    let signer = Signer::load(store, None).await.unwrap();
    let anchor = Anchor::next(&moved, store.id().await.unwrap(), Timestamp::now(), &signer).unwrap();
    assert!(store.put_anchor(anchor.stored()).await.unwrap());
}

#[tokio::test]
async fn a_run_is_purged_by_two_calls_with_an_anchor_in_between() {
    let context = TestContext::new();
    let store = context.store().await;
    create_run(&*store, false).await;
    let run = store.find("default", "agent").await.unwrap().remove(0);
    let (_, text) = purge(&context, "2999-01-01", &["--dry-run"]);
    assert!(text.contains("would be purged: 0 runs"), "a live run: {text}");
    store.set_retention(run.id, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    store.mark_deleted(&run.object_uid, &RequestedBy::default()).await.unwrap();
    while !store.expire(run.id, 500).await.unwrap().done {}

    for (before, namespace, runs) in
        [("1d", "default", 0), ("2026-01-01", "default", 0), ("0s", "other", 0), ("0s", "default", 1)]
    {
        let (success, text) = purge(&context, before, &["--namespace", namespace, "--dry-run"]);
        assert!(success && text.contains(&format!("would be purged: {runs} run")), "{before}: {text}");
    }
    let (success, text) = purge(&context, "0s", &[]);
    assert!(success && text.contains("0 runs were purged") && text.contains("1 run waits"), "{text}");
    let last = store.audit(run.id).await.unwrap().pop().unwrap();
    assert_eq!((last.kind.as_str(), last.actor.as_str()), ("purged", "grace"));
    anchor(&*store).await;
    let (success, text) = purge(&context, "0s", &[]);
    assert!(success && text.contains("1 run was purged") && !text.contains("wait"), "{text}");
    let (success, text) = context.run(&["audit", "verify"], true);
    assert!(success && text.contains("0 problems") && text.contains("1 run was purged"), "{text}");
    let (success, text) = context.run(&["show", RUN], true);
    assert!(!success && text.contains("has never had"), "{text}");
    let (success, text) = purge(&context, "yesterday", &[]);
    assert!(!success && text.contains("90d"), "{text}");
}
