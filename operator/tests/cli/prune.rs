//! `dalsegno audit` with a copy of the anchors: how the copy is read, and what `prune` deletes.

use std::fs::File;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dalsegno_model::{AuditRow, BudgetReset, RequestedBy, RunId, Store};
use dalsegno_proof::{Anchor, Signer};
use jiff::Timestamp;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::pg;
use crate::test_context::{RUN, TestContext, create_run};

/// Time of the first anchor, and the day after.
const DAY: &str = "2026-05-01T12:00:00Z";
const NEXT_DAY: &str = "2026-05-02";

/// Anchors the changed runs as the operator does. The log is the file `operator.log` of the context.
async fn anchor(context: &TestContext, store: &dyn Store, at: &str) {
    anchor_by(&Signer::load(store, None).await.unwrap(), context, store, at).await;
}

async fn anchor_by(signer: &Signer, context: &TestContext, store: &dyn Store, at: &str) {
    let (moved, id) = (store.heads_to_anchor(RunId::nil()).await.unwrap(), store.id().await.unwrap());
    assert!(Anchor::is_due(&moved).unwrap());
    let anchor = Anchor::next(&moved, id, at.parse::<Timestamp>().unwrap(), signer).unwrap();
    assert!(store.put_anchor(anchor.stored()).await.unwrap());
    let before = std::fs::read_to_string(context.path("operator.log")).unwrap_or("another line\n".into());
    std::fs::write(context.path("operator.log"), before + &anchor.line().text().unwrap() + "\n").unwrap();
}

/// The id of the run, and its audit.
async fn audit(store: &dyn Store) -> (RunId, Vec<AuditRow>) {
    let found = store.find("default", "agent").await.unwrap();
    (found[0].id, store.audit(found[0].id).await.unwrap())
}

fn prune(context: &TestContext, copy: &str, before: &str, more: &[&str]) -> (bool, String) {
    let command = ["audit", "prune", "--anchors", copy, "--before", before, "--reason", "it is archived"];
    context.run(&[&command, more].concat(), true)
}

#[tokio::test]
async fn a_copy_is_read_from_a_collected_log_and_from_standard_input() {
    let context = TestContext::new();
    let store = context.store().await;
    create_run(&*store, false).await;
    anchor(&context, &*store, DAY).await;
    let log = std::fs::read_to_string(context.path("operator.log")).unwrap();
    let (first, line) = log.split_once('\n').unwrap();
    let collected =
        [b"\xff not text\n", first.as_bytes(), b"\n2027-01-31T12:00:00Z stdout F ", line.as_bytes()];
    let copy = context.path("collected.log");
    std::fs::write(&copy, collected.concat()).unwrap();

    let (success, text) = context.run(&["audit", "verify", "--anchors", &copy], true);
    assert!(success && text.contains("1 in the copy: 0 problems"), "{text}");
    let (verify, input) = (["audit", "verify", "--anchors", "-"], || File::open(&copy).unwrap());
    let (success, text) = context.run_with_input(input(), &verify, true);
    assert!(success && text.contains("1 in the copy: 0 problems"), "{text}");
    let (success, text) = context.run(&verify, true);
    assert!(!success && text.contains("contains no anchor") && text.contains(r#"{"anchor":{"#), "{text}");
    let command = ["audit", "prune", "--anchors", "-", "--before", NEXT_DAY, "--reason", "it is archived"];
    let (success, text) = context.run_with_input(input(), &command, true);
    assert!(success && text.contains("rows of 1 run"), "{text}");
}

#[tokio::test]
async fn a_public_key_without_a_copy_of_the_anchors_is_rejected() {
    let context = TestContext::new();
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let (success, text) = context.run(&["audit", "verify", "--public-key", key], true);
    assert!(!success && text.contains("--anchors <FILE>"), "{text}");
}

#[tokio::test]
async fn rows_that_an_anchor_named_before_that_day_are_pruned_and_the_rest_still_verifies() {
    let context = TestContext::new();
    let (store, copy) = (context.store().await, context.path("operator.log"));
    create_run(&*store, false).await;
    let (id, before) = audit(&*store).await;
    anchor(&context, &*store, DAY).await;
    store.request_cancel(id, &RequestedBy::default()).await.unwrap();
    anchor(&context, &*store, "2026-05-03T12:00:00Z").await;

    let (success, text) = prune(&context, &copy, "2026-05-01", &[]);
    assert!(success && text.contains("pruned: 0 rows of 0 runs"), "{text}");
    let (success, text) = prune(&context, &copy, NEXT_DAY, &["--by", "grace"]);
    assert!(success && text.contains(&format!("{} rows of 1 run", before.len())), "{text}");

    let (_, after) = audit(&*store).await;
    assert_eq!(after[0].seq, before.len() as i64 + 1);
    let last = after.last().unwrap();
    assert_eq!((last.kind.as_str(), last.actor.as_str()), ("pruned", "grace"));
    assert!(last.detail.contains(r#""reason":"it is archived""#), "{}", last.detail);
    for command in [&["audit", "verify", "--anchors", &copy][..], &["audit", "verify"], &["verify", RUN]] {
        let (success, text) = context.run(command, true);
        assert!(success && text.contains("0 problems"), "{command:?}: {text}");
    }
    let (success, text) = prune(&context, &copy, NEXT_DAY, &[]);
    assert!(success && text.contains("pruned: 0 rows of 0 runs"), "once: {text}");
}

#[tokio::test]
async fn anchors_are_pruned_after_an_anchor_of_the_copy_has_announced_it() {
    let context = TestContext::new();
    let (store, copy) = (context.store().await, context.path("operator.log"));
    let quiet = create_run(&*store, false).await;
    for day in 1..=3 {
        anchor(&context, &*store, &format!("2026-05-0{day}T12:00:00Z")).await;
        if day < 3 {
            store.request_cancel(quiet, &RequestedBy::default()).await.unwrap();
            let reset = BudgetReset { observed: day - 1, to: day, requested_by: RequestedBy::default() };
            store.reset_budget(quiet, &reset).await.unwrap();
        }
    }
    let anchors = async || {
        let mut reading = store.begin_read().await.unwrap();
        reading.anchors(0).await.unwrap().iter().map(|row| row.seq).collect::<Vec<_>>()
    };
    let (success, text) = prune(&context, &copy, "2026-05-03", &[]);
    assert!(success && text.contains("pruned: 0 anchors"), "{text}");
    assert!(text.contains("anchors before 3 can be pruned by the next `audit prune`"), "{text}");
    let (success, text) = prune(&context, &copy, "2026-05-03", &[]);
    assert!(success && text.contains("pruned: 0 anchors"), "the copy does not announce it: {text}");
    assert_eq!(anchors().await, [1, 2, 3]);

    anchor(&context, &*store, "2026-05-04T12:00:00Z").await;
    let (success, text) = prune(&context, &copy, "2026-05-03", &[]);
    assert!(success && text.contains("pruned: 2 anchors"), "{text}");
    assert_eq!(anchors().await, [3, 4]);
    let lines = std::fs::read_to_string(&copy).unwrap();
    let last = context.path("last.log");
    std::fs::write(&last, lines.lines().last().unwrap()).unwrap();
    for copy in [&copy, &last] {
        let (success, text) = context.run(&["audit", "verify", "--anchors", copy], true);
        assert!(success && text.contains("0 problems"), "{text}");
    }
    let (success, text) = context.run(&["audit", "verify"], true);
    assert!(success && text.contains("0 problems"), "{text}");
    // A copy from before the announcement does not know that they were to go.
    let early: Vec<_> = lines.lines().take(4).collect();
    std::fs::write(&last, early.join("\n")).unwrap();
    let (success, text) = context.run(&["audit", "verify", "--anchors", &last], true);
    assert!(!success && text.contains("anchor 1 was expected: some are missing"), "{text}");
}

#[tokio::test]
async fn a_copy_signed_by_two_keys_needs_both_public_keys() {
    let (context, other) = (TestContext::new(), TestContext::new());
    let (store, copy) = (context.store().await, context.path("operator.log"));
    let (id, mut keys) = (create_run(&*store, false).await, Vec::new());
    for (at, keeper) in [(DAY, &context), ("2026-05-03T12:00:00Z", &other)] {
        let signer = Signer::load(&*keeper.store().await, None).await.unwrap();
        anchor_by(&signer, &context, &*store, at).await;
        store.request_cancel(id, &RequestedBy::default()).await.unwrap();
        keys.extend(["--public-key".to_owned(), STANDARD.encode(signer.public_key())]);
    }
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    let (success, text) = prune(&context, &copy, NEXT_DAY, &keys[2..]);
    assert!(!success && text.contains("not signed by the key"), "{text}");
    let (success, text) = prune(&context, &copy, NEXT_DAY, &keys);
    assert!(success && text.contains("rows of 1 run"), "{text}");
}

#[tokio::test]
async fn nothing_is_pruned_if_the_copy_does_not_prove_the_store() {
    let (context, other) = (TestContext::new(), TestContext::new());
    let (store, copy) = (context.store().await, context.path("operator.log"));
    for context in [&context, &other] {
        let store = context.store().await;
        create_run(&*store, false).await;
        anchor(context, &*store, DAY).await;
    }
    let before = audit(&*store).await;
    std::fs::write(context.path("empty.log"), "another line\n").unwrap();
    let lines = std::fs::read_to_string(&copy).unwrap();
    std::fs::write(context.path("edited.log"), lines.replace("\"seq\":1", "\"seq\":2")).unwrap();
    let another = ["--public-key", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="];
    for (copy, more, why) in [
        (other.path("operator.log"), &[][..], "the store differs from what was written"),
        (context.path("edited.log"), &[], "the store differs from what was written"),
        (copy, &another, "not signed by the key"),
        (context.path("empty.log"), &[], "contains no anchor"),
        (context.path("missing.log"), &[], "missing.log"),
    ] {
        let (success, text) = prune(&context, &copy, NEXT_DAY, more);
        assert!(!success && text.contains(why) && text.contains("nothing was pruned"), "{copy}: {text}");
        assert_eq!(audit(&*store).await, before, "{copy}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgresql_only_the_owner_of_the_tables_can_prune() {
    let owner = TestContext::at(pg::database().await);
    let mut session = PgConnection::connect(&owner.url).await.unwrap();
    session.execute("CREATE ROLE app LOGIN").await.unwrap();
    let (success, text) = owner.run(&["migrate", "--grant-to", "app"], false);
    assert!(success, "{text}");
    let app = TestContext::at(owner.url.replacen("postgres@", "app@", 1));
    let store = app.migrated_store().await;
    create_run(&*store, false).await;
    anchor(&app, &*store, DAY).await;
    let before = audit(&*store).await;

    let copy = app.path("operator.log");
    let (success, text) = prune(&app, &copy, NEXT_DAY, &[]);
    assert!(!success && text.contains("the role that owns its tables"), "{text}");
    assert_eq!(audit(&*store).await, before);
    let (success, text) = prune(&owner, &copy, NEXT_DAY, &[]);
    assert!(success && text.contains(&format!("{} rows of 1 run", before.1.len())), "{text}");
    let (success, text) = app.run(&["audit", "verify", "--anchors", &copy], true);
    assert!(success && text.contains("0 problems"), "{text}");
}
